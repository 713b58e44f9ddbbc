"""Limits of spaces: choices that exist, and bounds of numbers.

Whether a rollout leaves its spaces is computed on its device, from extremes of whole leaves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
)

from .formats import ObservationFormat
from .specs import is_bound, leaf_specs

#: Real numbers may be beyond a bound by so many units in the last place: libraries round them.
ROUNDING = 8


@dataclass(frozen=True, eq=False)
class Limit:
    """Smallest and largest numbers of a leaf."""

    #: Smallest numbers, `[*shape]`; 0-d if they are equal, and the largest ones are, too.
    low: torch.Tensor

    #: Largest numbers, as `low`.
    high: torch.Tensor

    #: Whether numbers are choices, of which others do not exist; else they are measured.
    is_choice: bool

    #: First of the choices as the environment's library counts; here they count from 0.
    start: Any = 0

    def extremes(
        self, x: torch.Tensor, aminmax: Callable[..., Any] = torch.aminmax
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Smallest and largest numbers of rows `[T, N, *shape]` that compare with the limits."""
        if self.low.ndim == 0:
            least, most = aminmax(x)  # several times faster than that of each element
        else:
            least, most = aminmax(x.flatten(0, 1), dim=0)
        return least, most

    def beyond(self, x: torch.Tensor) -> torch.Tensor:
        """Elements `[…, *shape]` that are outside, bool."""
        return (x < self.low) | (x > self.high)

    def describe(self, row: torch.Tensor) -> str:
        """The first element of `[*shape]` that is outside, and what is allowed there."""
        i = int(self.beyond(row).flatten().nonzero()[0])
        start = torch.as_tensor(self.start)
        numbers = (row, self.low, self.high, start)
        value, low, high, first = (x.broadcast_to(row.shape).flatten()[i].item() for x in numbers)
        element = f" in element {i}" if row.numel() > 1 else ""
        if self.is_choice:
            return (
                f"{value + first}{element}, which is no choice of its space: {low + first} to "
                f"{high + first} are"
            )
        return f"{value}{element}, outside of the bounds of its space, {low} to {high}"


#: Limits of leaves, in their order; None for leaves of which every number is allowed.
Limits = tuple[None | Limit, ...]


def limits_of(
    spec: TensorSpec,
    device: torch.device,
    formats: Sequence[ObservationFormat] = (),
) -> Limits:
    """The limits of all leaves of the spec of an observation.

    Args:
        spec: Spec of one observation.
        device: Where values are compared.
        formats: The leaves as the environment's library has them; empty if as in the spec.

    """
    found: list[None | Limit] = []
    for place, leaf in enumerate(leaf_specs(spec).values()):
        limit, form = _limit_of(leaf, device), formats[place] if formats else None
        if limit is not None and form is not None:
            start = limit.start if form.start is None else form.start
            limit = replace(limit, start=start, is_choice=limit.is_choice or form.is_choice)
        found.append(limit)
    return tuple(found)


def action_limits_of(spec: TensorSpec, device: torch.device) -> Limits:
    """The limits of choices in an action; real numbers are clipped by the environment."""
    found = [
        None if leaf.dtype.is_floating_point and isinstance(leaf, Bounded) else limit
        for leaf, limit in zip(leaf_specs(spec).values(), limits_of(spec, device), strict=True)
    ]
    return tuple(limit and replace(limit, is_choice=True) for limit in found)


def _limit_of(leaf: TensorSpec, device: torch.device) -> None | Limit:
    ends = None if leaf.dtype is torch.bool else _ends_of(leaf)
    if ends is None:
        return None
    low, high = (end.to(device, leaf.dtype) for end in ends)
    if low.numel() and bool((low == low.flatten()[0]).all() & (high == high.flatten()[0]).all()):
        low, high = low.flatten()[0], high.flatten()[0]
    return Limit(low, high, not isinstance(leaf, Bounded))


def _ends_of(leaf: TensorSpec) -> None | tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest numbers of a leaf; None if there are none."""
    if isinstance(leaf, MultiCategorical):
        return torch.zeros(leaf.shape, device="cpu"), (leaf.nvec - 1).expand(leaf.shape)
    if isinstance(leaf, Binary | OneHot | MultiOneHot):
        return _number(0), _number(1)
    if isinstance(leaf, Categorical):
        n = int(leaf.space.n)
        return (_number(0), _number(n - 1)) if n > 0 else None
    if not isinstance(leaf, Bounded):
        return None
    low, high = (end.expand(leaf.shape) for end in (leaf.space.low, leaf.space.high))
    if not leaf.dtype.is_floating_point:
        most = torch.iinfo(leaf.dtype)
        is_whole = bool((low == most.min).all() & (high == most.max).all())
        return None if is_whole else (low, high)
    if not bool((is_bound(low) | is_bound(high)).any()):
        return None
    slack = ROUNDING * torch.finfo(leaf.dtype).eps
    return low - low.abs() * slack, high + high.abs() * slack


def _number(x: int) -> torch.Tensor:
    return torch.tensor(x, device="cpu")
