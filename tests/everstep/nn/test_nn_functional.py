"""Masks, skip connections, advantages and losses: laws, then numbers."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from everstep.core.advantages import gae
from everstep.core.hyperparameters import Hyperparameters
from everstep.core.rollouts import Minibatch
from everstep.data import DataKeys
from everstep.distributions import Categorical, Normal
from everstep.nn import functional as F
from everstep.objectives import PPO

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LENGTHS = torch.tensor([5, 3, 1])

#: The same mask as every dtype that masks come in.
MASKS = [torch.bool, torch.int64, torch.float32, torch.float64]


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 5, 4)


# ---- masks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, *FLOATS])
def test_masks_survive_the_way_there_and_back(dtype: torch.dtype) -> None:
    binary = torch.tensor([[True, False], [False, True]])
    added = F.binary_mask_to_float_mask(binary.to(dtype))
    assert added.dtype == (dtype if dtype.is_floating_point else torch.get_default_dtype())
    assert added.tolist() == [[0, -torch.inf], [-torch.inf, 0]]
    assert torch.equal(F.float_mask_to_binary_mask(added), binary)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_least_finite_number_excludes_too(dtype: torch.dtype) -> None:
    mask = torch.tensor([0, -0.5, torch.finfo(dtype).min, -torch.inf], dtype=dtype)
    assert F.float_mask_to_binary_mask(mask).tolist() == [True, True, False, False]


def test_what_is_no_float_mask_is_refused() -> None:
    with pytest.raises(TypeError, match=r"floating point; got torch.bool"):
        F.float_mask_to_binary_mask(torch.tensor([True, False]))


@pytest.mark.parametrize("lengths", [LENGTHS, LENGTHS.float(), torch.tensor([0, 9, 5])])
def test_lengths_row_by_row(x: torch.Tensor, lengths: torch.Tensor) -> None:
    expected = [[t < length for t in range(5)] for length in lengths.tolist()]
    assert F.mask_from_lengths(x, lengths).tolist() == expected


# ---- what is masked does not matter ------------------------------------------------------------


def averaged(x: torch.Tensor, mask: None | torch.Tensor) -> torch.Tensor:
    return F.masked_avg(x, mask=mask)


def largest(x: torch.Tensor, mask: None | torch.Tensor) -> torch.Tensor:
    return torch.cat(F.masked_max(x, mask=mask), 1)


def probabilities(x: torch.Tensor, mask: None | torch.Tensor) -> torch.Tensor:
    """Of what counts; what does not has none."""
    p = F.masked_log_softmax(x, mask=mask, dim=1).exp()
    return p.flatten(0, 1) if mask is None else p[mask != 0]


REDUCTIONS = [averaged, largest, probabilities]


@pytest.mark.parametrize("dtype", MASKS)
@pytest.mark.parametrize("function", REDUCTIONS)
def test_masked_is_unmasked_on_the_shorter_sequence(
    x: torch.Tensor, function: Any, dtype: torch.dtype
) -> None:
    for row, length in zip(x, LENGTHS, strict=True):
        mask = F.mask_from_lengths(row[None], length[None]).to(dtype)
        expected = function(row[None, :length], None)
        torch.testing.assert_close(function(row[None], mask), expected)


@pytest.mark.parametrize("junk", [1e30, torch.inf, torch.nan])
@pytest.mark.parametrize("function", REDUCTIONS)
def test_what_is_masked_may_be_anything(x: torch.Tensor, function: Any, junk: float) -> None:
    mask = F.mask_from_lengths(x, LENGTHS)
    expected = function(x, mask)
    spoilt = x.masked_fill(~mask.unsqueeze(-1), junk).requires_grad_()
    found = function(spoilt, mask)
    assert torch.equal(found, expected)
    [grad] = torch.autograd.grad(found.square().sum(), spoilt)
    assert grad.isfinite().all()
    assert grad[~mask].abs().max() == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_where_nothing_counts_everything_is_finite(x: torch.Tensor, dtype: torch.dtype) -> None:
    x = x.to(dtype).requires_grad_()
    nothing = torch.zeros(3, 5, dtype=torch.bool)
    assert F.masked_avg(x, mask=nothing).abs().max() == 0
    maximum, places = F.masked_max(x, mask=nothing)
    assert (maximum == torch.finfo(dtype).min).all()
    assert places.max() == 0
    logp = F.masked_log_softmax(x, mask=nothing, dim=1)
    torch.testing.assert_close(logp.exp(), torch.full_like(logp, 0.2))
    scores, _ = F.masked_categorical_sample(x, mask=nothing, dim=-1)
    assert scores.isfinite().all()
    total = sum(out.float().sum() for out in (F.masked_avg(x, mask=nothing), maximum / 1e38, logp))
    [grad] = torch.autograd.grad(total, x)
    assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_log_probabilities_are_finite_in_every_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 30.0, -30.0, 1.0]], dtype=dtype)
    logp = F.masked_log_softmax(x, mask=torch.tensor([[1, 1, 0, 1]]))
    assert logp.dtype == dtype
    assert logp.isfinite().all()
    assert logp.exp()[0, 2] == 0
    assert logp.exp().sum().item() == pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_averages_of_half_precision_do_not_overflow(dtype: torch.dtype) -> None:
    x, mask = torch.full((1, 400, 2), 1000.0, dtype=dtype), torch.ones(1, 400, dtype=torch.bool)
    found = F.masked_avg(x, mask=mask)
    assert found.dtype == dtype
    assert (found == x[:, 0]).all()


# ---- masked functions by hand ------------------------------------------------------------------


def test_average_by_hand() -> None:
    x = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [8.0, 1.0]]])
    assert F.masked_avg(x, mask=torch.tensor([[1, 1, 0]])).tolist() == [[2, 4]]
    assert F.masked_avg(x, mask=torch.tensor([[1, 1, 0]]), keepdim=True).tolist() == [[[2, 4]]]
    assert F.masked_avg(x).tolist() == [[4, 3]]
    assert F.masked_avg(x, mask=torch.tensor([[0.5, 0, 1.5]])).tolist() == [[6.25, 1.25]]
    over_features = F.masked_avg(x, mask=torch.tensor([[1, 0, 1]]), dim=2)
    assert over_features.tolist() == [[1.5, 0, 4.5]]
    over_batch = F.masked_avg(
        torch.cat([x, 2 * x]), mask=torch.tensor([[1, 1, 0], [1, 0, 0]]), dim=0
    )
    assert over_batch.tolist() == [[1.5, 3], [3, 6], [0, 0]]


def test_average_of_integers_is_a_fraction() -> None:
    found = F.masked_avg(torch.tensor([[1, 2, 9]]), mask=torch.tensor([[1, 1, 0]]))
    assert found.tolist() == [1.5]


def test_maximum_by_hand() -> None:
    x, mask = torch.tensor([[4, 9, 5]]), torch.tensor([[True, False, True]])
    maximum, places = F.masked_max(x, mask=mask)
    assert (maximum.tolist(), places.tolist()) == ([[5]], [[2]])
    assert [out.tolist() for out in F.masked_max(x)] == [[[9]], [[1]]]
    assert F.masked_max(x, mask=torch.zeros_like(mask))[0].item() == torch.iinfo(torch.int64).min


def test_fractions_are_prior_weights() -> None:
    weights = torch.tensor([[0.1, 0.0, 0.6, 0.3]])
    found = F.masked_log_softmax(torch.zeros(1, 4), mask=weights).exp()
    torch.testing.assert_close(found, weights)


# ---- sampling ----------------------------------------------------------------------------------


def test_samples_follow_the_probabilities_of_what_counts() -> None:
    torch.manual_seed(1)
    x, mask = torch.tensor([1.0, 3.0, 0.0, 2.0]), torch.tensor([True, False, True, True])
    n = 20_000
    scores, options = F.masked_categorical_sample(x.expand(n, 4), mask=mask.expand(n, 4))
    assert scores.shape == options.shape == (n, 1)
    assert torch.equal(scores, x[options])
    frequencies = options.flatten().bincount(minlength=4) / n
    expected = F.masked_log_softmax(x, mask=mask).exp()
    assert frequencies[1] == 0
    deviation = (expected * (1 - expected) / n).sqrt()
    assert ((frequencies - expected).abs() <= 5 * deviation).all()


def test_samples_are_those_of_pytorch(x: torch.Tensor) -> None:
    torch.manual_seed(2)
    expected = torch.distributions.Categorical(logits=x).sample().unsqueeze(-1)
    torch.manual_seed(2)
    scores, options = F.masked_categorical_sample(x, dim=-1)
    assert torch.equal(options, expected)
    assert torch.equal(scores, x.gather(-1, expected))


# ---- skip connections --------------------------------------------------------------------------


def test_skip_connections_by_hand() -> None:
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, 20.0]])
    assert F.skip_connection(x, y).tolist() == [[1, 2, 10, 20]]
    assert F.skip_connection(x, y, dim=0).tolist() == [[1, 2], [10, 20]]
    assert F.skip_connection(x, y, kind="residual").tolist() == [[11, 22]]
    assert F.skip_connection(x, y, kind=None) is y
    with pytest.raises(ValueError, match=r"'residual', 'cat', None\); got 'sum'"):
        F.skip_connection(x, y, kind="sum")


# ---- advantages --------------------------------------------------------------------------------


def make_batch(*shape: int) -> TensorDict:
    torch.manual_seed(3)
    return TensorDict(
        {DataKeys.REWARDS: torch.randn(*shape), DataKeys.VALUES: torch.randn(*shape)},
        batch_size=shape[:2],
    )


RAW: dict[str, Any] = {"normalize_advantages": False}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 2), (1, 2, 1)])
def test_with_lambda_1_returns_are_discounted_rewards(shape: tuple[int, ...]) -> None:
    batch, gamma = make_batch(*shape), 0.9
    out = F.generalized_advantage_estimate(batch, gae_lambda=1, gamma=gamma, **RAW)
    rewards, values = batch[DataKeys.REWARDS], batch[DataKeys.VALUES]
    expected = values.clone()  # the last row's return is its value
    for t in reversed(range(shape[1] - 1)):
        expected[:, t] = rewards[:, t] + gamma * expected[:, t + 1]
    torch.testing.assert_close(out[DataKeys.RETURNS], expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(out[DataKeys.ADVANTAGES], expected - values, rtol=0, atol=1e-7)


@pytest.mark.usefixtures("float64")
def test_it_is_the_gae_of_floor_one_with_rows_first() -> None:
    batch = make_batch(4, 6, 1)
    out = F.generalized_advantage_estimate(batch, gamma=0.9, gae_lambda=0.8, reward_scale=2, **RAW)
    rewards, values = (batch[key].transpose(0, 1) for key in (DataKeys.REWARDS, DataKeys.VALUES))
    expected = gae(
        rewards[:-1] / 2,
        values[:-1],
        values[1:],
        torch.zeros(5, 4, 1, dtype=torch.bool),
        gamma=0.9,
        gae_lambda=0.8,
    )
    found = out[DataKeys.ADVANTAGES].transpose(0, 1)
    torch.testing.assert_close(found[:-1], expected, rtol=0, atol=1e-7)
    assert found[-1].abs().max() == 0


@pytest.mark.parametrize("inplace", [False, True])
def test_asking_twice_gives_the_same(inplace: bool) -> None:
    """rl8 divides the batch's rewards by the scale each time."""
    batch = make_batch(4, 6, 1)
    before = batch.clone()
    first = F.generalized_advantage_estimate(batch, reward_scale=2, inplace=inplace).clone()
    second = F.generalized_advantage_estimate(batch, reward_scale=2, inplace=inplace)
    assert (first == second).all()
    assert (second is batch) is inplace
    assert (batch.select(*before.keys()) == before).all()
    added = {DataKeys.ADVANTAGES, DataKeys.RETURNS} if inplace else set()
    assert set(batch.keys()) == set(before.keys()) | added


@pytest.mark.usefixtures("float64")
def test_returns_are_optional_and_of_raw_advantages() -> None:
    batch = make_batch(4, 6, 1)
    assert DataKeys.RETURNS not in F.generalized_advantage_estimate(batch, return_returns=False)
    raw = F.generalized_advantage_estimate(batch, **RAW)
    scaled = F.generalized_advantage_estimate(batch)
    assert torch.equal(raw[DataKeys.RETURNS], scaled[DataKeys.RETURNS])
    inner = scaled[DataKeys.ADVANTAGES][:, :-1]
    assert inner.mean().item() == pytest.approx(0, abs=1e-12)
    assert inner.std().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("shape", [(1, 2, 1), (3, 5, 1)])
def test_where_advantages_do_not_differ_they_are_centred_only(shape: tuple[int, ...]) -> None:
    """rl8 divides by the deviation of one number, NaN, or of equal ones, 0."""
    batch = TensorDict(
        {DataKeys.REWARDS: torch.full(shape, 0.1), DataKeys.VALUES: torch.zeros(shape)},
        batch_size=shape[:2],
    )
    out = F.generalized_advantage_estimate(batch, gae_lambda=0)
    assert out[DataKeys.ADVANTAGES].abs().max() < 1e-6


def test_rows_of_the_batch_do_not_meet() -> None:
    batch = make_batch(4, 6, 1)
    whole = F.generalized_advantage_estimate(batch, **RAW)
    alone = F.generalized_advantage_estimate(batch[1:2], **RAW)
    assert (whole[1:2] == alone).all()


def test_the_last_reward_is_not_read() -> None:
    batch = make_batch(4, 6, 1)
    expected = F.generalized_advantage_estimate(batch)
    batch[DataKeys.REWARDS][:, -1] = torch.nan
    assert (F.generalized_advantage_estimate(batch) == expected).all()


def test_what_stood_in_the_batch_before_does_not_matter() -> None:
    batch = make_batch(4, 6, 1)
    expected = F.generalized_advantage_estimate(batch)
    for key in (DataKeys.ADVANTAGES, DataKeys.RETURNS):
        batch[key] = torch.full((4, 6, 1), torch.nan)
    out = F.generalized_advantage_estimate(batch, inplace=True)
    assert (out.select(*expected.keys()) == expected).all()


def test_estimates_have_no_gradient() -> None:
    batch = make_batch(4, 6, 1)
    batch[DataKeys.VALUES].requires_grad_()
    assert not F.generalized_advantage_estimate(batch)[DataKeys.ADVANTAGES].requires_grad


def test_ends_of_episodes_are_refused() -> None:
    batch = make_batch(4, 6, 1)
    batch[DataKeys.TERMINATED] = torch.zeros(4, 6, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"has terminated\. Use `everstep\.core\.advantages\.gae`"):
        F.generalized_advantage_estimate(batch)


# ---- losses ------------------------------------------------------------------------------------


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(-1)


def losses(buffer: dict[str, torch.Tensor], values: torch.Tensor, **options: Any) -> TensorDict:
    """Losses where the policy has not changed."""
    rows = len(values)
    given = {key: torch.zeros(rows, 1) for key in ("actions", "advantages", "logp", "returns")}
    return F.ppo_losses(
        TensorDict({**given, **buffer}, batch_size=[rows]),
        TensorDict({DataKeys.VALUES: values}, batch_size=[rows]),
        SimpleNamespace(logp=torch.zeros_like, entropy=lambda: torch.full((rows, 1), 0.5)),
        **options,
    )


def test_the_total_is_the_sum_of_its_terms() -> None:
    advantages = column(1.0, -3.0)
    out = losses({"advantages": advantages}, column(0.5, 0.5), entropy_coeff=0.1, vf_coeff=2.0)
    assert out.batch_size == torch.Size([])
    assert all(term.shape == () for term in out.values())
    assert out["policy"] == advantages.mean()  # nothing changed
    assert out["entropy"] == 0.5
    torch.testing.assert_close(out["total"], 2 * out["vf"] - out["policy"] - 0.1 * out["entropy"])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", [Categorical, Normal])
@pytest.mark.parametrize("dual_clip_param", [None, 1.5])
def test_it_is_the_objective_of_the_algorithm(kind: Any, dual_clip_param: None | float) -> None:
    torch.manual_seed(4)
    rows = 64
    features: Any = {
        Categorical: {"logits": torch.randn(rows, 1, 3)},
        Normal: {"mean": torch.randn(rows, 2), "log_std": torch.randn(rows, 2)},
    }[kind]
    distribution = kind(features, None)
    collected = {
        "actions": distribution.sample(),
        "logp": distribution.logp(distribution.sample()),
        "values": torch.randn(rows, 1),
        "advantages": torch.randn(rows, 1),
        "returns": torch.randn(rows, 1),
    }
    values = torch.randn(rows, 1)
    options = {"clip_param": 0.1, "dual_clip_param": dual_clip_param, "vf_clip_param": 0.3}
    minibatch = Minibatch(
        obs=(), states=(), first=None, weight=torch.full((rows, 1), 1 / rows), **collected
    )
    objective = PPO(
        Hyperparameters(entropy_coeff=0.02, vf_coeff=0.7, **options),
        entropy_coeff=torch.tensor(0.02),
    )
    expected = objective(minibatch, distribution, values)
    found = F.ppo_losses(
        TensorDict(collected, batch_size=[rows]),
        TensorDict({"values": values}, batch_size=[rows]),
        distribution,
        entropy_coeff=0.02,
        vf_coeff=0.7,
        **options,
    )
    for key in ("policy", "vf", "entropy", "total"):
        torch.testing.assert_close(found[key], expected[key])


def test_values_are_clipped_to_their_previous_ones() -> None:
    values, previous = column(1.0).requires_grad_(), {"values": column(3.0)}
    out = losses(previous, values, vf_clip_param=0.5)
    assert out["vf"].item() == 2.0  # of 2.5, the nearest that was allowed: 2.5 - 0.5
    [grad] = torch.autograd.grad(out["vf"], values)
    assert grad.item() == 0
    assert losses(previous, values, vf_clip_param=None)["vf"].item() == 0.5
    assert losses({}, values, vf_clip_param=0.5)["vf"].item() == 0.5  # no previous values


@pytest.mark.parametrize("error", [1.0, 5.4, 20.0])
def test_a_large_error_keeps_its_gradient(error: float) -> None:
    """rl8 clamps the loss, so that values far from their targets never learn."""
    values = column(error).requires_grad_()
    for previous in ({}, {"values": column(error)}):
        [grad] = torch.autograd.grad(losses(previous, values)["vf"], values)
        assert grad.item() == 1


def test_policy_loss_by_hand() -> None:
    ratio, advantages = column(1.5, 1.5, 0.5, 10.0), column(2.0, -2.0, 2.0, -1.0)
    buffer = {"advantages": advantages, "logp": -ratio.log()}
    assert losses(buffer, column(0, 0, 0, 0), dual_clip_param=None)["policy"].item() == (
        pytest.approx((2.4 - 3.0 + 1.0 - 10.0) / 4)
    )
    assert losses(buffer, column(0, 0, 0, 0))["policy"].item() == (
        pytest.approx((2.4 - 3.0 + 1.0 - 5.0) / 4)
    )


def test_entropy_without_weight_is_not_asked_for() -> None:
    out = F.ppo_losses(
        TensorDict(
            {key: torch.zeros(2, 1) for key in ("actions", "advantages", "logp", "returns")},
            batch_size=[2],
        ),
        TensorDict({DataKeys.VALUES: torch.zeros(2, 1)}, batch_size=[2]),
        SimpleNamespace(logp=torch.zeros_like),  # it has none
    )
    assert out["entropy"].item() == 0
