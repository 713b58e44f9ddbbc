"""Actions of a policy as the actions of a Gymnasium space."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torchrl.data import TensorSpec

from everstep.env.formats import ActionFormat
from everstep.errors import AdapterError

from ..common.actions import ActionBounds, check_action_bounds, rescaled_spec, unit_to_bounds
from ..common.handoff import HostReader
from .specs import box_spec, integer_spec, start_of


class Actions:
    """Conversion of actions `[num_envs, *spec.shape]`.

    Args:
        spec: Spec of one environment's action.
        form: The action as the space has it.
        num_envs: Number of actions in a batch.

    """

    #: Spec of one environment's action.
    spec: TensorSpec

    #: The action as the space has it.
    form: ActionFormat

    def __init__(self, spec: TensorSpec, form: ActionFormat, num_envs: int) -> None:
        self.spec, self.form = spec, form
        self._shape = (num_envs, *form.shape)
        self._host = HostReader(self._shape, is_real=spec.dtype.is_floating_point)

    def to_env(self, action: torch.Tensor) -> npt.NDArray[Any]:
        """Actions for the environment: a new array `[num_envs, …]`, never the caller's memory.

        New in each vector step, because environments store actions, say to penalise their changes.
        """
        return self.form.to_numpy(self._host.fetch(action))

    def to_tensor_env(self, action: torch.Tensor) -> torch.Tensor:
        """Actions for an environment that takes tensors: a new tensor.

        Args:
            action: Actions on the environment's device.

        """
        return self.form.to_torch(action.reshape(self._shape))


def integer_actions(space: spaces.Space[Any], num_envs: int, device: torch.device) -> Actions:
    """Actions of integers. Choices count from 0 in the spec, and from `start` in the space.

    A `Box` of integers has the same numbers in both; one of booleans is choices of two.

    Args:
        space: `Discrete`, `MultiDiscrete`, `MultiBinary`, or a `Box` of integers or booleans.
        num_envs: Number of actions in a batch.
        device: Device of the spec.

    """
    assert space.dtype is not None
    form = ActionFormat(tuple(space.shape or ()), np.dtype(space.dtype), start=start_of(space))
    return Actions(integer_spec(space, device), form, num_envs)


def box_actions(
    space: spaces.Box, num_envs: int, device: torch.device, bounds: ActionBounds
) -> Actions:
    """Actions of real numbers, brought inside the space's bounds.

    Args:
        space: Floating-point `Box`.
        num_envs: Number of actions in a batch.
        device: Device of the spec.
        bounds: How; see `ActionBounds`.

    """
    spec = box_spec(space, device, "action_space")
    arrays: dict[str, Any] = {"low": space.low, "high": space.high}
    ends = torch.tensor(space.low), torch.tensor(space.high)
    if affine := unit_to_bounds(*ends, bounds, "action_space"):
        arrays |= {name: x.numpy() for name, x in zip(("scale", "offset"), affine, strict=True)}
        spec = rescaled_spec(spec)
    form = ActionFormat(tuple(space.shape), np.dtype(space.dtype), **arrays)
    return Actions(spec, form, num_envs)


def make_actions(
    space: spaces.Space[Any], num_envs: int, device: torch.device, bounds: ActionBounds
) -> Actions:
    """The conversion of actions of `space`.

    Args:
        space: Space of one environment's action.
        num_envs: Number of actions in a batch.
        device: Device of the spec.
        bounds: How a `Box` action is brought inside its bounds; see `ActionBounds`.

    Raises:
        AdapterError: If the space has no action that a policy could sample.

    """
    is_real = isinstance(space, spaces.Box) and space.dtype.kind == "f"
    check_action_bounds(bounds, is_real=is_real, space=space)
    if isinstance(space, spaces.Box) and is_real:
        return box_actions(space, num_envs, device, bounds)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
        return integer_actions(space, num_envs, device)
    if space is None:
        raise AdapterError("`action_space` must be one space; the environment says None.")
    raise AdapterError(
        "`action_space` must be `Discrete`, `MultiDiscrete`, `MultiBinary` or `Box`, which one "
        f"policy can sample; got {space}. Give each environment such a space in a "
        "`gymnasium.wrappers.TransformAction`, which converts its actions."
    )
