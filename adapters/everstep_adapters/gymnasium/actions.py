"""Actions of a policy as the actions of a Gymnasium space."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torchrl.data import Bounded, TensorSpec

from everstep.errors import AdapterError
from everstep.specs import Leaves

from ..common.actions import ActionBounds, check_action_bounds, unit_to_bounds
from ..common.handoff import Downlink
from .spaces import box_spec, integer_spec


class Actions(ABC):
    """Conversion of actions `[num_envs, *spec.shape]`.

    Args:
        spec: Spec of one environment's action.
        space: Space of one environment's action.
        num_envs: Number of actions in a batch.

    """

    #: Spec of one environment's action.
    spec: TensorSpec

    #: Arrays that `to_tensor_env` needs as tensors.
    constants: tuple[npt.NDArray[Any], ...]

    def __init__(self, spec: TensorSpec, space: spaces.Space[Any], num_envs: int) -> None:
        assert space.dtype is not None
        self.spec, self._dtype = spec, np.dtype(space.dtype)
        self._shape = (num_envs, *(space.shape or ()))
        self._downlink = Downlink(self._shape, is_real=spec.dtype.is_floating_point)

    @abstractmethod
    def to_env(self, action: torch.Tensor) -> npt.NDArray[Any]:
        """Actions for the environment: a new array `[num_envs, …]`, never the caller's memory.

        New in each env step, because environments store actions, say to penalise their changes.
        """

    @abstractmethod
    def to_tensor_env(self, action: torch.Tensor, constants: Leaves) -> torch.Tensor:
        """Actions for an environment that takes tensors: a new tensor.

        Args:
            action: Actions on the environment's device.
            constants: `constants` on that device.

        """


class IntegerActions(Actions):
    """Integers. Choices count from 0 in the spec, and from `start` in the space.

    A `Box` of integers has the same numbers in both; one of booleans is choices of two.

    Args:
        space: `Discrete`, `MultiDiscrete`, `MultiBinary`, or a `Box` of integers or booleans.
        num_envs: Number of actions in a batch.
        device: Device of the spec.

    """

    def __init__(self, space: spaces.Space[Any], num_envs: int, device: torch.device) -> None:
        super().__init__(integer_spec(space, device), space, num_envs)
        self.constants = (np.asarray(getattr(space, "start", 0), dtype=np.int64),)
        self._starts_at_zero = not self.constants[0].any()

    def to_env(self, action: torch.Tensor) -> npt.NDArray[Any]:
        """See `Actions.to_env`."""
        sent = self._downlink.fetch(action)
        if not self._starts_at_zero:
            sent = sent + self.constants[0]
        return sent.astype(self._dtype, copy=self._starts_at_zero)

    def to_tensor_env(self, action: torch.Tensor, constants: Leaves) -> torch.Tensor:
        """See `Actions.to_tensor_env`."""
        sent = action.reshape(self._shape) + constants[0]
        return sent.to(getattr(torch, self._dtype.name))


class BoxActions(Actions):
    """Real numbers, brought inside the space's bounds.

    `"clip"` sends the nearest action inside the bounds. `"rescale"` maps -1 to the lower and 1 to
    the upper bound, linearly, then clips; dimensions with an infinite bound are only clipped.

    Args:
        space: Floating-point `Box`.
        num_envs: Number of actions in a batch.
        device: Device of the spec.
        bounds: `"clip"` or `"rescale"`.

    """

    def __init__(
        self, space: spaces.Box, num_envs: int, device: torch.device, bounds: ActionBounds
    ) -> None:
        super().__init__(box_spec(space, device, "action_space"), space, num_envs)
        self.constants = (space.low, space.high)
        if bounds == "rescale":
            ends = torch.tensor(space.low), torch.tensor(space.high)
            self.constants += tuple(x.numpy() for x in unit_to_bounds(*ends, "action_space"))
            if isinstance(self.spec, Bounded):
                self.spec = Bounded(-1.0, 1.0, self.spec.shape, device, self.spec.dtype)

    def to_env(self, action: torch.Tensor) -> npt.NDArray[Any]:
        """See `Actions.to_env`."""
        low, high, *affine = self.constants
        sent = self._downlink.fetch(action).astype(self._dtype, order="C")
        if affine:
            sent *= affine[0]
            sent += affine[1]
        np.maximum(sent, low, out=sent)
        np.minimum(sent, high, out=sent)
        return sent

    def to_tensor_env(self, action: torch.Tensor, constants: Leaves) -> torch.Tensor:
        """See `Actions.to_tensor_env`."""
        low, high, *affine = constants
        sent = action.to(low.dtype).reshape(self._shape)
        if affine:
            sent = sent * affine[0] + affine[1]
        return sent.clamp(low, high)


def make_actions(
    space: spaces.Space[Any], num_envs: int, device: torch.device, bounds: ActionBounds
) -> Actions:
    """The conversion of actions of `space`.

    Args:
        space: Space of one environment's action.
        num_envs: Number of actions in a batch.
        device: Device of the spec.
        bounds: How a `Box` action is brought inside its bounds, `"clip"` or `"rescale"`.

    Raises:
        AdapterError: If the space has no action that a policy could sample.

    """
    is_real = isinstance(space, spaces.Box) and space.dtype.kind == "f"
    check_action_bounds(bounds, is_real=is_real, space=space)
    if isinstance(space, spaces.Box) and is_real:
        return BoxActions(space, num_envs, device, bounds)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
        return IntegerActions(space, num_envs, device)
    if space is None:
        raise AdapterError("`action_space` must be one space; the environment says None.")
    raise AdapterError(
        "`action_space` must be `Discrete`, `MultiDiscrete`, `MultiBinary` or `Box`, which one "
        f"policy can sample; got {space}. Give each environment such a space in a "
        "`gymnasium.wrappers.TransformAction`, which converts its actions."
    )
