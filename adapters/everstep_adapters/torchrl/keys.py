"""Keys of a TorchRL environment's observations, actions and rewards, and its known wrappers."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torchrl.data import TensorSpec

from everstep.data import DataKeys
from everstep.env.formats import numpy_dtype
from everstep.errors import AdapterError, EverstepError

from ..common.calls import error_text
from ..common.independence import check_independent
from ..common.layers import attributes
from ..common.libraries import is_loaded_instance
from ..common.limits import limit_of
from ..common.rounding import RoundingWatch
from .calls import layers_of, name_of
from .specs import Key, Layout, Leaf, NestedKey, as_key, join_keys, leaves_of, make_leaf, write_key

#: The adapter's own count of env steps, which no policy observes.
STEP_COUNT = "_everstep_step_count"

#: Keys that transforms write for themselves; so are names that begin with an underscore.
_BOOKKEEPING = frozenset({"is_init", "step_count", "traj_count"})

#: Marks the allowed options: an env step takes it as a state, and policies apply it.
_MASK = "action_mask"

#: TorchRL's wrapper of EnvPool.
_POOL = "envpool.MultiThreadedEnvWrapper"

#: Wrappers that report time-outs and terminations alike, and what they report.
_ONE_FLAG = {
    "brax.BraxWrapper": "terminated",
    "isaacgym.IsaacGymWrapper": "truncated",
    "jumanji.JumanjiWrapper": "terminated",
    "mujoco_playground.MujocoPlaygroundWrapper": "terminated",
    "smacv2.SMACv2Wrapper": "terminated",
    "vmas.VmasWrapper": "terminated",
}


@contextmanager
def reading_specs(env: Any) -> Iterator[None]:
    """A context in which an environment's specs are read, which TorchRL computes when they are.

    Raises:
        AdapterError: If that fails; names the layer that is the first to fail, and its reason.

    """
    try:
        yield
    except EverstepError:
        raise
    except Exception as error:  # transforms may raise anything
        failures = ((layer, _failure(layer)) for layer in reversed(layers_of(env)))
        found = ((layer, reason) for layer, reason in failures if reason is not None)
        layer, reason = next(found, (env, error))
        transform = getattr(layer, "transform", None)
        if transform is None:
            what, advice = name_of(layer), "Mend them"
        else:
            what, advice = f"the transform {transform}", "Leave it out, or give it other keys"
        if type(transform).__name__ == "DoubleToFloat":
            advice = "Leave it out: float64 becomes PyTorch's default dtype here without it"
        raise AdapterError(
            f"The specs of {what} cannot be read: {error_text(reason).rstrip('.')}. {advice}. "
            "`torchrl.envs.check_env_specs(env)` shows whether TorchRL can read them."
        ) from error


def _failure(layer: Any) -> None | Exception:
    """The error that is raised when the specs of a layer are computed; None if there is none.

    A transformed environment raises another one, which does not have the reason.
    """
    transform = getattr(layer, "transform", None)
    for name in ("output_spec", "input_spec"):
        try:
            if transform is None:
                getattr(layer, name)
            else:
                getattr(transform, f"transform_{name}")(getattr(layer.base_env, name).clone())
        except Exception as error:  # see above
            return error
    return None


def find_rows(env: Any, action_key: None | NestedKey, num_envs: None | int) -> tuple[Key, Layout]:
    """The key of the action that the policy chooses, and the layout of rows.

    Agents are the dimensions that the part of the specs around the action has beyond the
    environment's batch.

    Raises:
        AdapterError: If there are several actions, no action, no reward, or the batch cannot be
            `num_envs`.

    """
    for kind in ("action", "reward"):
        if not leaves_of(getattr(env, f"full_{kind}_spec")):
            raise AdapterError(
                f"A row has one {kind}, and the specs of {name_of(env)} have no {kind}."
            )
    key = _pick("action", list(leaves_of(env.full_action_spec)), action_key, ())
    batch, dims = torch.Size(env.batch_size), len(env.batch_size)
    if num_envs is not None:
        if env.batch_locked or env.batch_size:
            raise AdapterError(
                "`num_envs` is for stateless environments without a batch of their own; "
                f"{name_of(env)} has {list(env.batch_size)}. Use a `SerialEnv` or a `ParallelEnv` "
                "of several."
            )
        batch = torch.Size([num_envs])
    for depth in range(len(key) - 1, 0, -1):
        group = key[:depth]
        for spec in (env.full_action_spec, env.observation_spec):
            part = spec[group] if group in map(as_key, spec.keys(True)) else None
            if part is not None and part.ndim > dims:
                return key, Layout(batch, dims, group, torch.Size(part.shape[dims:]))
    return key, Layout(batch, dims, key[:-1])


def other_actions(env: Any, layout: Layout, chosen: Sequence[Key]) -> dict[Key, Callable[[], Any]]:
    """Functions that draw the actions which the policy does not choose, by key."""
    size = () if env.batch_size == layout.batch else layout.batch
    specs = leaves_of(env.full_action_spec).items()
    return {key: partial(spec.rand, size) for key, spec in specs if key not in chosen}


def find_reward(
    env: Any, layout: Layout, reward_key: None | NestedKey, device: torch.device
) -> Leaf:
    """The reward, of floating point.

    Raises:
        AdapterError: If there are several, or it is not one number a row.

    """
    rewards = leaves_of(env.full_reward_spec)
    key = _pick("reward", list(rewards), reward_key, layout.group)
    leaf = make_leaf(key, rewards[key], layout, device)
    if leaf.feature.numel() != 1:
        example = ", such as `LineariseRewards`" if len(leaf.feature) == 1 else ""
        raise AdapterError(
            f"A reward is one number a row; `{join_keys([key])}` has {list(leaf.feature)}. Add "
            f"them up in a transform{example}."
        )
    dtypes = (numpy_dtype(x.dtype) for x in (rewards[key], leaf.spec))
    return replace(leaf, watch=RoundingWatch.of("rewards", *dtypes))


def _pick(kind: str, keys: list[Key], chosen: None | NestedKey, group: Key) -> Key:
    """The key that was chosen, else the only one there is, else the only one beside the action."""
    if chosen is not None:
        if as_key(chosen) not in keys:
            raise AdapterError(
                f"`{kind}_key` must be one of {join_keys(keys)}; got {join_keys([as_key(chosen)])}."
            )
        return as_key(chosen)
    own = [key for key in keys if group and key[: len(group)] == group]
    for candidates in (keys, own):
        if len(candidates) == 1:
            return candidates[0]
    raise AdapterError(
        f"A row has one {kind}; this environment has {join_keys(keys)}. Pass "
        f"`{kind}_key={write_key(keys[0])}`, or another of them, or make them one in a transform."
    )


def find_observed(
    env: Any, layout: Layout, keys: None | Sequence[NestedKey], option: str = "observation_keys"
) -> dict[Key, TensorSpec]:
    """The observed keys: those that were chosen, else all but those that transforms write.

    Those of `state_spec`, which an env step takes, and those under `info` are left out, too, if
    others remain; an `action_mask` is not.

    Raises:
        AdapterError: If a key that was chosen is not there, or there is none.

    """
    specs = leaves_of(env.observation_spec)
    if keys is None:
        seen = {key: spec for key, spec in specs.items() if not _is_hidden(key, env, layout)}
        # Wrappers of simulators list their inside (random keys, masses) and infos as observations.
        states = leaves_of(env.state_spec)
        inside = {key for key in seen if key in states or "info" in key}
        inside -= {key for key in inside if key[-1] == _MASK}
        if not seen:
            every = ", ".join(map(write_key, specs))
            raise AdapterError(
                "The environment has nothing to observe"
                + (f": pass `observation_keys=[{every}]`." if every else ". Add an observation.")
            )
        return {key: spec for key, spec in seen.items() if key not in inside} or seen
    chosen = {}
    for wanted in map(as_key, [keys] if isinstance(keys, str) else keys):
        matching = {key: spec for key, spec in specs.items() if key[: len(wanted)] == wanted}
        if not matching:
            raise AdapterError(
                f"`{option}` must be among {join_keys(list(specs))}; got {join_keys([wanted])}."
            )
        chosen.update(matching)
    return chosen


def _is_hidden(key: Key, env: Any, layout: Layout) -> bool:
    """Whether a policy observes a key only on demand: a transform's own, or other agents'."""
    sums = {f"episode_{reward[-1]}" for reward in leaves_of(env.full_reward_spec)}
    if key[-1] in _BOOKKEEPING | sums | (own_episode_keys(env) & {DataKeys.VALID}):
        return True
    if any(part.startswith("_") for part in key):
        return True
    groups = {action[:-1] for action in leaves_of(env.full_action_spec)} - {()}
    return any(
        key[: len(group)] == group and layout.group[: len(group)] != group for group in groups
    )


def resets_itself(env: Any) -> bool:
    """Whether the environment resets itself in its own step, and loses the final observation.

    TorchRL replaces it by NaN, -1, 0, or the next episode's observation. An environment in a
    process is made once more here to look at it, if its observations are integers: others hold NaN.
    """
    from torchrl.envs import ParallelEnv, SerialEnv

    layers = layers_of(env)
    base = layers[-1]
    if isinstance(base, SerialEnv):
        if base.is_closed:
            base.start()
        layers += [layer for one in base._envs for layer in layers_of(one)]
    elif isinstance(base, ParallelEnv) and _is_integral(env):
        one = base.create_env_fn[0](**(base.create_env_kwargs[0] or {}))
        layers += layers_of(one)
        one.close()
    return any(map(_resets_itself, layers))


def _resets_itself(layer: Any) -> bool:
    from torchrl.envs import AutoResetEnv

    is_native = vars(layer).get("_torchrl_native_autoreset", False)
    return isinstance(layer, AutoResetEnv) or bool(is_native)


def has_single_rows(env: Any) -> bool:
    """Whether each row is an environment of its own in this process, which is reset alone."""
    from torchrl.envs import SerialEnv

    base = layers_of(env)[-1]
    return isinstance(base, SerialEnv) and not any(one.batch_size for one in base._envs)


def _is_integral(env: Any) -> bool:
    dtypes = (spec.dtype for spec in leaves_of(env.observation_spec).values())
    return not any(dtype.is_floating_point for dtype in dtypes if dtype is not None)


def own_episode_keys(env: Any) -> frozenset[str]:
    """Episode keys of an exported Everstep environment that returns invalid rows; else empty.

    `to_torchrl(invalid_rows="keep")` makes them, and marks the rows by `valid` and `is_init`.
    """
    base = layers_of(env)[-1]
    is_exported = is_loaded_instance(
        base, "everstep_adapters.export.torchrl_env", "EverstepEnvBase"
    )
    keys = base.env.episode_keys if is_exported else frozenset()
    return keys if DataKeys.VALID in keys else frozenset()


def limited(env: Any, limit: None | int, random_phase: bool) -> Any:
    """The environment, in a `StepCounter` if there is a limit.

    Raises:
        AdapterError: If phases are asked for without a limit, or the environment cannot be reset at
            the limit.

    """
    from torchrl.envs import StepCounter, TransformedEnv

    if limit is None:
        if random_phase:
            raise AdapterError("`random_phase` needs `max_episode_steps`, which it is a phase of.")
        return env
    if resets_itself(env):
        raise AdapterError(
            f"{name_of(env)} resets itself, so `max_episode_steps` cannot reset it. Set the limit "
            "in the environment."
        )
    counter = StepCounter(limit, step_count_key=STEP_COUNT)
    return TransformedEnv(env, counter, auto_unwrap=False)


def known_limit(env: Any) -> None | int:
    """Env steps of an episode at most; None if a row has no limit that is known.

    It is known by a `StepCounter`, or as `limit_of` has it of what TorchRL wraps. TorchRL's own
    environments are not asked: some forward what they do not have to their processes, which end.
    """
    from torchrl.envs import SerialEnv, StepCounter

    *outer, base = layers_of(env)
    limits = [limit_of(attributes(base).get("_env"))]
    for layer in outer:
        transforms = torch.nn.Module.modules(layer.transform)  # some have a list of that name
        limits += [x.max_steps for x in transforms if isinstance(x, StepCounter)]
    if isinstance(base, SerialEnv):
        rows: list[Any] = [known_limit(row) for row in base._envs]
        limits.append(None if None in rows else max(rows))
    return min((int(x) for x in limits if x is not None), default=None)


def check_wrapper(env: Any) -> None:
    """Refuse an environment whose wrapper does not reset rows when TorchRL resets them.

    Raises:
        AdapterError: If it is TorchRL's wrapper of EnvPool, whose next env step is the reset.

    """
    if _POOL in _wrappers_of(env):
        raise AdapterError(
            f"`{name_of(env)}` resets an environment in the env step after its episode ended, and "
            "does not say which rows that are. Wrap EnvPool's own environment instead: "
            "`everstep.make('envpool:…', num_envs)`."
        )


def check_rows(env: Any) -> None:
    """Refuse a `SerialEnv` of environments that are one.

    Raises:
        AdapterError: If two rows are the same environment, or move the same simulation.

    """
    from torchrl.envs import SerialEnv

    base = layers_of(env)[-1]
    if isinstance(base, SerialEnv):
        if base.is_closed:
            base.start()
        check_independent(base._envs, name_of(env))


def warn_of_one_flag(env: Any) -> None:
    """Warn if the environment's wrapper reports time-outs and terminations alike."""
    for name in _ONE_FLAG.keys() & set(_wrappers_of(env)):
        warnings.warn(
            f"`{name.split('.')[-1]}` reports every end of an episode as {_ONE_FLAG[name]}. Pass "
            "`time_limit=` with the env steps of its clock, so that ends there are truncations "
            "and others are terminations, or `done_is=` with what every end is.",
            RuntimeWarning,
            stacklevel=4,
        )


def _wrappers_of(env: Any) -> list[str]:
    """Names of the innermost environment's classes, relative to TorchRL's wrappers."""
    base = layers_of(env)[-1]
    return [
        f"{kind.__module__}.{kind.__qualname__}".removeprefix("torchrl.envs.libs.")
        for kind in type(base).__mro__
    ]
