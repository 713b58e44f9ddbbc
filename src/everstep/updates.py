"""The optimizer's side of an update: flat gradients, clipping, scaling, skipping NaN."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn, optim
from torch.amp.grad_scaler import GradScaler

from .optimizers import AdamStep

#: How an optimizer computes its steps, which has nothing to do with what they are.
_WAYS = frozenset({"fused", "foreach", "capturable", "differentiable"})


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

    #: Sum of this update's gradient norms, before clipping, 0-d.
    grad_norm: torch.Tensor

    #: Optimizer steps of this update skipped because gradients were not finite, 0-d.
    skipped: torch.Tensor

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
        _open_momentum(self.optimizer)
        # Fused optimizers skip a step on the device when told so; others need the host to decide.
        self._skips_on_device = bool(config.get("fused"))
        self.max_grad_norm = max_grad_norm
        self.grad_scaler = grad_scaler
        self._gradients = _flatten_gradients(trained)
        self._views = [(p, p.grad) for p in trained]
        self._rates: list[torch.Tensor] = []
        self._quick_step: None | AdamStep = None
        device = trained[0].device
        self._found_inf = torch.zeros((), dtype=torch.float32, device=device)
        self.grad_norm = torch.zeros((), device=device)
        self.skipped = torch.zeros((), device=device)
        self.pending = False

    def begin(self) -> None:
        """Start counting anew, with no gradients left over."""
        self.grad_norm.zero_()
        self.skipped.zero_()
        self.zero_grad()
        for p, gradient in self._views:  # `optimizer.zero_grad()` takes them away
            p.grad = gradient
        if self.grad_scaler.is_enabled():
            # What an update that failed between unscaling and stepping has left.
            self.grad_scaler._per_optimizer_states.clear()
        self._quick_step = self._quicker()

    def totals(self) -> dict[str, torch.Tensor]:
        """Sums over the update, 0-d each."""
        return {"grad_norm": self.grad_norm, "skipped": self.skipped}

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

    @property
    def skips_on_device(self) -> bool:
        """Whether steps are skipped without the host's knowing."""
        return self._skips_on_device and not self.grad_scaler.is_enabled()

    def hold_rates(self) -> None:
        """Keep learning rates in tensors on the device, always the same ones.

        A rate that somebody has set is filled into the tensor that was there before.
        """
        groups, device = self.optimizer.param_groups, self.grad_norm.device
        if not self._rates:
            # What fused optimizers read on a GPU is float32; a CPU's are as exact as a float.
            dtype = torch.float32 if device.type == "cuda" else torch.float64
            self._rates = [torch.zeros((), dtype=dtype, device=device) for _ in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(float(group["lr"]))
                group["lr"] = rate
            if "capturable" in group and device.type == "cuda":
                group["capturable"] = True
        # Steps before the capture are meant to be there.
        self.optimizer._warned_capturable_if_run_uncaptured = True

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, with learning rates as numbers."""
        state: dict[str, Any] = self.optimizer.state_dict()
        groups = [{**group, "lr": float(group["lr"])} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over an optimizer's state, of whatever machine.

        Moments are laid in memory as the parameters are here, and whether steps are fused stays
        what it is.
        """
        loaded, own = state["param_groups"], self.optimizer.param_groups
        if len(loaded) == len(own):  # the optimizer says so otherwise
            ways = [{name: group[name] for name in _WAYS & group.keys()} for group in own]
            groups = [{**group, **way} for group, way in zip(loaded, ways, strict=True)]
            state = {**state, "param_groups": groups}
        self.optimizer.load_state_dict(dict(state))
        for p, kept in self.optimizer.state.items():
            for name, x in kept.items():
                if isinstance(x, torch.Tensor) and x.shape == p.shape and is_dense(p):
                    kept[name] = torch.empty_like(p, dtype=x.dtype).copy_(x)
        _open_momentum(self.optimizer)

    def step(self, *, stopped: None | torch.Tensor = None) -> None:
        """Clip, step the optimizer, and forget the gradients.

        Args:
            stopped: Whether to forget the gradients only, bool, 0-d; None for no.

        """
        self.grad_scaler.unscale_(self.optimizer)
        norm = self._norm()
        if stopped is not None:
            norm = norm.masked_fill(stopped, 0.0)
        # x - x is 0 for what is finite, and NaN for the rest.
        torch.ne(norm - norm, 0.0, out=self._found_inf)
        self.skipped += self._found_inf
        self.grad_norm += norm.nan_to_num(0.0, 0.0, 0.0)
        if self.max_grad_norm is not None:
            scale = (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            for flat in self._gradients:
                flat.mul_(scale)
        if self.grad_scaler.is_enabled():
            self.grad_scaler.step(self.optimizer)  # looks for infinities itself
            self.grad_scaler.update()
        elif self._skips_on_device:
            if stopped is not None:
                self._found_inf.masked_fill_(stopped, 1.0)
            if self._quick_step is None:
                self.optimizer.found_inf = self._found_inf  # type: ignore[attr-defined]
                self.optimizer.step()
                self._quick_step = self._quicker()
            else:
                self._quick_step(self._found_inf)
        elif not bool(self._found_inf):  # one sync: a step on NaN would be forever
            self.optimizer.step()
        self.zero_grad()

    def refuse(self, broken: torch.Tensor) -> None:
        """Forget the gradients; the step counts as skipped where they are `broken`, 0-d bool."""
        self.skipped += broken
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.pending = False
        for flat in self._gradients:
            flat.zero_()

    def _quicker(self) -> None | AdamStep:
        """The optimizer's step without its bookkeeping; None where there is none, or none yet."""
        is_quick = self.skips_on_device and AdamStep.fits(self.optimizer)
        return AdamStep(self.optimizer, self._quick_step) if is_quick else None

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
            # Fused optimizers go through memory: gradients lie in it as their parameters do.
            lies = is_dense(p)
            p.grad = gradient.as_strided(p.shape, p.stride()) if lies else gradient.view(p.shape)
        flats.append(flat)
    return flats


def is_dense(x: torch.Tensor) -> bool:
    """Whether a tensor fills a piece of memory, in whatever order of its dimensions."""
    if not x.numel():
        return True
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _open_momentum(optimizer: optim.Optimizer) -> None:
    """Let momenta of fused SGD be there before the first step, which leaves them open if skipped.

    They are zero, from which a first step gives what it would give without them.
    """
    if not isinstance(optimizer, optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["fused"] and group["momentum"] and not group["dampening"]:
            for p in group["params"]:
                if optimizer.state[p].get("momentum_buffer") is None:
                    optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


def _fused(
    optimizer_cls: type[optim.Optimizer], config: dict[str, Any], parameters: list[nn.Parameter]
) -> dict[str, Any]:
    """`config`, with the fused implementation where the class has one and nothing else is asked."""
    chosen = _WAYS & config.keys()
    has_fused = "fused" in inspect.signature(optimizer_cls).parameters
    fits = all(
        p.is_floating_point() and p.device.type in ("cpu", "cuda") and is_dense(p)
        for p in parameters
    )
    # A momentum that is there before the first step is damped in it, and one that is not is none.
    fits &= not (issubclass(optimizer_cls, optim.SGD) and config.get("dampening"))
    # Older PyTorch has no fused Adagrad on a GPU.
    fits &= not (optimizer_cls is optim.Adagrad and parameters[0].device.type == "cuda")
    return config | {"fused": True} if has_fused and fits and not chosen else config
