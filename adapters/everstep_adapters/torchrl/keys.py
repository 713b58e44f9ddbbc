"""What a TorchRL environment's specs say: which keys are observed, acted on and rewarded, and how
often each is there.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torchrl.data import TensorSpec

from everstep.data import DataKeys
from everstep.errors import AdapterError

from .calls import called, layers_of
from .layout import Key, Layout, Leaf, NestedKey, as_key, leaves_of, make_leaf, spelled

#: The adapter's own count of env steps, which no policy sees.
STEP_COUNT = "_everstep_step_count"

#: What transforms note for themselves; names that begin with an underscore are, too.
_BOOKKEEPING = ("is_init", "step_count")

#: TorchRL's wrapper of EnvPool.
_POOL = "envpool.MultiThreadedEnvWrapper"

#: Wrappers whose flags do not tell a clock's ends from the task's, and what all ends are in them.
_MISTOLD = {
    "brax.BraxWrapper": "terminated",
    "isaacgym.IsaacGymWrapper": "truncated",
    "jumanji.JumanjiWrapper": "terminated",
    "mujoco_playground.MujocoPlaygroundWrapper": "terminated",
    "smacv2.SMACv2Wrapper": "terminated",
    "vmas.VmasWrapper": "terminated",
}


def find_rows(env: Any, action_key: None | NestedKey, num_envs: None | int) -> tuple[Key, Layout]:
    """The key of the action that the policy chooses, and how batch and agents become rows.

    Agents are the dimensions that the part of the specs around the action has beyond the
    environment's batch.

    Raises:
        AdapterError: Where there are several actions, or the batch is not what was asked for.

    """
    key = _pick("action", list(leaves_of(env.full_action_spec)), action_key, ())
    dims = len(env.batch_size)
    batch = _batch_of(env, num_envs)
    for depth in range(len(key) - 1, 0, -1):
        group = key[:depth]
        for spec in (env.full_action_spec, env.observation_spec):
            part = spec[group] if group in map(as_key, spec.keys(True)) else None
            if part is not None and part.ndim > dims:
                return key, Layout(batch, dims, group, torch.Size(part.shape[dims:]))
    return key, Layout(batch, dims)


def _batch_of(env: Any, num_envs: None | int) -> torch.Size:
    if num_envs is None:
        return torch.Size(env.batch_size)
    if env.batch_locked or env.batch_size:
        raise AdapterError(
            f"`num_envs` is for stateless environments without a batch of their own; {called(env)} "
            f"has {list(env.batch_size)}. Use a `SerialEnv` or a `ParallelEnv` of several."
        )
    return torch.Size([num_envs])


def find_reward(
    env: Any, layout: Layout, reward_key: None | NestedKey, device: torch.device
) -> Leaf:
    """The reward, of floating point.

    Raises:
        AdapterError: Where there are several, or it is not one number a row.

    """
    rewards = leaves_of(env.full_reward_spec)
    key = _pick("reward", list(rewards), reward_key, layout.group)
    leaf = make_leaf(key, rewards[key], layout, device)
    if leaf.feature.numel() != 1:
        raise AdapterError(
            f"A reward is one number a row; `{spelled([key])}` has {list(leaf.feature)}. Add them "
            "up in a transform, such as `LineariseRewards`."
        )
    return leaf


def _pick(what: str, keys: list[Key], chosen: None | NestedKey, group: Key) -> Key:
    """The key that was chosen, else the only one there is, else the only one of the agents."""
    if chosen is not None:
        if as_key(chosen) not in keys:
            raise AdapterError(
                f"`{what}_key` must be one of {spelled(keys)}; got {spelled([as_key(chosen)])}."
            )
        return as_key(chosen)
    own = [key for key in keys if group and key[: len(group)] == group]
    for candidates in (keys, own):
        if len(candidates) == 1:
            return candidates[0]
    raise AdapterError(
        f"A row has one {what}; this environment has {spelled(keys) or 'none'}. Pass "
        f"`{what}_key`, or make them one in a transform."
    )


def find_observed(
    env: Any, layout: Layout, keys: None | Sequence[NestedKey]
) -> dict[Key, TensorSpec]:
    """What the policy sees: the keys that were chosen, else all but notes of transforms.

    Raises:
        AdapterError: Where a key that was chosen is not there.

    """
    specs = leaves_of(env.observation_spec)
    if keys is None:
        hidden = _hidden(env, layout)
        return {key: spec for key, spec in specs.items() if not hidden(key)}
    chosen = {}
    for wanted in map(as_key, [keys] if isinstance(keys, str) else keys):
        found = {key: spec for key, spec in specs.items() if key[: len(wanted)] == wanted}
        if not found:
            raise AdapterError(
                f"`observation_keys` must be among {spelled(list(specs))}; got {spelled([wanted])}."
            )
        chosen.update(found)
    return chosen


def _hidden(env: Any, layout: Layout) -> Any:
    """Whether a key is none of the policy's business unless someone asks for it."""
    sums = {f"episode_{key[-1]}" for key in leaves_of(env.full_reward_spec)}
    notes = {*_BOOKKEEPING, *sums, *(told_keys(env) & {DataKeys.VALID})}
    prefixes = {key[:-1] for key in leaves_of(env.full_action_spec)} - {(), layout.group}
    others = {group for group in prefixes if layout.group[: len(group)] != group}

    def is_hidden(key: Key) -> bool:
        if key[-1] in notes or any(part.startswith("_") for part in key):
            return True
        return any(key[: len(group)] == group for group in others)

    return is_hidden


def resets_itself(env: Any) -> bool:
    """Whether the environment resets itself in its own step, and has lost the observation before.

    What TorchRL puts in its place may be NaN, -1, 0, or the next episode's observation.
    """
    from torchrl.envs import AutoResetEnv

    return any(
        isinstance(layer, AutoResetEnv) or vars(layer).get("_torchrl_native_autoreset", False)
        for layer in layers_of(env)
    )


def told_keys(env: Any) -> frozenset[str]:
    """Episode keys of an exported Everstep environment that tells of its invalid rows.

    `to_torchrl(invalid_rows="keep")` makes them, and marks the rows by `valid` and `is_init`. Empty
    for all others, whose keys of these names are their own.
    """
    exported = sys.modules.get("everstep_adapters.export.torchrl_env")
    base = layers_of(env)[-1]
    if exported is None or not isinstance(base, exported.EverstepEnvBase):
        return frozenset()
    keys: frozenset[str] = base.env.episode_keys
    return keys if DataKeys.VALID in keys else frozenset()


def limited(env: Any, limit: None | int, random_phase: bool) -> Any:
    """The environment, with a `StepCounter` around it where there is a limit.

    Raises:
        AdapterError: Where the limit is not positive, there is none to be at a phase of, or the
            environment cannot be reset when it is reached.

    """
    from torchrl.envs import StepCounter, TransformedEnv

    if limit is None:
        if random_phase:
            raise AdapterError("`random_phase` needs `max_episode_steps`, which it is a phase of.")
        return env
    if limit < 1:
        raise AdapterError(f"`max_episode_steps` must be at least 1; got {limit}.")
    if resets_itself(env):
        raise AdapterError(
            f"{called(env)} resets itself, so `max_episode_steps` cannot reset it. Set the limit "
            "in the environment."
        )
    counter = StepCounter(limit, step_count_key=STEP_COUNT)
    return TransformedEnv(env, counter, auto_unwrap=False)


def check_wrapper(env: Any) -> None:
    """Refuse an environment whose wrapper does not reset what it says it has reset.

    Raises:
        AdapterError: Where it is TorchRL's wrapper of EnvPool, whose next env step is the reset.

    """
    if _POOL in _wrappers_of(env):
        raise AdapterError(
            f"`{called(env)}` resets an environment in the env step after its episode ended, and "
            "does not say which rows that are. Wrap EnvPool's own environment instead: "
            "`everstep.make('envpool:…', num_envs)`."
        )


def warn_of_mistold_ends(env: Any) -> None:
    """Warn where the environment's wrapper is known not to tell how its episodes end."""
    for name in _MISTOLD.keys() & set(_wrappers_of(env)):
        warnings.warn(
            f"`{name.split('.')[-1]}` reports every end of an episode as {_MISTOLD[name]}. Pass "
            "`time_limit=` with the env steps of its clock, so that ends there are truncations "
            "and others are terminations, or `done_is=` with what every end is.",
            RuntimeWarning,
            stacklevel=4,
        )


def _wrappers_of(env: Any) -> list[str]:
    """Names of the innermost environment's classes, those of TorchRL's wrappers in short."""
    base = layers_of(env)[-1]
    return [
        f"{kind.__module__}.{kind.__qualname__}".removeprefix("torchrl.envs.libs.")
        for kind in type(base).__mro__
    ]
