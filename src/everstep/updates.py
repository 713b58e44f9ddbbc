"""The optimizer's side of an update: flat gradients, clipping, scaling, skipping NaN."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn, optim
from torch.amp.grad_scaler import GradScaler

from .optimizers import AdamStep


class Updater:
    """Turns losses into optimizer steps.

    Gradients live in one flat tensor a dtype, so that clipping and zeroing are one operation
    each. A step whose gradients are not finite is skipped: neither weights nor moments move.

    Args:
        parameters: What is trained; parameters, or groups of them as optimizers take them.
        optimizer_cls: Optimizer class; PyTorch's own are used in their fused form.
        optimizer_config: Its keyword arguments.
        max_grad_norm: Norm that gradients are clipped to; None for no clipping.
        grad_scaler: Scaler of float16 training, disabled otherwise.

    """

    #: The optimizer.
    optimizer: optim.Optimizer

    #: Whether there are gradients that no step has taken.
    pending: bool

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | list[dict[str, Any]],
        *,
        optimizer_cls: type[optim.Optimizer],
        optimizer_config: dict[str, Any],
        max_grad_norm: None | float,
        grad_scaler: GradScaler,
    ) -> None:
        given: list[Any] = list(parameters)
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        groups = [
            {**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups
        ]
        trained: list[nn.Parameter] = [p for group in groups for p in group["params"]]
        config = _fused(optimizer_cls, optimizer_config, trained)
        self.optimizer = optimizer_cls(groups, **config)
        # Fused optimizers skip a step on the device when told so; others need the host to decide.
        self._skips_on_device = bool(config.get("fused"))
        self.max_grad_norm = max_grad_norm
        self.grad_scaler = grad_scaler
        self._gradients = _flatten_gradients(trained)
        self._views = [(p, p.grad) for p in trained]
        self._found_inf = torch.zeros((), dtype=torch.float32, device=trained[0].device)
        self._norms: list[torch.Tensor] = []  # of this update, before clipping
        self._quick_step: None | AdamStep = None
        self.pending = False

    def begin(self) -> None:
        """Start counting anew, with no gradients left over."""
        self._norms = []
        self.zero_grad()
        for p, gradient in self._views:  # `optimizer.zero_grad()` takes them away
            p.grad = gradient
        if self.grad_scaler.is_enabled():
            # What an update that failed between unscaling and stepping has left.
            self.grad_scaler._per_optimizer_states.clear()
        is_quick = self._skips_on_device and not self.grad_scaler.is_enabled()
        is_quick = is_quick and AdamStep.fits(self.optimizer)
        self._quick_step = AdamStep(self.optimizer) if is_quick else None

    def totals(self) -> dict[str, torch.Tensor]:
        """Sums over the update, 0-d each: of gradient norms before clipping, and of steps that
        were skipped because gradients were not finite.
        """
        if not self._norms:
            none = torch.zeros_like(self._found_inf)
            return {"grad_norm": none, "skipped": none}
        norms = torch.stack(self._norms)
        finite = norms.isfinite()
        return {"grad_norm": torch.where(finite, norms, 0.0).sum(), "skipped": (~finite).sum()}

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss` to those of the step that is being made."""
        self.grad_scaler.scale(loss).backward()
        self.pending = True

    def gradients(
        self, loss: torch.Tensor, parameters: Sequence[nn.Parameter]
    ) -> list[None | torch.Tensor]:
        """Gradients of `loss`, and nothing else; None for parameters that it does not reach."""
        trained = [p for p in parameters if p.requires_grad]
        scale = self.grad_scaler.scale(torch.ones_like(loss))
        found = torch.autograd.grad(self.grad_scaler.scale(loss), trained, allow_unused=True)
        by_parameter = dict(zip(trained, found, strict=True))
        return [None if (g := by_parameter.get(p)) is None else g / scale for p in parameters]

    def put(self, gradients: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """Make these the gradients of the next step, zero where there is none; count anew."""
        self.begin()
        for p, view in self._views:
            if view is not None and p in gradients:
                view.copy_(self.grad_scaler.scale(gradients[p].to(view)))
        self.pending = True

    def step(self) -> None:
        """Clip, step the optimizer, and forget the gradients."""
        self.grad_scaler.unscale_(self.optimizer)
        norm = self._norm()
        self._norms.append(norm)
        if self.max_grad_norm is not None:
            scale = (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            for flat in self._gradients:
                flat.mul_(scale)
        if self.grad_scaler.is_enabled():
            self.grad_scaler.step(self.optimizer)  # looks for infinities itself
            self.grad_scaler.update()
        elif self._skips_on_device:
            # x - x is 0 for what is finite, and NaN for the rest.
            torch.ne(norm - norm, 0.0, out=self._found_inf)
            if self._quick_step is None:
                self.optimizer.found_inf = self._found_inf  # type: ignore[attr-defined]
                self.optimizer.step()
            else:
                self._quick_step(self._found_inf)
        elif bool(norm.isfinite()):  # one sync: a step on NaN would be forever
            self.optimizer.step()
        self.zero_grad()

    def refuse(self, broken: torch.Tensor) -> None:
        """Forget the gradients; the step counts as skipped where they are `broken`, 0-d bool."""
        self._norms.append(torch.zeros_like(self._found_inf).masked_fill(broken, torch.nan))
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.pending = False
        for flat in self._gradients:
            flat.zero_()

    def _norm(self) -> torch.Tensor:
        norms = [torch.linalg.vector_norm(flat) for flat in self._gradients]
        norm: torch.Tensor = norms[0]
        return norm if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def _flatten_gradients(parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    """One flat gradient tensor a dtype; every parameter's `grad` becomes a view into it."""
    flats = []
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        group = [p for p in parameters if p.dtype == dtype]
        flat = torch.zeros(sum(p.numel() for p in group), dtype=dtype, device=group[0].device)
        for p, gradient in zip(group, flat.split([p.numel() for p in group]), strict=True):
            p.grad = gradient.view(p.shape)
        flats.append(flat)
    return flats


def _fused(
    optimizer_cls: type[optim.Optimizer], config: dict[str, Any], parameters: list[nn.Parameter]
) -> dict[str, Any]:
    """`config`, with the fused implementation where the class has one and nothing else is asked."""
    chosen = {"fused", "foreach", "capturable", "differentiable"} & config.keys()
    has_fused = "fused" in inspect.signature(optimizer_cls).parameters
    floating = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    return config if chosen or not has_fused or not floating else config | {"fused": True}
