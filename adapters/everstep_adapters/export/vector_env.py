"""The Gymnasium vector environment that `to_gymnasium` returns."""

from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from tensordict import TensorDict
from torch.utils._pytree import tree_map

from everstep.data import DataKeys
from everstep.env import Env
from everstep.errors import AdapterError, EnvError

from .horizon import render_env, seed_env
from .specs import export_spec

Array = npt.NDArray[Any]


class EverstepVectorEnv(VectorEnv[Any, Any, Any]):
    """An Everstep environment as a Gymnasium vector environment; see `to_gymnasium`.

    Args:
        env: Environment whose episodes end as `autoreset_mode` has it.
        autoreset_mode: `NEXT_STEP` or `SAME_STEP`.
        copy: Whether observations are always new arrays.

    """

    #: When a row is reset.
    autoreset_mode: AutoresetMode

    #: The Everstep environment.
    env: Env

    def __init__(self, env: Env, autoreset_mode: AutoresetMode, *, copy: bool) -> None:
        self.env, self.autoreset_mode = env, autoreset_mode
        self.num_envs = env.num_envs
        # A dictionary of its own: the class's is every vector environment's.
        self.metadata = {**getattr(env, "metadata", {}), "autoreset_mode": autoreset_mode}
        self.render_mode = getattr(env, "render_mode", None)
        self._observation = export_spec(
            "observation", env.observation_spec, env.num_envs, is_action=False
        )
        self._action = export_spec("action", env.action_spec, env.num_envs, is_action=True)
        self.single_observation_space = self._observation.space
        self.single_action_space = self._action.space
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.action_space = batch_space(self.single_action_space, env.num_envs)
        self._device = torch.device(env.device)
        self._has_final = DataKeys.FINAL_OBS in env.episode_keys
        #: What of a row is copied in each vector step, and whether arrays of it have to be.
        self._keys = {DataKeys.OBS, DataKeys.REWARDS, *env.episode_keys} - {DataKeys.FINAL_OBS}
        self._copies = copy and self._device.type == "cpu"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """First observations and no infos, after resetting every row.

        Args:
            seed: Seed of the environment.
            options: The environment's `config` of this reset.

        Raises:
            AdapterError: If a seed for each row, or a reset of some rows, is asked for.

        """
        if seed is not None and not isinstance(seed, (int, np.integer)):
            raise AdapterError(f"`seed` must be one integer for all rows; got {seed!r}.")
        if options and "reset_mask" in options:
            raise AdapterError(
                "`options['reset_mask']` asks for a reset of some rows, but every row is reset "
                "together, and rows whose episodes end are reset without it. Leave it out."
            )
        if seed is not None:
            super().reset(seed=int(seed))
            seed_env(self.env, int(seed))
        return self._observed(self.env.reset(config=dict(options) if options else None)), {}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Observations, rewards, terminations, truncations and infos of one vector step.

        Args:
            actions: Batch of actions of `action_space`. Never written to, nor stored.

        Raises:
            AdapterError: If the actions' shape or kind of dtype is not the space's.
            EnvError: If an episode does not end as the declared mode has it.

        """
        outcome = self.env.step(self._action.to_torch(actions, self._device))
        final = outcome[DataKeys.FINAL_OBS] if self._has_final else None
        outcome = self._on_host({key: outcome[key] for key in self._keys})
        rewards = outcome[DataKeys.REWARDS].reshape(self.num_envs).numpy(force=True)
        terminated = self._flag(outcome, DataKeys.TERMINATED)
        truncated = self._flag(outcome, DataKeys.TRUNCATED)
        infos = self._infos(outcome, final, terminated | truncated)
        observations = self._observation.to_numpy(outcome[DataKeys.OBS], copy=self._copies)
        return observations, rewards.astype(np.float64), terminated, truncated, infos

    def _observed(self, obs: Any) -> Any:
        found = self._on_host({DataKeys.OBS: obs})[DataKeys.OBS]
        return self._observation.to_numpy(found, copy=self._copies)

    def _on_host(self, row: dict[str, Any]) -> Any:
        """Tensors of the environment, on the host; their copies are waited for together."""
        is_there = self._device.type != "cpu"
        return TensorDict(row, batch_size=[self.num_envs]).to("cpu") if is_there else row

    def _flag(self, outcome: Any, key: str) -> npt.NDArray[np.bool_]:
        """A flag of each row, `[num_envs]`, in memory of its own; False without episodes."""
        if key not in self.env.episode_keys:
            return np.zeros(self.num_envs, dtype=np.bool_)
        return np.array(outcome[key].reshape(self.num_envs).numpy(force=True), dtype=np.bool_)

    def _infos(self, outcome: Any, final: Any, done: npt.NDArray[np.bool_]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        if DataKeys.VALID in self.env.episode_keys:
            infos["valid"] = self._flag(outcome, DataKeys.VALID)
            infos["_valid"] = np.ones_like(done)
        if not done.any():
            return infos
        self._check_mode(self._flag(outcome, DataKeys.FIRST), done)
        if self._has_final and self.autoreset_mode is AutoresetMode.SAME_STEP:
            infos["final_obs"] = self._final_obs(final, done)
            infos["_final_obs"] = done.copy()
        return infos

    def _final_obs(self, final_obs: Any, done: npt.NDArray[np.bool_]) -> npt.NDArray[np.object_]:
        """Final observations as Gymnasium has them: one for each row that is done, else None."""
        found = self._on_host({DataKeys.FINAL_OBS: final_obs})[DataKeys.FINAL_OBS]
        values = self._observation.to_numpy(found, copy=True)
        objects = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(done).tolist():
            objects[i] = tree_map(itemgetter(i), values)
        return objects

    def _check_mode(self, first: npt.NDArray[np.bool_], done: npt.NDArray[np.bool_]) -> None:
        at_once = self.autoreset_mode is AutoresetMode.SAME_STEP
        wrong = done & (first != at_once)
        if wrong.any():
            raise EnvError(
                f"{type(self.env).__name__} ended the episodes of rows "
                f"{np.flatnonzero(wrong).tolist()} {'without' if at_once else 'with'} a reset in "
                f"the same env step, which {self.autoreset_mode.name} does not allow. Pass the "
                "`autoreset_mode` that it has; one that has both cannot be exported."
            )

    def render(self) -> Any:
        """The result of the environment's `render`."""
        return render_env(self.env)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        self.env.close()

    def __del__(self) -> None:
        """Do nothing, unlike Gymnasium's: the wrapped environment may be in use."""

    def __repr__(self) -> str:
        name = type(self.env).__name__
        return (
            f"{type(self).__name__}({name}, num_envs={self.num_envs}, "
            f"autoreset_mode={self.autoreset_mode.name!r})"
        )
