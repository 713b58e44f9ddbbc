"""Specs and the tensors they describe, as flat tuples of leaves.

A plain spec has one leaf with the empty path; a `Composite` has one leaf a tensor, in the spec's
order. The library stores and moves leaves, and builds a TensorDict only where a model or an
environment is called.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
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

from .errors import CheckpointError

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
        """Structure of the tensors that `spec` describes."""
        leaves = leaf_specs(spec)
        return cls(
            tuple(leaves),
            tuple(leaf.shape for leaf in leaves.values()),
            tuple(leaf.dtype for leaf in leaves.values()),
        )

    @property
    def is_plain(self) -> bool:
        """Whether this is one tensor rather than a mapping."""
        return self.paths == ((),)

    def zeros(self, *batch: int, device: Any) -> Leaves:
        """Leaves of zeros `[*batch, …]`."""
        return tuple(
            torch.zeros(*batch, *shape, dtype=dtype, device=device)
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )

    def flatten(self, value: torch.Tensor | TensorDict | Mapping[str, Any]) -> Leaves:
        """Leaves of a tensor, or of a mapping of tensors.

        Raises:
            KeyError: Where a leaf is missing.

        """
        if self.is_plain:
            assert isinstance(value, torch.Tensor)
            return (value,)
        assert not isinstance(value, torch.Tensor)
        return tuple(reduce(getitem, path, cast(Any, value)) for path in self.paths)

    def unflatten(self, leaves: Leaves, batch_size: list[int]) -> torch.Tensor | TensorDict:
        """The tensor, or a TensorDict of that batch size, made of `leaves`."""
        if self.is_plain:
            return leaves[0]
        nested: dict[str, Any] = {}
        for path, leaf in zip(self.paths, leaves, strict=True):
            parent = nested
            for key in path[:-1]:
                parent = parent.setdefault(key, {})
            parent[path[-1]] = leaf
        device = leaves[0].device if leaves else None
        return TensorDict(nested, batch_size=batch_size, device=device)


#: Most options of all integers of an action between bounds: each is an output of the network.
MAX_OPTIONS = 2**16

#: The structure of what has no tensors, such as the memory of a feedforward policy.
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
    """Number of options of each choice that an action of `spec` is made of; empty where of none.

    Choices are a spec's elements, in order; of one-hot specs, each group of elements of which one
    is chosen. Integers between bounds are choices while there are at most `MAX_OPTIONS` options.
    Waits for an accelerator that the spec is on.
    """
    count: int = spec.shape.numel()
    if isinstance(spec, MultiCategorical):
        nvec: list[int] = spec.nvec.flatten().tolist()
        return nvec
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


def spec_to_dict(spec: TensorSpec) -> dict[str, Any]:
    """A JSON-able description of a spec, which `spec_from_dict` reads.

    Raises:
        TypeError: For kinds of spec that cannot be described.

    """
    if isinstance(spec, Composite):
        return {"kind": "composite", "leaves": {k: spec_to_dict(v) for k, v in spec.items()}}
    described = {"shape": list(spec.shape), "dtype": str(spec.dtype).removeprefix("torch.")}
    if isinstance(spec, MultiCategorical):
        return {"kind": "multi_categorical", "nvec": spec.nvec.tolist(), **described}
    if isinstance(spec, Binary):
        return {"kind": "binary", **described}
    if isinstance(spec, Categorical):
        return {"kind": "categorical", "n": int(spec.space.n), **described}
    if isinstance(spec, MultiOneHot):
        counts = [int(box.n) for box in spec.space]
        return {"kind": "multi_one_hot", "nvec": counts, **described}
    if isinstance(spec, OneHot):
        return {"kind": "one_hot", "n": int(spec.space.n), **described}
    if isinstance(spec, Bounded):
        space = spec.space
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"kind": "bounded", **bounds, **described}
    if isinstance(spec, Unbounded):
        return {"kind": "unbounded", **described}
    raise TypeError(f"{type(spec).__name__} specs cannot be saved.")


def spec_from_dict(description: dict[str, Any], *, device: Any = "cpu") -> TensorSpec:
    """The spec that `spec_to_dict` described.

    Raises:
        CheckpointError: Where the description is not one of `spec_to_dict`.

    """
    try:
        return _spec_from_dict(description, device)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"Not a spec: {description!r} ({error}).") from error


def _spec_from_dict(description: dict[str, Any], device: Any) -> TensorSpec:
    kind = description["kind"]
    if kind == "composite":
        leaves = description["leaves"].items()
        return Composite({k: _spec_from_dict(v, device) for k, v in leaves}, device=device)
    dtype = getattr(torch, description["dtype"])
    shape = torch.Size(description["shape"])
    common: dict[str, Any] = {"shape": shape, "dtype": dtype, "device": device}
    if kind == "multi_categorical":
        return MultiCategorical(description["nvec"], **common)
    if kind == "binary":
        return Binary(shape[-1], **common)
    if kind == "categorical":
        return Categorical(description["n"], **common)
    if kind == "one_hot":
        return OneHot(description["n"], **common)
    if kind == "multi_one_hot":
        return MultiOneHot(description["nvec"], **common)
    if kind == "bounded":
        low, high = (torch.tensor(description[k], dtype=dtype) for k in ("low", "high"))
        return Bounded(low=low, high=high, **common)
    if kind == "unbounded":
        return Unbounded(**common)
    raise ValueError(f"unknown kind {kind!r}")
