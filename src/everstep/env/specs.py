"""Specs, and the tensors that they describe as flat tuples of leaves.

A plain spec has one leaf with the empty path; a `Composite` has one leaf per tensor, in the spec's
order. The library stores leaves, and builds a TensorDict only to call a model or an environment.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import getitem
from typing import Any, cast

import torch
from tensordict import TensorDict
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)

from ..errors import CheckpointError

#: Tensors of one structure, in the order of its spec's leaves.
Leaves = tuple[torch.Tensor, ...]

#: Keys that lead to a leaf; empty for a plain tensor.
Path = tuple[str, ...]


@dataclass(frozen=True)
class Structure:
    """Paths, shapes and dtypes of a spec's leaves."""

    #: Keys that lead to each leaf.
    paths: tuple[Path, ...]

    #: Shape of each leaf, without batch dimensions.
    shapes: tuple[torch.Size, ...]

    #: Dtype of each leaf.
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, spec: TensorSpec) -> "Structure":
        """Structure of the tensors of `spec`."""
        leaves = leaf_specs(spec)
        specs = leaves.values()
        return cls(tuple(leaves), tuple(x.shape for x in specs), tuple(x.dtype for x in specs))

    def leaves(self) -> Iterator[tuple[Path, torch.Size, torch.dtype]]:
        """Path, shape and dtype of each leaf."""
        return zip(self.paths, self.shapes, self.dtypes, strict=True)

    @cached_property
    def is_plain(self) -> bool:
        """Whether the value is one tensor rather than a mapping."""
        return self.paths == ((),)

    def zeros(self, *batch: int, device: Any) -> Leaves:
        """Leaves of zeros `[*batch, …]`."""
        return tuple(
            torch.zeros(*batch, *shape, dtype=dtype, device=device)
            for _, shape, dtype in self.leaves()
        )

    def flatten(self, value: torch.Tensor | TensorDict | Mapping[str, Any]) -> Leaves:
        """Leaves of a tensor, or of a mapping of tensors.

        Raises:
            KeyError: If a leaf is missing.

        """
        if self.is_plain:
            assert isinstance(value, torch.Tensor)
            return (value,)
        assert not isinstance(value, torch.Tensor)
        return tuple(reduce(getitem, path, cast(Any, value)) for path in self.paths)

    def unflatten(self, leaves: Leaves, batch_size: list[int]) -> torch.Tensor | TensorDict:
        """The tensor of `leaves`, or a TensorDict with that batch size."""
        if self.is_plain:
            return leaves[0]
        device = leaves[0].device if leaves else None
        return TensorDict(self.nest(leaves), batch_size=batch_size, device=device)

    def nest(self, values: Sequence[Any]) -> Any:
        """The only value of a plain structure, or nested dicts of the values."""
        if self.is_plain:
            return values[0]
        nested: dict[str, Any] = {}
        for path, value in zip(self.paths, values, strict=True):
            parent = nested
            for key in path[:-1]:
                parent = parent.setdefault(key, {})
            parent[path[-1]] = value
        return nested


#: Maximum number of options of an action of bounded integers: each is an output of the network.
MAX_OPTIONS = 2**16

#: Structure without tensors, such as the recurrent state of a feedforward policy.
EMPTY = Structure((), (), ())


def leaf_specs(spec: TensorSpec) -> dict[Path, TensorSpec]:
    """Specs of the leaves, by path, in the spec's own order."""
    if not isinstance(spec, Composite):
        return {(): spec}
    return {
        (key, *path): leaf
        for key, child in spec.items()
        for path, leaf in leaf_specs(child).items()
    }


def options(spec: TensorSpec) -> list[int]:
    """Number of options of each choice in an action of `spec`; empty if it has no choices.

    Each element of a discrete spec is a choice; in one-hot specs, each group of elements of which
    one is 1. Bounded integers are choices if there are at most `MAX_OPTIONS` options. Synchronises
    with the spec's device.
    """
    count: int = spec.shape.numel()
    if isinstance(spec, MultiCategorical):
        return cast(list[int], spec.nvec.flatten().tolist())
    if isinstance(spec, MultiOneHot):
        counts = [int(box.n) for box in spec.space]
        return counts * (count // sum(counts))
    if isinstance(spec, Binary):
        return [2] * count
    if isinstance(spec, Categorical | OneHot):
        n = int(spec.space.n)
        choices = count // n if isinstance(spec, OneHot) else count
        return [n] * choices
    if isinstance(spec, Bounded) and not spec.dtype.is_floating_point:
        low, high = (end.flatten().tolist() for end in (spec.space.low, spec.space.high))
        counts = [int(b) - int(a) + 1 for a, b in zip(low, high, strict=True)]
        return counts if sum(counts) <= MAX_OPTIONS else []
    return []


def is_choice(spec: TensorSpec) -> bool:
    """Whether the numbers of a leaf are indices of options."""
    is_binary = isinstance(spec, Binary) or spec.dtype == torch.bool
    return isinstance(spec, Categorical) and not is_binary


def is_bound(end: torch.Tensor) -> torch.Tensor:
    """Whether each end of a range is a bound rather than infinite, bool of the same shape.

    The largest number of the dtype, or of float32, counts as infinite: some environments use it so.
    """
    largest = min(torch.finfo(end.dtype).max, torch.finfo(torch.float32).max)
    return end.abs() < largest


def random_values(spec: TensorSpec, size: Sequence[int]) -> Any:
    """Random values `[*size, *spec.shape]` of a spec, as `TensorSpec.rand` draws them.

    Where real numbers lack a bound, it would draw infinity or NaN. With one bound the distance from
    it is exponential, without bounds numbers are normal, as in Gymnasium.
    """
    if isinstance(spec, Composite):
        drawn = {key: random_values(leaf, size) for key, leaf in spec.items()}
        return TensorDict(drawn, batch_size=[*size, *spec.shape], device=spec.device)
    if not isinstance(spec, Bounded) or not spec.dtype.is_floating_point:
        return spec.rand(torch.Size(size))
    low, high = spec.space.low, spec.space.high
    has_low, has_high = is_bound(low), is_bound(high)
    if bool((has_low & has_high).all()):
        return spec.rand(torch.Size(size))
    uniform = torch.rand(*size, *spec.shape, dtype=spec.dtype, device=low.device)
    away = torch.empty_like(uniform).exponential_()
    within = torch.lerp(low.where(has_low, 0.0), high.where(has_high, 1.0), uniform)
    below = torch.where(has_high, high - away, torch.randn_like(uniform))
    numbers = torch.where(has_low, torch.where(has_high, within, low + away), below)
    return numbers.clamp(low, high)


#: Kinds of spec that can be saved, by name; a subclass comes before its base.
_KINDS: dict[str, type[TensorSpec]] = {
    "multi_categorical": MultiCategorical,
    "binary": Binary,
    "categorical": Categorical,
    "multi_one_hot": MultiOneHot,
    "one_hot": OneHot,
    "bounded": Bounded,
    "unbounded": Unbounded,
}


def described(spec: TensorSpec) -> str:
    """Dtypes and shapes of a spec's leaves, and options of choices, such as `float32 [4]`."""
    texts = []
    for path, leaf in leaf_specs(spec).items():
        text = f"{'.'.join(path)} {leaf.dtype} {list(leaf.shape)}".replace("torch.", "").strip()
        counts = dict.fromkeys(options(leaf))
        texts.append(f"{text} of {', '.join(map(str, counts))} options" if counts else text)
    return "; ".join(texts)


def spec_to_dict(spec: TensorSpec) -> dict[str, Any]:
    """A JSON-able description of a spec; `spec_from_dict` reads it.

    Raises:
        TypeError: If the kind of spec cannot be described.

    """
    if isinstance(spec, Composite):
        return {"kind": "composite", "leaves": {k: spec_to_dict(v) for k, v in spec.items()}}
    kind = next((name for name, cls in _KINDS.items() if isinstance(spec, cls)), None)
    if kind is None:
        raise TypeError(f"{type(spec).__name__} specs cannot be saved.")
    dtype = str(spec.dtype).removeprefix("torch.")
    return {"kind": kind, **_arguments(kind, spec), "shape": list(spec.shape), "dtype": dtype}


def _arguments(kind: str, spec: Any) -> dict[str, Any]:
    """Arguments of the spec's constructor beside shape and dtype."""
    if kind == "multi_categorical":
        return {"nvec": spec.nvec.tolist()}
    if kind == "multi_one_hot":
        return {"nvec": [int(box.n) for box in spec.space]}
    if kind in ("categorical", "one_hot"):
        return {"n": int(spec.space.n)}
    if kind == "bounded":
        return {"low": spec.space.low.tolist(), "high": spec.space.high.tolist()}
    return {}


def spec_from_dict(
    description: dict[str, Any], *, device: Any = "cpu", unbounded_device: Any = None
) -> TensorSpec:
    """The spec of a description; see `spec_to_dict`.

    Args:
        description: As `spec_to_dict` makes it.
        device: Device of the spec.
        unbounded_device: Device of unbounded leaves, if another: on "meta" they need no memory,
            whatever size a file claims.

    Raises:
        CheckpointError: If the description was not made by `spec_to_dict`.

    """
    try:
        return _spec_from_dict(description, device, unbounded_device or device)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"Not a spec: {description!r} ({error}).") from error


#: Elements and options of a spec of choices in a file: lists of that length are made of them.
_MAX_CHOICES = 2**24


def _flat(values: Any) -> Iterator[int]:
    for value in values:
        yield from _flat(value) if isinstance(value, list) else (value,)


def _spec_from_dict(description: dict[str, Any], device: Any, unbounded: Any) -> TensorSpec:
    arguments = dict(description)
    kind = arguments.pop("kind")
    if kind == "composite":
        leaves = arguments["leaves"].items()
        specs = {k: _spec_from_dict(v, device, unbounded) for k, v in leaves}
        return Composite(specs, device=device if unbounded == device else None)
    shape, dtype = torch.Size(arguments.pop("shape")), getattr(torch, arguments.pop("dtype"))
    if kind == "binary":
        arguments = {"n": shape[-1]}
    elif kind == "bounded":
        arguments = {k: torch.tensor(arguments[k], dtype=dtype) for k in ("low", "high")}
        if any(bound.shape != shape for bound in arguments.values()):  # they would be expanded
            raise ValueError(f"its bounds must have its shape, {list(shape)}")
    elif kind == "unbounded":
        device = unbounded
    size = shape.numel() if kind not in ("bounded", "unbounded") else 0
    if max(size, arguments.get("n", 0), sum(_flat(arguments.get("nvec", ())))) > _MAX_CHOICES:
        raise ValueError(f"a spec of choices has at most {_MAX_CHOICES:,} elements and options")
    cls: Any = _KINDS[kind]
    return cast(TensorSpec, cls(**arguments, shape=shape, dtype=dtype, device=device))
