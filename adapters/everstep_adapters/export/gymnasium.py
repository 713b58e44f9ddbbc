"""Everstep environments as Gymnasium vector environments."""

from typing import TYPE_CHECKING, Any

from everstep.data import DataKeys
from everstep.env import Env
from everstep.errors import AdapterError

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode, VectorEnv


def to_gymnasium(
    env: Env,
    /,
    *,
    autoreset_mode: "None | str | AutoresetMode" = None,
    horizon: None | int = None,
    copy: bool = True,
) -> "VectorEnv[Any, Any, Any]":
    """An Everstep environment as a Gymnasium vector environment, whose `close` closes it.

    `reset(seed=)` seeds it, and `reset(options=)` is its `config`. An environment without `seed`
    draws from PyTorch's generators, and these are seeded.

    Args:
        env: Environment.
        autoreset_mode: The mode that is declared, a member of `gymnasium.vector.AutoresetMode` or
            its name. `None` takes what the episode keys imply; an environment without them has
            `SAME_STEP`, and may have `NEXT_STEP`; one of `NEXT_STEP` with `resets_rows` may have
            `SAME_STEP`.
        horizon: Env steps after which all rows are truncated, for environments without episode
            keys; `None` for never.
        copy: Whether observations are new arrays; else, on the CPU, they share the environment's
            memory and are valid until the next vector step.

    Raises:
        AdapterError: If a spec has no space, or the episodes do not end in that mode.

    """
    from gymnasium.vector import AutoresetMode

    from ..common.autoreset import parse_mode
    from .horizon import HorizonEnv
    from .same_step import with_same_step
    from .vector_env import EverstepVectorEnv

    if not isinstance(env, Env):
        raise AdapterError(f"`env` must be an `everstep.Env`; got {type(env).__name__}.")
    mode = None if autoreset_mode is None else parse_mode(autoreset_mode)
    if mode is AutoresetMode.SAME_STEP:
        env = with_same_step(env)
    name = _mode_of(env, None if mode is None else mode.name)
    if horizon is not None:
        env = HorizonEnv(env, horizon, next_step=name == "NEXT_STEP")
    return EverstepVectorEnv(env, AutoresetMode[name], copy=copy)


def _mode_of(env: Env, declared: None | str) -> str:
    """Name of the autoreset mode: the declared one if it is possible, else the only one."""
    possible = _possible_modes(env.episode_keys)
    if declared is None and (len(possible) == 1 or not env.episode_keys):
        return possible[0]
    if declared in possible:
        return declared
    keys = ", ".join(sorted(env.episode_keys)) or "no episode keys"
    if declared is None:
        raise AdapterError(
            f"{type(env).__name__} has {keys}: its episodes may end as in "
            f"{' or '.join(possible)}. Pass the `autoreset_mode` that all of them end in."
        )
    raise AdapterError(
        f"`autoreset_mode` {declared!r} is not what {type(env).__name__} does, which has {keys}: "
        f"use {' or '.join(map(repr, possible))}."
    )


def _possible_modes(episode_keys: frozenset[str]) -> tuple[str, ...]:
    if episode_keys and DataKeys.VALID not in episode_keys:
        return ("SAME_STEP",)
    if episode_keys and DataKeys.FINAL_OBS not in episode_keys:
        return ("NEXT_STEP",)
    return ("SAME_STEP", "NEXT_STEP")
