"""Rollouts: the storage of what was collected, and how it is cut into minibatches."""

from ._rollout import Rollout
from ._sequences import Minibatch, Sequences

__all__ = ["Minibatch", "Rollout", "Sequences"]
