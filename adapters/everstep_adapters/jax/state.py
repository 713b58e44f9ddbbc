"""Trees of JAX's arrays as tensors, for checkpoints, and back."""

from typing import Any

import jax
import numpy as np
import torch

from everstep.errors import CheckpointError


def to_tensors(tree: Any) -> list[torch.Tensor]:
    """Copies of the leaves of a tree on the host, in its order; keys as their numbers."""
    return [torch.from_numpy(np.array(_data(x))) for x in jax.tree_util.tree_leaves(tree)]


def from_tensors(library: Any, tensors: Any, like: Any, *, name: str) -> Any:
    """The tree of these leaves.

    Args:
        library: JAX.
        tensors: What `to_tensors` returned.
        like: Tree of shapes and dtypes.
        name: Name of the environment in errors.

    Raises:
        CheckpointError: If there are others than in `like`.

    """
    shapes, structure = library.tree_util.tree_flatten(like)
    wanted = [_layout(x) for x in shapes]
    found = [(tuple(x.shape), x.numpy().dtype.name) for x in tensors]
    if wanted != found:
        raise CheckpointError(
            f"The state is not one of this {name}: its arrays are {found}; expected {wanted}. Make "
            "it with the `num_envs` and the options of the run."
        )
    return structure.unflatten(map(_array, tensors, shapes))


def _data(leaf: Any) -> Any:
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _layout(leaf: Any) -> tuple[tuple[int, ...], str]:
    data = jax.eval_shape(_data, leaf)
    return tuple(data.shape), np.dtype(data.dtype).name


def _array(tensor: torch.Tensor, like: Any) -> Any:
    array = jax.numpy.array(tensor.numpy())
    is_key = jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key)
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like)) if is_key else array
