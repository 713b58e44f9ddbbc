"""Sums, moments and statistics of all processes of one training.

Each process, a rank, steps its own environments and holds its own rows; weights and everything
that is computed from all rows are the same on every rank. `Reducer` is of one process, which has
everything already; `_group.GroupReducer` is of those that `torch.distributed` has connected.
"""

import torch.distributed as dist

from ._failures import report, reported, tell_failure
from ._single import Counter, Measured, Moments, Reducer
from ._statistics import reduce_stats

__all__ = [
    "Counter",
    "Measured",
    "Moments",
    "Reducer",
    "current_reducer",
    "reduce_stats",
    "report",
    "reported",
    "tell_failure",
]


def current_reducer() -> Reducer:
    """The reducer of this process: of a group, if `torch.distributed` is initialised."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return Reducer()
    from ._group import GroupReducer  # which a process alone does not need

    return GroupReducer()
