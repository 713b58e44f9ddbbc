"""States of Gymnasium environments: what a checkpoint holds of them, and how it is set again.

Gymnasium has no method for it, so `ATTRIBUTES` lists the attributes of a class that change in
`reset` and `step`. An environment is restored if all its layers are known: the vector environment,
the wrappers, and the environment itself. One's own is known if it has `state_dict` and
`load_state_dict`, or if its dotted name is added to the table.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from everstep.errors import CheckpointError

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
    """Set a state that `read` returned."""
    for layer, values in zip(_layers(env), state["layers"], strict=True):
        _write_layer(layer, values)
    for row, values in zip(getattr(env.unwrapped, "envs", ()), state["rows"], strict=True):
        write(row, values)


def _layers(env: Any) -> Iterator[Any]:
    """The environment, and what it wraps, outermost first."""
    yield env
    while env is not env.unwrapped:
        env = env.env
        yield env


def _read_layer(layer: Any) -> None | dict[str, Any]:
    base = layer is layer.unwrapped
    if base and hasattr(layer, "state_dict") and hasattr(layer, "load_state_dict"):
        return {"own": layer.state_dict()}
    names = ATTRIBUTES.get(_name(layer))
    is_mujoco = base and _is_mujoco(layer)
    if names is None and not is_mujoco:
        return None
    own = vars(layer)
    values = {name: encode(own[name]) for name in names or () if name in own}
    state = {"attributes": values, "random": encode_generator(own.get("_np_random"))}
    return {**state, "data": _read_data(layer.data)} if is_mujoco else state


def _write_layer(layer: Any, state: dict[str, Any]) -> None:
    if "own" in state:
        layer.load_state_dict(state["own"])
        return
    for name in ATTRIBUTES.get(_name(layer), ()):  # not others that a file may name
        if name not in state["attributes"]:
            continue
        value = state["attributes"][name]
        # A checker compares its first env steps with what it stored then: they are over.
        setattr(layer, name, name.startswith("checked_") or decode(value))
    if state["random"] is not None:
        layer._np_random = decode_generator(state["random"])
    if "data" in state:
        _write_data(layer.data, state["data"])


def _name(layer: Any) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


# ---- values -----------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """An attribute as a checkpoint holds it: arrays are tensors, NumPy's scalars marked ones."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return {"scalar": torch.from_numpy(np.array(value))}
    if isinstance(value, list | tuple):
        items = [encode(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def decode(value: Any) -> Any:
    """The attribute that `encode` was given."""
    if isinstance(value, torch.Tensor):
        return value.cpu().numpy().copy()
    if isinstance(value, dict):
        return value["scalar"].cpu().numpy()[()]
    if isinstance(value, list | tuple):
        items = [decode(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def encode_generator(generator: None | np.random.Generator) -> Any:
    """The state of a random generator; None for none."""
    return None if generator is None else _map(generator.bit_generator.state, encode)


def decode_generator(state: dict[str, Any]) -> np.random.Generator:
    """A random generator with a state.

    Raises:
        CheckpointError: If it names none of NumPy's bit generators.

    """
    name = state["bit_generator"]
    kinds = {kind.__name__: kind for kind in np.random.BitGenerator.__subclasses__()}
    kind: Any = kinds.get(str(name))  # not another attribute of NumPy, which a file must not call
    if kind is None:
        raise CheckpointError(f"NumPy has no bit generator {name!r}.")
    bits: Any = kind()
    bits.state = _map(state, decode)
    return np.random.Generator(bits)


def _map(state: Any, function: Callable[[Any], Any]) -> Any:
    """A nested mapping with a function applied to its values."""
    if isinstance(state, dict) and "scalar" not in state:
        return {key: _map(value, function) for key, value in state.items()}
    return function(state)


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


def _write_data(data: Any, state: dict[str, Any]) -> None:
    data.time = state["time"]
    for name, array in _arrays(data).items():
        values = state["arrays"].get(name)
        if values is not None and tuple(values.shape) == array.shape:  # else of contacts
            array[...] = decode(values)


def _arrays(data: Any) -> dict[str, np.ndarray[Any, Any]]:
    names = [x for x in dir(data) if not x.startswith(("_", *_OF_CONTACTS))]
    values = {name: getattr(data, name) for name in names if not callable(getattr(data, name))}
    return {k: x for k, x in values.items() if isinstance(x, np.ndarray) and x.flags.writeable}
