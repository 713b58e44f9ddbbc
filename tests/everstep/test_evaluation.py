"""Complete episodes, counted without favour."""

from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode

from everstep import DiscreteDummyEnv, Policy, evaluate
from everstep.errors import EnvError
from everstep.evaluation import run_episodes
from everstep_adapters.gymnasium import GymnasiumEnv
from tests.toys import (
    BOTH,
    TERMINATED,
    TRUNCATED,
    ConstantEnv,
    Episode,
    reward_of,
    scripted_vector_env,
)

SCRIPTS = [
    [Episode(1, TERMINATED)],
    [Episode(7, TRUNCATED), Episode(2, BOTH)],
    [Episode(3, TERMINATED), Episode(5, TRUNCATED)],
]


def policy_for(env: Any) -> Policy:
    return Policy(env.observation_spec, env.action_spec, model_config={"hiddens": (8,)})


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_every_environment_plays_its_share_of_whole_episodes(mode: AutoresetMode) -> None:
    env = GymnasiumEnv(scripted_vector_env(SCRIPTS, mode))
    returns, lengths = run_episodes(policy_for(env), env, episodes=8)
    expected = []
    for n, quota in enumerate((3, 3, 2)):  # 8 episodes over 3 environments
        for episode in range(quota):
            length = SCRIPTS[n][episode % len(SCRIPTS[n])].length
            total = sum(reward_of(n, episode, t) for t in range(length))
            expected.append((length, round(total, 5)))
    found = [(int(n), round(float(r), 5)) for n, r in zip(lengths, returns, strict=True)]
    assert sorted(found) == sorted(expected)


def test_statistics() -> None:
    env = GymnasiumEnv(scripted_vector_env([[Episode(4, TERMINATED)]], AutoresetMode.NEXT_STEP))
    stats = evaluate(policy_for(env), env, episodes=3)
    assert stats["episodes/count"] == 3
    assert stats["episodes/length_mean"] == 4
    assert stats["episodes/return_min"] <= stats["episodes/return_mean"]
    assert stats["episodes/return_mean"] <= stats["episodes/return_max"]


def test_without_episodes_one_is_a_horizon() -> None:
    env = ConstantEnv(4, 6)
    returns, lengths = run_episodes(policy_for(env), env, episodes=10)
    assert returns.tolist() == [6.0] * 10
    assert lengths.tolist() == [6.0] * 10


def test_episodes_that_never_end_are_an_error() -> None:
    env = GymnasiumEnv(scripted_vector_env([[Episode(10**6, TERMINATED)]], AutoresetMode.NEXT_STEP))
    with pytest.raises(EnvError, match="Only 0 of 1 episodes ended within 50"):
        evaluate(policy_for(env), env, episodes=1, max_env_steps=50)
    with pytest.raises(EnvError, match="no `horizon`"):
        evaluate(policy_for(DiscreteDummyEnv(2)), DiscreteDummyEnv(2), episodes=1)
    with pytest.raises(ValueError, match="at least 1"):
        evaluate(policy_for(env), env, episodes=0)


def test_modes_and_gradients_come_back() -> None:
    env = DiscreteDummyEnv(2, 4)
    policy = policy_for(env)
    policy.model.train()
    evaluate(policy, env, episodes=2)
    assert policy.model.training
    assert torch.is_grad_enabled()
