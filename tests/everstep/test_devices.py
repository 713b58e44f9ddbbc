"""A policy and an environment on two devices are refused with both; "meta" is the other one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from everstep import AlgorithmConfig, DiscreteDummyEnv, RecurrentAlgorithmConfig, Trainer
from everstep.errors import ConfigError
from everstep.evaluation import evaluate
from everstep.visualization._playing import play_episodes

BOTH = r"policy is on the device cpu, and DiscreteDummyEnv on meta: .*policy\.to\('meta'\)"


def built(config: Any = AlgorithmConfig) -> Any:
    return config(seed=0).build(DiscreteDummyEnv(4, 8))


@pytest.mark.parametrize("config", [AlgorithmConfig, RecurrentAlgorithmConfig])
def test_evaluations(config: Any) -> None:
    with pytest.raises(ConfigError, match=BOTH):
        evaluate(built(config).policy, DiscreteDummyEnv(4, 8, device="meta"), episodes=4)


def test_playing() -> None:
    with pytest.raises(ConfigError, match=BOTH):
        next(iter(play_episodes(built().policy, DiscreteDummyEnv(1, 8, device="meta"), episodes=1)))


def test_evaluations_of_a_trainer() -> None:
    env = DiscreteDummyEnv(4, 8, device="meta")
    with pytest.raises(ConfigError, match=BOTH):
        Trainer(DiscreteDummyEnv(4, 8), eval_env=env, run_dir=None, progress=False).eval()


def test_a_policy_that_was_moved() -> None:
    algorithm = built()
    algorithm.collect()
    algorithm.step()
    algorithm.policy.to("meta")
    with pytest.raises(ConfigError, match="device meta, and DiscreteDummyEnv on cpu"):
        algorithm.collect()


def test_the_index_that_a_device_has_by_default_is_no_difference() -> None:
    env = DiscreteDummyEnv(4, 8)
    env.device = "cpu:0"
    assert evaluate(built().policy, env, episodes=4)["episodes/count"] == 4


@pytest.mark.parametrize("form", [lambda x: x, lambda x: x[0]])
def test_predictions(form: Callable[[Any], Any]) -> None:
    policy = built().policy
    with pytest.raises(ValueError, match=r"`obs` must be a tensor that .* on the device meta"):
        policy.predict(form(torch.zeros(4, 1, device="meta")))
