"""Rollouts: the storage of what was collected, and how it is cut into minibatches."""

from ._rollout import Rollout, clean_rows, episode_keys_of, unread_of
from ._sequences import Caches, Minibatch, Sequences

__all__ = [
    "Caches",
    "Minibatch",
    "Rollout",
    "Sequences",
    "clean_rows",
    "episode_keys_of",
    "unread_of",
]
