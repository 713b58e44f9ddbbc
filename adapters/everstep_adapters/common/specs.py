"""Specs of observations and choices, and their lines in `describe`."""

from collections.abc import Mapping

import torch
from torchrl.data import Bounded, Composite, MultiCategorical, TensorSpec, Unbounded

from everstep.env.specs import Path, is_bound, leaf_specs, options


def compose_spec(leaves: Mapping[Path, TensorSpec], device: torch.device) -> TensorSpec:
    """`Composite` of leaves by path, or the leaf whose path is empty."""
    if () in leaves:
        return leaves[()]
    spec = Composite(device=device)
    for path, leaf in leaves.items():
        spec[path] = leaf
    return spec


def real_spec(low: torch.Tensor, high: torch.Tensor, device: torch.device) -> TensorSpec:
    """Spec of real numbers of that shape and dtype: `Bounded`, or `Unbounded` if there is no bound.

    Dimensions are independent of each other: a missing bound is infinite.

    Args:
        low: Lower bounds.
        high: Upper bounds.
        device: Device of the spec.

    """
    common = {"shape": low.shape, "device": device, "dtype": low.dtype}
    has_low, has_high = is_bound(low), is_bound(high)
    if not bool((has_low | has_high).any()):
        return Unbounded(**common)
    low, high = low.where(has_low, -torch.inf), high.where(has_high, torch.inf)
    return Bounded(low=low.to(device), high=high.to(device), **common)


def choices_spec(counts: torch.Tensor, dtype: torch.dtype = torch.int64) -> TensorSpec:
    """`MultiCategorical` with `counts` options; for more than one dimension `Bounded` integers."""
    common = {"shape": counts.shape, "device": counts.device, "dtype": dtype}
    if counts.ndim == 1:
        return MultiCategorical(counts, **common)
    return Bounded(low=torch.zeros_like(counts), high=counts - 1, **common)


def describe_spec(spec: TensorSpec) -> str:
    """Kind, shape and dtype of a spec's only leaf, or of each leaf by its name."""
    leaves = {path: _describe_leaf(leaf) for path, leaf in leaf_specs(spec).items()}
    if not isinstance(spec, Composite):
        return leaves[()]
    return ", ".join(f"{'.'.join(path)}: {text}" for path, text in leaves.items())


def _describe_leaf(leaf: TensorSpec) -> str:
    return f"{_kind(leaf)} {list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"


def _kind(leaf: TensorSpec) -> str:
    """The public name of a spec's class, with its numbers of options."""
    for kind in (Bounded, Unbounded):  # their instances are of private subclasses
        if isinstance(leaf, kind):
            return str(kind.__name__)
    counts = options(leaf)
    if len(set(counts)) == 1:  # such as two for each element of a `Binary`
        counts = counts[:1]
    return f"{type(leaf).__name__}({', '.join(map(str, counts))})"
