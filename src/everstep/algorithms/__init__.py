"""Algorithms: `collect` experience, then `step` the policy with it."""

from ..core.hyperparameters import LIVE
from .algorithm import Algorithm, OnPolicyAlgorithm, RecurrentAlgorithm
from .config import AlgorithmConfig, RecurrentAlgorithmConfig
from .groups import GroupedAlgorithm
from .operations import WorkerOperations

#: rl8's name of the base of algorithms.
GenericAlgorithmBase = OnPolicyAlgorithm

__all__ = [
    "LIVE",
    "Algorithm",
    "AlgorithmConfig",
    "GenericAlgorithmBase",
    "GroupedAlgorithm",
    "OnPolicyAlgorithm",
    "RecurrentAlgorithm",
    "RecurrentAlgorithmConfig",
    "WorkerOperations",
]
