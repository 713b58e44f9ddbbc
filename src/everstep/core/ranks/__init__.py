"""Sums, moments and statistics of all processes of one training.

Each process, a rank, steps its own environments and holds its own rows; weights and everything
that is computed from all rows are the same on every rank. `Reducer` is of one process, which has
everything already; `GroupReducer` is of those that `torch.distributed` has connected.
"""

from ._failures import report, reported, tell_failure
from ._group import CHECK_EVERY, GroupReducer, current_reducer, seed_of
from ._single import Counter, Measured, Moments, Reducer
from ._statistics import reduce_stats

__all__ = [
    "CHECK_EVERY",
    "Counter",
    "GroupReducer",
    "Measured",
    "Moments",
    "Reducer",
    "current_reducer",
    "reduce_stats",
    "report",
    "reported",
    "seed_of",
    "tell_failure",
]
