"""Trees as few arrays: each that enters or leaves a compiled call takes a microsecond or more."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .source import Tree

#: Largest leaf that is joined, in bytes: to copy a larger one takes longer than to pass it.
_SMALL = 2**16


class Piece(NamedTuple):
    """Place of a leaf: elements `start` to `end` of an array."""

    #: Index of the array.
    array: int

    #: First element.
    start: int

    #: One past the last element.
    end: int

    #: Shape of the leaf.
    shape: tuple[int, ...]


class Packing:
    """Leaves of a tree, the small ones of a dtype joined to one array.

    Args:
        shapes: Tree of the shapes and dtypes.

    """

    #: Place of each leaf, in the tree's order.
    pieces: list[Piece]

    #: Indices of the leaves in each array, in their order there.
    groups: list[list[int]]

    #: Dtypes of the leaves.
    dtypes: list[Any]

    def __init__(self, shapes: Tree) -> None:
        leaves, self._structure = jax.tree_util.tree_flatten(shapes)
        self.dtypes = [x.dtype for x in leaves]
        self._is_key = [jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
        groups: dict[Any, list[int]] = {}
        for i, x in enumerate(leaves):
            is_small = not self._is_key[i] and x.size * x.dtype.itemsize <= _SMALL
            groups.setdefault(x.dtype if is_small else i, []).append(i)
        self.groups = list(groups.values())
        found: dict[int, Piece] = {}
        for array, group in enumerate(self.groups):
            end = 0
            for i in group:
                start, end = end, end + leaves[i].size
                found[i] = Piece(array, start, end, leaves[i].shape)
        self.pieces = [found[i] for i in range(len(leaves))]

    def join(self, tree: Tree) -> tuple[jax.Array, ...]:
        """The arrays, which are flat; part of a compiled function."""
        columns = zip(jax.tree_util.tree_leaves(tree), self.dtypes, self._is_key, strict=True)
        leaves = [x if is_key else x.astype(dtype).reshape(-1) for x, dtype, is_key in columns]
        parts = ([leaves[i] for i in group] for group in self.groups)
        return tuple(x[0] if len(x) == 1 else jnp.concatenate(x) for x in parts)

    def split(self, arrays: Sequence[Any]) -> list[Any]:
        """Views of the leaves, in the tree's order, in arrays or tensors."""
        columns = zip(self.pieces, self._is_key, strict=True)
        return [
            arrays[x.array] if is_key else arrays[x.array][x.start : x.end].reshape(x.shape)
            for x, is_key in columns
        ]

    def restore(self, arrays: Sequence[jax.Array]) -> Tree:
        """The tree of the leaves in these arrays."""
        return jax.tree_util.tree_unflatten(self._structure, self.split(arrays))
