"""Losses: laws, hand-computed numbers, and TorchRL's PPO as an oracle."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import nn
from torchrl.objectives import ClipPPOLoss

from everstep.distributions import Categorical, Distribution, Normal
from everstep.hyperparameters import Hyperparameters
from everstep.losses import approximate_kl, clipped_surrogate, value_errors, weighted_sum
from everstep.objectives import PPO
from everstep.rollouts import Minibatch

pytestmark = pytest.mark.usefixtures("float64")


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(-1)


def test_surrogate_is_the_advantage_where_nothing_changed() -> None:
    advantages = torch.randn(7, 1)
    found = clipped_surrogate(torch.ones(7, 1), advantages, clip_param=0.2)
    torch.testing.assert_close(found, advantages, rtol=0, atol=0)


def test_surrogate_by_hand() -> None:
    ratio, advantages = column(1.5, 1.5, 0.5, 0.5), column(2.0, -2.0, 2.0, -2.0)
    found = clipped_surrogate(ratio, advantages, clip_param=0.2)
    torch.testing.assert_close(found, column(2.4, -3.0, 1.0, -1.6))


def test_dual_clip_bounds_only_negative_advantages() -> None:
    ratio, advantages = column(10.0, 10.0), column(1.0, -1.0)
    found = clipped_surrogate(ratio, advantages, clip_param=0.2, dual_clip_param=3.0)
    torch.testing.assert_close(found, column(1.2, -3.0))


def test_clipped_rows_have_no_gradient() -> None:
    ratio = column(1.5, 0.5).requires_grad_()
    clipped_surrogate(ratio, column(1.0, -1.0), clip_param=0.2).sum().backward()
    assert ratio.grad is not None
    assert ratio.grad.abs().max() == 0


def test_value_errors_by_hand() -> None:
    values, returns, previous = column(0.5, 3.0), column(0.0, 0.0), column(0.5, 0.0)
    mse = value_errors(values, returns, previous, kind="mse")
    torch.testing.assert_close(mse, column(0.125, 4.5))
    huber = value_errors(values, returns, previous, kind="smooth_l1")
    torch.testing.assert_close(huber, column(0.125, 2.5))


def test_value_clipping_keeps_to_the_previous_value() -> None:
    # The value moved from 3 towards its target 0, beyond the allowed distance: the loss is that
    # of the nearest allowed value, and moving further earns nothing.
    values = column(1.0).requires_grad_()
    loss = value_errors(values, column(0.0), column(3.0), kind="mse", vf_clip_param=0.5)
    torch.testing.assert_close(loss, column(0.5 * 2.5**2))
    loss.sum().backward()
    assert values.grad is not None
    assert values.grad.item() == 0


def test_value_clipping_never_hides_an_error() -> None:
    # Far from the target, and moved away from it: the full gradient stays.
    values = column(20.0).requires_grad_()
    value_errors(values, column(0.0), column(5.0), kind="mse", vf_clip_param=1.0).sum().backward()
    assert values.grad is not None
    assert values.grad.item() == 20


@pytest.mark.parametrize("kind", ["mse", "smooth_l1"])
def test_wide_value_clipping_is_none(kind: str) -> None:
    values, returns, previous = torch.randn(3, 50, 2).unbind(0)
    clipped = value_errors(values, returns, previous, kind=kind, vf_clip_param=1e9)
    torch.testing.assert_close(clipped, value_errors(values, returns, previous, kind=kind))


def test_kl_estimate_is_zero_at_no_change_and_never_negative() -> None:
    assert approximate_kl(torch.zeros(3, 1)).abs().max() == 0
    assert approximate_kl(torch.linspace(-3, 3, 99)).min() >= 0
    assert approximate_kl(torch.tensor(1.0)).item() == pytest.approx(math.e - 2)


def test_weighted_sum_is_a_mean_under_equal_weights() -> None:
    x = torch.randn(10, 1)
    assert weighted_sum(x, torch.full((10, 1), 0.1)).item() == pytest.approx(x.mean().item())


# ---- the whole objective, against TorchRL's --------------------------------------------------


class Network(nn.Module):
    """Policy and value networks whose gradients are compared."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, outputs))
        self.value = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))


def torchrl_loss(
    network: Network, discrete: bool, td: TensorDict, options: Hyperparameters
) -> dict[str, torch.Tensor]:
    if discrete:
        head = TensorDictModule(network.policy, ["obs"], ["logits"])
        keys, cls = ["logits"], torch.distributions.Categorical
    else:

        class Split(nn.Module):
            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                mean, log_std = x.chunk(2, -1)
                return mean, log_std.exp()

        head = TensorDictModule(nn.Sequential(network.policy, Split()), ["obs"], ["loc", "scale"])
        keys = ["loc", "scale"]

        def independent(loc: torch.Tensor, scale: torch.Tensor) -> torch.distributions.Distribution:
            return torch.distributions.Independent(torch.distributions.Normal(loc, scale), 1)

        cls = independent
    actor = ProbabilisticTensorDictSequential(
        head,
        ProbabilisticTensorDictModule(
            in_keys=keys,
            out_keys=["action"],
            distribution_class=cls,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        ),
    )
    critic = TensorDictModule(network.value, ["obs"], ["state_value"])
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=options.clip_param,
        entropy_bonus=options.entropy_coeff > 0,
        entropy_coeff=options.entropy_coeff,
        critic_coeff=options.vf_coeff,
        loss_critic_type="smooth_l1" if options.vf_loss == "smooth_l1" else "l2",
        normalize_advantage=False,
    )
    loss.set_keys(advantage="advantage", value_target="value_target", sample_log_prob="logp")
    return dict(loss(td.clone()).items())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
@pytest.mark.parametrize("vf_loss", ["smooth_l1", "mse"])
def test_loss_and_gradients_agree_with_torchrl(seed: int, discrete: bool, vf_loss: str) -> None:
    torch.manual_seed(seed)
    rows, options = 64, 3
    network = Network(options if discrete else 2 * options)
    obs, advantages = torch.randn(rows, 5), torch.randn(rows, 1)
    returns = 2 * torch.randn(rows, 1)
    actions = torch.randint(options, (rows, 1)) if discrete else torch.randn(rows, options)
    # TorchRL's "l2" is the squared error; ours is half of it.
    scale = 1.0 if vf_loss == "smooth_l1" else 2.0
    config = Hyperparameters(
        entropy_coeff=0.03, vf_coeff=0.7, clip_param=0.15, vf_loss=vf_loss, vf_clip_param=None
    )

    def distribution(outputs: torch.Tensor) -> Distribution:
        if discrete:
            return Categorical({"logits": outputs.unsqueeze(1)}, None)
        mean, log_std = outputs.chunk(2, -1)
        return Normal({"mean": mean, "log_std": log_std}, None)

    with torch.no_grad():
        logp = distribution(network.policy(obs)).logp(actions) + 0.3 * torch.randn(rows, 1)
    minibatch = Minibatch(
        obs=(obs,),
        states=(),
        first=torch.zeros(rows, 1, 1, dtype=torch.bool),
        actions=actions,
        logp=logp,
        values=torch.zeros(rows, 1),
        advantages=advantages,
        returns=returns,
        weight=torch.full((rows, 1), 1 / rows),
    )
    objective = PPO(config, entropy_coeff=torch.tensor(config.entropy_coeff))
    losses = objective(minibatch, distribution(network.policy(obs)), network.value(obs))
    ours = torch.autograd.grad(
        losses["total"] + (scale - 1) * config.vf_coeff * losses["vf"], list(network.parameters())
    )

    td = TensorDict(
        {
            "obs": obs,
            "action": actions.squeeze(-1) if discrete else actions,
            "logp": logp.squeeze(-1),
            "advantage": advantages,
            "value_target": returns,
        },
        batch_size=[rows],
    )
    oracle = torchrl_loss(network, discrete, td, config)
    total = oracle["loss_objective"] + oracle["loss_critic"] + oracle["loss_entropy"]
    theirs = torch.autograd.grad(total, list(network.parameters()), allow_unused=True)

    assert losses["policy"].item() == pytest.approx(-oracle["loss_objective"].item(), abs=1e-9)
    assert losses["entropy"].item() == pytest.approx(oracle["entropy"].item(), abs=1e-9)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-9)
