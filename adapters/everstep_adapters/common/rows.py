"""Flags of rows, and their application to tensors of any shape."""

import torch

from everstep.data import DataKeys

#: Episode keys that every environment with episodes has.
FLAGS = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST})


def align(rows: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Flags `[N, 1]` with as many dimensions as `leaf` `[N, …]`."""
    return rows.view(-1, *(1,) * (leaf.ndim - 1))


def fill_nan(leaf: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """A copy of `leaf` with NaN in the rows marked `[N, 1]`. Integers have no NaN and stay."""
    if not leaf.is_floating_point():
        return leaf.clone()
    return leaf.masked_fill(align(rows, leaf), torch.nan)
