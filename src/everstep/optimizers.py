"""Optimizer steps without the bookkeeping around them."""

from typing import Any

import torch
from torch import optim


class AdamStep:
    """The fused step of `torch.optim.Adam` or `AdamW`, whose tensors are looked up once.

    Numbers are the optimizer's own, and so is its state, but that its counters become views of one
    tensor. Looking tensors up, and counting for each of them, takes longer than the step of a small
    network; they must stay what they are from here to the last call.

    Args:
        optimizer: As `fits` takes it.
        previous: Its last such step, whose counters are kept where they are.

    """

    def __init__(self, optimizer: optim.Optimizer, previous: "None | AdamStep" = None) -> None:
        states = [optimizer.state[p] for group in optimizer.param_groups for p in _trained(group)]
        steps = [state["step"] for state in states]
        if previous is not None and _are_same(previous._steps, steps):
            self._count: torch.Tensor = previous._count
        else:
            self._count = torch.stack(steps)
            steps = list(self._count.unbind())
            for state, step in zip(states, steps, strict=True):
                state["step"] = step
        self._steps: list[torch.Tensor] = steps
        self._groups = [
            (group, _tensors(optimizer, group), _options(group)) for group in optimizer.param_groups
        ]

    @staticmethod
    def fits(optimizer: optim.Optimizer) -> bool:
        """Whether an optimizer's steps are these, and nobody watches them."""
        if type(optimizer) not in (optim.Adam, optim.AdamW):
            return False
        groups = optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        return (
            "step" not in vars(optimizer)  # as schedulers of learning rates replace it
            and not optimizer._optimizer_step_pre_hooks
            and not optimizer._optimizer_step_post_hooks
            and all(group["fused"] and not group["amsgrad"] for group in groups)
            and all(isinstance(beta, float) for group in groups for beta in group["betas"])
            and len({(p.device, p.dtype) for p in parameters}) == 1
            and all(_trained(group) for group in groups)
            # Its first step makes the state.
            and all(p in optimizer.state for p in parameters)
        )

    @torch.no_grad()
    def __call__(self, found_inf: torch.Tensor) -> None:
        """Make a step, unless `found_inf`, 0-d, is 1."""
        # A step that is skipped does not look at its counters.
        self._count.add_(1.0 - found_inf)
        for group, tensors, options in self._groups:
            decoupled = group["decoupled_weight_decay"]
            step = torch._fused_adamw_ if decoupled else torch._fused_adam_
            step(*tensors, lr=group["lr"], found_inf=found_inf, **options)


def _trained(group: dict[str, Any]) -> list[torch.Tensor]:
    """Parameters of a group that have gradients."""
    return [p for p in group["params"] if p.grad is not None]


def _are_same(these: list[torch.Tensor], those: list[torch.Tensor]) -> bool:
    """Whether both are the same objects, in the same order."""
    return len(these) == len(those) and all(a is b for a, b in zip(these, those, strict=True))


def _tensors(optimizer: optim.Optimizer, group: dict[str, Any]) -> list[list[torch.Tensor]]:
    """Parameters of a group, gradients, both moments, none of AMSGrad's, and counters."""
    parameters = _trained(group)
    states = [optimizer.state[p] for p in parameters]
    means, squares, steps = (
        [state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step")
    )
    return [parameters, [p.grad for p in parameters], means, squares, [], steps]  # type: ignore[misc]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """What a group's step depends on beside its tensors and its learning rate."""
    beta1, beta2 = group["betas"]
    options = {name: group[name] for name in ("amsgrad", "eps", "maximize", "weight_decay")}
    return {"beta1": beta1, "beta2": beta2, **options}
