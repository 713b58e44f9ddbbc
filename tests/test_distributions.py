"""Distributions against `torch.distributions`, seed for seed."""

import pytest
import torch
from torch import distributions as oracle
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.data import Categorical as Discrete
from torchrl.data import MultiCategorical as MultiDiscrete

from everstep.distributions import Categorical, Distribution, MultiCategorical, Normal
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
