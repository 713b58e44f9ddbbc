"""The optimizer's side of an update: flat gradients, clipping, skipped steps."""

import contextlib
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn, optim
from torch.amp.grad_scaler import GradScaler

from ...core.fast import AdamStep, eligible
from ...errors import CheckpointError, ConfigError
from ...schedulers import MOST

#: Options that choose an implementation of an optimizer, not its numbers.
_IMPLEMENTATIONS = frozenset({"fused", "foreach", "capturable", "differentiable"})

#: Gradients that are set to 0 at once on a CPU: more would be done by PyTorch's threads, which then
#: wait for more work for milliseconds, in the way of the native library's.
_PIECE = 2**15 - 1


class Updater:
    """Turns losses into optimizer steps.

    Gradients are views of one flat tensor a dtype, so that clipping and zeroing are one operation
    each. A step whose gradients are not finite is skipped: neither weights nor moments change.

    Args:
        parameters: What is trained; parameters, or groups of them as optimizers take them. Frozen
            ones (`requires_grad` False) are skipped for as long as they are frozen.
        optimizer_cls: Optimizer class; PyTorch's own are used in their fused form.
        optimizer_config: Its keyword arguments.
        max_grad_norm: Norm that gradients are clipped to; None for no clipping.
        grad_scaler: Scaler of float16 training, disabled otherwise.

    Raises:
        ConfigError: If every parameter is frozen.

    """

    #: The optimizer.
    optimizer: optim.Optimizer

    #: Whether there are gradients that no step has used.
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
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        groups = [
            {**g, "params": [p for p in g["params"] if p.is_floating_point()]} for g in groups
        ]
        self._parameters: list[nn.Parameter] = [p for group in groups for p in group["params"]]
        self._known = frozenset(self._parameters)
        self.check_trained(())
        config = _fused(optimizer_cls, optimizer_config, self._parameters)
        self.optimizer = optimizer_cls(groups, **config)
        #: Options that stay as they were configured.
        self._options = inspect.signature(optimizer_cls).parameters.keys() - _IMPLEMENTATIONS
        self._options -= {"params", "lr"}
        _open_momentum(self.optimizer)
        # Fused optimizers skip a step on the device when told so; others need the host to decide.
        self._skips_on_device = bool(config.get("fused"))
        self.max_grad_norm = max_grad_norm
        self.grad_scaler = grad_scaler
        device = self._parameters[0].device
        # 0-d tensors: an operation with a Python number takes three times as long on a CPU.
        constants = (0.0, 1.0, 1e-6)
        self._constants = [torch.tensor(x, device=device) for x in constants]
        self.flats, self._pieces, self._views = _flat_gradients(self._parameters)
        self._rates: list[torch.Tensor] = []
        self._quick_step: None | AdamStep = None
        self._found_inf = torch.zeros((), dtype=torch.float32, device=device)
        self.grad_norm = torch.zeros((), device=device)
        self.skipped = torch.zeros((), device=device)
        self.pending = False
        self._attach()

    def check_trained(self, parameters: Iterable[nn.Parameter]) -> None:
        """Check that the parameters of the model and of bonuses are those that are trained.

        Raises:
            ConfigError: If all are frozen, or if a layer was put into the model since: the
                optimizer does not know it.

        """
        if not any(p.requires_grad for p in self._parameters):
            raise ConfigError(
                "There is nothing to train: every parameter of the model is frozen "
                "(`requires_grad` is False). Call `requires_grad_(True)` on what is to be trained."
            )
        strange = [p for p in parameters if p.requires_grad and p not in self._known]
        if strange:
            raise ConfigError(
                f"{len(strange)} parameters of the model, such as one of shape "
                f"{list(strange[0].shape)}, were put into it after the algorithm was built, and "
                "the optimizer would not train them. Change the model before, or copy weights "
                "into its own parameters with `set_weights`."
            )

    def begin(self) -> None:
        """Begin an update: counters and gradients are 0."""
        self.grad_norm.zero_()
        self.skipped.zero_()
        self._attach()
        self.zero_grad()
        if self.grad_scaler.is_enabled():
            # An update that failed between unscaling and stepping leaves its state.
            self.grad_scaler._per_optimizer_states.clear()
        self._quick_step = self._find_quick_step()

    def _attach(self) -> None:
        """Make every trained parameter's `grad` a view of the flat tensor, and a frozen one's None.

        Whoever converts or moves the model (`model.double()`) replaces gradients, and
        `optimizer.zero_grad()` removes them.
        """
        if not all(_fits(p, view) for p, view in zip(self._parameters, self._views, strict=True)):
            self.flats, self._pieces, self._views = _flat_gradients(self._parameters)
            _match_moments(self.optimizer)
        for p, view in zip(self._parameters, self._views, strict=True):
            p.grad = view.tensor if p.requires_grad else None

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss` to those of the step that is being made."""
        self.grad_scaler.scale(loss).backward()
        self.pending = True

    def gradients(
        self, loss: torch.Tensor, parameters: Sequence[nn.Parameter]
    ) -> list[None | torch.Tensor]:
        """Gradients of `loss`, not added up; None for parameters that it does not reach."""
        trained = [p for p in parameters if p.requires_grad]
        scale = self.grad_scaler.scale(torch.ones_like(loss))
        found = torch.autograd.grad(self.grad_scaler.scale(loss), trained, allow_unused=True)
        by_parameter = dict(zip(trained, found, strict=True))
        return [None if (g := by_parameter.get(p)) is None else g / scale for p in parameters]

    def put(self, gradients: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """Begin an update with these gradients for its first step; missing ones are 0."""
        self.begin()
        for p in self._parameters:
            if p.grad is not None and p in gradients:
                p.grad.copy_(self.grad_scaler.scale(gradients[p].to(p.grad)))
        self.pending = True

    @property
    def skips_on_device(self) -> bool:
        """Whether the device alone decides if a step is skipped, and the host does not learn it."""
        return self._skips_on_device and not self.grad_scaler.is_enabled()

    def hold_rates(self) -> None:
        """Hold learning rates in tensors on the device, always the same ones.

        A rate that was set since is written into the same tensor.
        """
        groups, device = self.optimizer.param_groups, self.grad_norm.device
        if not self._rates:
            # Fused optimizers read float32 on a GPU; on a CPU rates keep a float's precision.
            dtype = torch.float32 if device.type == "cuda" else torch.float64
            self._rates = [torch.zeros((), dtype=dtype, device=device) for _ in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(float(group["lr"]))
                group["lr"] = rate
            if "capturable" in group and device.type == "cuda":
                group["capturable"] = True
        # Steps before the capture are intended.
        self.optimizer._warned_capturable_if_run_uncaptured = True

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, with learning rates as numbers."""
        state: dict[str, Any] = self.optimizer.state_dict()
        groups = [{**group, "lr": float(group["lr"])} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load an optimizer's state, also one of another machine; see `check_state`.

        Moments get the memory layout of the parameters here, and the implementation (fused or
        not) stays what it is.
        """
        groups = [
            {**loaded, **{name: own[name] for name in _IMPLEMENTATIONS & own.keys()}}
            for loaded, own in zip(state["param_groups"], self.optimizer.param_groups, strict=True)
        ]
        self.optimizer.load_state_dict({**state, "param_groups": groups})
        for p, tensors in self.optimizer.state.items():
            for name, x in tensors.items():
                if isinstance(x, torch.Tensor) and x.shape == p.shape and is_dense(p):
                    tensors[name] = torch.empty_like(p, dtype=x.dtype).copy_(x)
        _open_momentum(self.optimizer)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that `load_state_dict` can load a state; nothing is changed.

        Raises:
            CheckpointError: If it is of another optimizer, of other parameters, or has options
                that this one has not, whose learning rates alone change while it trains.

        """
        own, loaded = self.optimizer.param_groups, state["param_groups"]
        name = type(self.optimizer).__name__
        missing = {key for group in own for key in group} - _IMPLEMENTATIONS
        missing -= {key for group in loaded for key in group} | {"decoupled_weight_decay"}
        if missing:
            raise CheckpointError(
                f"The checkpoint's optimizer has no {', '.join(sorted(missing))}, which {name} "
                "needs: build the algorithm with the optimizer of that training."
            )
        sizes = [[len(group["params"]) for group in groups] for groups in (loaded, own)]
        if sizes[0] != sizes[1]:
            text = f"The checkpoint's optimizer has groups of {sizes[0]} parameters;"
            raise CheckpointError(f"{text} this algorithm's has parameter groups of {sizes[1]}.")
        indices = [i for group in loaded for i in group["params"]]
        if strange := [i for i in state["state"] if type(i) is not int or i not in indices]:
            raise CheckpointError(f"The optimizer's state of {strange[0]!r} is of no parameter.")
        for group, options in zip(own, loaded, strict=True):
            for key in group.keys() & options.keys() - _IMPLEMENTATIONS - {"params"}:
                if _kind_of(options[key]) != _kind_of(group[key]):
                    raise CheckpointError(
                        f"The checkpoint's optimizer has {key}={options[key]!r}; {name} needs a "
                        f"value such as {group[key]!r}."
                    )
            if not 0 <= float(options["lr"]) <= MOST["lr"]:
                raise CheckpointError(
                    f"The checkpoint's optimizer has lr={options['lr']!r}; a learning rate is a "
                    f"number from 0 to {MOST['lr']:g}."
                )
            for key in options.keys() & group.keys() & self._options:
                if not _is_same(options[key], group[key]):
                    raise CheckpointError(
                        f"The checkpoint's optimizer has {key}={options[key]!r}, and this one "
                        f"{group[key]!r}: set `optimizer_config` as it was in that training."
                    )
        ranks = {x.ndim for x in self._parameters}
        kept = {rank: _state_after_a_step(self.optimizer, rank) for rank in ranks}
        for p, i in zip(self._parameters, indices, strict=True):
            found, needed = state["state"].get(i, {}), kept[p.ndim]
            for key in needed if found else ():  # a factor may have the parameter's shape by chance
                if key not in found or not _kind_of(found[key], p).startswith(needed[key]):
                    value = found.get(key)
                    shape = list(value.shape) if isinstance(value, torch.Tensor) else value
                    raise CheckpointError(
                        f"The checkpoint's `{key}` of parameter {i} is {_kind_of(value, p)}, "
                        f"{shape!r}; {name} needs {needed[key]} ({list(p.shape)})."
                    )
            for key, x in found.items() if not needed else ():
                if isinstance(x, torch.Tensor) and x.ndim and x.shape != p.shape:
                    raise CheckpointError(
                        f"The checkpoint's `{key}` of parameter {i} has shape {list(x.shape)}; the "
                        f"parameter has {list(p.shape)}."
                    )

    def step(self, *, mask: None | torch.Tensor = None) -> None:
        """Clip, step the optimizer, and zero the gradients.

        Args:
            mask: Whether to zero the gradients only, bool, 0-d; None for no.

        """
        self.grad_scaler.unscale_(self.optimizer)
        norm = self._norm()
        zero, one, tiny = self._constants
        if mask is not None:
            norm = norm.masked_fill(mask, 0.0)
        # x - x is 0 for what is finite, and NaN for the rest.
        torch.ne(norm - norm, zero, out=self._found_inf)
        self.skipped += self._found_inf
        self.grad_norm += norm.nan_to_num(0.0, 0.0, 0.0)
        if self.max_grad_norm is not None:
            scale = torch.minimum((norm + tiny).reciprocal_().mul_(self.max_grad_norm), one)
            for flat in self.flats:
                flat.mul_(scale)
        if self.grad_scaler.is_enabled():
            self.grad_scaler.step(self.optimizer)  # looks for infinities itself
            self.grad_scaler.update()
        elif self._skips_on_device:
            if mask is not None:
                self._found_inf.masked_fill_(mask, 1.0)
            if self._quick_step is None:
                self.optimizer.found_inf = self._found_inf  # type: ignore[attr-defined]
                self.optimizer.step()
                self._quick_step = self._find_quick_step()
            else:
                self._quick_step(self._found_inf)
        elif not bool(self._found_inf):  # one sync: a step on NaN would be forever
            self.optimizer.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Set all gradients to 0."""
        self.pending = False
        if self._pieces and self._pieces[0].device.type == "cpu":
            torch._foreach_zero_(self._pieces)
        else:
            for flat in self.flats:
                flat.zero_()

    def _find_quick_step(self) -> None | AdamStep:
        """The optimizer's step without its bookkeeping; None if there is none, or none yet."""
        state = self.optimizer.state  # made by the first step
        if not self.skips_on_device or any(
            p.grad is not None and p not in state for p in self._parameters
        ):
            return None
        is_eligible = eligible(optimizer=self.optimizer) is None
        return AdamStep(self.optimizer, self._quick_step) if is_eligible else None

    def _norm(self) -> torch.Tensor:
        """Norm of all gradients, 0-d."""
        norms = [torch.linalg.vector_norm(flat) for flat in self.flats]
        norm: torch.Tensor = norms[0]
        return norm if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


# ---- gradients and optimizers -----------------------------------------------------------------


class _View(NamedTuple):
    """A parameter's gradient as a view of the flat tensor."""

    tensor: torch.Tensor
    #: Its address; others replace the data of a gradient.
    address: int


def _fits(p: nn.Parameter, view: _View) -> bool:
    """Whether a view is where it was made, and laid out as the parameter."""
    x = view.tensor
    is_there = x.data_ptr() == view.address and x.shape == p.shape
    alike = x.dtype is p.dtype and x.device == p.device
    return is_there and alike and (x.stride() == p.stride() or not is_dense(p))


def _flat_gradients(
    parameters: list[nn.Parameter],
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[_View]]:
    """A flat gradient tensor of zeros a dtype, its pieces, and a view of it for each parameter."""
    flats: list[torch.Tensor] = []
    pieces: list[torch.Tensor] = []
    views = {}
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        group = [p for p in parameters if p.dtype == dtype]
        flat = torch.zeros(sum(p.numel() for p in group), dtype=dtype, device=group[0].device)
        for p, part in zip(group, flat.split([p.numel() for p in group]), strict=True):
            # Fused optimizers go through memory: gradients have the layout of their parameters.
            view = part.as_strided(p.shape, p.stride()) if is_dense(p) else part.view(p.shape)
            views[p] = _View(view, view.data_ptr())
        flats.append(flat)
        pieces += flat.split(_PIECE)
    return flats, pieces, [views[p] for p in parameters]


def _match_moments(optimizer: optim.Optimizer) -> None:
    """Give moments the dtype and device of their parameters."""
    for p, tensors in optimizer.state.items():
        for name, x in tensors.items():
            if isinstance(x, torch.Tensor) and x.shape == p.shape and x.ndim:
                tensors[name] = x.to(p)


def is_dense(x: torch.Tensor) -> bool:
    """Whether a tensor fills a contiguous piece of memory, in any order of its dimensions."""
    if not x.numel():
        return True
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _open_momentum(optimizer: optim.Optimizer) -> None:
    """Set the momenta of fused SGD to 0; a skipped first step would leave them undefined.

    The first step is the same as without this, which starts from the gradient itself.
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
    chosen = _IMPLEMENTATIONS & config.keys()
    has_fused = "fused" in inspect.signature(optimizer_cls).parameters
    fits = all(
        p.is_floating_point() and p.device.type in ("cpu", "cuda") and is_dense(p)
        for p in parameters
    )
    # A first step damps a momentum that is there before it.
    fits &= not (issubclass(optimizer_cls, optim.SGD) and config.get("dampening"))
    # Older PyTorch has no fused Adagrad on a GPU.
    fits &= not (optimizer_cls is optim.Adagrad and parameters[0].device.type == "cuda")
    return config | {"fused": True} if has_fused and fits and not chosen else config


def _kind_of(value: Any, parameter: None | torch.Tensor = None) -> str:
    """Kind of an option, or of what an optimizer keeps of a parameter."""
    if isinstance(value, torch.Tensor) and parameter is not None and value.shape == parameter.shape:
        return "a tensor of the parameter's shape"
    if isinstance(value, torch.Tensor) and value.ndim:
        return "a tensor"
    if value is None or isinstance(value, bool):
        return "a flag"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_kind_of, value))})"
    number = value.item() if isinstance(value, torch.Tensor) else value
    is_finite = isinstance(number, int | float) and math.isfinite(number)
    return "a finite number" if is_finite else type(value).__name__


def _is_same(one: Any, other: Any) -> bool:
    """Whether an option has one value in two groups; a file has lists for tuples."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def _state_after_a_step(optimizer: optim.Optimizer, ndim: int) -> dict[str, str]:
    """Kinds of what an optimizer keeps of a parameter, by name; {} where it cannot be tried."""
    x = nn.Parameter(torch.zeros((2, 3, 4, 5, 6)[:ndim]))
    with contextlib.suppress(Exception):  # a class of the user's own may take other arguments
        trial = type(optimizer)([x], **optimizer.defaults)
        x.grad = torch.zeros_like(x)
        trial.step()
        return {key: _kind_of(y, x) for key, y in trial.state[x].items() if y is not None}
    return {}
