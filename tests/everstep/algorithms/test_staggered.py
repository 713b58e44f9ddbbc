"""Environments that begin together are reset one after the other, so that they end apart."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from everstep import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.distillation import Distillation
from everstep.errors import ConfigError
from tests.everstep.policies.test_memory import HORIZON, KINDS
from tests.ranks import run_ranks


class Counting(gym.Env):
    """Observes its env steps since a reset; `end` is the one that ends an episode."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, end: int = 0, size: int = 1) -> None:
        self.end, self.t = end, 0
        self.observation_space = gym.spaces.Box(0, np.inf, (size,), np.float32)

    def look(self) -> Any:
        return np.full(self.observation_space.shape, self.t, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.look(), 1.0, self.t == self.end, False, {}


def vector(
    limit: int, ends: list[int], *, size: int = 1, kind: Any = SyncVectorEnv, **options: Any
) -> Any:
    makers = [lambda end=end: TimeLimit(Counting(end, size), limit) for end in ends]
    return kind(makers, **options)


def built(env: Any, horizon: int, *, config_cls: Any = AlgorithmConfig, **options: Any) -> Any:
    options = {"num_sgd_iters": 1, "seed": 0, "horizon": horizon, **options}
    return config_cls(**options).build(env)


def learned(algorithm: Any) -> Any:
    """Statistics of a rollout that was learned from."""
    stats = algorithm.collect()
    algorithm.step()
    return stats


def begins(algorithm: Any) -> list[float]:
    """Each environment's env steps since a reset, where the rollout begins."""
    return algorithm.rollout.obs[0][0, :, 0].tolist()


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("seed", range(4))
def test_each_rollout_sees_all_parts_of_episodes(seed: int, mode: AutoresetMode, kind: Any) -> None:
    random = np.random.default_rng([seed, kind is SyncVectorEnv])
    num_envs, horizon = int(random.integers(2, 9)), int(random.integers(3, 9))
    limit = int(random.integers(horizon + 1, 6 * horizon))
    env = vector(limit, [0] * num_envs, kind=kind, autoreset_mode=mode)
    algorithm = built(env, horizon)
    try:
        assert algorithm.hparams.staggered_resets
        parts = -(-limit // horizon)
        turns = [i * parts // num_envs for i in range(num_envs)]
        for rollout in range(parts):
            stats = learned(algorithm)
            assert begins(algorithm) == [
                (rollout - turn if rollout >= turn > 0 else rollout) * horizon for turn in turns
            ]
            due = num_envs if not rollout else turns.count(rollout)
            assert stats["env/resets"] == due
            assert stats.get("episodes/length_min", limit) == limit  # others were not finished
        for _ in range(2 * parts):
            stats = learned(algorithm)
            assert stats["env/resets"] == 0
            assert stats.get("episodes/length_mean", limit) == limit
            assert stats.get("episodes/return_max", limit) == limit
            seen = {t // horizon for t in begins(algorithm)}
            assert len(seen) >= min(parts, num_envs) - 1  # two may share one, where the limit ends
    finally:
        env.close()


def begun(kind: str, num_envs: int, rollouts: int) -> list[list[float]]:
    """Env steps since a reset of each environment of this process, where each rollout begins."""
    has_limit = kind == "first episodes"
    env: Any = vector(35, [0] * num_envs) if has_limit else SyncVectorEnv([Counting] * num_envs)
    algorithm = built(env, 5)
    assert algorithm.hparams.staggered_resets
    return [(learned(algorithm), begins(algorithm))[1] for _ in range(rollouts)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["first episodes", "restarts"])
def test_environments_of_two_processes_take_turns_like_those_of_one(
    kind: str, tmp_path: Path
) -> None:
    first, second = run_ranks(2, begun, tmp_path, kind, 4, 9)
    whole = begun(kind, 8, 9)
    assert [[*a, *b] for a, b in zip(first, second, strict=True)] == whole
    assert len({*whole[8]}) > 2  # else nothing took turns


def test_what_has_ended_by_itself_is_left_alone() -> None:
    algorithm = built(vector(40, [0, 0, 9, 0]), 10)
    found = [(learned(algorithm)["env/resets"], begins(algorithm)) for _ in range(4)]
    resets, starts = zip(*found, strict=True)
    assert resets == (4, 1, 0, 1)
    assert [x[0] for x in starts] == [0, 10, 20, 30]
    assert [x[1] for x in starts] == [0, 0, 10, 20]
    assert [x[3] for x in starts] == [0, 10, 20, 0]


def test_the_value_of_the_last_observation_bootstraps_an_episode_that_was_left() -> None:
    whole, staggered = (
        built(vector(40, [0] * 4), 10, staggered_resets=x, lr=1e-12, lr_schedule=None)
        for x in (False, "auto")
    )
    rollouts, returns = [x.rollout for x in (whole, staggered)], []
    for algorithm in (whole, staggered):
        learned(algorithm)
        gamma, values = algorithm.config.gamma, algorithm.rollout.values[-1]
        expected = 1 / algorithm.state.reward_scale + gamma * values
        torch.testing.assert_close(algorithm.rollout.returns[-2], expected)
        returns.append(algorithm.rollout.returns.clone())
        algorithm.collect()
    assert torch.equal(*returns)  # the rollout before knows nothing of the reset
    assert [begins(x) for x in (whole, staggered)] == [[10.0] * 4, [10.0, 0.0, 10.0, 10.0]]
    rest = [0, 2, 3]
    assert torch.equal(*(x.obs[0][:, rest] for x in rollouts))
    assert rollouts[1].reversed_returns[0, 1] == 0
    assert (rollouts[1].reversed_returns[0, rest] > 0).all()
    assert staggered.episodes.open[:, 1].tolist() == [20, 10, 20, 20]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_remembered_of_an_episode_that_was_left(kind: str) -> None:
    """Values are those of the definition, over the observations since a reset."""
    make, value_of = KINDS[kind]
    config, num_envs = make(), 4
    config.horizon, config.critic_warmup = HORIZON, 0
    algorithm = config.build(vector(4 * HORIZON, [0] * num_envs, size=3))
    episodes: list[list[Any]] = [[] for _ in range(num_envs)]
    for rollout in range(4):
        assert algorithm.collect()["env/resets"] == (1 if rollout else num_envs)
        obs, values = algorithm.rollout.obs[0], algorithm.rollout.values[:-1, :, 0]
        if rollout:
            episodes[rollout] = []
        for t in range(HORIZON):
            for n, seen in enumerate(episodes):
                seen.append(obs[t, n].clone())
                assert values[t, n].item() == pytest.approx(value_of(torch.stack(seen)).item())
        algorithm.state.buffered = False  # not learned from, so that the definition stays


def test_policies_that_follow_begin_anew() -> None:
    """A recurrent teacher of a student without states."""
    env = vector(40, [0] * 4)
    teacher = built(env, 10, config_cls=RecurrentAlgorithmConfig, seq_len=5).policy
    objective: Any = Distillation(teacher)
    algorithm = built(vector(40, [0] * 4), 10, objective=objective)
    learned(algorithm)
    follower = algorithm.objective.follower
    opened, before = follower.opened(4), follower.states
    algorithm.begin(None)
    for state, old, new in zip(follower.states, before, opened, strict=True):
        assert torch.equal(state[1], new[1])
        assert torch.equal(state[[0, 2, 3]], old[[0, 2, 3]])
        assert not torch.equal(old[1], new[1])


def test_a_turn_that_an_evaluation_took_is_made_up_for() -> None:
    algorithm = built(vector(40, [0] * 4), 10)
    learned(algorithm)
    with algorithm.evaluating():
        assert algorithm.collect()["env/resets"] == 0
    assert [learned(algorithm)["env/resets"] for _ in range(3)] == [2, 1, 0]


def test_turns_begin_anew_with_a_reset_of_all() -> None:
    algorithm = built(vector(40, [0] * 4), 10)
    assert [learned(algorithm)["env/resets"] for _ in range(3)] == [4, 1, 1]
    algorithm.states = None  # as after a rollout that failed
    assert [learned(algorithm)["env/resets"] for _ in range(5)] == [4, 1, 1, 1, 0]


def test_a_resumed_training_goes_on_with_the_turns() -> None:
    def make() -> Any:
        makers = [lambda: TimeLimit(gym.make("Pendulum-v1").unwrapped, 40)] * 4
        return built(SyncVectorEnv(makers), 10)

    whole = make()
    expected = [learned(whole)["env/resets"] for _ in range(6)]
    assert expected == [4, 1, 1, 1, 0, 0]
    first = make()
    found = [learned(first)["env/resets"] for _ in range(2)]
    state = deepcopy(first.state_dict())
    second = make()
    second.load_state_dict(state)
    found += [learned(second)["env/resets"] for _ in range(4)]
    assert found == expected
    pairs = zip(whole.policy.model.parameters(), second.policy.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    del state["counters"]["opened"]  # as older versions wrote it
    second.load_state_dict(state)
    assert second.state.opened == 0


class Forgetful(VectorWrapper):
    """Ignores masks."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.env.reset(seed=seed)


@pytest.mark.parametrize(
    ("env", "options", "reason"),
    [
        (lambda: vector(40, [0] * 4), {"horizons_per_env_reset": 2}, "`horizons_per_env_reset` is"),
        (
            lambda: SyncVectorEnv([Counting] * 4),
            {"horizons_per_env_reset": -1},
            "has no `max_episode_steps`",
        ),
        (lambda: Forgetful(vector(40, [0] * 4)), {}, "cannot reset single rows"),
        (lambda: RecordEpisodeStatistics(vector(40, [0] * 4)), {}, "cannot reset single rows"),
    ],
)
def test_it_is_refused_where_it_cannot_be(env: Any, options: Any, reason: str) -> None:
    assert built(env(), 10, **options).hparams.staggered_resets is False
    with pytest.raises(ConfigError, match=rf"`staggered_resets` has no effect: .*{reason}.* Use "):
        built(env(), 10, staggered_resets=True, **options)


def test_it_is_off_where_a_rollout_holds_an_episode_and_where_it_is_said() -> None:
    assert not built(vector(10, [0] * 4), 10).hparams.staggered_resets
    algorithm = built(vector(40, [0] * 4), 10, staggered_resets=False)
    assert [learned(algorithm)["env/resets"] for _ in range(4)] == [4, 0, 0, 0]


def test_wrappers_that_reset_nothing_themselves_pass_masks_on() -> None:
    algorithm = built(VectorWrapper(vector(40, [0] * 4)), 10)
    assert [learned(algorithm)["env/resets"] for _ in range(3)] == [4, 1, 1]
