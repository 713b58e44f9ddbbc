"""Distributions against `torch.distributions`, seed for seed."""

import math
from typing import Any

import pytest
import torch
from torch import distributions as oracle
from torchrl.data import Binary, Bounded, Composite, Unbounded
from torchrl.data import Categorical as Discrete
from torchrl.data import MultiCategorical as MultiDiscrete

from everstep import AlgorithmConfig, ContinuousDummyEnv
from everstep.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    MultiCategorical,
    Normal,
    SquashedNormal,
    TorchDistributionWrapper,
)
from everstep.models import DefaultDiscreteModel


def test_categorical_is_torchs_seed_for_seed() -> None:
    logits = torch.randn(512, 2, 5)
    ours, theirs = Categorical({"logits": logits}, None), oracle.Categorical(logits=logits)
    torch.manual_seed(3)
    sample = ours.sample()
    torch.manual_seed(3)
    assert torch.equal(sample, theirs.sample())
    torch.testing.assert_close(ours.logp(sample), theirs.log_prob(sample).sum(-1, keepdim=True))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1, keepdim=True))
    assert torch.equal(ours.deterministic_sample(), theirs.mode)


def test_categorical_never_picks_an_excluded_option() -> None:
    logits = torch.zeros(10_000, 1, 3)
    logits[..., 1] = -torch.inf
    distribution = Categorical({"logits": logits.requires_grad_()}, None)
    assert set(distribution.sample().unique().tolist()) == {0, 2}
    entropy = distribution.entropy()
    torch.testing.assert_close(entropy, torch.full_like(entropy, 2.0).log())
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert gradient.isfinite().all()


def test_normal_is_torchs_seed_for_seed() -> None:
    mean, log_std = torch.randn(512, 4), 0.3 * torch.randn(512, 4)
    ours = Normal({"mean": mean, "log_std": log_std}, None)
    theirs = oracle.Normal(mean, log_std.exp())
    torch.manual_seed(3)
    sample = ours.sample()
    torch.manual_seed(3)
    torch.testing.assert_close(sample, theirs.sample(), rtol=0, atol=0)
    torch.testing.assert_close(ours.logp(sample), theirs.log_prob(sample).sum(-1, keepdim=True))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1, keepdim=True))
    assert torch.equal(ours.deterministic_sample(), mean)


def test_multi_categorical_is_independent_categoricals() -> None:
    spec = MultiDiscrete([2, 5, 3])
    model = DefaultDiscreteModel(Unbounded(4), spec)
    logits = torch.randn(4000, 10)
    ours = MultiCategorical({"logits": logits}, model)
    theirs = [oracle.Categorical(logits=piece) for piece in logits.split([2, 5, 3], -1)]
    sample = ours.sample()
    assert sample.shape == (4000, 3)
    assert (sample.amax(0) <= torch.tensor([1, 4, 2])).all()
    logp = sum(d.log_prob(sample[:, i]) for i, d in enumerate(theirs))
    torch.testing.assert_close(ours.logp(sample).squeeze(-1), logp)
    entropy = sum(d.entropy() for d in theirs)
    torch.testing.assert_close(ours.entropy().squeeze(-1), entropy)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Discrete(3, shape=torch.Size([1])), Categorical),
        (MultiDiscrete([3, 2]), MultiCategorical),
        (Unbounded(2), Normal),
        (Bounded(-1, 1, shape=(2,)), Normal),
    ],
)
def test_defaults(spec: object, expected: type[Distribution]) -> None:
    assert Distribution.default_dist_cls(spec) is expected


@pytest.mark.parametrize("spec", [Composite(), Unbounded(2, dtype=torch.int64)])
def test_no_default_names_the_way_out(spec: object) -> None:
    with pytest.raises(TypeError, match="distribution_cls"):
        Distribution.default_dist_cls(spec)


# ---- masks ------------------------------------------------------------------------------------


def test_a_mask_is_the_distribution_over_what_it_leaves() -> None:
    logits = torch.randn(64, 2, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([True, False, True, True, False]).expand(64, 2, 5)
    masked = Categorical({"logits": logits, "action_mask": mask}, None)
    rest = oracle.Categorical(logits=logits[..., [0, 2, 3]])
    places = torch.tensor([0, 2, 3])
    picked = torch.randint(3, (64, 2))
    torch.testing.assert_close(
        masked.logp(places[picked]), rest.log_prob(picked).sum(-1, keepdim=True)
    )
    torch.testing.assert_close(masked.entropy(), rest.entropy().sum(-1, keepdim=True))
    assert set(masked.sample().unique().tolist()) <= {0, 2, 3}
    assert set(masked.deterministic_sample().unique().tolist()) <= {0, 2, 3}
    (gradient,) = torch.autograd.grad(
        masked.entropy().sum() + masked.logp(places[picked]).sum(), logits
    )
    assert gradient.isfinite().all()
    assert not gradient[~mask].any()


def test_masks_of_different_numbers_of_options_lie_one_behind_the_other() -> None:
    class Two:
        action_spec = MultiDiscrete([2, 3])

    mask = torch.tensor([[True, False, False, True, True]]).expand(2000, 5)
    distribution = MultiCategorical({"logits": torch.zeros(2000, 5), "action_mask": mask}, Two)
    sample = distribution.sample()
    assert set(sample[:, 0].tolist()) == {0}
    assert set(sample[:, 1].tolist()) == {1, 2}
    torch.testing.assert_close(distribution.entropy(), torch.full((2000, 1), 2.0).log())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_row_without_any_option_stays_finite(dtype: torch.dtype) -> None:
    """Rows that are left out of the losses may have no option: NaN would reach the gradient."""
    logits = torch.randn(3, 1, 4, dtype=dtype).mul(20).requires_grad_()
    mask = torch.zeros(3, 1, 4, dtype=torch.bool)
    distribution = Categorical({"logits": logits, "action_mask": mask}, None)
    out = distribution.entropy() + distribution.logp(distribution.sample())
    assert out.isfinite().all()
    (gradient,) = torch.autograd.grad(out.sum(), logits)
    assert gradient.isfinite().all()


# ---- what is chosen or not --------------------------------------------------------------------


def test_bernoulli_is_torchs() -> None:
    logits = torch.randn(500, 3, dtype=torch.float64)
    ours, theirs = Bernoulli({"logits": logits}, None), oracle.Bernoulli(logits=logits)
    sample = ours.sample()
    assert sample.dtype == torch.float64
    torch.testing.assert_close(ours.logp(sample), theirs.log_prob(sample).sum(-1, keepdim=True))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1, keepdim=True))
    torch.testing.assert_close(ours.deterministic_sample(), (theirs.probs > 0.5).double())


def test_bernoulli_samples_have_the_specs_dtype_and_its_frequencies() -> None:
    class Flags:
        action_spec = Binary(2)

    assert Distribution.default_dist_cls(Flags.action_spec) is Bernoulli
    logits = torch.tensor([[-1.0, 2.0]]).expand(40_000, 2)
    sample = Bernoulli({"logits": logits}, Flags).sample()
    assert sample.dtype == Flags.action_spec.dtype
    torch.testing.assert_close(
        sample.double().mean(0), logits[0].sigmoid().double(), atol=0.02, rtol=0
    )


@pytest.mark.parametrize("size", [50.0, 1e4])
def test_bernoulli_is_finite_where_nothing_is_left_to_chance(size: float) -> None:
    logits = torch.tensor([[size, -size]], requires_grad=True)
    distribution = Bernoulli({"logits": logits}, None)
    out = distribution.entropy() + distribution.logp(torch.tensor([[0.0, 1.0]]))
    assert out.isfinite().all()
    (gradient,) = torch.autograd.grad(out.sum(), logits)
    assert gradient.isfinite().all()


# ---- squashed ---------------------------------------------------------------------------------


class Torque:
    action_spec = Bounded(low=torch.tensor([-2.0, 0.0]), high=torch.tensor([2.0, 5.0]), shape=(2,))


def squashed(mean: torch.Tensor, log_std: torch.Tensor, model: object = Torque) -> SquashedNormal:
    return SquashedNormal({"mean": mean, "log_std": log_std}, model)


def test_squashed_actions_are_a_transformed_normal() -> None:
    mean, log_std = torch.randn(200, 2).double(), torch.full((200, 2), -0.5).double()
    ours = squashed(mean, log_std)
    centre, half = torch.tensor([0.0, 2.5]).double(), torch.tensor([2.0, 2.5]).double()
    theirs = oracle.TransformedDistribution(
        oracle.Normal(mean, log_std.exp()),
        [oracle.TanhTransform(), oracle.AffineTransform(centre, half)],
    )
    latents = ours.latents(deterministic=False)
    actions = ours.actions(latents)
    torch.testing.assert_close(actions, centre + half * latents.tanh())
    expected = theirs.log_prob(actions).sum(-1, keepdim=True)
    torch.testing.assert_close(ours.latents_logp(latents), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.logp(actions), expected, rtol=1e-6, atol=1e-6)


def test_squashed_actions_fill_their_bounds_and_never_leave_them() -> None:
    actions = squashed(torch.zeros(5000, 2), torch.full((5000, 2), 3.0)).sample()
    low, high = Torque.action_spec.space.low, Torque.action_spec.space.high
    assert (actions >= low).all()
    assert (actions <= high).all()
    torch.testing.assert_close(actions.amin(0), low, atol=1e-3, rtol=0)
    torch.testing.assert_close(actions.amax(0), high, atol=1e-3, rtol=0)


def test_without_bounds_squashed_actions_are_within_one() -> None:
    distribution = squashed(torch.full((4, 2), 0.3), torch.zeros(4, 2), None)
    torch.testing.assert_close(distribution.deterministic_sample(), torch.full((4, 2), 0.3).tanh())


@pytest.mark.parametrize("u", [-40.0, -12.0, -8.1, 0.0, 3.0, 8.1, 12.0, 40.0])
def test_the_density_of_what_was_drawn_is_exact_near_saturation(u: float) -> None:
    """At u = 8.1 a float32 tanh has 1 bit left; beyond 9 it is 1. The stored number has them all.

    log(1 − tanh²u) = 2·log 2 − 2|u| − 2·log1p(exp(−2|u|)), here in float64.
    """
    latents = torch.tensor([[u]])
    found = squashed(torch.tensor([[u - 0.5]]), torch.zeros(1, 1), None).latents_logp(latents)
    normal = -0.5 * 0.25 - 0.5 * math.log(2 * math.pi)
    slope = 2 * math.log(2) - 2 * abs(u) - 2 * math.log1p(math.exp(-2 * abs(u)))
    assert float(found) == pytest.approx(normal - slope, rel=1e-6)


def test_the_entropy_of_squashed_actions_is_that_of_many_samples() -> None:
    mean, log_std = torch.full((100_000, 2), 0.4).double(), torch.full((100_000, 2), 0.2).double()
    distribution = squashed(mean.requires_grad_(), log_std)
    latents = distribution.latents(deterministic=False)
    expected = -distribution.latents_logp(latents).mean()
    torch.testing.assert_close(distribution.entropy().mean(), expected, atol=0.02, rtol=0)
    (gradient,) = torch.autograd.grad(distribution.entropy().sum(), mean)
    assert gradient.isfinite().all()
    assert (gradient.mean(0) < 0).all()  # a mean nearer to the bound leaves less to chance


def test_squashed_actions_are_stored_before_the_squashing_and_executed_after() -> None:
    seen: list[torch.Tensor] = []

    class Bound(ContinuousDummyEnv):
        def _make_action_spec(self) -> Any:
            return Bounded(-3.0, 1.0, shape=(1,))

        def step(self, action: Any) -> Any:
            seen.append(action.clone())
            return super().step(action)

    algorithm = AlgorithmConfig(
        num_envs=8,
        horizon=4,
        distribution_cls=SquashedNormal,
        model_config={"log_std_init": 2.0},
        entropy_coeff=0.01,
    ).build(Bound)
    algorithm.collect()
    stored = algorithm.buffer["actions"][:, :-1].transpose(0, 1)
    torch.testing.assert_close(torch.stack(seen), -1 + 2 * stored.tanh())
    stats = algorithm.step()
    assert stats["losses/entropy"] < math.log(4.0)  # the uniform distribution has the most


def test_a_wrapped_distribution_of_torchs_trains() -> None:
    class Wide(TorchDistributionWrapper[Any, oracle.StudentT, Any]):
        def __init__(self, features: Any, model: Any, /) -> None:
            super().__init__(features, model)
            self.dist = oracle.StudentT(5.0, features["mean"], features["log_std"].exp())

    algorithm = AlgorithmConfig(num_envs=8, horizon=4, distribution_cls=Wide).build(
        ContinuousDummyEnv
    )
    algorithm.collect()
    assert math.isfinite(algorithm.step()["losses/policy"])


@pytest.mark.parametrize("cls", [Categorical, Normal])
def test_the_torch_distribution_is_at_hand(cls: Any) -> None:
    features = {
        "logits": torch.randn(3, 1, 2),
        "mean": torch.randn(3, 1),
        "log_std": torch.zeros(3, 1),
    }
    ours = cls(features, None)
    sample = ours.sample()
    torch.testing.assert_close(ours.dist.log_prob(sample).sum(-1, keepdim=True), ours.logp(sample))


def test_a_mask_forbids_to_make_a_choice() -> None:
    mask = torch.tensor([[True, False]]).expand(100, 2)
    features = {"logits": torch.full((100, 2), 5.0, requires_grad=True), "action_mask": mask}
    distribution = Bernoulli(features, None)
    assert not distribution.sample()[:, 1].any()
    assert not distribution.deterministic_sample()[:, 1].any()
    out = distribution.entropy() + distribution.logp(distribution.sample())
    (gradient,) = torch.autograd.grad(out.sum(), features["logits"])
    assert out.isfinite().all()
    assert gradient.isfinite().all()
    assert not gradient[:, 1].any()
