"""Environments of specs, ids, classes, functions and instances, as `resolve` tells them apart."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import everstep
from everstep.env import DiscreteDummyEnv
from everstep.env.registry import resolve
from everstep.errors import AdapterError, ConfigError

SMALL: dict[str, Any] = {"num_envs": 2, "horizon": 8}


class Walk(gym.Env[Any, Any]):
    """A walk on a line that ends at `end`."""

    observation_space = gym.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    #: Environments that are open.
    count = 0

    def __init__(self, end: int = 3) -> None:
        self.end, self.x = end, 0
        type(self).count += 1

    def reset(self, *, seed: None | int = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.x += 1
        return np.full(1, self.x, np.float32), 1.0, self.x == self.end, False, {}

    def close(self) -> None:
        type(self).count -= 1


def make_walk() -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(Walk(), 2)


def make_walks() -> gym.vector.VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([Walk, Walk])


SINGLE = {
    "class": Walk,
    "function": make_walk,
    "lambda": lambda: Walk(5),
    "partial": partial(Walk, end=4),
    "partial of make": partial(gym.make, "CartPole-v1"),
    "id": "CartPole-v1",
    "spec": "gymnasium:CartPole-v1",
}


@pytest.mark.parametrize("source", SINGLE.values(), ids=SINGLE.keys())
def test_every_source_of_single_environments_makes_batches(source: Any) -> None:
    env = everstep.make(source, 3, horizon=16)
    assert (env.num_envs, env.horizon) == (3, 16)
    env.reset()
    assert env.step(torch.zeros(3, 1, dtype=torch.int64))["rewards"].sum() == 3
    env.close()
    factory = everstep.factory(source)
    assert (factory.default_num_envs, factory.default_horizon) == (8, (256, 128))  # type: ignore[attr-defined]


@pytest.mark.parametrize("source", SINGLE.values(), ids=SINGLE.keys())
def test_a_trainer_takes_every_source(source: Any) -> None:
    trainer = everstep.Trainer(source, run_dir=None, **SMALL)
    assert trainer.step()["algorithm/steps"] == 1
    assert everstep.AlgorithmConfig(**SMALL).build(source).env.num_envs == 2
    config = everstep.TrainConfig(source, **SMALL)
    assert config.build(run_dir=None).algorithm.env.num_envs == 2


def test_recurrent_policies_train_on_the_same_sources() -> None:
    trainer = everstep.RecurrentTrainer(Walk, run_dir=None, **SMALL)
    assert trainer.step()["algorithm/steps"] == 1
    assert everstep.RecurrentAlgorithmConfig(**SMALL).build("CartPole-v1").env.num_envs == 2


def test_options_reach_the_environment_and_the_adapter() -> None:
    env = everstep.make(Walk, 2, end=7, max_episode_steps=5, autoreset_mode="SAME_STEP")
    env.reset()
    for t in range(1, 8):
        row = env.step(torch.zeros(2, 1, dtype=torch.int64))
        assert bool(row["truncated"].all()) is (t == 5)
    assert "final_obs" in env.episode_keys
    wrapped = everstep.make(
        Walk, 1, wrappers=[partial(gym.wrappers.TimeLimit, max_episode_steps=1)]
    )
    wrapped.reset()
    assert bool(wrapped.step(torch.zeros(1, 1, dtype=torch.int64))["truncated"].all())
    with pytest.raises(AdapterError, match="must be 'sync' or 'async'; got 'vector_entry_point'"):
        everstep.make(Walk, 2, vectorization_mode="vector_entry_point")
    with pytest.raises(AdapterError, match=r"Gymnasium cannot make 'Walk': .*unexpected.*'ende'"):
        everstep.make(Walk, 2, ende=3)


@pytest.mark.slow
def test_copies_step_in_processes_of_their_own() -> None:
    with everstep.make(make_walk, 2, vectorization_mode="async") as env:
        assert isinstance(env.env, AsyncVectorEnv)  # type: ignore[attr-defined]
        env.reset()
        assert env.step(torch.zeros(2, 1, dtype=torch.int64))["rewards"].sum() == 2


@pytest.mark.parametrize("source", [make_walks, make_walks(), everstep.wrap(make_walks())])
def test_a_batch_keeps_its_size(source: Any) -> None:
    trainer = everstep.Trainer(source, run_dir=None, horizon=8)
    assert trainer.step()["algorithm/steps"] == 1
    assert trainer.algorithm.env.num_envs == 2
    with pytest.raises(ConfigError, match="`num_envs` is 3, but the environment has 2"):
        everstep.Trainer(source, run_dir=None, num_envs=3)
    with pytest.raises(AdapterError, match="is a batch of 2 environments that is made already"):
        everstep.make(source, 2)


def test_an_everstep_environment_may_come_from_a_function_too() -> None:
    assert everstep.Trainer(lambda: DiscreteDummyEnv(4), run_dir=None).algorithm.env.num_envs == 4
    defaults = everstep.Trainer(DiscreteDummyEnv, run_dir=None, num_envs=4)
    assert defaults.algorithm.env.num_envs == 4


def test_an_evaluation_gets_a_batch_of_its_own() -> None:
    for source in (make_walks, make_walk):
        trainer = everstep.TrainConfig(source, horizon=8, eval_episodes=2).build(run_dir=None)
        assert trainer.eval_env is not None
        assert trainer.eval_env is not trainer.algorithm.env
        assert trainer.eval(episodes=2)["eval/episodes/count"] == 2  # type: ignore[typeddict-item]


def test_the_caller_s_environment_stays_open_when_building_fails() -> None:
    Walk.count = 0
    env = make_walks()
    for source in (make_walks, make_walk, Walk):
        with pytest.raises(ConfigError, match="must divide"):
            everstep.Trainer(source, run_dir=None, horizon=8, sgd_minibatch_size=7)
        assert Walk.count == 2  # what was made for the trainer is closed
    with pytest.raises(ConfigError, match="must divide"):
        everstep.Trainer(env, run_dir=None, horizon=8, sgd_minibatch_size=7)
    assert Walk.count == 2
    env.close()


def everstep_factory(num_envs: int, horizon: None | int = None, *, device: Any = "cpu") -> Any:
    return DiscreteDummyEnv(num_envs, horizon, device=device)


def with_defaults(num_envs: int = 4, horizon: int = 8, device: Any = "cpu") -> Any:
    return DiscreteDummyEnv(num_envs, horizon, device=device)


@pytest.mark.parametrize(
    "source",
    [
        DiscreteDummyEnv,
        everstep_factory,
        with_defaults,
        lambda *arguments, **options: DiscreteDummyEnv(*arguments, **options),
    ],
)
def test_an_everstep_factory_is_called_with_sizes(source: Callable[..., Any]) -> None:
    assert resolve(source) is source
    env = everstep.make(source, 3, horizon=5)
    assert (env.num_envs, env.horizon) == (3, 5)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda rank: Walk(), r"<lambda>\(rank\) cannot make environments"),
        (lambda: 3, r"<lambda>\(\) must return an environment; got 3"),
        (3, r"Expected an environment, a class, .* or a spec such as gymnasium:CartPole-v1; got 3"),
        (Walk(), r"single Gymnasium environment.*its class, or a function that makes one"),
    ],
)
def test_what_makes_no_environment_is_told(source: Any, message: str) -> None:
    for build in (everstep.Trainer, everstep.RecurrentTrainer, everstep.AlgorithmConfig().build):
        with pytest.raises(AdapterError, match=message):
            build(source)


def test_a_recurrent_policy_has_a_trainer_of_its_own() -> None:
    for trainer in (everstep.Trainer, everstep.RecurrentTrainer):
        with pytest.raises(ConfigError, match="`RecurrentTrainer` trains a recurrent policy"):
            trainer("CartPole-v1", recurrent=True)


def test_wrap_sends_classes_to_make() -> None:
    with pytest.raises(AdapterError, match=r"use `everstep.make\(Walk, num_envs\)`"):
        everstep.wrap(Walk)


@pytest.mark.parametrize(
    ("source", "recorded"),
    [
        ("CartPole-v1", "env_cls: gymnasium:CartPole-v1\n"),
        (Walk, f"env_cls: {__name__}.Walk\n"),
        (make_walk, f"env_cls: {__name__}.make_walk\n"),
        (lambda: Walk(), None),
    ],
)
def test_the_record_names_the_source(source: Any, recorded: None | str, tmp_path: Path) -> None:
    with everstep.Trainer(source, run_dir=tmp_path, track=False, **SMALL):
        text = (tmp_path / "config.yaml").read_text()
    assert ("env_cls:" in text) is (recorded is not None)
    assert recorded is None or recorded in text


def test_a_torchrl_class_and_a_function() -> None:
    torchrl = pytest.importorskip("torchrl.envs")
    for source in (torchrl.PendulumEnv, lambda: torchrl.PendulumEnv()):
        assert everstep.make(source, 3).num_envs == 3
        assert everstep.Trainer(source, run_dir=None, **SMALL).step()["algorithm/steps"] == 1
