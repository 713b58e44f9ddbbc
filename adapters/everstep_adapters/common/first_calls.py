"""Checks of the first calls of a single environment, up to the end of its first episode.

Gymnasium's vector classes read rewards and flags as Python does: None ends nothing, and a list or a
text every episode, whatever they hold. They read the spaces once, and reset what has ended, whether
or not it has reset itself. Processes import this module, so it imports little.
"""

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from everstep.errors import EnvError

from .hooks import Hook

#: Env steps whose rewards are looked at.
LOOKS = 8

#: Advice on environments whose rewards are vectors.
VECTOR_REWARDS = (
    "Rewards are one number each env step: weigh the entries of a vector in a wrapper, such as "
    "`mo_gymnasium.wrappers.LinearReward(env, weight=…)`, around each environment."
)


def to_flag(value: Any, name: str) -> bool:
    """A flag that an environment returned.

    Raises:
        EnvError: If it is neither true nor false, nor 1 nor 0.

    """
    number = _number(value)
    if not isinstance(number, Real) or number not in (0, 1):
        raise EnvError(f"`{name}` must be True or False; got {_described(value)}.")
    return bool(number)


def check_reward(value: Any, name: str = "reward") -> None:
    """Check that a reward is one number.

    Raises:
        EnvError: If it is not; says how to return one.

    """
    shape = tuple(getattr(value, "shape", ()))
    if not shape and isinstance(_number(value), Real):
        return
    way_out = VECTOR_REWARDS if np.prod(shape) > 1 else "Return `float(reward)`."
    raise EnvError(f"`{name}` must be one number; got {_described(value)}. {way_out}")


def _number(value: Any) -> Any:
    """The Python number of an array or a tensor of one element; other values as they are."""
    if hasattr(value, "item") and np.prod(getattr(value, "shape", ())) == 1:
        return value.item()
    return value


def _described(value: Any) -> str:
    shape = getattr(value, "shape", ())
    kind = type(value).__name__
    named = f"{value!r} ({kind})" if value is not None else "None"
    return f"a {kind} of shape {tuple(shape)}" if shape else named


class Intercepted(Hook):
    """A method whose calls go to another one, which gets it as its first argument.

    Args:
        owner: Owner of the method.
        name: Name of the method.
        to: The other one.

    """

    def __init__(self, owner: Any, name: str, to: Callable[..., Any]) -> None:
        super().__init__(owner, name)
        self._to = to

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the other one."""
        return self._to(self.original, *args, **kwargs)


class FirstCalls:
    """Checks of `reset` and `step` of a single environment, which end with its first episode.

    Args:
        env: The environment, perhaps in wrappers.

    """

    def __init__(self, env: Any) -> None:
        self._env, self._base = env, getattr(env, "unwrapped", env)
        self._spaces = {name: getattr(env, name) for name in ("observation_space", "action_space")}
        self._left, self._is_stepping = LOOKS, False
        #: What the environment's own reset returned while it was stepped.
        self._nested: Any = None
        self._hooks = [Intercepted(env, "step", self._step)]
        if self._base is not env:
            self._hooks.append(Intercepted(self._base, "reset", self._reset_within))
        self._hooks.append(Intercepted(env, "reset", self._reset))

    def _reset_within(self, reset: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        returned = reset(*args, **kwargs)
        if self._is_stepping:
            self._nested = returned
        return returned

    def _reset(self, reset: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        returned = self._reset_within(reset, *args, **kwargs)
        for name, before in self._spaces.items():
            if (now := getattr(self._env, name)) != before:
                raise EnvError(
                    f"`{name}` of {self._base} was changed by `reset`, from {before} to {now}, and "
                    "a policy has one. Set it in the constructor."
                )
        return returned

    def _step(self, step: Callable[..., Any], action: Any) -> Any:
        self._is_stepping, self._nested = True, None
        try:
            returned = step(action)
        finally:
            self._is_stepping = False
        if not isinstance(returned, tuple) or len(returned) != 5:  # its caller fails
            return returned
        observation, reward, *flags, info = returned
        if self._left:
            self._left -= 1
            check_reward(reward)
            if not isinstance(info, dict):
                raise EnvError(
                    f"`info`, the last value of `step`, must be a dict; got {_described(info)}. "
                    "Return `{}` where there is nothing to say."
                )
        terminated, truncated = map(to_flag, flags, ("terminated", "truncated"))
        if truncated and not terminated and self._nested is not None:
            self._check_end(observation)
        if terminated or truncated:
            for hook in self._hooks:
                hook.remove()
        return returned

    def _check_end(self, observation: Any) -> None:
        """Check that what ends a truncated episode is not the observation of the next one."""
        opening = self._nested[0] if isinstance(self._nested, tuple) else self._nested
        if _is_same(opening, observation):
            raise EnvError(
                f"{self._base} resets itself in the env step that truncates an episode, and "
                "returns the observation of the next one, so that the one that ended is lost. "
                "Leave the reset to Gymnasium's vector environment: return the last observation."
            )


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and all(_is_same(one[x], other.get(x)) for x in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one is other or np.array_equal(np.asarray(one), np.asarray(other))


def check_first_calls(env: Any) -> None:
    """Check the first calls of a single environment."""
    FirstCalls(env)
