"""Gymnasium's spaces from the JSON that the server describes its spaces with."""

import base64
import binascii
import inspect
import math
from typing import Any

import numpy as np
from gymnasium import spaces

from everstep.errors import AdapterError

#: Elements of the largest array of one row: what a server names is checked before it is allocated.
LARGEST = 2**28

#: Levels of the deepest nesting.
DEEPEST = 16


def space_from(described: Any, depth: int = 0) -> spaces.Space[Any]:
    """The space of a description.

    Raises:
        AdapterError: If it is no description of a space.

    """
    try:
        return _space(described, depth)
    except (
        AssertionError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        binascii.Error,
    ) as error:
        text = str(described)
        shown = text if len(text) < 200 else f"{text[:200]}…"
        raise AdapterError(
            f"The server described a space that is none: {shown} ({error})."
        ) from error


def _space(described: Any, depth: int) -> spaces.Space[Any]:
    kind = described["kind"]
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} levels")
    if kind == "Dict":
        return spaces.Dict({str(key): _space(x, depth + 1) for key, x in described["spaces"]})
    if kind == "Tuple":
        return spaces.Tuple([_space(x, depth + 1) for x in described["spaces"]])
    if kind == "MultiBinary":
        return spaces.MultiBinary(_shape(described["shape"]))
    dtype = np.dtype(described["dtype"])
    if dtype.kind not in "biuf":
        raise ValueError(f"the dtype {dtype} is no number")
    if kind == "Box":
        shape = _shape(described["shape"])
        low, high = (_bound(described[end], shape, dtype) for end in ("low", "high"))
        return spaces.Box(low, high, shape, dtype=dtype.type)
    if kind == "Discrete":
        n, start = int(described["n"]), int(described["start"])
        if dtype == np.int64 or "dtype" not in inspect.signature(spaces.Discrete).parameters:
            return spaces.Discrete(n, start=start)  # Gymnasium 1.1 has one dtype
        return spaces.Discrete(n, start=start, dtype=dtype.type)
    if kind == "MultiDiscrete":
        nvec = np.asarray(described["nvec"], dtype=np.int64)
        start = described.get("start")
        first = None if start is None else np.asarray(start, dtype=dtype)
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=first)
    raise ValueError(f"the kind {kind!r} is unknown")


def _shape(sizes: Any) -> tuple[int, ...]:
    shape = tuple(int(size) for size in sizes)
    if any(size < 0 for size in shape) or math.prod(shape) > LARGEST:
        raise ValueError(f"the shape {list(shape)} has more than {LARGEST} elements")
    return shape


def _bound(end: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The bounds of all elements: one number, or the bytes of an array."""
    if isinstance(end, str):
        return np.frombuffer(base64.b64decode(end, validate=True), dtype).reshape(shape)
    return np.full(shape, end, dtype)
