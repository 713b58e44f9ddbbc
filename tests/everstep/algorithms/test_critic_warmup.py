"""Updates at the start that train the values alone."""

from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import gymnasium as gym
import pytest
import torch

import everstep
from everstep import AlgorithmConfig
from everstep.algorithms.recording import Recorder
from everstep.core.graphs import Tape
from everstep.distillation import Distillation
from everstep.errors import ConfigError
from tests.toys import TERMINATED, Episode, RecordedEnv, ScriptedEnv

HORIZON, ENVS = 8, 4
RND = {"rnd": {"pre_normalization_steps": 1, "pre_normalization_length": 2}}
ROLLOUT = HORIZON * ENVS


def env(
    *,
    ends: bool | int = False,
    has_keys: bool = True,
    limit: None | int = None,
    rewarded_from: int = 0,
) -> RecordedEnv:
    """Random rows of forty rollouts.

    `ends` is the vector step of the first end of an episode, `rewarded_from` that of the first
    reward, in one environment, that is not 0.
    """
    generator = torch.Generator().manual_seed(0)
    steps = 40 * HORIZON
    obs = torch.randn(steps + 1, ENVS, 3, generator=generator)
    terminated = torch.zeros(steps, ENVS, 1, dtype=torch.bool)
    if ends is not False:
        terminated[int(ends) :: HORIZON, 1] = True
    keys = {"terminated": terminated, "truncated": torch.zeros_like(terminated)}
    keys["first"] = terminated
    rewards = obs[1:, :, :1].cos()
    rewards[:rewarded_from] = 0.0
    rewards[: rewarded_from + 1, 1:] = 0.0
    made = RecordedEnv(obs, HORIZON, rewards=rewards, **(keys if has_keys else {}))
    made.max_episode_steps = limit
    return made


def built(source: RecordedEnv, **options: Any) -> Any:
    plain: dict[str, Any] = {"sgd_minibatch_size": 16, "num_sgd_iters": 2, "seed": 0}
    if source.episode_keys:  # the record goes on
        plain["horizons_per_env_reset"] = -1
    algorithm: Any = AlgorithmConfig(**plain | options).build(source)
    return algorithm


def parts_that_change(algorithm: Any, updates: int) -> list[str]:
    """Of each update, which networks it changes."""
    model, found = algorithm.policy.model, []
    for _ in range(updates):
        parts = {"policy": model.policy, "values": model.vf_model}
        before = {k: [x.clone() for x in part.parameters()] for k, part in parts.items()}
        algorithm.collect()
        algorithm.step()
        changed = [
            name
            for name, part in parts.items()
            if not all(map(torch.equal, before[name], part.parameters()))
        ]
        found.append("+".join(changed))
    return found


HELD, LEARNS = "values", "policy+values"


@pytest.mark.parametrize("way", ["native", "general", "recorded"])
@pytest.mark.parametrize(
    ("options", "source", "expected"),
    [
        ({}, {}, [HELD, HELD, LEARNS]),  # nothing is ever reset
        ({}, {"ends": 2}, [LEARNS] * 3),
        ({}, {"ends": HORIZON + 2}, [HELD, LEARNS, LEARNS]),
        ({}, {"has_keys": False}, [LEARNS] * 3),  # all are reset together
        ({}, {"limit": 500}, [LEARNS] * 3),
        ({"horizons_per_env_reset": 1}, {}, [LEARNS] * 3),
        ({"horizons_per_env_reset": "restarts"}, {}, [LEARNS] * 3),
        ({"lr_schedule_kind": "adaptive", "target_kl_div": 0.01}, {}, [LEARNS] * 3),
        ({"critic_warmup": 0}, {}, [LEARNS] * 3),
        ({"critic_warmup": ROLLOUT}, {"ends": 2}, [HELD, LEARNS, LEARNS]),
        ({"critic_warmup": ROLLOUT + 1}, {"has_keys": False}, [HELD, HELD, LEARNS]),
        ({}, {"ends": 2, "rewarded_from": HORIZON - 1}, [LEARNS] * 3),
        ({}, {"ends": 2, "rewarded_from": HORIZON}, [HELD, LEARNS, LEARNS]),
        ({}, {"has_keys": False, "rewarded_from": HORIZON - 1}, [LEARNS] * 3),
        ({}, {"has_keys": False, "rewarded_from": HORIZON}, [HELD] * 3),  # it never gets there
        ({"critic_warmup": 0}, {"ends": 2, "rewarded_from": HORIZON}, [LEARNS] * 3),
        ({"bonuses": [RND]}, {"ends": 2, "rewarded_from": HORIZON}, [LEARNS] * 3),
        (
            {"normalize_rewards": False},
            {"ends": 2, "rewarded_from": HORIZON},
            [HELD, LEARNS, LEARNS],
        ),
        (
            {"lr_schedule_kind": "adaptive", "target_kl_div": 0.01},
            {"ends": 2, "rewarded_from": HORIZON},
            [LEARNS] * 3,
        ),
        ({"normalize_advantages": "minibatch"}, {}, [HELD, HELD, LEARNS]),
        ({"normalize_advantages": False, "objective": "a2c"}, {}, [HELD, HELD, LEARNS]),
    ],
)
def test_values_alone_are_trained_while_it_lasts(
    options: dict[str, Any],
    source: dict[str, Any],
    expected: list[str],
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if way != "native":
        monkeypatch.setenv("EVERSTEP_NATIVE", "0")
    algorithm = built(env(**source), **options)
    if way == "recorded":
        algorithm.recorder = Recorder(Tape)
    assert parts_that_change(algorithm, 3) == expected


def test_it_goes_on_after_a_checkpoint() -> None:
    whole = built(env())
    parts_that_change(whole, 3)
    first = built(env())
    assert parts_that_change(first, 1) == [HELD]
    state = first.state_dict()
    second = built(env())
    second.load_state_dict(state)
    assert parts_that_change(second, 2) == [HELD, LEARNS]
    assert all(map(torch.equal, whole.parameters(), second.parameters()))


def test_whether_there_was_a_reward_is_in_checkpoints() -> None:
    source = {"ends": 2, "rewarded_from": HORIZON}
    whole = built(env(**source))
    assert parts_that_change(whole, 1) == [HELD]
    quiet = deepcopy(whole.state_dict())
    assert parts_that_change(whole, 1) == [LEARNS]
    seen = whole.state_dict()
    assert [x["counters"]["rewarded"] for x in (quiet, seen)] == [False, True]
    for state, expected in ((quiet, HELD), (seen, LEARNS)):
        other = built(env(ends=2, rewarded_from=30 * HORIZON), preserve_outputs=False)
        other.load_state_dict(state)
        assert parts_that_change(other, 1) == [expected]
    del seen["counters"]["rewarded"]  # as older versions wrote it
    other.load_state_dict(seen)
    assert other.state.rewarded


def test_rewards_of_evaluations_do_not_count() -> None:
    algorithm = built(env(ends=2, rewarded_from=HORIZON))
    assert parts_that_change(algorithm, 1) == [HELD]
    with algorithm.evaluating():
        assert algorithm.collect()["rewards/max"] > 0
    assert not algorithm.state.rewarded


def test_rollouts_without_a_valid_row_have_no_reward() -> None:
    env = everstep.make(lambda: ScriptedEnv(0, [Episode(1, TERMINATED)]), 1, horizon=1)
    quiet = AlgorithmConfig(sgd_minibatch_size=1, num_sgd_iters=1, seed=0).build(env)
    read = env._calls.step
    env._calls.step = lambda actions: (*(x := read(actions))[:1], x[1] * 0.0, *x[2:])
    counts = [quiet.collect()["env/steps"] for _ in range(4)]
    assert 0 in counts
    assert not quiet.state.rewarded


def test_objectives_without_advantages_wait_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    teacher = built(env()).policy
    algorithm = built(env(ends=2, rewarded_from=30 * HORIZON), objective=Distillation(teacher))
    assert parts_that_change(algorithm, 12)[-1].startswith("policy")
    assert not [x for x in caplog.records if "was 0" in x.getMessage()]


def test_outputs_are_preserved_while_it_waits_for_a_reward() -> None:
    source = env(rewarded_from=30 * HORIZON)
    algorithm = built(source, preserve_outputs=True, normalize_observations=True)
    assert parts_that_change(algorithm, 2) == [HELD, HELD]
    algorithm.collect()
    assert not isinstance(algorithm._preserving(), nullcontext)


@pytest.mark.parametrize("options", [{}, {"critic_warmup": 0}, {"bonuses": [RND]}])
def test_a_warning_says_that_no_reward_was_found(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    options |= {"recompute_advantages": True}
    algorithm = built(env(ends=2, rewarded_from=30 * HORIZON), **options)
    parts_that_change(algorithm, 12)
    warnings = [x.getMessage() for x in caplog.records if "was 0" in x.getMessage()]
    assert len(warnings) == (len(options) == 1)


def test_it_holds_for_gradients_that_are_applied_elsewhere() -> None:
    algorithm = built(env(), critic_warmup=ROLLOUT)
    for is_held in (True, False):
        algorithm.collect()
        (minibatch, *_) = algorithm.minibatches()
        assert bool((minibatch.advantages == 0).all()) is is_held


def test_an_adaptive_rate_excludes_it() -> None:
    with pytest.raises(ConfigError, match=r"`critic_warmup` and `lr_schedule_kind` 'adaptive'.*7"):
        built(env(), critic_warmup=7, lr_schedule_kind="adaptive", target_kl_div=0.01)


def test_adapters_say_how_long_episodes_are_at_most() -> None:
    def small() -> gym.Env[Any, Any]:
        return ScriptedEnv(0, [Episode(3, TERMINATED)])

    def limited() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1", max_episode_steps=70)

    assert everstep.make("CartPole-v1", 2).max_episode_steps == 500
    assert everstep.make("CartPole-v1", 2, max_episode_steps=60).max_episode_steps == 60
    assert everstep.make(limited, 2).max_episode_steps == 70
    assert everstep.make(small, 2).max_episode_steps is None
