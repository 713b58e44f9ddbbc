"""Environments with the interface that Gymnasium's had before version 0.26, of any class."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from everstep.errors import AdapterError


class OldInterface(gymnasium.Env[Any, Any]):
    """An environment whose `reset` returns an observation, and `step` four values, as Gymnasium's.

    An episode that is done was truncated if its info says so, by `TimeLimit.truncated` or by a
    `discount` above 0; otherwise it was terminated.

    Args:
        env: The environment. Its spaces may be Gymnasium's, the old gym's, or objects with their
            attributes. `close` closes it.

    """

    def __init__(self, env: Any) -> None:
        self.old_env = env
        self.observation_space = _space(env.observation_space)
        self.action_space = _space(env.action_space)
        self.metadata = dict(getattr(env, "metadata", None) or {})

    def reset(self, *, seed: None | int = None, options: None | dict[str, Any] = None) -> Any:
        """The observation that begins an episode. The seed goes to the environment's `seed`."""
        super().reset(seed=seed)
        if seed is not None and callable(getattr(self.old_env, "seed", None)):
            self.old_env.seed(seed)
        return self.old_env.reset(), {}

    def step(self, action: Any) -> Any:
        """An env step."""
        observation, reward, done, info = self.old_env.step(action)
        is_cut = bool(info.get("TimeLimit.truncated", info.get("discount", 0) > 0))
        return observation, reward, bool(done) and not is_cut, bool(done) and is_cut, info

    def render(self) -> Any:
        """The result of the environment's `render`."""
        return self.old_env.render()

    def close(self) -> None:
        """Close the environment, if it can be."""
        getattr(self.old_env, "close", lambda: None)()

    def __str__(self) -> str:
        return f"<OldInterface<{type(self.old_env).__name__}>>"


def _space(space: Any) -> spaces.Space[Any]:
    """A space of Gymnasium with the attributes of another library's."""
    if isinstance(space, spaces.Space):
        return space
    children = getattr(space, "spaces", None)
    if children is not None:
        if isinstance(children, list | tuple):
            return spaces.Tuple([_space(child) for child in children])
        return spaces.Dict({key: _space(child) for key, child in children.items()})
    if hasattr(space, "nvec"):
        return spaces.MultiDiscrete(np.asarray(space.nvec))
    if hasattr(space, "low"):
        return spaces.Box(space.low, space.high, tuple(space.shape), np.dtype(space.dtype).type)
    if hasattr(space, "n"):
        is_binary = type(space).__name__ == "MultiBinary"
        return spaces.MultiBinary(space.n) if is_binary else spaces.Discrete(int(space.n))
    raise AdapterError(f"A space needs the attributes of one of Gymnasium's; got {space!r}.")
