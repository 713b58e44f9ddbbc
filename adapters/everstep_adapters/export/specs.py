"""Specs as Gymnasium spaces, and their tensors as the arrays of these spaces.

The inverse of the specs of `GymnasiumEnv`, if there is one: a `Categorical` of one choice is
`Discrete`, without the dimension that the spec has.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch.nn.functional import one_hot
from torchrl.data import TensorSpec
from torchrl.data import tensor_specs as specs

from everstep.env.formats import check_held
from everstep.env.specs import options
from everstep.errors import AdapterError

from ..common.handoff import to_numpy

# NumPy's names of PyTorch's dtypes; it has no bfloat16.
_NUMPY = {torch.bool: "bool", torch.bfloat16: "float32"}

Space = spaces.Space[Any]


@dataclass(frozen=True)
class ExportedLeaf:
    """A spec of one tensor as a space."""

    #: Name in errors, such as `action['move']`.
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
        """A batch of tensors as a batch of the space's values.

        Args:
            batch: Tensors `[N, …]` as the spec has them.
            copy: Whether the arrays are always new; else they may show the tensors' memory.

        """
        values = to_numpy(batch.detach()).reshape(len(batch), *(self.space.shape or ()))
        check_held(values, np.dtype(self.space.dtype), self.name)
        is_shared = batch.is_cpu and batch.dtype is not torch.bfloat16
        return np.array(values, dtype=self.space.dtype, copy=True if copy and is_shared else None)

    def to_torch(self, values: Any, device: torch.device) -> torch.Tensor:
        """A batch of the space's values as tensors `[N, …]`, in memory of their own.

        Raises:
            AdapterError: If the values are not those of a batch of `num_envs`.

        """
        array, dtype = np.asarray(values), np.dtype(self.space.dtype)
        shape = (self.num_envs, *(self.space.shape or ()))
        if array.shape != shape:
            raise AdapterError(f"`{self.name}` must have shape {shape}; got {array.shape}.")
        if not np.can_cast(array.dtype, dtype, casting="same_kind"):
            raise AdapterError(
                f"`{self.name}` must have the dtype {dtype} or one of its kind; got {array.dtype}."
            )
        check_held(array, dtype, self.name, AdapterError)
        tensor = torch.from_numpy(np.array(array, dtype=dtype, order="C"))
        if self.groups:
            choices = tensor.reshape(self.num_envs, -1).long().unbind(-1)
            encoded = zip(choices, self.groups, strict=True)
            tensor = torch.cat([one_hot(choice, n) for choice, n in encoded], -1)
        shaped = tensor.reshape(self.num_envs, *self.spec.shape)
        return shaped.to(device=device, dtype=self.spec.dtype)


@dataclass(frozen=True)
class ExportedMapping:
    """A `Composite` spec as a `Dict` space, in the spec's order."""

    #: Name in errors.
    name: str

    #: Its entries.
    children: "dict[str, Exported]"

    #: Space of one environment's value.
    space: Space

    #: Number of rows of a batch.
    num_envs: int

    def to_numpy(self, batch: Any, *, copy: bool) -> dict[str, Any]:
        """See `ExportedLeaf.to_numpy`."""
        return {key: child.to_numpy(batch[key], copy=copy) for key, child in self.children.items()}

    def to_torch(self, values: Any, device: torch.device) -> TensorDict:
        """See `ExportedLeaf.to_torch`."""
        if not isinstance(values, Mapping) or set(values) != set(self.children):
            received = sorted(values) if isinstance(values, Mapping) else type(values).__name__
            raise AdapterError(
                f"`{self.name}` must be a mapping of {sorted(self.children)}; got {received}."
            )
        tensors = {key: child.to_torch(values[key], device) for key, child in self.children.items()}
        return TensorDict(tensors, batch_size=[self.num_envs], device=device)


Exported: TypeAlias = ExportedLeaf | ExportedMapping


def export_spec(name: str, spec: TensorSpec, num_envs: int, *, is_action: bool) -> Exported:
    """A spec as a space, with the conversion of values.

    Args:
        name: Name in errors.
        spec: Spec of one environment's value.
        num_envs: Number of rows of a batch.
        is_action: Whether one-hot specs become choices, so that every value of the space is a
            valid action.

    Raises:
        AdapterError: If there is no space for the spec.

    """
    if isinstance(spec, specs.Composite):
        children = {
            key: export_spec(f"{name}[{key!r}]", child, num_envs, is_action=is_action)
            for key, child in spec.items()
        }
        if not children:
            raise AdapterError(f"`{name}` is an empty `Composite`, which holds nothing.")
        # Gymnasium sorts the keys of every other mapping.
        space = spaces.Dict(OrderedDict((key, child.space) for key, child in children.items()))
        return ExportedMapping(name, children, space, num_envs)
    groups = tuple(options(spec)) if is_action and isinstance(spec, specs.OneHot) else ()
    if not groups:
        return ExportedLeaf(name, spec, _leaf_space(name, spec), num_envs)
    one = len(groups) == 1
    choices: Space = spaces.Discrete(groups[0]) if one else spaces.MultiDiscrete(list(groups))
    return ExportedLeaf(name, spec, choices, num_envs, groups)


def _leaf_space(name: str, spec: TensorSpec) -> Space:
    """The space of a leaf. The order of the cases is that of torchrl's subclasses."""
    if isinstance(spec, specs.MultiCategorical):
        counts = np.broadcast_to(spec.nvec.numpy(force=True), tuple(spec.shape))
        return spaces.MultiDiscrete(counts)
    if isinstance(spec, specs.Binary | specs.OneHot):
        return spaces.MultiBinary(list(spec.shape) if spec.ndim > 1 else spec.shape.numel())
    if isinstance(spec, specs.Categorical):
        n = int(spec.space.n)
        one = spec.shape.numel() == 1
        return spaces.Discrete(n) if one else spaces.MultiDiscrete(np.full(tuple(spec.shape), n))
    if isinstance(spec, specs.Bounded | specs.Unbounded):
        return _box(spec)
    raise AdapterError(
        f"`{name}` has no Gymnasium space: its spec is {type(spec).__name__}. Use one of Bounded, "
        "Unbounded, Categorical, MultiCategorical, Binary, OneHot, MultiOneHot, Composite."
    )


def _box(spec: specs.Bounded | specs.Unbounded) -> Space:
    """`Box` of the spec's dtype; integers without bounds have those of their dtype."""
    dtype = np.dtype(_NUMPY.get(spec.dtype, str(spec.dtype).removeprefix("torch.")))
    shape = tuple(spec.shape)
    if isinstance(spec, specs.Bounded):
        ends = (to_numpy(end) for end in (spec.space.low, spec.space.high))
        low, high = (np.broadcast_to(end, shape).astype(dtype) for end in ends)
        return spaces.Box(low, high, shape, dtype.type)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(int(limits[0]), int(limits[1]), shape, dtype.type)
