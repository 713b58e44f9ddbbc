"""The two sides of a TorchRL action: what a policy samples, and what the environment is sent."""

from abc import ABC, abstractmethod
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
    Unbounded,
)

from everstep.errors import AdapterError

from ..common.actions import ActionBounds
from .layout import Key, Layout, Leaf, leaves_of, make_leaf, spelled


class Actions(ABC):
    """Base: rows `[N, *spec.shape]` of a policy to what the environment is sent.

    Args:
        leaf: The environment's action; its spec is what the policy sees unless a subclass differs.
        spec: Spec of the environment's action.
        layout: How batch and agents become rows.

    """

    #: Spec of one row's action, for the policy.
    spec: TensorSpec

    def __init__(self, leaf: Leaf, spec: TensorSpec, layout: Layout) -> None:
        self.spec = leaf.spec
        self._rows = layout.num_rows
        self._sent = (*layout.batch, *layout.agents, *leaf.feature)
        self._dtype, self._device = spec.dtype, spec.device

    def check(self, action: object) -> torch.Tensor:
        """The action, where it fits the spec.

        Raises:
            AdapterError: Where it has another type, shape or kind of dtype.

        """
        shape = (self._rows, *self.spec.shape)
        if not isinstance(action, torch.Tensor) or action.shape != shape:
            got = getattr(action, "shape", type(action).__name__)
            got = tuple(got) if isinstance(got, torch.Size) else got
            raise AdapterError(
                f"Actions are one tensor of shape {shape}, `num_envs` rows as `action_spec` "
                f"describes them; got {got}."
            )
        if action.is_floating_point() is not self.spec.dtype.is_floating_point:
            raise AdapterError(
                f"Actions are of the kind of {self.spec.dtype}, as `action_spec` says; got "
                f"{action.dtype}."
            )
        return action

    def to_env(self, action: torch.Tensor) -> torch.Tensor:
        """What the environment is sent, `[*batch, *agents, …]`.

        New memory in each env step, because environments keep actions, say to penalise changes.
        """
        return self._convert(action.detach().to(self._device)).reshape(self._sent)

    @abstractmethod
    def _convert(self, action: torch.Tensor) -> torch.Tensor:
        """New memory with the environment's numbers, in its dtype."""


class SameActions(Actions):
    """Choices and integers that the environment takes as the policy gives them."""

    def _convert(self, action: torch.Tensor) -> torch.Tensor:
        return action.to(self._dtype, copy=True)


class OneHotActions(Actions):
    """Choices that the environment takes as ones among zeros.

    A policy sees `Categorical` or `MultiCategorical`: fewer numbers to store, and the same spec
    that other families give the same task.
    """

    def __init__(self, leaf: Leaf, spec: TensorSpec, layout: Layout) -> None:
        super().__init__(leaf, spec, layout)
        counts = [box.n for box in spec.space] if isinstance(spec, MultiOneHot) else [spec.space.n]
        one_hot, device = leaf.spec, leaf.spec.device
        if isinstance(spec, MultiOneHot):
            self.spec = MultiCategorical(counts, shape=torch.Size([len(counts)]), device=device)
        else:
            shape = one_hot.shape[:-1] or torch.Size([1])
            self.spec = Categorical(counts[0], shape=shape, device=device)
        self._starts = torch.tensor([0, *counts[:-1]], device=self._device).cumsum(0)
        self._ones = torch.Size([layout.num_rows, *one_hot.shape])

    def _convert(self, action: torch.Tensor) -> torch.Tensor:
        # Not `one_hot`, which looks at the smallest and largest choice first.
        zeros = torch.zeros(self._ones, dtype=self._dtype, device=self._device)
        options = action.long() if len(self._starts) == 1 else action + self._starts
        return zeros.scatter_(-1, options.reshape(*self._ones[:-1], -1), 1)


class RealActions(Actions):
    """Real numbers, kept inside the bounds of each row on the way to the environment.

    Args:
        leaf: The environment's action.
        spec: Spec of the environment's action.
        layout: How batch and agents become rows.
        bounds: `"clip"` sends the nearest action inside; `"rescale"` maps -1 to the lower and 1 to
            the upper bound, linearly, then clips. An infinite bound is only clipped at.

    Raises:
        AdapterError: Where there is no bound to rescale to.

    """

    def __init__(self, leaf: Leaf, spec: TensorSpec, layout: Layout, bounds: ActionBounds) -> None:
        super().__init__(leaf, spec, layout)
        self._low = torch.full((1,), -torch.inf, dtype=self._dtype, device=self._device)
        self._high = -self._low
        if isinstance(spec, Bounded):
            ends = (spec.space.low, spec.space.high)
            self._low, self._high = (layout.per_row(leaf.key, x, leaf.feature) for x in ends)
        self._affine = self._unit_to_bounds(leaf.key) if bounds == "rescale" else None
        if self._affine is not None and isinstance(self.spec, Bounded):
            self.spec = Bounded(-1.0, 1.0, self.spec.shape, self.spec.device, self.spec.dtype)

    def _convert(self, action: torch.Tensor) -> torch.Tensor:
        sent = action.to(self._dtype)
        if self._affine is not None:
            scale, offset = self._affine
            sent = sent * scale + offset
        return sent.clamp(self._low, self._high)

    def _unit_to_bounds(self, key: Key) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and offset that take [-1, 1] to the bounds; 1 and 0 where a bound is infinite."""
        finite = self._low.isfinite() & self._high.isfinite()
        if not bool(finite.any()):
            raise AdapterError(
                "`action_bounds='rescale'` needs a dimension with finite bounds, which "
                f"`{spelled([key])}` has not. Use 'clip'."
            )
        # Halved first: the difference of two large bounds would overflow.
        half_low = self._low.div(2).where(finite, -0.5)
        half_high = self._high.div(2).where(finite, 0.5)
        return half_high - half_low, half_high + half_low


def make_actions(
    key: Key,
    env: Any,
    layout: Layout,
    device: torch.device,
    bounds: ActionBounds,
    categorical: bool,
) -> Actions:
    """How the actions of a key are described and sent.

    Args:
        key: The environment's key of the action.
        env: The environment.
        layout: How batch and agents become rows.
        device: Device of the policy's actions.
        bounds: What keeps real numbers inside their bounds.
        categorical: Show one-hot actions to the policy as categories.

    Raises:
        AdapterError: Where it has no action that a policy could sample.

    """
    if bounds not in ("clip", "rescale"):
        raise AdapterError(f"`action_bounds` must be 'clip' or 'rescale'; got {bounds!r}.")
    spec = leaves_of(env.full_action_spec)[key]
    leaf = make_leaf(key, spec, layout, device)
    if isinstance(spec, Bounded | Unbounded) and spec.dtype.is_floating_point:
        return RealActions(leaf, spec, layout, bounds)
    if bounds == "rescale":
        raise AdapterError(
            f"`action_bounds='rescale'` is for real-valued actions; `{spelled([key])}` is "
            f"described by {type(spec).__name__}."
        )
    if isinstance(leaf.spec, Unbounded) or (
        isinstance(spec, MultiOneHot) and len(leaf.feature) > 1
    ):
        raise AdapterError(
            f"`{spelled([key])}` has no actions that a policy could sample: {type(spec).__name__} "
            f"of {spec.dtype}, {tuple(spec.shape)}. Give its spec a number of options or bounds, "
            "or flatten it in a transform."
        )
    if isinstance(spec, OneHot | MultiOneHot) and categorical:
        return OneHotActions(leaf, spec, layout)
    assert isinstance(leaf.spec, Binary | Categorical | MultiCategorical | Bounded | OneHot)
    return SameActions(leaf, spec, layout)
