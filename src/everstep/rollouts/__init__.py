"""Rollouts: the storage of what was collected, and how it is cut into minibatches."""

from ._rollout import Rollout, episode_keys_of
from ._sequences import Minibatch, Sequences

__all__ = ["Minibatch", "Rollout", "Sequences", "episode_keys_of"]
