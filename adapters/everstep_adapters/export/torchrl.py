"""Everstep environments as TorchRL environments."""

from typing import TYPE_CHECKING, Literal

from torchrl.data import Composite

from everstep.data import DataKeys
from everstep.env import Env
from everstep.env.specs import leaf_specs
from everstep.errors import AdapterError

if TYPE_CHECKING:
    from torchrl.envs import EnvBase


def to_torchrl(
    env: Env,
    /,
    *,
    horizon: None | int = None,
    observation_key: None | str = None,
    invalid_rows: Literal["error", "keep"] = "error",
) -> "EnvBase":
    """An Everstep environment as a TorchRL one of batch size `[num_envs]`; `close` closes it.

    Its keys are those of the observation, `"action"`, `"reward"`, `"done"`, `"terminated"` and
    `"truncated"`. `set_seed` seeds it, and `reset(config=)` is its `config`. An environment without
    `seed` draws from PyTorch's generators, and these are seeded.

    If an episode was truncated and its final observation is lost, floating-point leaves of
    `("next", …)` hold NaN.

    Args:
        env: Environment.
        horizon: Env steps after which all rows are truncated, for environments without episode
            keys; `None` for never.
        observation_key: Key of the observation. `None` is `"observation"`, and the root for a
            mapping: its leaves have their own keys.
        invalid_rows: Treatment of rows that no action caused, in which an environment with `valid`
            among its episode keys resets itself. With `"error"` ended rows are reset in the same
            env step instead, and an environment that cannot is refused; `"keep"` returns the rows,
            marked by False under `("next", "valid")`.

    Raises:
        AdapterError: If the environment cannot be represented; names a way out.

    """
    if not isinstance(env, Env):
        raise AdapterError(f"`env` must be an `everstep.Env`; got {type(env).__name__}.")
    if invalid_rows not in ("error", "keep"):
        raise AdapterError(f"`invalid_rows` must be 'error' or 'keep'; got {invalid_rows!r}.")
    from .horizon import HorizonEnv
    from .same_step import with_same_step
    from .torchrl_env import RESERVED, EverstepEnvBase

    if invalid_rows == "error":
        env = with_same_step(env)
    if DataKeys.VALID in env.episode_keys and invalid_rows == "error":
        raise AdapterError(
            f"{type(env).__name__} resets a row in the env step after its episode ended, and that "
            "row is no transition, which TorchRL cannot express; nor can its rows be reset alone. "
            "Make it with `autoreset_mode='SAME_STEP'` if it has a choice; or pass "
            "`invalid_rows='keep'` and leave out the rows where ('next', 'valid') is False."
        )
    _check_final_obs(env)
    if horizon is not None:
        env = HorizonEnv(env, horizon)
    path: tuple[str, ...] = () if isinstance(env.observation_spec, Composite) else ("observation",)
    if observation_key is not None:
        path = (observation_key,)
    names = {path[0]} if path else set(env.observation_spec.keys())
    if names & RESERVED:
        raise AdapterError(
            f"The observation has the keys {sorted(names & RESERVED)}, which mean something else "
            "in TorchRL. Put it under one of its own: `observation_key='observation'`."
        )
    return EverstepEnvBase(env, path)


def _check_final_obs(env: Env) -> None:
    """Refuse an environment that can lose a final observation without marking it."""
    if not env.episode_keys or env.episode_keys & {DataKeys.FINAL_OBS, DataKeys.VALID}:
        return
    leaves = leaf_specs(env.observation_spec).values()
    if not any(leaf.dtype.is_floating_point for leaf in leaves):
        raise AdapterError(
            f"{type(env).__name__} resets rows without keeping their final observations, which "
            "TorchRL bootstraps from, and integer observations cannot mark that they are lost. "
            "Return `final_obs`."
        )
