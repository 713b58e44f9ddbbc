"""Algorithms: `collect` experience, then `step` the policy with it."""

from ._algorithm import Algorithm
from ._base import GenericAlgorithmBase
from ._config import AlgorithmConfig

__all__ = ["Algorithm", "AlgorithmConfig", "GenericAlgorithmBase"]
