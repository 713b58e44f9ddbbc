"""Storage of a rollout: windows, what opens and ends an episode, and what is carried over."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded

from everstep.core.rollouts import Rollout
from everstep.data import EPISODE_KEYS
from everstep.env.specs import Structure
from everstep.errors import EnvError, NonFiniteError
from tests.toys import flags

N = 2


def make(horizon: int, **options: Any) -> Rollout:
    return Rollout(
        N,
        horizon,
        observation=Structure.of(Unbounded(1)),
        action=Structure.of(Categorical(2, shape=torch.Size([1]))),
        dtype=torch.float32,
        device=torch.device("cpu"),
        **options,
    )


def numbered(t: float) -> torch.Tensor:
    """Observations of the env step `t`: 100·n + t in environment `n`."""
    return torch.tensor([[t], [100.0 + t]])


def write(rollout: Rollout, t: int, now: float, **outcome: torch.Tensor) -> None:
    """Store the outcome of env step `t`, which leads to observations numbered `now`."""
    false = torch.zeros(N, 1, dtype=torch.bool)
    rows = {"obs": numbered(now), "rewards": torch.zeros(N, 1), "final_obs": numbered(-now)}
    rows |= dict.fromkeys(("terminated", "truncated", "first"), false) | {"valid": ~false}
    keys = {"obs", "rewards", *rollout.episode_keys}
    rollout.write_outcome(t, TensorDict({key: (rows | outcome)[key] for key in keys}, [N]))


def play(rollout: Rollout, start: float) -> None:
    """Store a rollout whose first observations are numbered `start`."""
    for t in range(rollout.horizon):
        write(rollout, t, start + t + 1)


def rows_of(windows: Any) -> list[list[float]]:
    """Windows `[R, H + 1, 1]` of the only leaf, as numbers."""
    (leaf,) = windows
    return leaf.squeeze(-1).tolist()


# ---- windows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [1, 2, 3, 5])
@pytest.mark.parametrize("horizon", [1, 3, 4])
def test_windows_end_in_the_observation_that_is_acted_on(history: int, horizon: int) -> None:
    """Over the ends of rollouts too, however short they are; zeros are before the first."""
    rollout = make(horizon, history=history)
    rollout.open(numbered(1))
    for start in (1, 1 + horizon, 1 + 2 * horizon):
        play(rollout, start)
        for t in range(horizon + 1):
            seen = range(start + t - history, start + t + 1)
            expected = [
                [float(i) if i > 0 else 0.0 for i in seen],
                [100.0 + i if i > 0 else 0.0 for i in seen],
            ]
            assert rows_of(rollout.obs_at(t)) == expected
        rollout.carry()


@pytest.mark.parametrize("history", [0, 1, 2, 4])
def test_windows_of_final_observations_end_in_them(history: int) -> None:
    """Before the final observation is what the last action was chosen from, and what led there."""
    rollout = make(3, history=history, episode_keys=EPISODE_KEYS)
    rollout.open(numbered(1))
    play(rollout, 1)
    for t in range(3):
        seen = range(1 + t - history + 1, 1 + t + 1)
        expected = [
            [*(float(i) if i > 0 else 0.0 for i in seen), -(t + 2.0)],
            [*(100.0 + i if i > 0 else 0.0 for i in seen), 100.0 - (t + 2.0)],
        ]
        if not history:
            assert [[x] for x in rows_of(rollout.final_obs_at(t, slice(None)))] == expected
            continue
        assert rows_of(rollout.final_obs_at(t, slice(None))) == expected
        assert rows_of(rollout.final_obs_at(t, torch.tensor([1]))) == expected[1:]
        assert rows_of(rollout.final_obs_at(t, torch.tensor([1, 0]))) == expected[::-1]


def test_a_reset_clears_what_was_seen_before() -> None:
    rollout = make(4, history=2)
    rollout.open(numbered(1))
    play(rollout, 1)
    rollout.carry()
    assert rows_of(rollout.obs_at(0)) == [[3.0, 4.0, 5.0], [103.0, 104.0, 105.0]]
    rollout.open(numbered(7))
    assert rows_of(rollout.obs_at(0)) == [[0.0, 0.0, 7.0], [0.0, 0.0, 107.0]]


# ---- episodes ---------------------------------------------------------------------------------


def test_what_an_action_led_to_is_not_known_of_invalid_rows() -> None:
    """Nor of rows that were reset at once and whose final observation is lost."""
    rollout = make(4, episode_keys=EPISODE_KEYS)
    rollout.valid.copy_(~flags(4, N, (0, 0), (3, 1)))
    rollout.terminated.copy_(flags(4, N, (1, 0), (2, 1)))
    rollout.truncated.copy_(flags(4, N, (1, 1)))
    rollout.first.copy_(flags(4, N, (1, 0), (1, 1)))  # (2, 1) is reset in the row after it
    for t, env in ((0, 1), (1, 1), (2, 1)):
        rollout.final_obs[0][t, env] = torch.nan
    assert torch.equal(rollout.next_known, ~flags(4, N, (0, 0), (3, 1), (1, 1)))
    assert torch.equal(rollout.ends, flags(4, N, (1, 0), (1, 1)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_number_that_is_not_finite_loses_a_final_observation(value: float) -> None:
    rollout = Rollout(
        N,
        3,
        observation=Structure.of(Composite(a=Unbounded(2), b=Unbounded((2, 2)))),
        action=Structure.of(Categorical(2, shape=torch.Size([1]))),
        episode_keys=EPISODE_KEYS,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    rollout.truncated.fill_(True)
    rollout.first.fill_(True)
    rollout.final_obs[0][0, 0, 1] = value
    rollout.final_obs[1][2, 1, 0, 1] = value
    assert torch.equal(rollout.next_known, ~flags(3, N, (0, 0), (2, 1)))


def test_without_final_observations_it_is_not_known_what_rows_that_were_reset_led_to() -> None:
    rollout = make(3, episode_keys=EPISODE_KEYS - {"final_obs"})
    rollout.terminated.copy_(flags(3, N, (0, 0), (1, 1)))
    rollout.first.copy_(flags(3, N, (0, 0), (2, 1)))
    rollout.valid.copy_(~flags(3, N, (2, 1)))
    assert torch.equal(rollout.next_known, ~flags(3, N, (0, 0), (2, 1)))


def test_actions_led_to_final_observations_where_rows_were_reset_at_once() -> None:
    rollout = make(3, episode_keys=EPISODE_KEYS)
    rollout.open(numbered(1))
    play(rollout, 1)
    rollout.truncated.copy_(flags(3, N, (1, 0), (2, 1)))
    rollout.first.copy_(flags(3, N, (1, 0)))
    assert rows_of(rollout.next_obs(0, 3)) == [2.0, 102.0, -3.0, 103.0, 4.0, 104.0]
    assert rows_of(rollout.next_obs(1, 2)) == [-3.0, 103.0]


def test_invalid_rows_end_nothing_and_earn_nothing() -> None:
    rollout = make(2, episode_keys=EPISODE_KEYS)
    rollout.rewards.fill_(3.0)
    rollout.valid.copy_(~flags(2, N, (0, 0), (1, 1)))
    every = flags(2, N, *[(t, n) for t in range(2) for n in range(N)])
    for ends in (rollout.terminated, rollout.truncated):
        ends.copy_(every)
    rollout.close_rows()
    assert torch.equal(rollout.terminated, rollout.valid)
    assert torch.equal(rollout.truncated, rollout.valid)
    assert torch.equal(rollout.rewards[:-1], 3.0 * rollout.valid)


def test_discounted_sums_go_on_but_for_episodes_that_ended_in_the_last_row() -> None:
    rollout = make(3, episode_keys=EPISODE_KEYS)
    rollout.reversed_returns[-1] = torch.tensor([[5.0], [7.0]])
    rollout.terminated.copy_(flags(3, N, (1, 1), (2, 0)))
    rollout.carry()
    assert rollout.reversed_returns[0].tolist() == [[0.0], [7.0]]
    rollout.terminated.zero_()
    rollout.truncated.copy_(flags(3, N, (1, 0), (2, 1)))
    rollout.carry()
    assert rollout.reversed_returns[0].tolist() == [[5.0], [0.0]]
    rollout.open(numbered(1))
    assert rollout.reversed_returns[0].tolist() == [[0.0], [0.0]]


# ---- numbers that are not finite ----------------------------------------------------------------


@pytest.mark.parametrize(("t", "when"), [(0, "at the reset"), (1, "env step 0"), (3, "env step 2")])
def test_the_observation_that_is_not_finite_is_named(t: int, when: str) -> None:
    rollout = make(3)
    assert rollout.examine()["finite"]
    rollout.obs[0][t, 1] = torch.inf
    assert not rollout.examine()["finite"]
    with pytest.raises(NonFiniteError, match=f"`obs` of environment 1 is not finite .*{when}"):
        rollout.find_fault()


def test_the_reward_that_is_not_finite_is_named() -> None:
    rollout = make(3)
    rollout.rewards[2, 0] = torch.nan
    assert not rollout.examine()["finite"]
    with pytest.raises(NonFiniteError, match=r"`rewards` of environment 0 is not finite .*step 2"):
        rollout.find_fault()


@pytest.mark.parametrize("leaf", [0, 1])
def test_numbers_that_are_not_finite_are_found_in_every_leaf(leaf: int) -> None:
    rollout = Rollout(
        N,
        2,
        observation=Structure.of(Composite(a=Unbounded(1), b=Unbounded(2))),
        action=Structure.of(Categorical(2, shape=torch.Size([1]))),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    assert rollout.examine()["finite"]
    rollout.obs[leaf][1, 1, -1] = torch.nan
    assert not rollout.examine()["finite"]
    with pytest.raises(NonFiniteError, match=rf"`obs\.{'ab'[leaf]}` of environment 1"):
        rollout.find_fault()


@pytest.mark.parametrize(
    "changed", [torch.zeros(N, 1, dtype=torch.float64), torch.zeros(1, N), torch.zeros(N, 3)]
)
def test_a_tensor_that_an_environment_changes_in_place_is_checked_again(
    changed: torch.Tensor,
) -> None:
    rollout, obs = make(3), torch.zeros(N, 1)
    outcome: Any = {"obs": obs, "rewards": torch.zeros(N, 1)}
    rollout.write_outcome(0, outcome)
    obs.fill_(2.0)
    rollout.write_outcome(1, outcome)
    assert rollout.obs[0][2].tolist() == [[2.0]] * N
    obs.data = changed
    with pytest.raises((EnvError, RuntimeError)):
        rollout.write_outcome(2, outcome)
