"""Environments whose episodes do not end begin again from time to time."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from everstep import AlgorithmConfig, DiscreteDummyEnv, RecurrentAlgorithmConfig
from everstep.algorithms.algorithm import restarts_at
from everstep.errors import ConfigError

HORIZON = 4

#: Rollouts that begin with a reset: after 1, 1, 2, 1, 1, 2 and 4.
RESETS = [0, 1, 2, 4, 5, 6, 8]


class Counting(gym.Env):
    """Observes its env steps since a reset; `ends` says which of them ends an episode."""

    observation_space = gym.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, ends: Any = lambda _: False) -> None:
        self.ends, self.t, self.options = ends, 0, None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t, self.options = 0, options
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.array([self.t], np.float32), 1.0, self.ends(self.t), False, {}


def built(ends: Any = lambda _: False, *, config_cls: Any = AlgorithmConfig, **options: Any) -> Any:
    envs = SyncVectorEnv([lambda: Counting(ends), lambda: Counting()])
    options = {"num_sgd_iters": 1, "seed": 0, "horizon": HORIZON, **options}
    return config_cls(**{"staggered_resets": False, **options}).build(envs)


def rollouts_of(algorithm: Any, count: int) -> Any:
    """Statistics of so many rollouts, each of which is learned from."""
    for _ in range(count):
        yield algorithm.collect()
        algorithm.step()


def resets_of(algorithm: Any, rollouts: int, *, first: int = 0) -> list[int]:
    """Rollouts that begin with a reset of all environments, as observations show it."""
    found = []
    for i, stats in enumerate(rollouts_of(algorithm, rollouts), first):
        begins = (algorithm.rollout.obs[0][0] == 0).all()
        assert bool(begins) == bool(stats["env/resets"])
        found += [i] * bool(begins)
    return found


def test_every_time_scale_has_an_equal_share() -> None:
    ends = [n for n in range(8 * 2**7 + 1) if restarts_at(n)]
    lengths = np.diff(ends).tolist()
    assert lengths[:15] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]
    assert {length: lengths.count(length) * length for length in set(lengths)} == {
        2**k: 2**7 for k in range(8)
    }


@pytest.mark.parametrize("config_cls", [AlgorithmConfig, RecurrentAlgorithmConfig])
def test_an_environment_that_never_ends_begins_again(config_cls: Any) -> None:
    algorithm = built(config_cls=config_cls)
    assert algorithm.hparams.horizons_per_env_reset == "restarts"
    assert resets_of(algorithm, 12) == RESETS


@pytest.mark.parametrize("config_cls", [AlgorithmConfig, RecurrentAlgorithmConfig])
@pytest.mark.parametrize("num_envs", [1, 3, 8, 20])
def test_environments_begin_again_apart_where_single_rows_can_be_reset(
    num_envs: int, config_cls: Any
) -> None:
    """Each follows the sequence, from one of its first eight places on."""
    config = config_cls(num_sgd_iters=1, seed=0, horizon=HORIZON)
    algorithm = config.build(SyncVectorEnv([Counting] * num_envs))
    assert algorithm.hparams.staggered_resets
    lengths = torch.zeros(num_envs)
    for rollout, stats in enumerate(rollouts_of(algorithm, 12)):
        due = [not rollout or restarts_at(rollout + i * 8 // num_envs) for i in range(num_envs)]
        lengths[torch.tensor(due)] = 0
        assert algorithm.rollout.obs[0][0, :, 0].equal(lengths)
        assert stats["env/resets"] == sum(due)
        lengths += HORIZON
        assert algorithm.episodes.open[:, 1].equal(lengths.double())


def test_none_begins_again_once_an_episode_has_ended() -> None:
    algorithm = built(lambda t: t == 2 * HORIZON, staggered_resets="auto")
    resets = [stats["env/resets"] for stats in rollouts_of(algorithm, 9)]
    assert resets[0] == 2
    assert algorithm.state.ended
    first = next(i for i, _ in enumerate(resets) if not any(resets[i:]))
    assert first <= 4


@pytest.mark.parametrize("every", [-1, 1, 3])
def test_a_number_is_followed(every: int) -> None:
    expected = [0] if every < 0 else [*range(0, 8, every)]
    assert resets_of(built(horizons_per_env_reset=every), 8) == expected


def test_there_are_none_once_an_episode_has_ended() -> None:
    # One of two environments ends in rollout 3.
    assert resets_of(built(lambda t: t == 2 * HORIZON), 9) == [0, 1, 2]
    assert resets_of(built(lambda t: t == HORIZON), 9) == [0]


def test_a_known_limit_needs_none() -> None:
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")])
    algorithm: Any = AlgorithmConfig(horizon=HORIZON).build(envs)
    assert algorithm.hparams.horizons_per_env_reset == -1
    options = {"horizons_per_env_reset": "restarts", "staggered_resets": False}
    asked: Any = AlgorithmConfig(horizon=2, **options).build(envs)
    assert [bool(s["env/resets"]) for s in rollouts_of(asked, 3)] == [True, True, True]


def test_they_are_refused_without_episodes() -> None:
    config = AlgorithmConfig(horizons_per_env_reset="restarts", num_envs=2, horizon=4)
    with pytest.raises(ConfigError, match=r"'restarts' needs .* DiscreteDummyEnv .*Use a number"):
        config.build(DiscreteDummyEnv)


def test_they_go_on_after_a_checkpoint() -> None:
    first, second = built(), built()
    assert resets_of(first, 6) == RESETS[:5]
    second.load_state_dict(first.state_dict())
    assert resets_of(second, 8, first=6) == [6, 8, 12, 13]


def test_trainings_of_before_there_were_any_go_on_without() -> None:
    algorithm, other = built(), built()
    resets_of(algorithm, 3)
    state = algorithm.state_dict()
    del state["counters"]["ended"]
    other.load_state_dict(state)
    assert resets_of(other, 6, first=3) == [3]  # where a training is resumed


def test_evaluations_have_none() -> None:
    algorithm = built()
    resets_of(algorithm, 3)
    with algorithm.evaluating():
        for _ in range(4):
            assert algorithm.collect(deterministic=True)["env/resets"] == 0
    assert not algorithm.state.ended


def test_what_is_cut_off_is_bootstrapped() -> None:
    """Values of the last observation enter the returns, as at any end of a rollout."""
    algorithm = built(num_sgd_iters=1, gae_lambda=1.0, normalize_rewards=False)
    algorithm.collect()
    rollout, gamma = algorithm.rollout, algorithm.config.gamma
    algorithm.step()
    expected = rollout.values[-1]
    for t in reversed(range(HORIZON)):
        expected = rollout.rewards[t] + gamma * expected
    torch.testing.assert_close(rollout.returns[0], expected, rtol=1e-5, atol=1e-6)
    assert algorithm.collect()["env/resets"]
