"""One environment of dm_env as a Gymnasium environment."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from everstep.env.formats import check_held
from everstep.errors import AdapterError


class SingleEnv(gym.Env[Any, Any]):
    """A `dm_env.Environment` with Gymnasium's interface.

    Args:
        env: The environment. `close` closes it.
        render_mode: `"rgb_array"` for frames of its physics, or None.
        render_kwargs: Arguments of `physics.render`, such as `height`, `width` and `camera_id`.

    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(
        self,
        env: Any,
        render_mode: None | str = None,
        render_kwargs: None | dict[str, Any] = None,
    ) -> None:
        self.dm_env, self.render_mode = env, render_mode
        self._render_kwargs = {"camera_id": 0, **(render_kwargs or {})}
        self.observation_space = _space(env.observation_spec(), "observation")
        self.action_space = _space(env.action_spec(), "action")
        timestep = getattr(env, "control_timestep", None)
        if callable(timestep):
            self.metadata = {**self.metadata, "render_fps": max(1, round(1 / timestep()))}

    def reset(
        self, *, seed: None | int = None, options: None | dict[str, Any] = None
    ) -> tuple[Any, dict[str, Any]]:
        """The observation that begins an episode; dm_env's `reset` has no options."""
        super().reset(seed=seed)
        generator = _generator(self.dm_env)
        if seed is not None and generator is not None:
            generator.seed(seed)
        return self._observed(self.dm_env.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """An env step; the last one is truncated if its discount is not 0."""
        result = self.dm_env.step(action)
        terminated = bool(result.last() and not result.discount)
        reward = 0.0 if result.reward is None else float(result.reward)
        truncated = bool(result.last()) and not terminated
        return self._observed(result.observation), reward, terminated, truncated, {}

    def _observed(self, observation: Any) -> Any:
        return _observed(observation, self.observation_space, "obs")

    def render(self) -> Any:
        """A frame, `uint8` `[height, width, 3]`."""
        return self.dm_env.physics.render(**self._render_kwargs)

    def close(self) -> None:
        """Close the environment."""
        self.dm_env.close()

    def __str__(self) -> str:
        task = getattr(self.dm_env, "task", None)
        return f"<{type(self.dm_env if task is None else task).__name__}>"


def _generator(env: Any) -> Any:
    """The random generator of a task of the suite, or of a composer environment; None for others.

    Both keep a `RandomState` for as long as they live.
    """
    places = (getattr(env, "task", None), "random"), (env, "random_state"), (env, "_random_state")
    found = (getattr(owner, name, None) for owner, name in places)
    return next((x for x in found if isinstance(x, np.random.RandomState)), None)


def _space(spec: Any, name: str) -> spaces.Space[Any]:
    """The space of a spec, or of a tree of them.

    Raises:
        AdapterError: If a spec is of another kind.

    """
    if isinstance(spec, Mapping):
        return spaces.Dict({key: _space(x, f"{name}/{key}") for key, x in spec.items()})
    if isinstance(spec, Sequence):
        return spaces.Tuple([_space(x, f"{name}/{i}") for i, x in enumerate(spec)])
    dtype = np.dtype(getattr(spec, "dtype", object))
    if dtype.kind not in "biuf":
        raise AdapterError(
            f"The spec of `{name}` must be one of numbers; got {spec!r}. Leave it out in a wrapper "
            "of dm_env."
        )
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    low, high = _range(dtype)
    low, high = getattr(spec, "minimum", low), getattr(spec, "maximum", high)
    low, high = (np.broadcast_to(x, spec.shape).astype(dtype) for x in (low, high))
    box: spaces.Space[Any] = spaces.Box(low, high, spec.shape, dtype=dtype)
    return box


def _range(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The least and the largest value of a dtype."""
    if dtype.kind == "f":
        return -np.inf, np.inf
    return (False, True) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def _observed(observation: Any, space: Any, name: str) -> Any:
    """An observation of arrays that later env steps do not write to, and that its space holds."""
    if isinstance(observation, Mapping) and isinstance(space, spaces.Dict):
        return {
            key: _observed(observation[key], child, f"{name}[{key!r}]")
            for key, child in space.items()
            if key in observation
        }
    if isinstance(observation, list | tuple) and isinstance(space, spaces.Tuple):
        pairs = zip(observation, space.spaces, strict=True)
        return tuple(_observed(x, child, f"{name}[{i}]") for i, (x, child) in enumerate(pairs))
    array = np.array(observation)
    if space.dtype is not None:
        check_held(array, np.dtype(space.dtype), name)
    return array
