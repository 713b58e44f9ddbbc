"""Complete episodes, counted without favour."""

import statistics
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from torch import nn
from torchrl.data import Composite, Unbounded

from everstep import DiscreteDummyEnv, Policy, RecurrentPolicy, evaluate
from everstep.errors import EnvError
from everstep.evaluation import run_episodes
from everstep.models import Model, RecurrentModel
from everstep_adapters.gymnasium import GymnasiumEnv
from tests.toys import (
    BOTH,
    TERMINATED,
    TRUNCATED,
    ConstantEnv,
    Episode,
    RecordedEnv,
    flags,
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


@pytest.mark.parametrize("episodes", [1, 5])
def test_statistics_are_those_of_the_episodes_that_were_played(episodes: int) -> None:
    env = GymnasiumEnv(scripted_vector_env(SCRIPTS[1:], AutoresetMode.SAME_STEP))
    policy = policy_for(env)
    returns, lengths = (x.tolist() for x in run_episodes(policy, env, episodes=episodes))
    env = GymnasiumEnv(scripted_vector_env(SCRIPTS[1:], AutoresetMode.SAME_STEP))
    assert evaluate(policy, env, episodes=episodes) == pytest.approx(
        {
            "episodes/count": episodes,
            "episodes/return_mean": statistics.fmean(returns),
            "episodes/return_std": statistics.pstdev(returns),
            "episodes/return_min": min(returns),
            "episodes/return_max": max(returns),
            "episodes/length_mean": statistics.fmean(lengths),
        }
    )


def test_without_episodes_one_is_a_horizon() -> None:
    env = ConstantEnv(4, 6)
    returns, lengths = run_episodes(policy_for(env), env, episodes=10)
    assert returns.tolist() == [6.0] * 10
    assert lengths.tolist() == [6.0] * 10
    with pytest.raises(EnvError, match="No episode ends within 5 env steps: one is 6 env steps"):
        run_episodes(policy_for(env), env, episodes=1, max_env_steps=5)


def test_episodes_that_never_end_are_an_error() -> None:
    env = GymnasiumEnv(scripted_vector_env([[Episode(10**6, TERMINATED)]], AutoresetMode.NEXT_STEP))
    with pytest.raises(EnvError, match="Only 0 of 1 episodes ended within 50"):
        evaluate(policy_for(env), env, episodes=1, max_env_steps=50)
    with pytest.raises(EnvError, match="no `horizon`"):
        evaluate(policy_for(DiscreteDummyEnv(2)), DiscreteDummyEnv(2), episodes=1)
    with pytest.raises(ValueError, match="int from 1"):
        evaluate(policy_for(env), env, episodes=0)


def test_modes_and_gradients_come_back() -> None:
    env = DiscreteDummyEnv(2, 4)
    policy = policy_for(env)
    policy.model.train()
    evaluate(policy, env, episodes=2)
    assert policy.model.training
    assert torch.is_grad_enabled()


# ---- what the policy is shown -------------------------------------------------------------------


class Watching(Model):
    """Keeps what it is shown, and whether it trains; the second action is the likelier one."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.gain = nn.Parameter(torch.ones(1))
        self.seen: list[torch.Tensor] = []
        self.modes: set[bool] = set()

    def forward(self, batch: TensorDict, /) -> Any:
        self.seen.append(batch["obs"].clone())
        self.modes.add(self.training)
        rows = len(batch["obs"])
        return {"logits": torch.tensor([0.0, 0.1]).expand(rows, 1, 2) * self.gain}

    def value_function(self) -> torch.Tensor:
        return torch.zeros(len(self.seen[-1]), 1)


class WatchingMemory(RecurrentModel):
    """Keeps the recurrent states it is given: how many observations of the episode it has seen."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.state_spec = Composite(ages=Unbounded((1,)))
        self.gain = nn.Parameter(torch.ones(1))
        self.ages: list[list[float]] = []

    def forward(self, batch: TensorDict, states: TensorDict, /) -> Any:
        ages = states["ages"][:, 0]
        self.ages.append(ages.flatten().tolist())
        logits = torch.zeros(len(ages), 1, 2) * self.gain
        return {"logits": logits}, TensorDict({"ages": ages + 1}, [len(ages)])

    def value_function(self) -> torch.Tensor:
        return torch.zeros(len(self.ages[-1]), 1)


class ActionsKept(RecordedEnv):
    """Keeps the actions that it is given."""

    actions: list[torch.Tensor]

    def reset(self, *, config: Any = None) -> torch.Tensor:
        self.actions = []
        return super().reset(config=config)

    def step(self, action: Any) -> TensorDict:
        self.actions.append(action.clone())
        return super().step(action)


def recorded(steps: int = 12, **rows: torch.Tensor) -> ActionsKept:
    """Two environments; rows that are not given end no episode."""
    no = flags(steps, 2)
    rows = {"terminated": no, "truncated": no, "first": no, **rows}
    obs = torch.arange(2.0 * (steps + 1)).view(steps + 1, 2, 1)
    return ActionsKept(obs, 4, rewards=torch.ones(steps, 2, 1), **rows)


def test_the_policy_acts_on_the_newest_observation_in_eval_mode() -> None:
    ends = flags(12, 2, (2, 0), (6, 1), (9, 0))
    env = recorded(terminated=ends, first=ends)
    policy = Policy(env.observation_spec, env.action_spec, model_cls=Watching)
    evaluate(policy, env, episodes=2)
    model: Any = policy.model
    assert torch.equal(torch.stack(model.seen), env.obs[:7])
    assert model.modes == {False}


def test_without_episodes_each_horizon_begins_with_a_reset() -> None:
    env = RecordedEnv(torch.arange(18.0).view(9, 2, 1), 4, rewards=torch.ones(8, 2, 1))
    policy = Policy(env.observation_spec, env.action_spec, model_cls=Watching)
    run_episodes(policy, env, episodes=3)
    model: Any = policy.model
    assert torch.equal(torch.stack(model.seen), env.obs[:4].repeat(2, 1, 1))


def test_recurrent_states_start_anew_where_an_episode_opens() -> None:
    """After a reset in the same env step, after one in the env step behind it, and at first."""
    first = flags(12, 2, (2, 0), (5, 1))
    ends = flags(12, 2, (2, 0), (4, 1), (8, 0), (7, 1))
    env = recorded(terminated=ends, first=first)
    policy = RecurrentPolicy(env.observation_spec, env.action_spec, model_cls=WatchingMemory)
    evaluate(policy, env, episodes=4)
    model: Any = policy.model
    expected = [[0, 0], [1, 1], [2, 2], [0, 3], [1, 4], [2, 5], [3, 0], [4, 1], [5, 2]]
    assert model.ages == expected


def test_invalid_rows_end_nothing_count_nothing_and_earn_nothing() -> None:
    """Whatever they return."""
    valid = ~flags(12, 2, (1, 0), (4, 1), (6, 1))
    ends = flags(12, 2, (5, 0), (7, 1)) | ~valid
    env = recorded(terminated=ends, first=ends, valid=valid)
    env.rows["rewards"] = torch.where(valid, 1.0, torch.nan)
    policy = Policy(env.observation_spec, env.action_spec, model_cls=Watching)
    returns, lengths = run_episodes(policy, env, episodes=2)
    assert returns.tolist() == lengths.tolist() == [5.0, 6.0]


@pytest.mark.parametrize("deterministic", [True, False])
def test_actions_are_the_likeliest_or_drawn(deterministic: bool) -> None:
    ends = flags(60, 2, (59, 0), (59, 1))
    env = recorded(60, terminated=ends, first=ends)
    policy = Policy(env.observation_spec, env.action_spec, model_cls=Watching)
    evaluate(policy, env, episodes=2, deterministic=deterministic)
    taken = torch.stack(env.actions).float().mean()
    assert taken == 1.0 if deterministic else 0.2 < taken < 0.8
