"""Reasons for errors inside vector environments: what one environment does otherwise."""

from traceback import walk_tb
from typing import Any

from gymnasium import Env
from gymnasium.vector import SyncVectorEnv

from ..common.first_calls import VECTOR_REWARDS
from ..common.returned import WAY_OUT, mismatches

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


def _is_of_environment(error: Exception) -> bool:
    """Whether an environment or a wrapper raised it, before Gymnasium had what it returns."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return any(isinstance(frame.f_locals.get("self"), Env) for frame in frames)


def returned_nothing(method: str, error: str) -> str:
    """Message for a method of an environment that lacks its `return`; empty for other errors."""
    if "cannot unpack non-iterable NoneType" not in error:
        return ""
    return f"`{method}` of an environment, or of a wrapper, returned None. {_INTERFACE}".rstrip()


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
    if _is_of_environment(error):
        return ""
    for i, obs in enumerate(env._env_obs if isinstance(env, SyncVectorEnv) else ()):
        for found in mismatches(env.single_observation_space, obs, "obs"):
            return f". Environment {i}: {found}. {WAY_OUT}"
    if isinstance(env, SyncVectorEnv) and _OF_VECTORS in text:  # not an observation: those fit
        return f". {VECTOR_REWARDS}"
    return ""
