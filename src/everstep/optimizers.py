"""Optimizer steps without the bookkeeping around them."""

from typing import Any

import torch
from torch import optim
from torch.optim.adam import adam


class AdamStep:
    """The fused step of `torch.optim.Adam` or `AdamW`, whose tensors are looked up once.

    Numbers and state are the optimizer's own. Looking the tensors up takes longer than the step
    of a small network; they must stay what they are from here to the last call.

    Args:
        optimizer: As `fits` takes it.

    """

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._groups = [
            (group, _tensors(optimizer, group), _options(group)) for group in optimizer.param_groups
        ]

    @staticmethod
    def fits(optimizer: optim.Optimizer) -> bool:
        """Whether an optimizer's steps are these, and nobody watches them."""
        return (
            type(optimizer) in (optim.Adam, optim.AdamW)
            and "step" not in vars(optimizer)  # as schedulers of learning rates replace it
            and not optimizer._optimizer_step_pre_hooks
            and not optimizer._optimizer_step_post_hooks
            and all(group["fused"] and not group["amsgrad"] for group in optimizer.param_groups)
            # Its first step makes the state.
            and all(
                p in optimizer.state for group in optimizer.param_groups for p in group["params"]
            )
        )

    @torch.no_grad()
    def __call__(self, found_inf: torch.Tensor) -> None:
        """Make a step, unless `found_inf`, 0-d, is 1."""
        for group, tensors, options in self._groups:
            parameters, gradients, means, squares, steps = tensors
            adam(
                *(parameters, gradients, means, squares, [], steps),
                lr=group["lr"],
                found_inf=found_inf,
                **options,
            )


def _tensors(optimizer: optim.Optimizer, group: dict[str, Any]) -> list[list[Any]]:
    """Parameters of a group, gradients, both moments, and counters."""
    parameters = [p for p in group["params"] if p.grad is not None]
    states = [optimizer.state[p] for p in parameters]
    moments = [[state[key] for state in states] for key in ("exp_avg", "exp_avg_sq")]
    steps = [state["step"] for state in states]
    return [parameters, [p.grad for p in parameters], *moments, steps]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """What a group's step depends on beside its tensors and its learning rate."""
    beta1, beta2 = group["betas"]
    names = ("amsgrad", "decoupled_weight_decay", "eps", "maximize", "weight_decay")
    options = {name: group[name] for name in names}
    return {"fused": True, "beta1": beta1, "beta2": beta2, **options}
