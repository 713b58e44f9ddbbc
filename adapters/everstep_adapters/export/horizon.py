"""Episodes of a fixed length for environments whose episodes do not end."""

from typing import Any

import torch
from tensordict import TensorDict

from everstep.data import DataKeys
from everstep.env import Env
from everstep.env.specs import Structure
from everstep.errors import AdapterError

from ..common.endings import FLAGS


class OuterEnv(Env):
    """Base: an environment around another one, with its specs, seed, frames and end.

    Args:
        env: The other environment.
        horizon: Expected vector steps between resets.

    """

    def __init__(self, env: Env, horizon: None | int) -> None:
        super().__init__(env.num_envs, horizon, device=env.device)
        self.env = env
        self.observation_spec, self.action_spec = env.observation_spec, env.action_spec
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)

    def seed(self, seed: int) -> None:
        """Seed the environment; see `seed_env`."""
        seed_env(self.env, seed)

    def render(self) -> Any:
        """The result of the environment's `render`."""
        return render_env(self.env)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class HorizonEnv(OuterEnv):
    """An environment without episode keys whose rows are all truncated at a horizon, and reset.

    Args:
        env: Environment without episode keys.
        horizon: Env steps of an episode.
        next_step: Whether the env step after the end resets, which ignores its action, rather than
            the env step that ends the episodes.

    Raises:
        AdapterError: If `env` ends its episodes itself, or the horizon is not positive.

    """

    def __init__(self, env: Env, horizon: int, *, next_step: bool = False) -> None:
        if env.episode_keys:
            raise AdapterError(
                f"`horizon` is for environments without episode keys; {type(env).__name__} has "
                f"{', '.join(sorted(env.episode_keys))} and ends its episodes itself. Leave it out."
            )
        if horizon < 1:
            raise AdapterError(f"`horizon` must be at least 1 env step; got {horizon}.")
        super().__init__(env, horizon)
        self._length, self._next_step = horizon, next_step
        self.episode_keys = FLAGS | {DataKeys.VALID if next_step else DataKeys.FINAL_OBS}
        self._observation = Structure.of(env.observation_spec)
        self._elapsed = 0

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor | TensorDict:
        """Initial observations `[num_envs, …]` after resetting every environment."""
        self._elapsed = 0
        return self.env.reset(config=config)

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        """The row of a vector step, with episode keys; see the class."""
        if self._elapsed == self._length:  # the row of a reset that no action caused
            rewards = torch.zeros(self.num_envs, 1, device=self.device)
            return self._row(self.reset(), rewards, first=True, valid=False)
        outcome = self.env.step(action)
        self._elapsed += 1
        is_over = self._elapsed == self._length
        obs, rewards = outcome[DataKeys.OBS], outcome[DataKeys.REWARDS]
        if self._next_step:
            return self._row(obs, rewards, truncated=is_over)
        final = obs
        if is_over:  # a reset may write to what the vector step returned
            leaves = tuple(leaf.clone() for leaf in self._observation.flatten(obs))
            final = self._observation.unflatten(leaves, [self.num_envs])
            rewards = rewards.clone()
            obs = self.reset()
        row = self._row(obs, rewards, truncated=is_over, first=is_over)
        row[DataKeys.FINAL_OBS] = final
        return row

    def _row(self, obs: Any, rewards: torch.Tensor, **flags: bool) -> TensorDict:
        """A row whose flags are the same for all environments; by default nothing ends."""
        row = TensorDict({}, batch_size=[self.num_envs], device=self.device)
        row[DataKeys.OBS], row[DataKeys.REWARDS] = obs, rewards
        for key in self.episode_keys - {DataKeys.FINAL_OBS}:
            value = flags.get(key, key == DataKeys.VALID)
            row[key] = torch.full((self.num_envs, 1), value, device=self.device)
        return row


def seed_env(env: Env, seed: int) -> None:
    """Seed an environment, or PyTorch's generators if it has no `seed`."""
    if hasattr(env, "seed"):
        env.seed(seed)
    else:
        torch.manual_seed(seed)


def render_env(env: Env) -> Any:
    """The result of an environment's `render`.

    Raises:
        AdapterError: If it has none.

    """
    if not hasattr(env, "render"):
        raise AdapterError(f"{type(env).__name__} has no `render`, so there is nothing to show.")
    return env.render()
