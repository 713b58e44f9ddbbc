"""Actions of a policy as the actions of a task."""

from typing import Any

import numpy as np
import torch
from torchrl.data import TensorSpec, Unbounded

from everstep.env.formats import ActionFormat, numpy_dtype
from everstep.errors import AdapterError

from ..common.actions import ActionCheck
from ..common.specs import real_spec
from .source import Task


class Actions:
    """Real-valued actions, clipped to the bounds of the task's action space if it has one.

    Args:
        task: The task.

    Raises:
        AdapterError: If the task's actions are not real numbers.

    """

    #: Spec of one environment's action.
    spec: TensorSpec

    #: The action as the task has it.
    form: ActionFormat

    def __init__(self, task: Task) -> None:
        zeros, space = task.zero_actions(), task.action_space
        shape = zeros.shape[1:]
        self._own: dict[str, Any] = {"device": task.own_device, "dtype": zeros.dtype}
        self.spec = Unbounded(shape, device=task.device, dtype=zeros.dtype)
        self._bounds: None | tuple[torch.Tensor, torch.Tensor] = None
        if space is not None:
            if not (hasattr(space, "low") and hasattr(space, "high")):
                raise AdapterError(
                    f"The actions of {task.name} must be real numbers, a `Box`; got {space}. "
                    "Choose among them in its `pre_physics_step`."
                )
            ends = (np.asarray(end, dtype=np.float64) for end in (space.low, space.high))
            low, high = (torch.tensor(np.broadcast_to(x, tuple(shape)), **self._own) for x in ends)
            if bool(low.isfinite().any() | high.isfinite().any()):
                self._bounds = low, high
            self.spec = real_spec(low, high, task.device)
        bounds: dict[str, Any] = {}
        if self._bounds is not None:
            arrays = (end.numpy(force=True) for end in self._bounds)
            bounds = dict(zip(("low", "high"), arrays, strict=True))
        self.form = ActionFormat(tuple(shape), numpy_dtype(zeros.dtype), **bounds)
        self._check = ActionCheck(task.num_envs, self.spec)

    def send(self, action: Any) -> torch.Tensor:
        """Actions for the task: new memory, which it may store and change.

        Args:
            action: Actions `[N, *spec.shape]`. Never written to.

        Raises:
            AdapterError: If they have another shape, or are not real numbers.

        """
        sent = self._check(action).detach().to(**self._own, copy=self._bounds is None)
        return sent if self._bounds is None else torch.clamp(sent, *self._bounds)
