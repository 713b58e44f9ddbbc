"""Results of a compiled call as few arrays: each takes some microseconds, as much as small sums."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .functions import Tree

#: Largest array that is joined, in bytes: to copy a larger one takes longer than to pass it.
_SMALL = 2**16


class Packing:
    """Leaves of a tree, the small ones of a dtype joined to one array.

    Args:
        shapes: Tree of the shapes and dtypes.

    """

    def __init__(self, shapes: Tree) -> None:
        leaves = jax.tree_util.tree_leaves(shapes)
        small = [x.size * x.dtype.itemsize <= _SMALL for x in leaves]
        self._dtypes = [x.dtype for x in leaves]
        groups: dict[Any, list[int]] = {}
        for i, x in enumerate(leaves):
            groups.setdefault(x.dtype if small[i] else i, []).append(i)
        self._groups = list(groups.values())
        self._pieces: list[tuple[int, int, int, int, tuple[int, ...]]] = []
        for place, group in enumerate(self._groups):
            ends = np.cumsum([leaves[i].size for i in group]).tolist()
            starts = [0, *ends[:-1]]
            for i, start, end in zip(group, starts, ends, strict=True):
                self._pieces.append((i, place, start, end, leaves[i].shape))

    def join(self, tree: Tree) -> tuple[jax.Array, ...]:
        """Flat arrays of the leaves; part of a compiled function."""
        columns = zip(jax.tree_util.tree_leaves(tree), self._dtypes, strict=True)
        leaves = [x.astype(dtype).reshape(-1) for x, dtype in columns]
        return tuple(jnp.concatenate([leaves[i] for i in group]) for group in self._groups)

    def split(self, arrays: Sequence[Any]) -> list[Any]:
        """Views of the leaves, in the tree's order, in arrays of NumPy or tensors."""
        leaves: list[Any] = [None] * len(self._dtypes)
        for i, place, start, end, shape in self._pieces:
            leaves[i] = arrays[place][start:end].reshape(shape)
        return leaves
