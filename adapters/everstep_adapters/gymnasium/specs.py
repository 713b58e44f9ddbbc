"""Gymnasium spaces as torchrl specs of one environment.

A scalar gets one dimension, so every leaf is at least `[1]`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torchrl.data import Binary, Bounded, Categorical, TensorSpec

from everstep.env.formats import ObservationFormat
from everstep.errors import AdapterError

from ..common.specs import choices_spec, real_spec

_SAME = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32")

# PyTorch has few operations on wide unsigned integers: they are widened.
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _SAME} | {
    "uint16": torch.int32,
    "uint32": torch.int64,
}

#: Spaces whose values are tensors of one size.
_TENSORS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True)
class Part:
    """One leaf of an observation space, and the spec of its tensor."""

    #: Indices to it in an observation, outermost first; empty if the space is one leaf.
    path: tuple[Any, ...]

    #: The leaf's own space.
    space: spaces.Space[Any]

    #: Spec of one environment's value.
    spec: TensorSpec

    #: Its key in a `Composite` spec and in a TensorDict; empty for a plain tensor.
    key: tuple[str, ...]

    @property
    def start(self) -> None | npt.NDArray[Any]:
        """First value of the space; `None` if it is 0."""
        return start_of(self.space)

    @property
    def form(self) -> ObservationFormat:
        """The leaf as the space has it."""
        is_choice = isinstance(self.space, spaces.Discrete | spaces.MultiDiscrete)
        return ObservationFormat(self.path, tuple(self.space.shape or ()), self.start, is_choice)


def single_space(env: Any, name: str) -> Any:
    """The space of one environment of a batch; `name` is `"observation_space"` or `"action_space"`.

    Classes without Gymnasium's `single_…`, such as SuperSuit's, have it under the name itself.
    """
    return getattr(env, f"single_{name}" if hasattr(env, f"single_{name}") else name, None)


def start_of(space: spaces.Space[Any]) -> None | npt.NDArray[Any]:
    """First value of a space of choices; None if it is 0."""
    start = np.asarray(getattr(space, "start", 0))
    return start if start.any() else None


def observation_parts(
    space: spaces.Space[Any], device: torch.device, keys: None | Sequence[Any] = None
) -> list[Part]:
    """The leaves of an observation space, `Dict` and `Tuple` flattened, in the space's order.

    Args:
        space: Observation space of one environment.
        device: Device of the specs.
        keys: Keys to observe, in this order, each a key of the space or a sequence of nested ones.
            A single leaf that is left is a plain tensor. `None` for all.

    Raises:
        AdapterError: If a part of the space has no tensor, or there is no such key; names the part
            and the reason.

    """
    leaves = dict(_leaf_spaces(space))
    chosen = leaves if keys is None else _choose(leaves, keys)
    is_plain = keys is not None and len(chosen) == 1
    return [
        Part(
            path,
            leaf,
            _leaf_spec(leaf, device, where("observation_space", path), leaves),
            () if is_plain else tuple(map(str, path)),
        )
        for path, leaf in chosen.items()
    ]


def _leaf_spaces(
    space: spaces.Space[Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], spaces.Space[Any]]]:
    """The leaves of a space by path, in its order; an empty `Dict` is a leaf."""
    children: dict[Any, spaces.Space[Any]] = {}
    if isinstance(space, spaces.Dict):
        children = space.spaces
    elif isinstance(space, spaces.Tuple):
        children = dict(enumerate(space.spaces))
    if not children:
        yield path, space
    for index, child in children.items():
        yield from _leaf_spaces(child, (*path, index))


def _choose(leaves: dict[Any, spaces.Space[Any]], keys: Sequence[Any]) -> dict[Any, Any]:
    """The leaves under the keys, in the order of the keys."""
    chosen = {}
    for key in [keys] if isinstance(keys, str) else keys:
        wanted = (key,) if isinstance(key, str | int) else tuple(key)
        found = {path: leaf for path, leaf in leaves.items() if path[: len(wanted)] == wanted}
        if not found or not wanted:
            known = ", ".join(".".join(map(str, path)) or "none" for path in leaves)
            raise AdapterError(
                f"`observation_keys` must be among the keys of the observation space, {known}; "
                f"got {key!r}."
            )
        chosen.update(found)
    if not chosen:
        raise AdapterError("`observation_keys` must have at least one key; got none.")
    return chosen


def where(name: str, path: tuple[Any, ...]) -> str:
    """A leaf's name in errors, such as `obs['camera'][0]`."""
    return name + "".join(f"[{index!r}]" for index in path)


def _leaf_spec(
    space: spaces.Space[Any], device: torch.device, name: str, siblings: dict[Any, Any]
) -> TensorSpec:
    if isinstance(space, spaces.Box):
        return box_spec(space, device, name)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return integer_spec(space, device)
    if isinstance(space, spaces.MultiBinary):
        return Binary(shape=torch.Size(space.shape), device=device, dtype=torch.int8)
    tensors = [path for path, leaf in siblings.items() if isinstance(leaf, _TENSORS)]
    raise AdapterError(f"`{name}` cannot be a tensor: {_reason(space, tensors)}.")


def box_spec(space: spaces.Box, device: torch.device, name: str) -> TensorSpec:
    """Spec of a `Box`; see `real_spec` for real numbers."""
    dtype = _torch_dtype(space.dtype, name)
    shape = torch.Size(space.shape or (1,))
    wide = np.float64 if dtype.is_floating_point else np.int64  # NumPy warns of overflows
    low, high = (
        torch.from_numpy(bound.astype(wide)).to(device, dtype).reshape(shape)
        for bound in (space.low, space.high)
    )
    if dtype.is_floating_point:
        return real_spec(low, high, device)
    return Bounded(low=low, high=high, shape=shape, device=device, dtype=dtype)


def integer_spec(space: spaces.Space[Any], device: torch.device) -> TensorSpec:
    """Spec of an action of integers: choices wherever the space has choices or flags."""
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), shape=torch.Size([1]), device=device)
    if isinstance(space, spaces.Box) and space.dtype.kind in "iu":
        return box_spec(space, device, "action_space")
    # `MultiBinary` and booleans have no numbers of options: two each.
    counts = np.atleast_1d(getattr(space, "nvec", np.full(space.shape or (), 2)))
    return choices_spec(torch.tensor(counts.tolist(), dtype=torch.int64, device=device))


def _torch_dtype(dtype: np.dtype[Any], name: str) -> torch.dtype:
    """The same dtype in PyTorch; `float64` becomes the default dtype, as networks have it."""
    if dtype == np.float64:
        return torch.get_default_dtype()
    if dtype.name in _DTYPES:
        return _DTYPES[dtype.name]
    raise AdapterError(
        f"`{name}` cannot be a tensor: PyTorch has no {dtype.name}. "
        f"Use one of {', '.join(_DTYPES)}, float64."
    )


def _reason(space: object, others: list[tuple[Any, ...]]) -> str:
    """Why a space has no tensor, and the way out.

    Args:
        space: The space.
        others: Paths of the leaves that have one.

    """
    if space is None:
        return "the environment does not say what it is (None)"
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return f"an empty `{type(space).__name__}` holds nothing"
    keys = [path[0] if len(path) == 1 else list(path) for path in others]
    advice = (
        f"Leave it out with `observation_keys={keys}`, or in a wrapper"
        if keys
        else ("Make it a tensor in a wrapper")
    )
    return (
        f"the size or the kind of a `{type(space).__name__}` value varies; got {space}. {advice}: "
        "`wrappers` takes classes and dotted names, such as `minigrid.wrappers.ImgObsWrapper` for "
        "MiniGrid and BabyAI, whose images it keeps"
    )
