"""Copies of what ends an episode, made before the environment is reset.

In SAME_STEP Gymnasium's vector classes reset the environment before they pass on what `step`
returned. An environment whose `reset` reuses memory overwrites it in between, and this cannot be
detected later. So `step` itself returns a copy; in an `AsyncVectorEnv` it does so in the worker
processes. They import this module, so it imports little.
"""

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .hooks import Hook


def copied(value: Any) -> Any:
    """A copy of nested arrays and tensors; other objects, such as numbers, are the same ones."""
    if isinstance(value, np.ndarray):
        return copy.deepcopy(value) if value.dtype.hasobject else value.copy()
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [copied(item) for item in value]
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if hasattr(value, "detach") and hasattr(value, "clone"):
        return value.detach().clone()
    if isinstance(value, str | bytes | int | float | np.generic) or value is None:
        return value
    if isinstance(value, Sequence) and not isinstance(value, memoryview):  # such as a deque
        return [copied(item) for item in value]
    # Arrays of other libraries; JAX's cannot be written to, and a copy of them costs little.
    if hasattr(value, "__array__"):
        return copy.deepcopy(value)
    is_array = hasattr(value, "__array_interface__") or _is_buffer(value)
    return np.array(value) if is_array else value


def _is_buffer(value: Any) -> bool:
    """Whether NumPy reads the memory of an object, as of Python's own arrays."""
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


class KeptEnds(Hook):
    """`step` of a single environment; where an episode ends, it returns copies."""

    def __call__(self, action: Any) -> Any:
        """The result of `step`."""
        returned = self.original(action)
        if len(returned) == 5 and (returned[2] or returned[3]):
            observation, *others, info = returned
            return (copied(observation), *others, copied(info))
        return returned


def keep_ends(env: Any) -> None:
    """Let the `step` of a single environment return copies where an episode ends."""
    if not isinstance(env.step, KeptEnds):
        KeptEnds(env, "step")


class InWorker:
    """A message to a worker of an `AsyncVectorEnv` that calls a function when it is unpickled.

    None of Gymnasium's own messages can replace the environment's `step`. Unpickling runs below the
    worker's loop, which holds the environment, so the function finds it there. The message itself
    becomes the name of an attribute: `"step"`, which every environment has, or if no environment
    was found one that none has.

    Args:
        function: Takes the environment; of a module that imports little.

    """

    def __init__(self, function: Callable[[Any], None]) -> None:
        self._function = function

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _call_with_env, (self._function,)


def _call_with_env(function: Callable[[Any], None]) -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        env = frame.f_locals.get("env")
        if callable(getattr(env, "step", None)) and "pipe" in frame.f_locals:
            function(env)
            return "step"
        frame = frame.f_back
    return "no environment in sight"
