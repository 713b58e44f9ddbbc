"""Actions of a policy as the arrays that an environment's functions take."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torchrl.data import Categorical, TensorSpec

from everstep.env.formats import ActionFormat

from ..common.actions import ActionBounds, check_action_bounds, rescaled_spec, unit_to_bounds
from ..common.handoff import HostReader
from ..common.specs import choices_spec, real_spec
from .source import Choices, Reals


class Actions:
    """Conversion of actions.

    Args:
        action: Actions that the environment takes.
        num_envs: Number of rows.
        device: Device of the policy's actions.
        own: JAX's device.
        bounds: How real numbers are brought inside their bounds; see `ActionBounds`.

    """

    #: Spec of one environment's action, for the policy.
    spec: TensorSpec

    #: The action as the environment has it.
    form: ActionFormat

    #: Bounds to which the program clips, arrays; None where there are none.
    ends: tuple[Any, Any] = (None, None)

    def __init__(
        self,
        action: Choices | Reals,
        num_envs: int,
        device: torch.device,
        own: torch.device,
        bounds: ActionBounds,
    ) -> None:
        check_action_bounds(bounds, is_real=isinstance(action, Reals), space=action)
        self._own = own
        self._affine: None | tuple[torch.Tensor, ...] = None
        sent = np.dtype(action.dtype)
        self._dtype: torch.dtype = getattr(torch, sent.name)
        if isinstance(action, Choices):
            shape = tuple(action.counts.shape)
            counts = torch.tensor(action.counts.tolist(), dtype=torch.int64, device=device)
            self.spec = choices_spec(counts)
            if not shape:
                self.spec = Categorical(int(counts), torch.Size([1]), device=device)
            self.form = ActionFormat(shape, sent)
        else:
            shape = tuple(action.low.shape)
            self._set_real(action, sent, device, bounds)
        self._shape = (num_envs, *shape)
        self._host = HostReader(self._shape, is_real=isinstance(action, Reals))

    def _set_real(
        self, action: Reals, sent: np.dtype[Any], device: torch.device, bounds: ActionBounds
    ) -> None:
        dtype = torch.get_default_dtype()
        low, high = (torch.tensor(x.tolist(), dtype=dtype) for x in (action.low, action.high))
        size = torch.Size(low.shape or (1,))
        arrays: dict[str, Any] = {}
        if bool(low.isfinite().any() | high.isfinite().any()):
            self.ends = action.low.astype(sent), action.high.astype(sent)
            arrays = {"low": action.low, "high": action.high}
        self.spec = real_spec(low.reshape(size), high.reshape(size), device)
        if affine := unit_to_bounds(low, high, bounds, "action"):
            self.spec = rescaled_spec(self.spec)
            self._affine = tuple(x.to(device) for x in affine)
            for name, values in zip(("scale", "offset"), self._affine, strict=True):
                arrays[name] = values.numpy(force=True)
        self.form = ActionFormat(tuple(low.shape), sent, **arrays)

    def send(self, action: torch.Tensor) -> Any:
        """The action as an array in memory of its own: JAX may read it later."""
        if self._own.type == "cpu":
            array, form = self._host.fetch(action), self.form
            if form.scale is not None and form.offset is not None:
                array = array * form.scale + form.offset
            return array.astype(form.dtype)
        sent = action.detach()
        if self._affine:
            sent = sent * self._affine[0] + self._affine[1]
        sent = sent.to(self._own, self._dtype, copy=True).reshape(self._shape).contiguous()
        return jnp.from_dlpack(sent)
