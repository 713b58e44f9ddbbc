"""Estimates of complete rollouts: what invalid rows are to advantages, and how they are scaled."""

import math
import statistics
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
