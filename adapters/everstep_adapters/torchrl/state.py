"""States of TorchRL environments: the tensordict of the last step, and what it does not hold.

Stateless environments and most transforms keep everything in the tensordict. `ATTRIBUTES` lists
what a class has beside it. An environment is restored if all its layers are in the table, or have
methods `state_dict` and `load_state_dict` of their own: those of `torch.nn.Module`, which every
TorchRL environment inherits, hold parameters and buffers only.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from everstep.errors import CheckpointError

from ..common.changes import Changes
from .calls import layers_of
from .specs import Layout, leaves_of

_TRANSFORMS = "torchrl.envs.transforms."
_BATCHED = "torchrl.envs.batched_envs.SerialEnv"

#: Attributes that `reset` and `step` change, beside the tensordict, by the dotted name of the
#: class; of transforms without the module below `torchrl.envs.transforms`.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "torchrl.envs.custom.pendulum.PendulumEnv": ("rng",),
    "torchrl.envs.custom.tictactoeenv.TicTacToeEnv": (),
    _BATCHED: (),
    f"{_TRANSFORMS}TransformedEnv": (),
    f"{_TRANSFORMS}Compose": (),
    f"{_TRANSFORMS}StepCounter": (),
    f"{_TRANSFORMS}RewardSum": (),
    f"{_TRANSFORMS}InitTracker": (),
    f"{_TRANSFORMS}DoubleToFloat": (),
    f"{_TRANSFORMS}DTypeCastTransform": (),
    f"{_TRANSFORMS}CatTensors": (),
    f"{_TRANSFORMS}UnsqueezeTransform": (),
    f"{_TRANSFORMS}SqueezeTransform": (),
    f"{_TRANSFORMS}FlattenObservation": (),
    f"{_TRANSFORMS}ObservationNorm": (),
    f"{_TRANSFORMS}RewardScaling": (),
    f"{_TRANSFORMS}RewardClipping": (),
}


def read_state(env: Any) -> None | dict[str, Any]:
    """State beside the tensordict, by layer; None if a layer is unknown."""
    states = [_read_layer(part) for part in _parts(env)]
    return None if None in states else {str(i): state for i, state in enumerate(states)}


def changes_to_env(changes: Changes, env: Any, state: dict[str, Any]) -> None:
    """Collect the changes that set a state that `read` returned."""
    parts = [*_parts(env)]
    if [*state] != [str(i) for i in range(len(parts))]:
        raise CheckpointError(f"it has {len(state)} layers, where there are {len(parts)}")
    for part, values in zip(parts, state.values(), strict=True):
        if _has_own(part):
            changes.load(part, values["own"])
            continue
        for name in ATTRIBUTES[_name(part)]:
            changes.assign(_assignment(part, name, values[name]))


def _parts(env: Any) -> Iterator[Any]:
    """Layers of an environment, its transforms, and the environments of a `SerialEnv`."""
    for layer in layers_of(env):
        yield layer
        if _name(layer) == f"{_TRANSFORMS}TransformedEnv":
            yield layer.transform
            yield from getattr(layer.transform, "transforms", ())
        if _name(layer) == _BATCHED:
            if layer.is_closed:
                layer.start()
            for row in layer._envs:
                yield from _parts(row)


def _name(part: Any) -> str:
    kind = type(part)
    is_transform = kind.__module__.startswith(_TRANSFORMS)
    return f"{_TRANSFORMS.rstrip('.') if is_transform else kind.__module__}.{kind.__qualname__}"


def _has_own(part: Any) -> bool:
    methods = (getattr(type(part), name) for name in ("state_dict", "load_state_dict"))
    return not any(x.__module__.startswith(("torch.", "torchrl.")) for x in methods)


def _read_layer(part: Any) -> None | dict[str, Any]:
    if _has_own(part):
        return {"own": part.state_dict()}
    names = ATTRIBUTES.get(_name(part))
    if names is None:
        return None
    return {name: _encode(getattr(part, name)) for name in names}


def _encode(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return {"generator": value.get_state()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def _assignment(part: Any, name: str, value: Any) -> Callable[[], object]:
    """The assignment of an attribute, which was tried with a generator of the same device."""
    if isinstance(value, dict):
        own = getattr(part, name)
        torch.Generator(own.device).set_state(value["generator"])
        return partial(own.set_state, value["generator"])
    return partial(setattr, part, name, value)


# ---- the tensordict ---------------------------------------------------------------------------


def encode_data(data: TensorDictBase) -> None | dict[str, Any]:
    """A tensordict as mappings of tensors; None if it holds anything else."""
    items: dict[str, Any] = {}
    for key, value in data.items():
        item = encode_data(value) if isinstance(value, TensorDictBase) else value
        if not isinstance(item, dict | torch.Tensor):
            return None
        items[key] = item if isinstance(item, dict) else item.clone()
    return {"shape": list(data.batch_size), "items": items}


def decode_data(env: Any, layout: Layout, state: dict[str, Any]) -> TensorDict:
    """The tensordict that `encode_data` was given.

    Raises:
        CheckpointError: If it is not one that the environment can be stepped with.

    """
    data = _decode(state, env.device)
    if data.batch_size != layout.batch:
        raise CheckpointError(f"its batch is {[*data.batch_size]}; this one's is {[*layout.batch]}")
    for key, spec in leaves_of(env.full_state_spec).items():
        value, shape = data.get(key), (*layout.batch, *spec.shape[layout.batch_dims :])
        if value is None or value.shape != shape:
            found = None if value is None else [*value.shape]
            raise CheckpointError(f"`{'/'.join(key)}` must be {[*shape]}; got {found}")
    return data


def _decode(state: dict[str, Any], device: None | torch.device) -> TensorDict:
    items = {
        key: _decode(value, device) if isinstance(value, dict) else value
        for key, value in state["items"].items()
    }
    return TensorDict(items, batch_size=state["shape"], device=device)
