"""Flags of rows applied to tensors of any shape."""

import torch


def align(rows: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Flags `[N, 1]` with as many dimensions as `leaf` `[N, …]`."""
    return rows.view(-1, *(1,) * (leaf.ndim - 1))


def fill_nan(leaf: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`leaf` with NaN in the rows marked `[N, 1]`, a copy; integers, without NaN, as they are."""
    return leaf.masked_fill(align(rows, leaf), torch.nan) if leaf.is_floating_point() else leaf
