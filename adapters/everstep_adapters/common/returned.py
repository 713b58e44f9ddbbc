"""Checks of the observations that single environments return, beside their spaces.

Gymnasium's vector classes write it into memory of the space's shape and dtype: keys that a space
lacks are dropped, and an `AsyncVectorEnv` broadcasts and casts whatever comes, in its processes.
They import this module, so it imports little.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from everstep.errors import EnvError

from .hooks import Hook

#: Observations of a nested space that are looked at, from the first reset on.
LOOKS = 8

#: End of messages about observations.
WAY_OUT = "Return what `observation_space` says, or change it."

#: Spaces whose values are arrays.
_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class Returned:
    """Check of the observations of one environment.

    All of a `Box` are looked at, which costs a comparison where shape and dtype are the space's.
    Of other spaces, whose structure takes microseconds, the first ones are.

    Args:
        space: Observation space of the environment.
        name: Name of an observation in errors.

    """

    def __init__(self, space: spaces.Space[Any], name: str = "obs") -> None:
        self._space, self._left, self._name = space, LOOKS, name
        self._is_box = isinstance(space, spaces.Box)
        self._shape, self._dtype = space.shape, space.dtype

    def check(self, observation: Any) -> None:
        """Look at an observation.

        Raises:
            EnvError: If it is none of the space; names the leaf, what is expected, and what came.

        """
        if self._is_box:
            is_array = type(observation) is np.ndarray
            if is_array and observation.shape == self._shape and observation.dtype == self._dtype:
                return
        elif not self._left:
            return
        else:
            self._left -= 1
        for found in mismatches(self._space, observation, self._name):
            raise EnvError(f"{found}. {WAY_OUT}")


class Checked(Hook):
    """`reset` or `step` of a single environment; an observation that is none of its space raises.

    Args:
        env: The environment.
        name: Name of the method.
        returned: Check of its observations.

    """

    def __init__(self, env: Any, name: str, returned: Returned) -> None:
        super().__init__(env, name)
        self._returned = returned

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the call."""
        result = self.original(*args, **kwargs)
        if isinstance(result, tuple) and len(result) in (2, 5):  # else its caller fails
            self._returned.check(result[0])
        return result


def check_returned(env: Any) -> None:
    """Let `reset` and `step` of a single environment check the observations that they return."""
    if not isinstance(env.reset, Checked):
        returned = Returned(env.observation_space)
        for name in ("reset", "step"):
            Checked(env, name, returned)


def mismatches(
    space: spaces.Space[Any], value: Any, name: str, *, is_batch: bool = False
) -> Iterator[str]:
    """Differences of structure, shape and dtype between a value and its space.

    Args:
        space: The space.
        value: The value.
        name: Name of the value, such as `obs['camera']`.
        is_batch: Whether it is a batch of such values. Only what the space lacks is looked for.

    """
    if isinstance(space, spaces.Dict):
        parts = space.spaces
        if not isinstance(value, Mapping):
            if not is_batch:
                yield f"`{name}` must be a dict of {list(parts)}; got {_kind(value)}"
        elif value.keys() - parts.keys() or (parts.keys() - value.keys() and not is_batch):
            yield f"`{name}` must have the keys {list(parts)}; got {list(value)}"
        else:
            for key in value:
                yield from mismatches(parts[key], value[key], f"{name}[{key!r}]", is_batch=is_batch)
    elif isinstance(space, spaces.Tuple):
        # A single one may be an array, as in `Tuple.contains`.
        is_array = isinstance(value, np.ndarray) and value.ndim > 0
        is_tuple = isinstance(value, tuple) or (
            not is_batch and (isinstance(value, list) or is_array)
        )
        if is_batch and not is_tuple:
            return
        if not is_tuple or len(value) != len(space):
            size = f" of {len(value)}" if is_tuple else ""
            yield f"`{name}` must be a tuple of {len(space)}; got {_kind(value)}{size}"
            return
        for i, (part, item) in enumerate(zip(space, value, strict=True)):
            yield from mismatches(part, item, f"{name}[{i}]", is_batch=is_batch)
    elif isinstance(space, _ARRAYS) and not is_batch:
        yield from _array_mismatches(space.shape or (), np.dtype(space.dtype), value, name)


def _array_mismatches(
    shape: tuple[int, ...], dtype: np.dtype[Any], value: Any, name: str
) -> Iterator[str]:
    try:
        array = np.asarray(value)
    except ValueError:  # of lists of different lengths
        yield f"`{name}` must be an array of shape {shape}; got {_kind(value)} of different lengths"
        return
    except (RuntimeError, TypeError) as error:  # of tensors
        reason = str(error).rstrip(".")
        yield f"`{name}` must be an array of shape {shape}; got {_kind(value)}: {reason}"
        return
    if array.dtype.kind in "OUSV":
        yield f"`{name}` must be an array of shape {shape}; got {_kind(value)}"
    elif array.shape != shape:
        yield f"`{name}` must have shape {shape}; got {array.shape}"
    elif not np.can_cast(array.dtype, dtype, "same_kind"):
        yield f"`{name}` must have a dtype that fits {dtype}; got {array.dtype}"
    elif dtype.kind in "iu" and not np.can_cast(array.dtype, dtype):
        yield from _out_of_range(array, dtype, name)


def _kind(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def check_range(values: npt.NDArray[Any], dtype: np.dtype[Any], name: str) -> None:
    """Check that integers are numbers of `dtype`.

    Raises:
        EnvError: If one is not; it would become another number.

    """
    for found in _out_of_range(values, dtype, name):
        raise EnvError(f"{found}. Return what the space has, or declare that dtype.")


def _out_of_range(values: npt.NDArray[Any], dtype: np.dtype[Any], name: str) -> Iterator[str]:
    limits = np.iinfo(dtype)
    outside = (values < limits.min) | (values > limits.max)
    if outside.any():
        yield (
            f"`{name}` must hold numbers of {dtype}, {limits.min} to {limits.max}, as the "
            f"environment's spaces say; got {values[outside].flat[0]} ({values.dtype}), which "
            "needs a wider dtype"
        )
