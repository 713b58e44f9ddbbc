"""Everstep environments in stable-baselines3."""

from typing import Any

import numpy as np
import pytest

import everstep
from everstep import DiscreteDummyEnv
from everstep.errors import AdapterError
from everstep_adapters import to_sb3
from tests.everstep_adapters.export.export_toys import Walk

sb3: Any = pytest.importorskip("stable_baselines3")


def test_final_observations_and_time_limits_are_in_the_infos() -> None:
    from everstep_adapters import to_gymnasium

    env, same = to_sb3(Walk(3, limit=4)), to_gymnasium(Walk(3, limit=4))
    env.seed(0)
    np.testing.assert_array_equal(env.reset(), same.reset(seed=0)[0])
    ends = 0
    for t in range(20):
        actions = np.full(3, t % 2)
        obs, rewards, done, infos = env.step(actions)
        want, paid, terminated, truncated, found = same.step(actions)
        np.testing.assert_array_equal(obs, want)
        np.testing.assert_array_equal(rewards, paid.astype(np.float32))
        np.testing.assert_array_equal(done, terminated | truncated)
        for i in np.flatnonzero(done):
            final = infos[i]["terminal_observation"]
            np.testing.assert_array_equal(final, found["final_obs"][i])
            assert infos[i]["TimeLimit.truncated"] == (truncated[i] and not terminated[i])
            ends += 1
    assert ends > 3


def test_environments_without_episodes_have_a_horizon() -> None:
    env = to_sb3(DiscreteDummyEnv(2), horizon=3)
    env.reset()
    ends = [env.step(np.zeros(2, np.int64))[2].tolist() for _ in range(6)]
    assert ends == [[False] * 2] * 2 + [[True] * 2] + [[False] * 2] * 2 + [[True] * 2]


def test_resets_in_the_next_env_step_become_same_step_ones_or_are_refused() -> None:
    with pytest.raises(AdapterError, match="autoreset_mode='SAME_STEP'"):
        to_sb3(Walk(2, ends="next step"))
    env = to_sb3(everstep.make("gymnasium:CartPole-v1", 2))
    env.reset()
    found = [info for _ in range(60) for info in env.step(np.ones(2, np.int64))[3] if info]
    assert len(found) > 4
    assert all(abs(info["terminal_observation"][2]) > 0.2 for info in found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_stable_baselines3_trains() -> None:
    env = everstep.make("gymnasium:CartPole-v1", 4)
    vector = sb3.common.vec_env.VecMonitor(to_sb3(env))
    model = sb3.PPO("MlpPolicy", vector, n_steps=64, batch_size=64, seed=0, device="cpu")
    model.learn(8_000)
    assert np.mean([x["r"] for x in model.ep_info_buffer]) > 30


@pytest.mark.learning
@pytest.mark.filterwarnings("ignore")
def test_stable_baselines3_learns_cartpole() -> None:
    """With the hyperparameters of rl-baselines3-zoo, which are for eight environments."""
    vector = sb3.common.vec_env.VecMonitor(to_sb3(everstep.make("gymnasium:CartPole-v1", 8)))
    model = sb3.PPO(
        *("MlpPolicy", vector, lambda remaining: 0.001 * remaining),
        **{"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8},
        clip_range=lambda remaining: 0.2 * remaining,
        **{"ent_coef": 0.0, "seed": 0, "device": "cpu"},
    )
    model.learn(100_000)
    returns, _ = sb3.common.evaluation.evaluate_policy(
        model, vector, n_eval_episodes=100, return_episode_rewards=True
    )
    assert np.mean(returns) >= 475
