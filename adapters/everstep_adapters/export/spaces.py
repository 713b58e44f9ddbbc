"""Specs as Gymnasium spaces, and tensors as the arrays that these contain, in both directions.

The inverse of what `GymnasiumEnv` makes of spaces, where there is one: a `Categorical` of one
choice is `Discrete`, without the dimension that the spec has.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch.nn.functional import one_hot
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    OneHot,
    TensorSpec,
    Unbounded,
)

from everstep.errors import AdapterError
from everstep.specs import options

# What NumPy calls a dtype of PyTorch; it has no bfloat16.
_NUMPY = {torch.bool: "bool", torch.bfloat16: "float32"}

Space = spaces.Space[Any]


class Exported(Protocol):
    """A spec as a space."""

    @property
    def space(self) -> Space:
        """Space of one environment's value."""
        ...

    def to_numpy(self, batch: Any, *, copy: bool) -> Any:
        """A batch of tensors as a batch of the space's values.

        Args:
            batch: Tensors `[N, …]` as the spec has them.
            copy: Whether the arrays are always new; else they may show the tensors' memory.

        """
        ...

    def to_torch(self, values: Any, device: torch.device) -> Any:
        """A batch of the space's values as tensors `[N, …]`, in memory of their own.

        Raises:
            AdapterError: Where the values are not those of a batch of `num_envs`.

        """
        ...


@dataclass(frozen=True)
class ExportedLeaf:
    """A spec of one tensor as a space."""

    #: What errors call it, such as `action['move']`.
    name: str

    #: Spec of one environment's tensor.
    spec: TensorSpec

    #: Space of one environment's value.
    space: Space

    #: Number of rows of a batch.
    num_envs: int

    #: Options of each group of a one-hot action, which the space has as choices; else empty.
    groups: tuple[int, ...] = ()

    def to_numpy(self, batch: torch.Tensor, *, copy: bool) -> npt.NDArray[Any]:
        """See `Exported.to_numpy`."""
        tensor = batch.detach()
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.float()
        is_new = tensor.data_ptr() != batch.data_ptr() or tensor.device.type != "cpu"
        values = tensor.numpy(force=True).reshape(len(batch), *(self.space.shape or ()))
        return np.array(values, dtype=self.space.dtype, copy=True if copy and not is_new else None)

    def to_torch(self, values: Any, device: torch.device) -> torch.Tensor:
        """See `Exported.to_torch`."""
        array = np.asarray(values)
        shape = (self.num_envs, *(self.space.shape or ()))
        if array.shape != shape:
            raise AdapterError(f"`{self.name}` must have shape {shape}; got {array.shape}.")
        if not np.can_cast(array.dtype, self._dtype(), casting="same_kind"):
            raise AdapterError(
                f"`{self.name}` must have the dtype {self._dtype()} or one of its kind; "
                f"got {array.dtype}."
            )
        tensor = torch.from_numpy(np.array(array, dtype=self._dtype(), order="C"))
        if self.groups:
            choices = tensor.reshape(self.num_envs, -1).long().unbind(-1)
            encoded = zip(choices, self.groups, strict=True)
            tensor = torch.cat([one_hot(choice, n) for choice, n in encoded], -1)
        shaped = tensor.reshape(self.num_envs, *self.spec.shape)
        return shaped.to(device=device, dtype=self.spec.dtype)

    def _dtype(self) -> np.dtype[Any]:
        assert self.space.dtype is not None
        return self.space.dtype


@dataclass(frozen=True)
class ExportedMapping:
    """A `Composite` spec as a `Dict` space, in the spec's order."""

    #: What errors call it.
    name: str

    #: What it is made of.
    children: dict[str, Exported]

    #: Space of one environment's value.
    space: Space

    #: Number of rows of a batch.
    num_envs: int

    def to_numpy(self, batch: Any, *, copy: bool) -> dict[str, Any]:
        """See `Exported.to_numpy`."""
        return {key: child.to_numpy(batch[key], copy=copy) for key, child in self.children.items()}

    def to_torch(self, values: Any, device: torch.device) -> TensorDict:
        """See `Exported.to_torch`."""
        if not isinstance(values, Mapping) or set(values) != set(self.children):
            received = sorted(values) if isinstance(values, Mapping) else type(values).__name__
            raise AdapterError(
                f"`{self.name}` must be a mapping of {sorted(self.children)}; got {received}."
            )
        tensors = {key: child.to_torch(values[key], device) for key, child in self.children.items()}
        return TensorDict(tensors, batch_size=[self.num_envs], device=device)


def export_spec(name: str, spec: TensorSpec, num_envs: int, *, is_action: bool) -> Exported:
    """A spec as a space, and how values of the one become values of the other.

    Args:
        name: What errors call it.
        spec: Spec of one environment's value.
        num_envs: Number of rows of a batch.
        is_action: Whether one-hot specs become choices, so that every value of the space is one of
            the spec, too.

    Raises:
        AdapterError: Where there is no space for the spec.

    """
    if isinstance(spec, Composite):
        children = {
            key: export_spec(f"{name}[{key!r}]", child, num_envs, is_action=is_action)
            for key, child in spec.items()
        }
        if not children:
            raise AdapterError(f"`{name}` is an empty `Composite`, which holds nothing.")
        # Gymnasium sorts the keys of every other mapping.
        space = spaces.Dict(OrderedDict((key, child.space) for key, child in children.items()))
        return ExportedMapping(name, children, space, num_envs)
    groups = tuple(options(spec)) if is_action and isinstance(spec, OneHot) else ()
    leaf_space = _choices(groups) if groups else _leaf_space(name, spec)
    return ExportedLeaf(name, spec, leaf_space, num_envs, groups)


def take(values: Any, i: int) -> Any:
    """Value `i` of a batch of a space's values."""
    if isinstance(values, dict):
        return {key: take(value, i) for key, value in values.items()}
    return values[i]


def _choices(counts: tuple[int, ...]) -> Space:
    return spaces.Discrete(counts[0]) if len(counts) == 1 else spaces.MultiDiscrete(list(counts))


def _leaf_space(name: str, spec: TensorSpec) -> Space:
    """The space of a leaf. The order of the cases is that of torchrl's subclasses."""
    if isinstance(spec, MultiCategorical):
        counts = np.broadcast_to(spec.nvec.numpy(force=True), tuple(spec.shape))
        return spaces.MultiDiscrete(counts)
    if isinstance(spec, Binary | OneHot):
        return spaces.MultiBinary(list(spec.shape) if spec.ndim > 1 else spec.shape.numel())
    if isinstance(spec, Categorical):
        n = int(spec.space.n)
        one = spec.shape.numel() == 1
        return spaces.Discrete(n) if one else spaces.MultiDiscrete(np.full(tuple(spec.shape), n))
    if isinstance(spec, Bounded | Unbounded):
        return _box(spec)
    raise AdapterError(
        f"`{name}` has no Gymnasium space: its spec is {type(spec).__name__}. Use one of Bounded, "
        "Unbounded, Categorical, MultiCategorical, Binary, OneHot, MultiOneHot, Composite."
    )


def _box(spec: Bounded | Unbounded) -> Space:
    """`Box` of the spec's dtype; integers without bounds have those of their dtype."""
    dtype = np.dtype(_NUMPY.get(spec.dtype, str(spec.dtype).removeprefix("torch.")))
    shape = tuple(spec.shape)
    if isinstance(spec, Bounded):
        ends = (spec.space.low, spec.space.high)
        low, high = (end.float() if end.dtype is torch.bfloat16 else end for end in ends)
        low, high = (np.broadcast_to(end.numpy(force=True), shape) for end in (low, high))
        return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
    return spaces.Box(*_widest(dtype), shape, dtype.type)


def _widest(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    if dtype.kind == "b":
        return 0, 1
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
