"""The optimizer's side of an update: what fused optimizers do with unusual parameters and steps."""

from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.amp.grad_scaler import GradScaler

from everstep.algorithms.updates import Updater

on_every_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


def updater(parameters: list[nn.Parameter], cls: Any, **config: Any) -> Updater:
    return Updater(
        parameters,
        optimizer_cls=cls,
        optimizer_config={"lr": 0.1, **config},
        max_grad_norm=None,
        grad_scaler=GradScaler("cpu", enabled=False),
    )


def trained(p: nn.Parameter, cls: Any, loss: Any, **config: Any) -> torch.Tensor:
    """The parameter after three steps."""
    update = updater([p], cls, **config)
    update.begin()
    for _ in range(3):
        update.backward(loss(p))
        update.step()
    return p.detach()


@on_every_device
@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop])
@pytest.mark.parametrize(
    "lay",
    [
        lambda x: x.clone(memory_format=torch.channels_last),
        lambda x: x.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0),
        lambda x: torch.stack([x, x], -1)[..., 0],
    ],
    ids=["channels last", "permuted", "with gaps"],
)
def test_steps_are_the_same_however_parameters_lie_in_memory(
    lay: Any, cls: Any, device: str
) -> None:
    weight = torch.randn(
        4, 3, 2, 2, device=device, generator=torch.Generator(device).manual_seed(0)
    )
    slope = torch.arange(48.0, device=device).view(4, 3, 2, 2)

    def loss(p: torch.Tensor) -> torch.Tensor:
        return (slope * p).sum() + p.square().sum()

    laid = lay(weight)
    assert torch.equal(laid, weight)
    assert not laid.is_contiguous()
    expected = trained(nn.Parameter(weight.clone()), cls, loss)
    found = trained(nn.Parameter(laid), cls, loss)
    assert found.stride() == laid.stride()
    torch.testing.assert_close(found, expected)


@pytest.fixture
def undefined_is_nan() -> Any:
    """Memory that nobody has filled holds NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@on_every_device
@pytest.mark.usefixtures("undefined_is_nan")
@pytest.mark.parametrize(
    "config",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "weight_decay": 0.1},
    ],
    ids=["momentum", "nesterov", "dampening", "decay"],
)
def test_a_first_step_that_is_skipped_leaves_no_momentum(config: Any, device: str) -> None:
    weight = torch.tensor([1.0, -2.0], device=device)
    ours, theirs = (nn.Parameter(weight.clone()) for _ in range(2))
    update = updater([ours], optim.SGD, **config)
    oracle = optim.SGD([theirs], lr=0.1, **config)
    update.begin()
    update.backward((ours * torch.nan).sum())
    update.step()
    assert torch.equal(ours, weight)
    assert update.skipped == 1
    for _ in range(3):
        update.backward(ours.square().sum())
        update.step()
        oracle.zero_grad()
        theirs.square().sum().backward()
        oracle.step()
        torch.testing.assert_close(ours, theirs)


@on_every_device
@pytest.mark.parametrize(
    ("cls", "config"),
    [(optim.SGD, {"momentum": 0.9}), (optim.Adam, {}), (optim.AdamW, {"amsgrad": True})],
    ids=["SGD", "Adam", "AMSGrad"],
)
def test_training_goes_on_however_moments_lie_in_the_checkpoint(
    cls: Any, config: Any, device: str
) -> None:
    weight = torch.randn(4, 3, 2, 2).to(device, memory_format=torch.channels_last)
    slope = torch.arange(48.0, device=device).view(4, 3, 2, 2)

    def steps(p: nn.Parameter, update: Updater) -> None:
        update.begin()
        for _ in range(3):
            update.backward((slope * p).sum() + p.square().sum())
            update.step()

    p = nn.Parameter(weight.clone())
    update = updater([p], cls, **config)
    steps(p, update)
    state = update.state_dict()
    kept = {
        i: {
            k: x.contiguous().cpu().clone() if isinstance(x, torch.Tensor) else x
            for k, x in own.items()
        }
        for i, own in state["state"].items()
    }
    other = nn.Parameter(p.detach().clone())
    restored = updater([other], cls, **config)
    restored.load_state_dict({**state, "state": kept})
    for one, its in ((p, update), (other, restored)):
        steps(one, its)
    torch.testing.assert_close(other, p)


@pytest.mark.parametrize("fused", [True, False])
def test_how_steps_are_computed_is_no_matter_of_the_checkpoint(fused: bool) -> None:
    p = nn.Parameter(torch.ones(3))
    state = updater([p], optim.Adagrad, fused=fused).state_dict()
    update = updater([p], optim.Adagrad)
    assert update.skips_on_device
    update.load_state_dict(state)
    assert update.optimizer.param_groups[0]["fused"] is True
    update.begin()
    update.backward(p.square().sum())
    update.step()
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.9))


def test_momenta_that_a_checkpoint_lacks_are_zero() -> None:
    p = nn.Parameter(torch.ones(3))
    update = updater([p], optim.SGD, momentum=0.9)
    state = {**update.state_dict(), "state": {}}
    update.load_state_dict(state)
    assert update.optimizer.state[p]["momentum_buffer"].eq(0).all()


def test_parameters_without_elements_are_fused_with_the_others() -> None:
    empty, p = nn.Parameter(torch.ones(3, 0, 4)), nn.Parameter(torch.ones(3))
    assert updater([empty, p], optim.Adam).skips_on_device


@on_every_device
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("cls", [optim.Adam, optim.AdamW])
@pytest.mark.parametrize(
    "config",
    [
        {"eps": 0.3},
        {"betas": (0.5, 0.7)},
        {"weight_decay": 0.2},
        {"maximize": True},
        {"amsgrad": True, "eps": 0.1},
    ],
    ids=lambda config: next(iter(config)),
)
def test_every_step_is_that_of_the_optimizer_itself(
    cls: Any, config: dict[str, Any], device: str
) -> None:
    """With all of its options; the learning rate may change between steps."""
    weight = torch.tensor([1.0, -2.0, 0.5], device=device)
    ours, theirs = (nn.Parameter(weight.clone()) for _ in range(2))
    update = updater([ours], cls, **config)
    oracle = cls([theirs], lr=0.1, fused=False, foreach=False, **config)
    for step in range(6):
        if step % 3 == 0:  # an update of three steps
            update.begin()
            for optimizer in (update.optimizer, oracle):
                optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        # Gradients that shrink: `eps` and the second moment matter.
        scale = 10.0 ** (1 - step)
        update.backward(scale * ours.square().sum())
        update.step()
        oracle.zero_grad()
        (scale * theirs.square().sum()).backward()
        oracle.step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@on_every_device
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("norm", [1e-4, 0.01, 0.5, 2.0, 1e3])
def test_gradients_are_clipped_to_the_norm_of_them_all(norm: float, device: str) -> None:
    """As PyTorch clips, of all parameters together, and to that norm however small it is."""
    directions = [torch.tensor(x, device=device) for x in ([3.0, 0.0], [[0.0, 4.0, 12.0]])]
    slopes = [norm / 13 * x for x in directions]
    ours, theirs = ([nn.Parameter(torch.ones_like(x)) for x in slopes] for _ in range(2))
    update = Updater(
        ours,
        optimizer_cls=optim.SGD,
        optimizer_config={"lr": 1.0},
        max_grad_norm=0.005,
        grad_scaler=GradScaler("cpu", enabled=False),
    )
    update.begin()
    update.backward(torch.stack([(p * x).sum() for p, x in zip(ours, slopes, strict=True)]).sum())
    update.step()
    for p, x in zip(theirs, slopes, strict=True):
        p.grad = x.clone()
    torch.nn.utils.clip_grad_norm_(theirs, 0.005)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(1 - a.detach(), b.grad, rtol=1e-9, atol=1e-15)
    moved = torch.cat([(1 - p.detach()).flatten() for p in ours]).norm()
    assert float(moved) == pytest.approx(min(norm, 0.005), rel=1e-3)
    assert float(update.grad_norm) == pytest.approx(norm)


def test_gradients_are_not_clipped_unless_a_norm_is_given() -> None:
    p = nn.Parameter(torch.ones(2))
    update = updater([p], optim.SGD)
    update.begin()
    update.backward(1e6 * p.sum())
    update.step()
    torch.testing.assert_close(p.detach(), torch.full((2,), 1 - 0.1 * 1e6))
