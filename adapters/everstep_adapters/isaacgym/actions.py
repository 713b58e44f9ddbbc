"""Actions on their way to a task."""

from typing import Any

import numpy as np
import torch
from torchrl.data import Bounded, TensorSpec, Unbounded

from everstep.errors import AdapterError

from .tasks import Task


class Actions:
    """Real-valued actions, kept inside the bounds of the task's action space where it has one.

    Args:
        task: Whose actions.

    Raises:
        AdapterError: Where the task's actions are not real numbers.

    """

    #: Spec of one environment's action: `Bounded` where all bounds are finite, else `Unbounded`.
    spec: TensorSpec

    def __init__(self, task: Task) -> None:
        zeros = task.zero_actions()
        self._name, self._shape = task.name, zeros.shape
        self._own: dict[str, Any] = {"device": task.own_device, "dtype": zeros.dtype}
        shape = zeros.shape[1:]
        self.spec = Unbounded(shape, device=task.device, dtype=zeros.dtype)
        self._bounds: None | tuple[torch.Tensor, torch.Tensor] = None
        space = task.action_space
        if space is None:
            return
        if not (hasattr(space, "low") and hasattr(space, "high")):
            raise AdapterError(
                f"The actions of {task.name} must be real numbers, a `Box`; got {space}. Let its "
                "`pre_physics_step` make the choice of them."
            )
        low, high = (self._bound(bound, shape) for bound in (space.low, space.high))
        if bool(low.isfinite().any() | high.isfinite().any()):
            self._bounds = low, high
        if bool(low.isfinite().all() & high.isfinite().all()):
            on_device = low.to(task.device), high.to(task.device)
            self.spec = Bounded(*on_device, shape, task.device, zeros.dtype)

    def _bound(self, bound: Any, shape: torch.Size) -> torch.Tensor:
        numbers = np.broadcast_to(np.asarray(bound, dtype=np.float64), tuple(shape))
        return torch.tensor(numbers, **self._own)

    def send(self, action: Any) -> torch.Tensor:
        """What the task is given: new memory, which it may keep and change.

        Args:
            action: Actions `[N, *spec.shape]`. Never written to.

        Raises:
            AdapterError: Where they have another shape, or are not real numbers.

        """
        if not isinstance(action, torch.Tensor) or action.shape != self._shape:
            received = list(getattr(action, "shape", ())) or type(action).__name__
            raise AdapterError(
                f"An action of {self._name} must be a tensor {list(self._shape)}, a row of numbers "
                f"an environment; got {received}."
            )
        if not action.is_floating_point():
            raise AdapterError(
                f"An action of {self._name} must be of real numbers; got {action.dtype}."
            )
        if self._bounds is not None:
            moved = action.detach().to(**self._own)
            return torch.clamp(moved, *self._bounds)
        return action.detach().to(**self._own, copy=True)
