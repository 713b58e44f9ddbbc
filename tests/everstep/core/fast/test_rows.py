"""Rows of rollouts, natively, are what the general functions of `core` compute."""

import copy
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from everstep.algorithms.estimates import estimate_advantages
from everstep.bonuses import Stream
from everstep.core import advantages, episodes, fast
from everstep.core.fast import rows
from everstep.core.graphs import static_shapes
from everstep.core.normalizers import EPSILON, MOST_OF_SIZE, RunningMoments, _Constants
from everstep.core.ranks import Reducer
from everstep.core.rollouts import clean_rows


@pytest.fixture(autouse=True)
def native() -> None:
    if reason := fast.unavailable():
        pytest.skip(reason)


class Drawn:
    """Shapes, and tensors `[T, N, K]` of them, some of which are not contiguous."""

    def __init__(self, seed: int) -> None:
        draw, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.steps, self.envs = draw.choice([1, 2, 3, 17]), draw.choice([1, 2, 5, 33])
        self.streams = draw.choice([1, 1, 2, 3])
        self.dtype = draw.choice([torch.float32, torch.float64])
        self.size = draw.choice([1.0, 1e-15, 1e4])
        self.ends = draw.choice([0.0, 0.1, 1.0])
        self.is_strided = draw.random() < 0.3

    def numbers(self, streams: int = 1, mean: float = 0.0) -> torch.Tensor:
        shape = self.steps, self.envs, streams + self.is_strided
        drawn = torch.randn(shape, dtype=self.dtype, generator=self.generator) + mean
        return (drawn * self.size)[..., :streams]

    def flags(self, rate: float, streams: int = 1) -> torch.Tensor:
        shape = self.steps, self.envs, streams
        return torch.rand(shape, generator=self.generator) < rate

    def check(self, found: Any, expected: Any) -> None:
        """Compare, up to the rounding of sums."""
        precision = 1e-4 if self.dtype == torch.float32 else 1e-11
        options = {"equal_nan": True, "check_dtype": False}
        torch.testing.assert_close(
            found, expected, rtol=precision, atol=precision * self.size, **options
        )


@pytest.mark.parametrize("seed", range(60))
def test_advantages_and_discounted_sums_of_odd_rows(seed: int) -> None:
    drawn = Drawn(seed)
    x = [drawn.numbers(drawn.streams) for _ in range(3)]
    known, done = drawn.flags(0.8), drawn.flags(drawn.ends, drawn.streams)
    x[2] = torch.where(known, x[2], torch.nan)
    gamma: Any = 0.9
    if drawn.streams > 1:
        gamma = torch.rand(drawn.streams, dtype=drawn.dtype, generator=drawn.generator)
    passed = drawn.flags(0.2) if seed % 2 else None
    options: dict[str, Any] = {"gae_lambda": 0.95, "known": known, "passed": passed}
    found = rows.gae(*x, done, gamma=gamma, **options)
    assert found.dtype == drawn.dtype
    drawn.check(found, advantages.gae(*x, done, gamma=gamma, **options))

    final, terminated = drawn.flags(drawn.ends), drawn.flags(drawn.ends)
    final_values = torch.where(final, x[0], torch.nan)
    ends = x[1], terminated, final, final_values
    drawn.check(rows.bootstrap_values(*ends), advantages.bootstrap_values(*ends))

    done = drawn.flags(drawn.ends)
    rewards, initial = drawn.numbers(), drawn.numbers()[0]
    drawn.check(
        rows.reversed_discounted_returns(rewards, initial, done, gamma=0.9),
        advantages.reversed_discounted_returns(rewards, initial, done, gamma=0.9),
    )


@pytest.mark.parametrize("seed", range(120))
def test_estimates_of_odd_rollouts(seed: int) -> None:
    drawn, draw = Drawn(seed), random.Random(seed)
    shape = drawn.steps + 1, drawn.envs, 1
    rewards, values = (
        torch.cat([x, x[:1]]).contiguous() for x in (drawn.numbers(), drawn.numbers())
    )
    final, valid = drawn.flags(drawn.ends), drawn.flags(0.9)
    rollout: Any = SimpleNamespace(
        rewards=rewards,
        values=values,
        final=final,
        final_values=torch.where(final, drawn.numbers(), torch.nan).contiguous(),
        terminated=drawn.flags(drawn.ends) & ~final,
        known=drawn.flags(0.9) | ~final,
        valid=valid,
    )
    rollout.done = rollout.terminated | final | drawn.flags(0.1)
    config: Any = SimpleNamespace(
        gamma=0.9,
        gae_lambda=0.95,
        reward_scale=draw.choice([1, 0.1]),
        clip_rewards=draw.choice([None, 0.3]),
        normalize_advantages=draw.choice([True, False, "minibatch"]),
    )
    scale = draw.choice([None, torch.tensor(draw.choice([2.0, 0.0]), dtype=drawn.dtype)])
    learnable = rollout.known & valid & drawn.flags(draw.choice([0.0, 0.9, 1.0]))

    def estimated(explains: bool) -> list[Any]:
        rollout.advantages, rollout.returns = (torch.zeros(shape, dtype=drawn.dtype) for _ in "ab")
        arguments = rollout, config, [Stream(0.9)], learnable, scale, Reducer()
        found = estimate_advantages(*arguments, explains=explains)
        return [found, rollout.advantages, rollout.returns]

    for explains in (True, False):
        found = estimated(explains)
        with static_shapes():
            explained, *expected = estimated(explains)
        assert (found[0] is None) is (explained is None) is not explains
        drawn.size = max(1.0, drawn.size if scale is None or scale > 0 else 1e8 * drawn.size)
        drawn.check(found[1:], expected)
        if explains and explained.abs() < 1e3:
            torch.testing.assert_close(found[0], explained, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(60))
def test_extremes_of_odd_rows(seed: int) -> None:
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    shape = draw.choice([(), (1,), (2,), (3,), (5,), (16,), (4, 5), (37,)])
    dtype = draw.choice([torch.float32, torch.float64, torch.int64])
    x = 100 * torch.randn(draw.choice([1, 2, 7, 16, 33, 200]), *shape, generator=generator)
    x[torch.rand(x.shape, generator=generator) < draw.choice([0, 0.02])] = draw.choice(
        [torch.inf, -torch.inf, torch.nan] if dtype.is_floating_point else [7.0]
    )
    x = x.to(dtype)
    for options in ({}, {"dim": 0}):
        found, expected = rows.aminmax(x, **options), torch.aminmax(x, **options)
        torch.testing.assert_close(found, tuple(expected), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("seed", range(60))
def test_moments_and_statistics_of_odd_rewards(seed: int) -> None:
    drawn = Drawn(seed)
    x, mask = drawn.numbers(mean=3.0), drawn.flags(random.Random(seed).choice([0.0, 0.5, 1.0]))
    (count, mean, squares), largest = rows.measured(torch.where(mask, x, torch.nan), mask)
    expected = advantages.moments_of(x, mask), advantages.largest_of(x, mask)
    drawn.check(((count, mean), largest), (expected[0][:2], expected[1]))
    drawn.check((squares / drawn.size).float(), (expected[0][2] / drawn.size).float())
    assert largest.dtype == drawn.dtype

    x = torch.where(mask, x, 0.0)  # as `close_rows` leaves them
    found, general = rows.reward_statistics(x, mask), episodes.reward_statistics(x, mask)
    assert list(found) == list(general)
    drawn.check(found, general)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_not_finite_is_cleaned_in_rows_that_are_not_used(seed: int) -> None:
    drawn = Drawn(seed)
    x, used = drawn.numbers(drawn.streams), drawn.flags(0.5)
    x[:, :: 1 + seed % 2] = random.Random(seed).choice([math.nan, math.inf, -math.inf, 7.0])
    found, expected = x.clone(memory_format=torch.preserve_format), x.clone()
    rows.clean(found, used)
    clean_rows(expected, used)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert not used.any() or found[used.squeeze(-1)].isfinite().all()


@pytest.mark.parametrize("seed", range(60))
def test_moments_of_columns_of_odd_rows(seed: int) -> None:
    drawn = Drawn(seed)
    shape = random.Random(seed).choice([(), (1,), (5,), (3, 4), (37,)])
    rows_, dtype = drawn.steps * drawn.envs, drawn.dtype
    x = 3 + torch.randn(rows_, *shape, dtype=dtype, generator=drawn.generator)
    mask = torch.rand(rows_, generator=drawn.generator) < random.Random(seed).choice([0, 0.5, 1])
    x[~mask] = torch.nan
    one, other = RunningMoments(*shape), RunningMoments(*shape)
    for _ in range(2):
        found, expected = rows.column_moments(one, x, mask), other.moments_of(x, mask)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        one.add(*found)
        other.add(*expected)
    torch.testing.assert_close(list(one.buffers()), list(other.buffers()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [None, 10.0])
@pytest.mark.parametrize("count", [0, 7])
def test_numbers_that_observations_are_normalised_by(
    count: int, clip: None | float, dtype: torch.dtype
) -> None:
    moments = RunningMoments(5)
    moments.count.fill_(count)
    moments.mean.copy_(torch.tensor([0.0, 1.0, -1e-20, 1e15, 3.0]))
    moments.var.copy_(torch.tensor([0.0, 0.0, 1e-40, 1e30, 2.0]))
    out = torch.empty(4, 5, dtype=dtype)
    native: Any = fast.library()
    native.constants(
        dtype is torch.float64,
        5,
        *(x.data_ptr() for x in moments.buffers()),
        math.inf if clip is None else clip,
        EPSILON,
        MOST_OF_SIZE,
        out.data_ptr(),
    )
    expected = torch.stack([*_Constants.of(moments, clip, dtype)])
    torch.testing.assert_close(
        out, expected, rtol=1e-6 if dtype is torch.float32 else 1e-14, atol=0
    )


@pytest.mark.parametrize("seed", range(60))
def test_episodes_of_odd_rollouts(seed: int) -> None:
    drawn = Drawn(seed)
    processes = random.Random(seed).choice([1, 20])  # 100 or 5 recent episodes
    device = torch.device("cpu")
    one = episodes.EpisodeTracker(drawn.envs, device=device, processes=processes)
    other = copy.deepcopy(one)
    for _ in range(3):
        valid, done = drawn.flags(0.8), drawn.flags(drawn.ends)
        rewards = torch.where(valid, drawn.numbers(mean=1.0), 0.0)
        found = rows.update_episodes(one, rewards, valid, done)
        expected = other.update(rewards, valid, done)
        assert list(found) == list(expected)
        drawn.check(found, expected)
        drawn.check(one.state_dict(), other.state_dict())


def test_odd_numbers_are_seen() -> None:
    x, mask = torch.tensor([1.0, torch.nan, -torch.inf]).view(3, 1, 1), torch.ones(3, 1, 1).bool()
    found, general = rows.reward_statistics(x, mask), episodes.reward_statistics(x, mask)
    assert [k for k in found if found[k].isnan()] == [k for k in general if general[k].isnan()]
    assert rows.measured(x, mask)[1].isnan()


def test_a_general_function_takes_what_the_library_does_not(monkeypatch: Any) -> None:
    x, mask = torch.ones(3, 1, 1), torch.ones(3, 1, 1).bool()
    assert rows._native("measure", x) is not None
    assert rows._native("measure", x.half()) is None
    assert rows._native("measure", x, x.double()) is None
    with static_shapes():
        assert rows._native("measure", x) is None
    drawn = rows.measured(x.half(), mask)
    assert (float(drawn[0][1]), drawn[1].dtype) == (1.0, torch.float16)
    monkeypatch.setenv(fast.SWITCH, "0")
    assert fast.library() == f"`{fast.SWITCH}` is 0"
    assert rows._native("measure", x) is None
