"""States of Gymnasium environments: what a checkpoint holds of them, and how it is set again.

Gymnasium has no method for it, so `ATTRIBUTES` lists the attributes of a class that change in
`reset` and `step`. An environment is restored if all its layers are known: the vector environment,
the wrappers, and the environment itself. One's own is known if it has `state_dict` and
`load_state_dict`, or if its dotted name is added to the table.

A state is checked as a whole before any of it is set.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from everstep.errors import CheckpointError

from ..common.changes import Changes, fitting, own_state
from .endings import EpisodeClock
from .modes import AnyVectorEnv
from .rows import BoolArray
from .values import decode, decode_generator, decode_like, encode, encode_generator

_CONTROL = "gymnasium.envs.classic_control"
_WRAPPERS = "gymnasium.wrappers.common"

#: Attributes that `reset` and `step` change, by the dotted name of the class. Those that a version
#: of Gymnasium lacks are left out.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "gymnasium.vector.sync_vector_env.SyncVectorEnv": (
        *("_rewards", "_terminations", "_truncations", "_autoreset_envs"),
    ),
    f"{_CONTROL}.cartpole.CartPoleVectorEnv": (
        *("state", "steps", "prev_done", "steps_beyond_terminated", "low", "high"),
    ),
    f"{_CONTROL}.cartpole.CartPoleEnv": ("state", "steps_beyond_terminated"),
    f"{_CONTROL}.pendulum.PendulumEnv": ("state", "last_u"),
    f"{_CONTROL}.acrobot.AcrobotEnv": ("state",),
    f"{_CONTROL}.mountain_car.MountainCarEnv": ("state",),
    f"{_CONTROL}.continuous_mountain_car.Continuous_MountainCarEnv": ("state",),
    f"{_WRAPPERS}.TimeLimit": ("_elapsed_steps",),
    f"{_WRAPPERS}.OrderEnforcing": ("_has_reset",),
    f"{_WRAPPERS}.PassiveEnvChecker": ("checked_reset", "checked_step", "checked_data_reuse"),
    f"{_WRAPPERS}.RecordEpisodeStatistics": ("episode_returns", "episode_lengths"),
    "gymnasium.wrappers.transform_action.ClipAction": (),
    "gymnasium.wrappers.transform_action.RescaleAction": (),
    "gymnasium.wrappers.transform_observation.FlattenObservation": (),
}

#: Arrays of MuJoCo's data whose sizes follow the contacts of an env step, and that the next one
#: computes before it reads them.
_OF_CONTACTS = ("efc_", "iefc_", "contact", "island", "map_", "tree_island", "dof_island", "iM_")


# ---- the adapter's environment ----------------------------------------------------------------


def state_of(
    env: AnyVectorEnv, clock: EpisodeClock, pending: None | BoolArray
) -> None | dict[str, Any]:
    """The state of a vector environment and of the adapter's counts; None if it cannot be read.

    Args:
        env: The vector environment.
        clock: The adapter's limit.
        pending: Rows that the environment resets in the next env step, in modes that have them.

    """
    state = read(env)
    if state is None:
        return None
    waiting = None if pending is None else encode(pending)
    return {"env": state, "clock": clock.state_dict(), "pending": waiting}


def load_state(
    env: AnyVectorEnv, clock: EpisodeClock, pending: None | BoolArray, state: dict[str, Any]
) -> tuple[None | int, bool]:
    """Set a state of `state_of`; the adapter's seed and whether it was reset, which are in it too.

    Raises:
        CheckpointError: If it does not fit; nothing is changed then.

    """
    with fitting(env):
        seed, was_reset = state["seed"], state["was_reset"]
        if not (seed is None or isinstance(seed, int)) or not isinstance(was_reset, bool):
            raise CheckpointError(f"`seed` and `was_reset` are {seed!r} and {was_reset!r}")
        # One that was never reset is reset before its next step, whatever it holds now.
        changes = changes_to(env, state["env"]) if was_reset else Changes()
        changes.assign(clock.checked(state["clock"]))
        if pending is not None:
            waiting = decode_like(pending, state["pending"], "pending")
            changes.assign(partial(np.copyto, pending, waiting))
    changes.make()
    return seed, was_reset


# ---- layers -----------------------------------------------------------------------------------


def read(env: Any) -> None | dict[str, Any]:
    """The state of an environment and of all that it is made of; None if part of it is unknown."""
    layers = [_read_layer(layer) for layer in _layers(env)]
    if any(layer is None for layer in layers):
        return None
    rows = [read(row) for row in getattr(env.unwrapped, "envs", ())]
    if any(row is None for row in rows):
        return None
    return {"layers": layers, "rows": rows}


def write(env: Any, state: dict[str, Any]) -> None:
    """Set a state that `read` returned.

    Raises:
        CheckpointError: If it does not fit; nothing is changed then.

    """
    with fitting(env):
        changes = changes_to(env, state)
    changes.make()


def changes_to(env: Any, state: dict[str, Any]) -> Changes:
    """The changes that set a state. Raises whatever a state that does not fit leads to."""
    changes = Changes()
    _collect(changes, env, state)
    return changes


def _collect(changes: Changes, env: Any, state: dict[str, Any]) -> None:
    for layer, values in zip(_layers(env), state["layers"], strict=True):
        _collect_layer(changes, layer, values)
    for row, values in zip(getattr(env.unwrapped, "envs", ()), state["rows"], strict=True):
        _collect(changes, row, values)


def _layers(env: Any) -> Iterator[Any]:
    """The environment, and what it wraps, outermost first."""
    yield env
    while env is not env.unwrapped:
        env = env.env
        yield env


def _has_own(layer: Any) -> bool:
    is_base = layer is layer.unwrapped
    return is_base and hasattr(layer, "state_dict") and hasattr(layer, "load_state_dict")


def _read_layer(layer: Any) -> None | dict[str, Any]:
    if _has_own(layer):
        return {"own": own_state(layer)}
    names = ATTRIBUTES.get(_name(layer))
    is_mujoco = _is_mujoco(layer)
    if names is None and not is_mujoco:
        return None
    own = vars(layer)
    values = {name: encode(own[name]) for name in names or () if name in own}
    state = {"attributes": values, "random": encode_generator(own.get("_np_random"))}
    return {**state, "data": _read_data(layer.data)} if is_mujoco else state


def _collect_layer(changes: Changes, layer: Any, state: dict[str, Any]) -> None:
    if _has_own(layer):
        changes.load(layer, state["own"])
        return
    own = vars(layer)
    for name in ATTRIBUTES.get(_name(layer), ()):  # not others that a file may name
        if name not in state["attributes"]:
            continue
        value, before = decode(state["attributes"][name]), own.get(name)
        if isinstance(before, np.ndarray) and np.shape(value) != before.shape:
            raise CheckpointError(f"`{name}` has shape {before.shape}; got {np.shape(value)}")
        if before is not None and value is not None and _kind(before) != _kind(value):
            raise CheckpointError(f"`{name}` is {_kind(before)}; got {_kind(value)}")
        # A checker compares its first env steps with what it stored then: they are over.
        changes.assign(partial(setattr, layer, name, name.startswith("checked_") or value))
    if state["random"] is not None:
        changes.assign(partial(setattr, layer, "_np_random", decode_generator(state["random"])))
    if _is_mujoco(layer):
        _collect_data(changes, layer.data, state["data"])


def _kind(value: Any) -> str:
    if isinstance(value, bool | int | float | np.generic):
        return "a number"
    return "an array" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _name(layer: Any) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


# ---- MuJoCo -----------------------------------------------------------------------------------


def _is_mujoco(env: Any) -> bool:
    """Whether this is one of Gymnasium's MuJoCo environments, with the bindings of MuJoCo."""
    bases = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(env).__mro__}
    is_ours = type(env).__module__.startswith("gymnasium.envs.mujoco.")
    return is_ours and "gymnasium.envs.mujoco.mujoco_env.MujocoEnv" in bases


def _read_data(data: Any) -> dict[str, Any]:
    """Time and arrays, the derived ones included: rewards compare them before and after a step."""
    arrays = {name: encode(x) for name, x in _arrays(data).items()}
    return {"time": float(data.time), "arrays": arrays}


def _collect_data(changes: Changes, data: Any, state: dict[str, Any]) -> None:
    changes.assign(partial(setattr, data, "time", float(state["time"])))
    for name, array in _arrays(data).items():
        values = state["arrays"].get(name)
        if name in ("qpos", "qvel") or (values is not None and values.shape == array.shape):
            changes.assign(partial(np.copyto, array, decode_like(array, values, name)))


def _arrays(data: Any) -> dict[str, np.ndarray[Any, Any]]:
    names = [x for x in dir(data) if not x.startswith(("_", *_OF_CONTACTS))]
    values = {name: getattr(data, name) for name in names if not callable(getattr(data, name))}
    return {k: x for k, x in values.items() if isinstance(x, np.ndarray) and x.flags.writeable}
