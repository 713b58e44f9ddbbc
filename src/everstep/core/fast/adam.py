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
        groups = [
            (group, [p for p in group["params"] if p.grad is not None])
            for group in optimizer.param_groups
        ]
        states = [optimizer.state[p] for _, parameters in groups for p in parameters]
        steps = [state["step"] for state in states]
        if previous is not None and list(map(id, previous._steps)) == list(map(id, steps)):
            self._count: torch.Tensor = previous._count
        else:
            self._count = torch.stack(steps)
            steps = list(self._count.unbind())
            for state, step in zip(states, steps, strict=True):
                state["step"] = step
        self._steps: list[torch.Tensor] = steps
        #: Each group, with its tensors and its options as the fused kernel takes them.
        self._groups: list[tuple[dict[str, Any], list[list[Any]], dict[str, Any]]] = []
        for group, parameters in groups:
            if not parameters:
                continue
            means, squares, counts = (
                [optimizer.state[p][key] for p in parameters]
                for key in ("exp_avg", "exp_avg_sq", "step")
            )
            tensors = [parameters, [p.grad for p in parameters], means, squares, [], counts]
            options = {name: group[name] for name in ("amsgrad", "eps", "maximize", "weight_decay")}
            options["beta1"], options["beta2"] = group["betas"]
            self._groups.append((group, tensors, options))

    @torch.no_grad()
    def __call__(self, found_inf: torch.Tensor) -> None:
        """Make a step, unless `found_inf`, 0-d, is 1."""
        self._count.add_(1).sub_(found_inf)  # the fused kernel does not undo the count itself
        for group, tensors, options in self._groups:
            step = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
            step(*tensors, lr=group["lr"], found_inf=found_inf, **options)
