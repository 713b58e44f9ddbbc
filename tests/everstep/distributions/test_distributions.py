"""Distributions against `torch.distributions`, seed for seed."""

import math
from typing import Any

import pytest
import torch
from torch import distributions as oracle
from torchrl.data import (
    Binary,
    Bounded,
    Composite,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)
from torchrl.data import Categorical as Discrete
from torchrl.data import MultiCategorical as MultiDiscrete

from everstep import AlgorithmConfig, ContinuousDummyEnv
from everstep.distributions import (
    Bernoulli,
    BoundedCategorical,
    Categorical,
    Distribution,
    MultiCategorical,
    Normal,
    OneHotCategorical,
    SquashedNormal,
    TorchDistributionWrapper,
)
from everstep.env.specs import options
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
        (Binary(2), Bernoulli),
        (OneHot(3), OneHotCategorical),
        (MultiOneHot([3, 2]), OneHotCategorical),
        (Bounded(-1, 1, shape=(2,), dtype=torch.int64), BoundedCategorical),
    ],
)
def test_defaults(spec: object, expected: type[Distribution]) -> None:
    assert Distribution.default_dist_cls(spec) is expected


@pytest.mark.parametrize("spec", [Composite(), Unbounded(2, dtype=torch.int64)])
def test_no_default_names_the_way_out(spec: object) -> None:
    with pytest.raises(TypeError, match="distribution_cls"):
        Distribution.default_dist_cls(spec)


class Acts:
    """As much of a model as a distribution looks at."""

    def __init__(self, action_spec: TensorSpec) -> None:
        self.action_spec = action_spec


def entropy_of_samples(distribution: Distribution) -> torch.Tensor:
    """The mean of -log p over samples: what an entropy is, by definition."""
    return -distribution.logp(distribution.sample()).mean()


@pytest.mark.parametrize(
    ("cls", "spec", "features"),
    [
        (Categorical, Discrete(4, shape=torch.Size([2, 3])), {"logits": (2, 3, 4)}),
        (MultiCategorical, MultiDiscrete([2, 4, 3]), {"logits": (9,)}),
        (OneHotCategorical, MultiOneHot([2, 4]), {"logits": (6,)}),
        (BoundedCategorical, Bounded(0, 3, shape=(2,), dtype=torch.int64), {"logits": (8,)}),
        (Bernoulli, Binary(3), {"logits": (3,)}),
        (Normal, Unbounded((2, 2), dtype=torch.float64), {"mean": (2, 2), "log_std": (2, 2)}),
    ],
)
def test_the_entropy_is_that_of_samples(cls: Any, spec: TensorSpec, features: Any) -> None:
    rows = {k: torch.randn(shape, dtype=torch.float64) for k, shape in features.items()}
    distribution = cls({k: x.expand(50_000, *x.shape) for k, x in rows.items()}, Acts(spec))
    entropy = distribution.entropy()
    assert entropy.shape == (50_000, 1)
    torch.testing.assert_close(entropy_of_samples(distribution), entropy.mean(), atol=0.03, rtol=0)


# ---- choices in other forms -------------------------------------------------------------------


def test_one_hot_is_torchs_one_hot_categorical() -> None:
    logits = torch.randn(300, 4)
    ours = OneHotCategorical({"logits": logits}, Acts(OneHot(4)))
    theirs = oracle.OneHotCategorical(logits=logits)
    torch.manual_seed(3)
    sample = ours.sample()
    torch.manual_seed(3)
    assert torch.equal(sample, theirs.sample().bool())
    torch.testing.assert_close(ours.logp(sample), theirs.log_prob(sample.float()).unsqueeze(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().unsqueeze(-1))
    assert torch.equal(ours.deterministic_sample(), theirs.mode.bool())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_several_one_hot_choices_are_multi_categorical_written_otherwise(dtype: Any) -> None:
    logits = torch.randn(300, 5)
    spec = MultiOneHot([2, 3], dtype=dtype)
    plain = MultiCategorical({"logits": logits}, Acts(MultiDiscrete([2, 3])))
    ones = OneHotCategorical({"logits": logits}, Acts(spec))
    torch.manual_seed(3)
    choices = plain.sample()
    torch.manual_seed(3)
    sample = ones.sample()
    assert spec.is_in(sample)
    assert sample.dtype == dtype
    expected = [torch.nn.functional.one_hot(choices[:, i], n) for i, n in enumerate([2, 3])]
    assert torch.equal(sample.long(), torch.cat(expected, -1))
    torch.testing.assert_close(ones.logp(sample), plain.logp(choices))


def test_integers_between_bounds_are_multi_categorical_from_the_lowest_on() -> None:
    low, high = torch.tensor([[-3, 0], [7, 1]]), torch.tensor([[-1, 1], [7, 3]])
    spec = Bounded(low=low, high=high, dtype=torch.int64)
    logits = torch.randn(300, 9)
    ours = BoundedCategorical({"logits": logits}, Acts(spec))
    plain = MultiCategorical({"logits": logits}, Acts(MultiDiscrete([3, 2, 1, 3])))
    torch.manual_seed(3)
    sample = ours.sample()
    torch.manual_seed(3)
    choices = plain.sample()
    assert spec.is_in(sample)
    assert torch.equal(sample, choices.unflatten(-1, (2, 2)) + low)
    torch.testing.assert_close(ours.logp(sample), plain.logp(choices))
    likeliest = plain.deterministic_sample().unflatten(-1, (2, 2)) + low
    assert torch.equal(ours.deterministic_sample(), likeliest)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_choices_have_the_specs_dtype_and_are_learned_from_in_it(dtype: torch.dtype) -> None:
    spec = Discrete(2, shape=torch.Size([1]), dtype=dtype)
    distribution = Categorical({"logits": torch.randn(20, 1, 2)}, Acts(spec))
    sample = distribution.sample()
    assert sample.dtype == distribution.deterministic_sample().dtype == dtype
    torch.testing.assert_close(distribution.logp(sample), distribution.logp(sample.long()))


def test_a_spec_is_read_once_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers lie on the host, and distributions are made in every env step."""
    specs: list[TensorSpec] = []

    def counting(spec: TensorSpec) -> list[int]:
        specs.append(spec)
        return options(spec)

    monkeypatch.setattr("everstep.distributions._discrete.options", counting)
    models = [Acts(Bounded(low, 3, shape=(1,), dtype=torch.int64)) for low in (0, 2)]
    for _ in range(3):
        for model, width in zip(models, (4, 2), strict=True):
            distribution = BoundedCategorical({"logits": torch.zeros(50, width)}, model)
            assert model.action_spec.is_in(distribution.sample())
    assert len(specs) == 2


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


def test_what_is_left_is_drawn_as_often_as_it_should_be() -> None:
    logits, mask = torch.tensor([0.3, 5.0, -0.7, 0.1]), torch.tensor([True, False, True, True])
    distribution = Categorical(
        {
            "logits": logits.expand(100_000, 1, 4),
            "action_mask": mask.expand(100_000, 4),
        },
        None,
    )
    drawn = distribution.sample().flatten().bincount(minlength=4) / 100_000
    expected = torch.where(mask, logits, -torch.inf).softmax(-1)
    torch.testing.assert_close(drawn, expected, atol=0.01, rtol=0)
    assert drawn[1] == 0
    assert distribution.log_probs.exp()[0, 0, 1] == 0


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


class PreciseTorque:
    action_spec = Torque.action_spec.to(torch.float64)


def squashed(mean: torch.Tensor, log_std: torch.Tensor, model: object = Torque) -> SquashedNormal:
    return SquashedNormal({"mean": mean, "log_std": log_std}, model)


def test_squashed_actions_are_a_transformed_normal() -> None:
    mean, log_std = torch.randn(200, 2).double(), torch.full((200, 2), -0.5).double()
    ours = squashed(mean, log_std, PreciseTorque)
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


def test_gradients_are_finite_where_actions_are_at_their_bounds() -> None:
    mean, log_std = torch.full((3, 2), 30.0), torch.zeros(3, 2)
    inputs = (mean.requires_grad_(), log_std.requires_grad_())
    distribution = squashed(*inputs)
    latents = torch.tensor([[20.0, -20.0], [60.0, 60.0], [0.0, 1e4]])
    out = distribution.latents_logp(latents) + distribution.entropy()
    out = out + distribution.logp(distribution.actions(latents))
    assert out.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), inputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_largest_actions_are_the_bounds_themselves(dtype: torch.dtype) -> None:
    """Centre and half width are rounded: their sum may lie past a bound by the last bit."""
    low, high = torch.rand(2, 1000, dtype=torch.float64).sub(0.5).mul(7).sort(0).values.to(dtype)
    spec = Bounded(low=low, high=high, shape=(1000,), dtype=dtype)
    distribution = squashed(torch.zeros(2, 1000), torch.zeros(2, 1000), Acts(spec))
    ends = torch.tensor([[-50.0], [50.0]]).expand(2, 1000)
    assert spec.is_in(distribution.actions(ends))
    torch.testing.assert_close(
        distribution.actions(ends), torch.stack([low, high]), atol=1e-6, rtol=1e-6
    )


ENDLESS = torch.finfo(torch.float64).max


def half_bounded(mean: torch.Tensor, log_std: torch.Tensor) -> SquashedNormal:
    """Bounds: a highest, a lowest, both, none, and a lowest with the highest of all numbers."""
    low = torch.tensor([-torch.inf, 3.0, 2.0, -torch.inf, -1.0], dtype=torch.float64)
    high = torch.tensor([5.0, torch.inf, 4.0, torch.inf, ENDLESS], dtype=torch.float64)
    return squashed(mean, log_std, Acts(Bounded(low=low, high=high, dtype=torch.float64)))


def test_one_bound_is_kept_to_and_nothing_else() -> None:
    mean = torch.tensor([[-1e3], [0.0], [1e3]], dtype=torch.float64).expand(3, 5)
    actions = half_bounded(mean, torch.zeros_like(mean)).deterministic_sample()
    log_two = math.log(2)
    expected = [
        [5 - 1e3, 3.0, 2.0, -1.0, -1.0],
        [5 - log_two, 3 + log_two, 3.0, 0.0, -1 + log_two],
        [5.0, 3 + 1e3, 4.0, 1.0, -1 + 1e3],
    ]
    torch.testing.assert_close(actions, torch.tensor(expected, dtype=torch.float64))


def test_half_bounded_actions_are_a_transformed_normal() -> None:
    mean = torch.randn(200, 5, dtype=torch.float64)
    log_std = torch.full_like(mean, -0.3)
    ours = half_bounded(mean, log_std)
    softplus, flip = oracle.SoftplusTransform(), oracle.AffineTransform(0.0, -1.0)
    by_dimension = [
        [flip, softplus, oracle.AffineTransform(5.0, -1.0)],
        [softplus, oracle.AffineTransform(3.0, 1.0)],
        [oracle.TanhTransform(), oracle.AffineTransform(3.0, 1.0)],
        [oracle.TanhTransform(), oracle.AffineTransform(0.0, 1.0)],
        [softplus, oracle.AffineTransform(-1.0, 1.0)],
    ]
    sample, expected = ours.sample(), torch.zeros(200, dtype=torch.float64)
    for i, transforms in enumerate(by_dimension):
        base = oracle.Normal(mean[:, i], log_std[:, i].exp())
        expected += oracle.TransformedDistribution(base, transforms).log_prob(sample[:, i])
    torch.testing.assert_close(ours.logp(sample), expected.unsqueeze(-1))


def test_half_bounded_actions_at_their_bounds_have_finite_gradients() -> None:
    mean = torch.full((3, 5), -40.0, dtype=torch.float64, requires_grad=True)
    log_std = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True)
    distribution = half_bounded(mean, log_std)
    u = torch.tensor([[-60.0], [0.0], [1e4]], dtype=torch.float64).expand(3, 5)
    out = distribution.latents_logp(u) + distribution.entropy()
    out = out + distribution.logp(distribution.actions(u))
    assert out.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (mean, log_std)))


def test_a_dimension_that_cannot_move_is_no_reason_for_nan() -> None:
    spec = Bounded(low=torch.tensor([1.0, -1.0]), high=torch.tensor([1.0, 1.0]))
    distribution = squashed(torch.zeros(4, 2), torch.zeros(4, 2), Acts(spec))
    sample = distribution.sample()
    assert (sample[:, 0] == 1).all()
    assert distribution.logp(sample).isfinite().all()
    assert distribution.entropy().isfinite().all()


@pytest.mark.parametrize("cls", [Normal, SquashedNormal])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_what_is_stored_in_another_dtype_has_the_probability_it_was_drawn_with(
    cls: Any, dtype: torch.dtype
) -> None:
    spec = Bounded(-1.0, 1.0, shape=(2,), dtype=dtype)
    distribution = cls({"mean": torch.randn(50, 2), "log_std": torch.zeros(50, 2)}, Acts(spec))
    latents = distribution.latents(deterministic=False)
    assert latents.dtype == distribution.actions(latents).dtype == dtype
    stored = torch.empty(50, 2, dtype=dtype).copy_(latents)
    logp = distribution.latents_logp(latents)
    assert logp.dtype == torch.float32
    assert torch.equal(distribution.latents_logp(stored), logp)


def test_the_entropy_of_squashed_actions_is_that_of_many_samples() -> None:
    mean, log_std = torch.full((100_000, 2), 0.4).double(), torch.full((100_000, 2), 0.2).double()
    distribution = squashed(mean.requires_grad_(), log_std, PreciseTorque)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("term", ["logp", "entropy"])
@pytest.mark.parametrize(
    ("cls", "spec"),
    [(Categorical, Discrete(5)), (OneHotCategorical, OneHot(5)), (Bernoulli, Binary(5))],
)
def test_gradients_are_exact_and_never_subnormal(
    cls: Any, spec: Any, term: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors take many times longer to multiply subnormal numbers."""
    limits = torch.finfo(dtype)
    scale = -math.log(limits.tiny)  # beyond it probabilities themselves are subnormal
    logits = scale * torch.randn(4000, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))
    model = type("Model", (), {"action_spec": spec})
    action: Any = torch.zeros(4000, 5, dtype=torch.int64)
    action[:, 0] = 1
    if cls is Categorical:
        action = action.argmax(-1)

    def gradient() -> torch.Tensor:
        x = logits.clone().requires_grad_()
        distribution = cls({"logits": x * 1}, model)
        found = distribution.entropy() if term == "entropy" else distribution.logp(action)
        return torch.autograd.grad(1e-3 * found.sum(), x)[0]

    found = gradient()
    with monkeypatch.context() as uncut:
        uncut.setattr("everstep.distributions._base.smallest_gradient", lambda dtype: 0.0)
        exact = gradient()
    assert ((exact != 0) & (exact.abs() < limits.tiny)).any()
    smallest = limits.tiny / limits.eps**2
    assert not ((found != 0) & (found.abs() < smallest)).any()
    torch.testing.assert_close(found, exact, rtol=0, atol=smallest)


def test_gradients_that_are_not_finite_stay_so() -> None:
    logits = torch.zeros(3, 2, requires_grad=True)
    logp = Categorical({"logits": logits * 1}, None).logp(torch.zeros(3, dtype=torch.int64))
    (found,) = torch.autograd.grad(logp, logits, torch.tensor([[torch.nan], [torch.inf], [1.0]]))
    assert found[0].isnan().all()
    assert not found[1].isfinite().any()
    assert found[2].tolist() == [0.5, -0.5]


def test_logits_may_be_one_of_several_outputs() -> None:
    """PyTorch then asks for a gradient of them also where there is none."""
    x = torch.randn(2, 3, 4, requires_grad=True)
    logits, values = (2 * x).unbind(0)
    Categorical({"logits": logits}, None)
    (gradient,) = torch.autograd.grad(values.sum(), x)
    assert gradient[0].eq(0).all()
    assert gradient[1].eq(2).all()


def test_distributions_are_compiled_whole() -> None:
    def logp(x: torch.Tensor) -> torch.Tensor:
        return Categorical({"logits": 2 * x}, None).logp(torch.zeros(3, dtype=torch.int64))

    torch._dynamo.reset()
    x = torch.randn(3, 4, requires_grad=True)
    compiled = torch.compile(logp, fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(compiled, logp(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_cut_where_it_has_the_range(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradient_of(x: torch.Tensor) -> torch.Tensor:
        logp = Categorical({"logits": x * 1}, None).logp(torch.zeros(2, dtype=torch.int64))
        return torch.autograd.grad(1e-3 * logp.sum(), x)[0]

    x = torch.tensor([[84.0, 0.0], [1.0, 0.0]], dtype=dtype, requires_grad=True)
    gradient = gradient_of(x)
    assert gradient[1].ne(0).all()
    with monkeypatch.context() as uncut:
        uncut.setattr("everstep.distributions._base.smallest_gradient", lambda dtype: 0.0)
        assert (gradient_of(x)[0, 1] != 0) == (dtype is torch.bfloat16)
    smallest = torch.finfo(dtype).tiny if dtype is torch.bfloat16 else 0.0
    assert not ((gradient != 0) & (gradient.abs() < smallest)).any()


def test_choices_of_a_table_are_those_of_its_rows_one_behind_the_other() -> None:
    spec = MultiDiscrete(torch.tensor([[2, 4], [3, 5]]))
    model = DefaultDiscreteModel(Unbounded(4), spec)
    logits = torch.randn(50, 14)
    ours = MultiCategorical({"logits": logits}, model)
    pieces = logits.split([2, 4, 3, 5], -1)
    likeliest = torch.stack([piece.argmax(-1) for piece in pieces], -1).view(50, 2, 2)
    assert torch.equal(ours.deterministic_sample(), likeliest)
    sample = ours.sample()
    assert all(spec.is_in(row) for row in sample)
    each = zip(pieces, sample.flatten(1).unbind(-1), strict=True)
    logp = sum(oracle.Categorical(logits=piece).log_prob(x) for piece, x in each)
    torch.testing.assert_close(ours.logp(sample).squeeze(-1), logp)


@pytest.mark.parametrize("u", [-9.0, -6.0, 6.0, 9.0])
def test_the_density_of_an_action_near_its_bound_is_that_of_its_latent(u: float) -> None:
    mean, log_std = torch.full((1, 2), 0.5).double(), torch.zeros(1, 2).double()
    ours = squashed(mean, log_std, PreciseTorque)
    latents = torch.full((1, 2), u).double()
    found, expected = ours.logp(ours.actions(latents)), ours.latents_logp(latents)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
