"""Algorithms: `collect` experience, then `step` the policy with it."""

from ._algorithm import OnPolicyAlgorithm
from ._base import GenericAlgorithmBase
from ._config import AlgorithmConfig, RecurrentAlgorithmConfig
from ._feedforward import Algorithm
from ._operations import WorkerOperations
from ._recurrent import RecurrentAlgorithm

__all__ = [
    "Algorithm",
    "AlgorithmConfig",
    "GenericAlgorithmBase",
    "OnPolicyAlgorithm",
    "RecurrentAlgorithm",
    "RecurrentAlgorithmConfig",
    "WorkerOperations",
]
