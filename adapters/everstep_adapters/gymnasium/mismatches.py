"""Reasons for errors inside vector environments: what one environment does otherwise."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from .rows import VECTOR_REWARDS

#: How an environment with gym's interface becomes one of Gymnasium.
FROM_GYM = (
    "Shimmy converts environments of gym (pip install shimmy): give a function such as "
    "`lambda: shimmy.GymV21CompatibilityV0(env=MyEnv())`, or GymV26CompatibilityV0 if `step` "
    "returns five values"
)

#: NumPy's words where a `SyncVectorEnv` writes a vector into its array of rewards.
_OF_VECTORS = "setting an array element with a sequence"

_INTERFACE = (
    "Gymnasium's `reset(self, *, seed=None, options=None)` returns an observation and a dict, and "
    "`step` returns five values: observation, reward, terminated, truncated and a dict. "
)


def explain(env: Any, error: Exception) -> str:
    """Difference of an environment from its spaces or Gymnasium's interface, as sentences.

    Empty if none is found.

    Args:
        env: The vector environment whose `reset` or `step` failed.
        error: The error.

    """
    text = str(error)
    if "unexpected keyword argument 'seed'" in text or "argument 'options'" in text:
        return f". {_INTERFACE}Add the parameters, and call `super().reset(seed=seed)`. {FROM_GYM}."
    if "values to unpack" in text:
        return f". {_INTERFACE}{FROM_GYM}."
    for i, obs in enumerate(env._env_obs if isinstance(env, SyncVectorEnv) else ()):
        for found in mismatches(env.single_observation_space, obs, "obs"):
            return (
                f". Environment {i}: {found}. Return what `observation_space` says, or change it."
            )
    if isinstance(env, SyncVectorEnv) and _OF_VECTORS in text:  # not an observation: those fit
        return f". {VECTOR_REWARDS}"
    return ""


def mismatches(space: spaces.Space[Any], value: Any, name: str) -> Iterator[str]:
    """Differences of structure, shape and dtype between a value and its space.

    Args:
        space: The space.
        value: The value.
        name: Name of the value, such as `obs['camera']`.

    """
    if isinstance(space, spaces.Dict):
        parts = space.spaces
        if not isinstance(value, Mapping):
            yield f"`{name}` must be a dict of {list(parts)}; got {_kind(value)}"
        elif value.keys() != parts.keys():
            yield f"`{name}` must have the keys {list(parts)}; got {list(value)}"
        else:
            for key, part in parts.items():
                yield from mismatches(part, value[key], f"{name}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space):
            size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
            yield f"`{name}` must be a tuple of {len(space)}; got {_kind(value)}{size}"
            return
        for i, (part, item) in enumerate(zip(space, value, strict=True)):
            yield from mismatches(part, item, f"{name}[{i}]")
    elif space.shape is not None and space.dtype is not None:
        yield from _array_mismatches(space.shape, space.dtype, value, name)


def _array_mismatches(
    shape: tuple[int, ...], dtype: np.dtype[Any], value: Any, name: str
) -> Iterator[str]:
    try:
        array = np.asarray(value)
    except ValueError:  # of lists of different lengths
        yield f"`{name}` must be an array of shape {shape}; got {_kind(value)} of different lengths"
        return
    if array.dtype.kind in "OUSV":
        yield f"`{name}` must be an array of shape {shape}; got {_kind(value)}"
    elif array.shape != shape:
        yield f"`{name}` must have shape {shape}; got {array.shape}"
    elif not np.can_cast(array.dtype, dtype, "same_kind"):
        yield f"`{name}` must have a dtype that fits {dtype}; got {array.dtype}"


def _kind(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
