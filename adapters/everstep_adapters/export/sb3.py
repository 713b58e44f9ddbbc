"""Everstep environments as vector environments of stable-baselines3."""

from typing import TYPE_CHECKING

from everstep.data import DataKeys
from everstep.env import Env
from everstep.errors import AdapterError

from ..common.libraries import require
from .gymnasium import to_gymnasium

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv


def to_sb3(env: Env, /, *, horizon: None | int = None) -> "VecEnv":
    """An Everstep environment as a `VecEnv` of stable-baselines3, whose `close` closes it.

    Rows are reset in the env step that ends their episode. The infos of such a row have
    `terminal_observation`, if the environment has final observations, and `TimeLimit.truncated`.
    An environment that resets rows in the next env step resets them in the same one here, if it
    can (`resets_rows`).

    Args:
        env: Environment.
        horizon: Env steps after which all rows are truncated, for environments without episode
            keys; `None` for never.

    Raises:
        AdapterError: If stable-baselines3 is missing, a spec has no space, or rows can only be
            reset in the env step after the end.

    """
    advice = "stable-baselines3 is needed: pip install stable-baselines3"
    require("stable_baselines3.common.vec_env", "VecEnv", advice)
    from ._sb3_env import EverstepVecEnv
    from .same_step import with_same_step

    if not isinstance(env, Env):
        raise AdapterError(f"`env` must be an `everstep.Env`; got {type(env).__name__}.")
    env = with_same_step(env)
    if DataKeys.VALID in env.episode_keys:
        raise AdapterError(
            f"{type(env).__name__} resets rows in the env step after their episode's end, and "
            "cannot reset them alone; stable-baselines3 needs the same env step. Make it with "
            "another mode, such as `everstep.make(…, autoreset_mode='SAME_STEP')`."
        )
    mode = None if env.episode_keys else "SAME_STEP"
    return EverstepVecEnv(to_gymnasium(env, autoreset_mode=mode, horizon=horizon))
