"""Next-step resets as same-step resets, for libraries that have no rows without an action."""

from typing import Any, cast

import torch
from tensordict import TensorDict

from everstep.data import DataKeys
from everstep.env import Env
from everstep.env.specs import Structure

from ..common.endings import FLAGS, external
from .horizon import OuterEnv


class SameStepEnv(OuterEnv):
    """An environment with `resets_rows` whose ended rows are reset in the env step that ends them.

    Each row is a transition. Costs a synchronisation a vector step, and a reset where rows ended.

    Args:
        env: Environment with `valid` among its episode keys.

    """

    episode_keys = FLAGS | {DataKeys.FINAL_OBS}

    def __init__(self, env: Env) -> None:
        super().__init__(env, env.horizon)
        self._observation = Structure.of(env.observation_spec)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor | TensorDict:
        """Initial observations `[num_envs, …]` after resetting every environment."""
        return self.env.reset(config=config)

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        """The row of a vector step; see the class."""
        outcome = self.env.step(action)
        ended = outcome[DataKeys.TERMINATED] | outcome[DataKeys.TRUNCATED]
        waiting = ended & ~outcome[DataKeys.FIRST]  # an adapter's own limit resets at once
        obs = outcome[DataKeys.OBS]
        row = outcome.exclude(DataKeys.VALID)
        row[DataKeys.FIRST] = ended
        row[DataKeys.FINAL_OBS] = outcome.get(DataKeys.FINAL_OBS, obs)
        if not bool(waiting.any()):  # one sync
            return row
        row = row.clone()
        leaves = self._observation.flatten(row[DataKeys.OBS])
        opening = self._observation.flatten(cast(Any, self.env).reset_rows(waiting))
        merged, _ = external(waiting, leaves, opening)
        row[DataKeys.OBS] = self._observation.unflatten(merged, [self.num_envs])
        return row


def with_same_step(env: Env) -> Env:
    """The environment, with same-step resets if it has next-step ones and can reset its rows."""
    is_next_step = DataKeys.VALID in env.episode_keys
    return SameStepEnv(env) if is_next_step and getattr(env, "resets_rows", False) else env
