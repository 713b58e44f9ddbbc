"""Values of environments' attributes as a checkpoint holds them: tensors, numbers and strings."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from everstep.errors import CheckpointError


def encode(value: Any) -> Any:
    """An attribute as a checkpoint holds it: arrays are tensors, NumPy's scalars marked ones."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return {"scalar": torch.from_numpy(np.array(value))}
    if isinstance(value, list | tuple):
        items = [encode(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def decode(value: Any) -> Any:
    """The attribute that `encode` was given.

    Raises:
        CheckpointError: If `encode` makes no such value.

    """
    if isinstance(value, torch.Tensor):
        return value.cpu().numpy().copy()
    if isinstance(value, dict) and [*value] == ["scalar"] and value["scalar"].ndim == 0:
        return value["scalar"].cpu().numpy()[()]
    if isinstance(value, list | tuple):
        items = [decode(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"expected a number, string or tensor; got {str(value)[:80]}")


def decode_like(own: np.ndarray[Any, Any], value: Any, name: str) -> np.ndarray[Any, Any]:
    """The array that `encode` was given, of the shape and dtype of one's own.

    Raises:
        CheckpointError: If it has another shape or dtype.

    """
    array = decode(value)
    if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (own.shape, own.dtype):
        given = f"{getattr(array, 'dtype', type(array).__name__)} {np.shape(array)}"
        raise CheckpointError(f"`{name}` must be {own.dtype} {own.shape}; got {given}")
    return array


def encode_generator(generator: None | np.random.Generator) -> Any:
    """The state of a random generator; None for none."""
    return None if generator is None else _map(generator.bit_generator.state, encode)


def decode_generator(state: dict[str, Any]) -> np.random.Generator:
    """A random generator with a state.

    Raises:
        CheckpointError: If it names none of NumPy's bit generators.

    """
    name = state["bit_generator"]
    kinds = {kind.__name__: kind for kind in np.random.BitGenerator.__subclasses__()}
    kind: Any = kinds.get(str(name))  # not another attribute of NumPy, which a file must not call
    if kind is None:
        raise CheckpointError(f"NumPy has no bit generator {name!r}.")
    bits: Any = kind()
    bits.state = _map(state, decode)
    return np.random.Generator(bits)


def _map(state: Any, function: Callable[[Any], Any]) -> Any:
    """A nested mapping with a function applied to its values."""
    if isinstance(state, dict) and "scalar" not in state:
        return {key: _map(value, function) for key, value in state.items()}
    return function(state)
