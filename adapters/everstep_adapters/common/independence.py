"""Checks that the rows of an environment are independent of each other.

Environments and simulations that several rows have in common are found when the rows are wrapped.
Shared memory is compared after the first env steps: rows may share tables that never change.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from everstep.errors import AdapterError, EnvError

from .layers import attributes, layers

#: How methods begin that move a simulation on, and those that put it back.
_MOVES, _RETURNS = ("step", "simulate", "advance", "act"), ("reset", "destroy", "reload")

#: Entries of a list or mapping that are looked at: robots and cameras, not tables of data.
_FEW = 64

_WAY_OUT = (
    "would write into each other's episodes. Make each row's environment, with all that it "
    "simulates, in its own call: `SyncVectorEnv([make] * 8)` where `make` builds a new one, or "
    "give `everstep.make` the class."
)


def check_independent(envs: Sequence[Any], name: str) -> None:
    """Check that no two rows are one environment, or move one simulation.

    Args:
        envs: The environments of the rows, each perhaps in wrappers.
        name: Name of the whole in errors.

    Raises:
        AdapterError: If two are not independent; names the rows and what they have in common.

    """
    owners: dict[int, int] = {}
    for row, env in enumerate(envs):
        for what, part in _parts(env):
            other = owners.setdefault(id(part), row)
            if other != row and what(part):
                raise AdapterError(
                    f"Rows {other} and {row} of {name} have one {what(part)}, so they {_WAY_OUT}"
                )


def _parts(env: Any) -> Iterator[tuple[Any, Any]]:
    """Layers of an environment and what they hold, each with a function that names it."""
    found = layers(env)
    for layer in found:
        yield _named_environment, layer
    for layer in found:
        for name, value in _held(layer):
            yield (_named_generator if name.endswith("np_random") else _named_part), value
            if not _is_of_library(value):
                inner = attributes(value).values()
                yield from ((_named_part, x) for each in list(inner) for x in _inside(each))


def _held(layer: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of a layer and its class, and entries of lists and mappings among them."""
    own: dict[str, Any] = {}
    for kind in reversed(type(layer).__mro__):
        if not _is_of_library(kind):
            own |= vars(kind)
            slots = own.pop("__slots__", ())
            names = [slots] if isinstance(slots, str) else slots
            own |= {name: getattr(layer, name) for name in names if hasattr(layer, name)}
    for name, value in (own | attributes(layer)).items():
        yield from ((name, x) for x in _inside(value))


def _inside(value: Any, depth: int = 2) -> Iterator[Any]:
    """A value, and what is in it if it is a short list or mapping."""
    yield value
    kind = type(value)  # `isinstance` may call code of the object
    if issubclass(kind, dict | list | tuple) and len(value) <= _FEW and depth:
        for inner in list(value.values() if issubclass(kind, dict) else value):
            yield from _inside(inner, depth - 1)


def _is_of_library(value: Any) -> bool:
    """Whether a class, or an object's class, is Python's or of a library of arrays and spaces."""
    kind = value if issubclass(type(value), type) else type(value)
    return kind.__module__.partition(".")[0] in ("builtins", "numpy", "gymnasium", "torch")


def _named_environment(layer: Any) -> str:
    return f"environment, {type(layer).__name__}"


def _named_generator(value: Any) -> str:
    return "" if value is None else "generator of random numbers, `np_random`"


def _named_part(value: Any) -> str:
    """A simulation by name; empty for all else, such as spaces and tables, which rows may share."""
    kind = type(value)
    if kind.__module__.partition(".")[0] in ("builtins", "numpy", "gymnasium"):
        return ""
    names = [x.lower() for x in dir(kind) if not x.startswith("_")]
    moves = any(x.startswith(_MOVES) for x in names) and any(x.startswith(_RETURNS) for x in names)
    return f"simulation, {kind.__name__}" if moves or kind.__name__ == "MjData" else ""


class MemoryCheck:
    """Check that rows do not write into one memory: arrays that they hold, or that they return.

    Args:
        envs: The environments of the rows.
        name: Name of the whole in errors.

    """

    def __init__(self, envs: Sequence[Any], name: str) -> None:
        self._name = name
        held: dict[int, tuple[str, npt.NDArray[Any], set[int]]] = {}
        for row, env in enumerate(envs):
            for label, array in _held_arrays(env):
                held.setdefault(id(array), (label, array, set()))[2].add(row)
        #: Arrays that several rows hold, and copies of them; most often there are none.
        self._shared = [
            (x, array, array.copy()) for x, array, rows in held.values() if len(rows) > 1
        ]

    def check(self, observations: Sequence[Any]) -> None:
        """Check that shared arrays have not changed, and that the observations share no memory.

        Raises:
            EnvError: If rows write into the same memory.

        """
        for label, array, before in self._shared:
            if array.tobytes() != before.tobytes():
                raise EnvError(
                    f"The rows of {self._name} write into one array, `{label}`, so they {_WAY_OUT}"
                )
        pair = _overlapping([list(_arrays_in(x)) for x in observations])
        if pair is not None:
            raise EnvError(
                f"Rows {pair[0]} and {pair[1]} of {self._name} return observations in one memory, "
                "so each row would show the last one's. Let each environment have an array of its "
                "own (`self.state = np.zeros(…)` in its constructor, not in its class), or return "
                "copies."
            )


def _held_arrays(env: Any) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Arrays that can be written to, of an environment, its wrappers and their classes."""
    for layer in layers(env):
        values: dict[str, Any] = {}
        for kind in reversed(type(layer).__mro__):
            values |= vars(kind)
        values |= attributes(layer)
        for name, value in values.items():
            if issubclass(type(value), np.ndarray) and value.flags.writeable:
                yield f"{type(layer).__name__}.{name}", value


def _arrays_in(value: Any) -> Iterator[npt.NDArray[Any]]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _arrays_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _arrays_in(item)


def _overlapping(rows: Sequence[Sequence[npt.NDArray[Any]]]) -> None | tuple[int, int]:
    """Two rows with an array in the same memory that can be written to; None if there are none."""
    spans = sorted(
        (*np.lib.array_utils.byte_bounds(array), row, i)
        for row, arrays in enumerate(rows)
        for i, array in enumerate(arrays)
        if array.flags.writeable and array.nbytes
    )
    for (_, end, row, i), (start, _, other, j) in pairwise(spans):
        if start < end and row != other and shares(rows[row][i], rows[other][j]):
            return min(row, other), max(row, other)
    return None


def shares(one: Any, other: Any) -> bool:
    """Whether two arrays or tensors have memory in common; never waits for a device."""
    one, other = _Addresses.of(one), _Addresses.of(other)
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    try:
        return np.shares_memory(one, other, max_work=10**5)  # type: ignore[arg-type]  # any number
    except np.exceptions.TooHardError:
        return np.may_share_memory(one, other)


class _Addresses:
    """The memory of a tensor of any device, for NumPy to compare and never to read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), True),
            # Bytes: NumPy 2.1 crashes with "|V4", and it reads what has no dimension.
            "shape": (*tensor.shape, size),
            "strides": (*(size * step for step in tensor.stride()), 1),
            "typestr": "|u1",
        }

    @classmethod
    def of(cls, value: Any) -> Any:
        """An array of the addresses of a tensor that has some; other values are the same ones."""
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        has_memory = not is_lazy(value) and value.numel() and value.data_ptr()
        return np.asarray(cls(value)) if has_memory else None
