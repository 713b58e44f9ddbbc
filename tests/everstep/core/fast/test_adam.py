"""Adam's quick step: the optimizer's own, and only where nobody would notice."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from everstep.core.fast import AdamStep, eligible


def optimizer_of(cls: Any, **options: Any) -> tuple[Any, list[nn.Parameter]]:
    torch.manual_seed(0)
    shapes = [(3, 4), (3,), (5, 3)]
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.1}]
    return cls(groups, fused=True, **options), parameters


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (optim.Adam, {}),
        (optim.Adam, {"weight_decay": 0.1, "betas": (0.8, 0.9)}),
        (optim.Adam, {"maximize": True, "eps": 1e-3}),
        (optim.AdamW, {}),
    ],
    ids=["adam", "decay", "maximize", "adamw"],
)
def test_a_step_is_the_optimizers_own(cls: Any, options: dict[str, Any]) -> None:
    (whole, expected), (quick, found) = (optimizer_of(cls, **options) for _ in range(2))
    torch.manual_seed(1)
    step = None
    for i in range(5):
        whole.found_inf = torch.tensor(float(i == 3))
        for a, b in zip(expected, found, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone() if b.grad is None else b.grad.copy_(a.grad)
        if i == 4:  # as schedules change them
            for group in (*whole.param_groups, *quick.param_groups):
                group["lr"] *= 0.5
        whole.step()
        if i == 0:
            assert not quick.state  # its first step makes the state
            quick.step()
            step = AdamStep(quick)
        else:
            step(torch.tensor(float(i == 3)))
    assert eligible(optimizer=quick) is None
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)
        assert all(torch.equal(whole.state[a][key], quick.state[b][key]) for key in whole.state[a])
    assert quick.state[found[0]]["step"] == 4


def watched(optimizer: Any) -> None:
    optimizer.register_step_post_hook(lambda *_: None)


def scheduled(optimizer: Any) -> None:
    optim.lr_scheduler.ConstantLR(optimizer)


@pytest.mark.parametrize("change", [watched, scheduled])
def test_an_optimizer_that_somebody_watches_steps_itself(change: Callable[[Any], None]) -> None:
    optimizer, parameters = optimizer_of(optim.Adam)
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer.step()
    assert eligible(optimizer=optimizer) is None
    change(optimizer)
    assert eligible(optimizer=optimizer) is not None


@pytest.mark.parametrize(
    ("cls", "options"),
    [(optim.Adam, {"amsgrad": True}), (optim.SGD, {}), (optim.RAdam, {})],
    ids=["amsgrad", "sgd", "radam"],
)
def test_other_optimizers_step_themselves(cls: Any, options: dict[str, Any]) -> None:
    p = nn.Parameter(torch.randn(3))
    p.grad = torch.randn(3)
    optimizer = cls([p], lr=0.1, **options)
    optimizer.step()
    assert eligible(optimizer=optimizer) is not None
