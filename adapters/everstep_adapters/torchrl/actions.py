"""Actions of a policy as the actions of a TorchRL environment."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torchrl.data import TensorSpec
from torchrl.data import tensor_specs as specs

from everstep.env.formats import ActionFormat, numpy_dtype
from everstep.errors import AdapterError

from ..common.actions import ActionBounds, check_action_bounds, rescaled_spec, unit_to_bounds
from .specs import Key, Layout, Leaf, join_keys, leaves_of, make_leaf


class Actions(ABC):
    """Base: conversion of actions `[N, *spec.shape]`.

    Args:
        leaf: The environment's action; its spec is the policy's unless a subclass differs.
        spec: Spec of the environment's action.
        layout: Batch and agents as rows.

    """

    #: Spec of one row's action, for the policy.
    spec: TensorSpec

    #: The action as the environment has it; None if it differs between rows.
    form: None | ActionFormat

    def __init__(self, leaf: Leaf, spec: TensorSpec, layout: Layout) -> None:
        self.spec, self.form = leaf.spec, ActionFormat(tuple(leaf.feature), numpy_dtype(spec.dtype))
        self._shape = (*layout.batch, *layout.agents, *leaf.feature)
        self._dtype, self._device = spec.dtype, spec.device

    def to_env(self, action: torch.Tensor) -> torch.Tensor:
        """Actions for the environment, `[*batch, *agents, …]`.

        New memory in each vector step, because environments store actions, say to penalise changes.
        """
        return self._convert(action.detach().to(self._device)).reshape(self._shape)

    @abstractmethod
    def _convert(self, action: torch.Tensor) -> torch.Tensor:
        """The environment's numbers in its dtype, in new memory."""


class SameActions(Actions):
    """Choices and integers that the environment takes as the policy returns them."""

    def _convert(self, action: torch.Tensor) -> torch.Tensor:
        return action.to(self._dtype, copy=True)


class OneHotActions(Actions):
    """Choices that the environment takes one-hot.

    The policy's spec is `Categorical` or `MultiCategorical`: fewer numbers to store, and the same
    spec that other adapters have for the same task.
    """

    def __init__(self, leaf: Leaf, spec: TensorSpec, layout: Layout) -> None:
        super().__init__(leaf, spec, layout)
        is_multi, device = isinstance(spec, specs.MultiOneHot), leaf.spec.device
        counts = [box.n for box in spec.space] if is_multi else [spec.space.n]
        if is_multi:
            self.spec = specs.MultiCategorical(
                counts, shape=torch.Size([len(counts)]), device=device
            )
        else:
            shape = leaf.spec.shape[:-1] or torch.Size([1])
            self.spec = specs.Categorical(counts[0], shape=shape, device=device)
        self._form = self.form = ActionFormat(
            tuple(leaf.feature), numpy_dtype(spec.dtype), groups=tuple(counts)
        )

    def _convert(self, action: torch.Tensor) -> torch.Tensor:
        choices = action.long().reshape(len(action), *self._form.choices)
        return self._form.to_torch(choices).to(self._dtype)


class RealActions(Actions):
    """Real numbers, brought inside the bounds of each row.

    Args:
        leaf: The environment's action.
        spec: Spec of the environment's action.
        layout: Batch and agents as rows.
        bounds: How; see `ActionBounds`.

    Raises:
        AdapterError: If there is no bound to rescale to, or another one in each row.

    """

    def __init__(self, leaf: Leaf, spec: TensorSpec, layout: Layout, bounds: ActionBounds) -> None:
        super().__init__(leaf, spec, layout)
        self._low = torch.full((1,), -torch.inf, dtype=self._dtype, device=self._device)
        self._high = -self._low
        if isinstance(spec, specs.Bounded):
            ends = (spec.space.low, spec.space.high)
            self._low, self._high = (layout.per_row(leaf.key, x, leaf.feature) for x in ends)
        ends = self._low, self._high
        if bounds != "clip" and any(bool((x != x[:1]).any()) for x in ends):
            if bounds == "rescale":
                raise AdapterError(
                    "`action_bounds='rescale'` needs rows whose actions have equal bounds; those "
                    f"of `{join_keys([leaf.key])}` differ. Use 'clip', and actions in the "
                    "environment's own unit."
                )
            bounds = "clip"  # one map from [-1, 1] is not every row's
        self._affine = unit_to_bounds(*ends, bounds, join_keys([leaf.key]))
        if self._affine:
            self.spec = rescaled_spec(self.spec)
        self.form = self._make_form(tuple(leaf.feature))

    @property
    def is_rescaled(self) -> bool:
        """Whether the policy's numbers are mapped from [-1, 1] to bounds."""
        return bool(self._affine)

    def _make_form(self, shape: tuple[int, ...]) -> None | ActionFormat:
        dtype = numpy_dtype(self._dtype)
        arrays: dict[str, Any] = {}
        ends = (self._low, self._high, *(self._affine or ())) if self._low.ndim > 1 else ()
        for name, rows in zip(("low", "high", "scale", "offset"), ends, strict=False):
            if bool((rows != rows[:1]).any()):
                return None
            arrays[name] = np.asarray(rows[0].tolist(), dtype).reshape(shape)
        return ActionFormat(shape, dtype, **arrays)

    def _convert(self, action: torch.Tensor) -> torch.Tensor:
        sent = action.to(self._dtype)
        if self._affine:
            scale, offset = self._affine
            sent = sent * scale + offset
        return sent.clamp(self._low, self._high)


def make_actions(
    key: Key,
    env: Any,
    layout: Layout,
    device: torch.device,
    bounds: ActionBounds,
    categorical: bool,
) -> Actions:
    """The conversion of the actions of a key.

    Args:
        key: The environment's key of the action.
        env: The environment.
        layout: Batch and agents as rows.
        device: Device of the policy's actions.
        bounds: How real numbers are brought inside their bounds.
        categorical: Whether one-hot actions are choices for the policy.

    Raises:
        AdapterError: If there is no action that a policy could sample.

    """
    spec = leaves_of(env.full_action_spec)[key]
    is_real = isinstance(spec, specs.Bounded | specs.Unbounded) and spec.dtype.is_floating_point
    text = f"{type(spec).__name__} of {spec.dtype}, {tuple(spec.shape)}"
    check_action_bounds(bounds, is_real=is_real, space=text)
    leaf = make_leaf(key, spec, layout, device)
    if is_real:
        return RealActions(leaf, spec, layout, bounds)
    is_nested = isinstance(spec, specs.MultiOneHot) and len(leaf.feature) > 1
    if isinstance(leaf.spec, specs.Unbounded) or is_nested:
        raise AdapterError(
            f"`{join_keys([key])}` has no actions that a policy could sample: {text}. Give its "
            "spec a number of options or bounds, or flatten it in a transform."
        )
    if isinstance(spec, specs.OneHot | specs.MultiOneHot) and categorical:
        return OneHotActions(leaf, spec, layout)
    return SameActions(leaf, spec, layout)
