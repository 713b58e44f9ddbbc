"""The vector environment that `to_sb3` returns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from stable_baselines3.common.vec_env import VecEnv


class EverstepVecEnv(VecEnv):
    """An exported Gymnasium vector environment with stable-baselines3's interface; see `to_sb3`.

    Args:
        env: Environment that resets rows in the env step that ends their episode.

    """

    #: The Gymnasium vector environment.
    env: Any

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env, self.render_mode = env, env.render_mode
        self._actions: Any = None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> Any:
        """First observations, after resetting every row."""
        options = self._options[0] or None
        observations, _ = self.env.reset(seed=self._seeds[0], options=options)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        return observations

    def step_async(self, actions: Any) -> None:
        """Store the actions, which `step_wait` sends."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Observations, rewards, ends and infos of the vector step."""
        observations, rewards, terminated, truncated, found = self.env.step(self._actions)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done).tolist():
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            if "final_obs" in found:
                infos[i]["terminal_observation"] = found["final_obs"][i]
        return observations, rewards.astype(np.float32), done, infos

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def render(self, mode: None | str = None) -> Any:
        """The result of the environment's `render`."""
        return self.env.render()

    def get_images(self) -> Sequence[Any]:
        """Frames of the rows, as the environment's `render` returns them."""
        frames = self.env.render()
        return frames if isinstance(frames, list | tuple) else [frames]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The environment's attribute, once a row."""
        return [getattr(self.env, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the environment, for all rows."""
        setattr(self.env, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        """The result of a method of the environment, called once, for each row."""
        result = getattr(self.env, method_name)(*args, **kwargs)
        return [result] * len(list(self._get_indices(indices)))

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """False: rows have no wrappers of their own."""
        return [False] * len(list(self._get_indices(indices)))
