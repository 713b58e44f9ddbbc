"""Estimates of complete rollouts: what invalid rows are to advantages, and how they are scaled."""

import math
import statistics
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from everstep import AlgorithmConfig
from tests.toys import KnownValue, RecordedEnv

pytestmark = pytest.mark.usefixtures("float64")

GAMMA, LAMBDA, HORIZON, NUM_ENVS = 0.9, 0.8, 8, 5


def absent(rollouts: int = 1) -> RecordedEnv:
    """A third of the rows are invalid, anywhere in an episode; some of the others end one."""
    generator = torch.Generator().manual_seed(3)
    steps = rollouts * HORIZON

    def draw(probability: float) -> torch.Tensor:
        return torch.rand(steps, NUM_ENVS, 1, generator=generator) < probability

    valid = draw(0.7)
    terminated = draw(0.2) & valid
    return RecordedEnv(
        torch.randn(steps + 1, NUM_ENVS, 3, generator=generator),
        HORIZON,
        rewards=3.0 + torch.randn(steps, NUM_ENVS, 1, generator=generator),
        terminated=terminated,
        truncated=torch.zeros_like(valid),
        first=terminated.clone(),
        valid=valid,
    )


def estimated(env: RecordedEnv, **options: Any) -> tuple[Any, dict[str, float]]:
    """An algorithm after one update, and that update's statistics."""
    common = {"gamma": GAMMA, "gae_lambda": LAMBDA, "normalize_rewards": False}
    common["normalize_observations"] = False
    algorithm = AlgorithmConfig(model_cls=KnownValue, **common | options).build(env)
    algorithm.collect()
    return algorithm, dict(algorithm.step())


def reference(env: RecordedEnv, n: int) -> list[float]:
    """Advantages of one environment, row by row from the last: an invalid row adds nothing."""
    values = KnownValue.value_of(env.obs)[:, n, 0].tolist()
    found, following = [], 0.0
    for t in reversed(range(HORIZON)):
        reward, is_terminated, is_valid = (
            env.rows[key][t, n].item() for key in ("rewards", "terminated", "valid")
        )
        beyond = 0.0 if is_terminated else values[t + 1]
        delta = reward + GAMMA * beyond - values[t] if is_valid else 0.0
        following = delta + (0.0 if is_terminated else GAMMA * LAMBDA * following)
        found.append(following)
    return found[::-1]


def test_invalid_rows_add_nothing_to_advantages() -> None:
    env = absent()
    assert not env.rows["valid"][1:-1].all()
    algorithm, _ = estimated(env, normalize_advantages=False)
    for n in range(NUM_ENVS):
        found = algorithm.buffer["advantages"][n, :-1, 0].tolist()
        assert found == pytest.approx(reference(env, n), abs=1e-12)


def test_advantages_are_normalized_over_the_rows_that_are_learned_from() -> None:
    env = absent()
    algorithm, _ = estimated(env)
    valid = env.rows["valid"][..., 0].T  # [N, T]
    raw = torch.tensor([reference(env, n) for n in range(NUM_ENVS)])
    rows = raw[valid].tolist()
    mean, std = statistics.fmean(rows), statistics.stdev(rows)
    expected = torch.where(valid, (raw - mean) / (std + 1e-8), 0.0)
    found = algorithm.buffer["advantages"][:, :-1, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_explained_variance_is_that_of_the_rows_that_are_learned_from() -> None:
    env = absent()
    _, stats = estimated(env)
    valid = env.rows["valid"][..., 0].T
    raw = torch.tensor([reference(env, n) for n in range(NUM_ENVS)])
    values = KnownValue.value_of(env.obs)[:-1, :, 0].T
    errors, returns = raw[valid].tolist(), (raw + values)[valid].tolist()
    expected = 1 - statistics.variance(errors) / statistics.variance(returns)
    assert stats["monitors/explained_variance"] == pytest.approx(expected, abs=1e-12)


def discounted_sums(env: RecordedEnv, rollouts: int) -> list[list[float]]:
    """Discounted sums of past rewards in the valid rows of each rollout."""
    found: list[list[float]] = [[] for _ in range(rollouts)]
    for n in range(NUM_ENVS):
        total = 0.0
        for t in range(rollouts * HORIZON):
            is_valid = bool(env.rows["valid"][t, n])
            total = GAMMA * total + is_valid * float(env.rows["rewards"][t, n])
            if is_valid:
                found[t // HORIZON].append(total)
            total = 0.0 if env.rows["terminated"][t, n] else total
    return found


@pytest.mark.parametrize("kind", [True, "running"])
def test_rewards_are_divided_by_the_spread_of_their_discounted_sums(kind: Any) -> None:
    """Of this rollout's, or of all rollouts' so far; sums go on from one rollout to the next."""
    env = absent(rollouts=3)
    algorithm, _ = estimated(env, normalize_rewards=kind, normalize_advantages=False)
    for rollout in range(1, 3):
        algorithm.collect()
        algorithm.step()
        sums = discounted_sums(env, 3)
        if kind == "running":
            rows = [x for earlier in sums[: rollout + 1] for x in earlier]
            scale = math.sqrt(statistics.pvariance(rows) + 1e-8)
        else:
            scale = statistics.stdev(sums[rollout])
        assert algorithm.state.reward_scale == pytest.approx(scale, rel=1e-12)
        last = slice(rollout * HORIZON, None)
        scaled = {key: x[last] for key, x in env.rows.items()}
        scaled["rewards"] = scaled["rewards"] / (scale + 1e-8)
        window = RecordedEnv(env.obs[last], HORIZON, **scaled)
        for n in range(NUM_ENVS):
            found = algorithm.buffer["advantages"][n, :-1, 0].tolist()
            assert found == pytest.approx(reference(window, n), abs=1e-12)


def test_rewards_are_clipped_after_they_are_scaled() -> None:
    env = absent()
    algorithm, _ = estimated(env, reward_scale=0.5, clip_rewards=1.6, normalize_advantages=False)
    rewards = env.rows["rewards"]
    clipped = (0.5 * rewards).clamp(-1.6, 1.6)
    assert 0 < int((clipped == 1.6).sum()) < clipped.numel()
    scaled = RecordedEnv(env.obs, HORIZON, **{**env.rows, "rewards": clipped})
    for n in range(NUM_ENVS):
        found = algorithm.buffer["advantages"][n, :-1, 0].tolist()
        assert found == pytest.approx(reference(scaled, n), abs=1e-12)


def test_rows_whose_outcome_is_masked_are_not_learned_from() -> None:
    """They are left out of the moments of advantages, which are 0 there."""
    env = absent()
    lost = env.rows["terminated"]
    env.rows["truncated"], env.rows["terminated"] = lost, torch.zeros_like(lost)
    algorithm, _ = estimated(env, on_missing_final="mask")
    learned = (env.rows["valid"] & ~lost)[..., 0].T
    found = algorithm.buffer["advantages"][:, :-1, 0]
    assert not found[~learned].any()
    assert float(found[learned].mean()) == pytest.approx(0, abs=1e-12)
    assert float(found[learned].std()) == pytest.approx(1, abs=1e-7)


# ---- scales -----------------------------------------------------------------------------------


@pytest.fixture
def float32(float64: None) -> Iterator[None]:
    """The dtype of training."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


def scaled(env: RecordedEnv, exponent: int) -> RecordedEnv:
    """The same environment with rewards times a power of two, in float32."""
    rows = {**env.rows, "rewards": env.rows["rewards"].float() * 2.0**exponent}
    return RecordedEnv(env.obs.float(), HORIZON, **rows)


@pytest.mark.parametrize("exponent", [0, 66, 100])
@pytest.mark.parametrize("kind", [True, "running"])
def test_normalised_rewards_do_not_depend_on_their_unit(
    kind: Any, exponent: int, float32: None
) -> None:
    """Squares of float32 are infinite from 2**64 on; small units are near the epsilon."""
    found = []
    for env in (scaled(absent(2), 0), scaled(absent(2), exponent)):
        algorithm, _ = estimated(env, normalize_rewards=kind)
        stats = algorithm.collect()
        algorithm.step()
        assert math.isfinite(stats["returns/std"])
        assert stats["rewards/std"] > 0
        scale = algorithm.state.reward_scale
        found.append(
            (scale, algorithm.rollout.advantages.clone(), algorithm.rollout.returns.clone())
        )
    (one, *expected), (other, *same) = found
    assert other == pytest.approx(one * 2.0**exponent, rel=1e-6)
    for x, y in zip(same, expected, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("exponent", [0, 66, 100])
def test_advantages_do_not_depend_on_the_unit_of_rewards(exponent: int, float32: None) -> None:
    from everstep.core.advantages import standardize

    x, mask = torch.randn(50, 3, 1), torch.rand(50, 3, 1) < 0.7
    torch.testing.assert_close(standardize(x * 2.0**exponent, mask), standardize(x, mask))


@pytest.mark.parametrize("exponent", [0, 66, 100])
def test_moments_do_not_depend_on_the_unit(exponent: int, float32: None) -> None:
    from torchrl.data import Unbounded

    from everstep.core.normalizers import ObservationNormalizer

    rows, mask = torch.randn(200, 2), torch.ones(200, dtype=torch.bool)
    found = []
    for factor in (1.0, 2.0**exponent):
        normalizer = ObservationNormalizer(Unbounded(2))
        for part in (rows * factor).split(50):
            normalizer.update((part,), mask[:50])
        found.append(normalizer((rows * factor,))[0])
    torch.testing.assert_close(*found)


@pytest.mark.slow
def test_one_reward_after_many_zeros_is_bounded(float32: None) -> None:
    """It is 100 deviations: the first reward of a sparse task would move all weights."""
    flags = torch.zeros(9990, 1, 1, dtype=torch.bool)
    rewards = torch.zeros(9990, 1, 1)
    rewards[-1] = 1.0
    ends = flags.clone()
    ends[-1] = True
    for clip, expected in (("auto", 10.0), (None, 99.95)):
        rows = {"rewards": rewards, "terminated": ends, "truncated": flags, "first": ends}
        env = RecordedEnv(torch.zeros(9991, 1, 3), 9990, **rows)
        options: dict[str, Any] = {"clip_rewards": clip, "gae_lambda": 0.0, "gamma": 0.99}
        options |= {"normalize_rewards": "running", "normalize_advantages": False}
        algorithm, _ = estimated(env, **options)
        last = float(algorithm.rollout.advantages[-2] + algorithm.rollout.values[-2])
        assert last == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"normalize_rewards": "running"}, 10.0),
        ({"normalize_rewards": True, "reward_scale": 0.5}, 5.0),
        ({"normalize_rewards": False}, None),
        ({"normalize_rewards": "running", "clip_rewards": None}, None),
        ({"normalize_rewards": False, "clip_rewards": 3.0}, 3.0),
    ],
)
def test_the_bound_of_rewards_is_resolved(options: Any, expected: Any) -> None:
    assert estimated(absent(), **options)[0].hparams.clip_rewards == expected
