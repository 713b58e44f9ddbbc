"""The fused step of `torch.optim.Adam` and `AdamW` without the optimizer's bookkeeping."""

from typing import Any

import torch
from torch import optim


class AdamStep:
    """Adam's fused step, with the tensors looked up once.

    Looking tensors up and counting steps per parameter takes longer than the step of a small
    network. So the step counters in the optimizer's state become views of one tensor; the rest of
    its state is used in place. Parameters, gradients and state must not be replaced between calls.

    Args:
        optimizer: Eligible optimizer that has made its first step.
        previous: The last `AdamStep` of this optimizer, whose counters are reused; None for none.

    """

    def __init__(self, optimizer: optim.Optimizer, previous: "None | AdamStep" = None) -> None:
        states = [optimizer.state[p] for group in optimizer.param_groups for p in _trained(group)]
        steps = [state["step"] for state in states]
        if previous is not None and list(map(id, previous._steps)) == list(map(id, steps)):
            self._count: torch.Tensor = previous._count
        else:
            self._count = torch.stack(steps)
            steps = list(self._count.unbind())
            for state, step in zip(states, steps, strict=True):
                state["step"] = step
        self._steps: list[torch.Tensor] = steps
        self._groups = [
            (group, _tensors(optimizer, group), _options(group))
            for group in optimizer.param_groups
            if _trained(group)
        ]

    @torch.no_grad()
    def __call__(self, found_inf: torch.Tensor) -> None:
        """Make a step, unless `found_inf`, 0-d, is 1."""
        self._count.add_(1).sub_(found_inf)  # the fused kernel does not undo the count itself
        for group, tensors, options in self._groups:
            step = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
            step(*tensors, lr=group["lr"], found_inf=found_inf, **options)


def _trained(group: dict[str, Any]) -> list[torch.Tensor]:
    """Parameters of a group that have gradients."""
    return [p for p in group["params"] if p.grad is not None]


def _tensors(optimizer: optim.Optimizer, group: dict[str, Any]) -> list[list[torch.Tensor]]:
    """Parameters of a group, gradients, both moments, none of AMSGrad's, and counters."""
    parameters = _trained(group)
    states = [optimizer.state[p] for p in parameters]
    means, squares, steps = (
        [state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step")
    )
    return [parameters, [p.grad for p in parameters], means, squares, [], steps]  # type: ignore[misc]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Options of a group's step, beside its learning rate."""
    beta1, beta2 = group["betas"]
    options = {name: group[name] for name in ("amsgrad", "eps", "maximize", "weight_decay")}
    return {"beta1": beta1, "beta2": beta2, **options}
