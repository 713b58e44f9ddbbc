"""Parts that others refer to cannot be replaced, and held iterators do not hold updates."""

import copy
import gc
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from everstep import (
    AlgorithmConfig,
    ContinuousDummyEnv,
    DiscreteDummyEnv,
    Policy,
    RecurrentAlgorithmConfig,
    Trainer,
)
from everstep.algorithms.build import Parts
from everstep.core.hyperparameters import LIVE
from everstep.core.synonyms import PYTORCHRL_NAMES
from everstep.errors import ConfigError, NotBufferedError

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 4, "device": "cpu", "seed": 0}
CONFIGS = [AlgorithmConfig, RecurrentAlgorithmConfig]


def built(config: Any = AlgorithmConfig, **options: Any) -> Any:
    return config(**{**SMALL, **options}).build(ContinuousDummyEnv)


@pytest.mark.parametrize("config", CONFIGS)
def test_parts_of_an_algorithm_cannot_be_replaced(config: Any) -> None:
    algorithm, other = built(config), built(config)
    names = [field.name for field in fields(Parts) if hasattr(algorithm, field.name)]
    assert {"policy", "optimizer", "env", "rollout", "objective", "lr_scheduler"} <= {*names}
    for name in {*names} - {"chunk_size"}:
        before = getattr(algorithm, name)
        with pytest.raises(AttributeError, match=rf"\.{name}` cannot be set: .* Instead, \w+"):
            setattr(algorithm, name, getattr(other, name))
        assert getattr(algorithm, name) is before


def test_hyperparameters_are_no_attributes_to_set() -> None:
    algorithm = built()
    for name in [*(f.name for f in fields(AlgorithmConfig)), *PYTORCHRL_NAMES]:
        with pytest.raises(AttributeError, match="cannot be set") as caught:
            setattr(algorithm, name, 0.5)
        if name in LIVE or name in PYTORCHRL_NAMES:
            assert f"`update_algorithm_parameter('{name}', …)`" in str(caught.value)


def test_the_config_of_an_algorithm_cannot_be_changed_in_place() -> None:
    given = AlgorithmConfig(**SMALL)
    algorithm: Any = given.build(ContinuousDummyEnv)
    names = [f.name for f in fields(AlgorithmConfig)]
    for gamma in (0.5, 0.25):
        for name in names:
            with pytest.raises(AttributeError, match="cannot be set"):
                setattr(algorithm.config, name, None)
        algorithm.update_algorithm_parameter("gamma", gamma)
        assert (algorithm.config.gamma, algorithm.gamma) == (gamma, gamma)
    for name in names:
        setattr(given, name, None)  # the caller's own
    assert replace(algorithm.config, gamma=0.125).gamma == 0.125


@pytest.mark.parametrize("config", CONFIGS)
def test_parts_of_a_policy_that_is_trained_cannot_be_replaced(config: Any) -> None:
    options = {"normalize_observations": True, "normalize_values": True}
    algorithm, other = (built(config, **options) for _ in range(2))
    for name in ("model", "normalizer", "value_normalizer"):
        with pytest.raises(AttributeError, match=rf"`policy.{name}` cannot be set .* Instead, \w+"):
            setattr(algorithm.policy, name, getattr(other.policy, name))
    with pytest.raises(AttributeError, match="seq_len"):
        algorithm.policy.seq_len = 2
    assert algorithm.policy.to("cpu") is algorithm.policy
    algorithm.collect()
    algorithm.step()


def test_a_policy_of_one_s_own_has_another_model() -> None:
    env = ContinuousDummyEnv(2)
    policies = [Policy(env.observation_spec, env.action_spec) for _ in range(2)]
    policies[0].model = policies[1].model
    assert policies[0].model is policies[1].model


def test_a_layer_that_the_optimizer_does_not_know_is_found() -> None:
    algorithm = built()
    algorithm.collect()
    name, layer = next(
        (k, m) for k, m in algorithm.policy.model.named_modules() if isinstance(m, nn.Linear)
    )
    owner, _, last = name.rpartition(".")
    setattr(algorithm.policy.model.get_submodule(owner), last, copy.deepcopy(layer))
    with pytest.raises(ConfigError, match="were put into it after the algorithm was built"):
        algorithm.step()


@pytest.mark.parametrize("name", ["algorithm", "eval_env", "callbacks", "logger", "run_dir"])
def test_parts_of_a_trainer_cannot_be_replaced(name: str) -> None:
    trainer = Trainer(DiscreteDummyEnv, run_dir=None, **SMALL)
    with pytest.raises(AttributeError, match=rf"`Trainer.{name}` cannot be set: .* Instead, "):
        setattr(trainer, name, getattr(trainer, name))
    trainer.eval_episodes = 3
    trainer.my_own = 1


# ---- iterators ---------------------------------------------------------------------------------


def test_an_update_whose_iterator_is_held_ends_with_the_next_rollout() -> None:
    algorithm = built(lr_schedule=[(0, 1e-2), (16, 1e-4)], sgd_minibatch_size=8)
    algorithm.collect()
    held = algorithm.minibatches()
    for _ in held:
        break
    assert algorithm.state.env_steps == 0
    algorithm.collect()
    assert algorithm.state.env_steps == 16
    assert algorithm.optimizer.param_groups[0]["lr"] == 1e-4
    with pytest.raises(NotBufferedError, match="has collected another rollout since"):
        next(held)
    held.close()
    held.close()
    algorithm.step()
    assert algorithm.state.env_steps == 32


@pytest.mark.slow
def test_an_update_ends_once_however_its_iterator_does() -> None:
    algorithm = built(sgd_minibatch_size=8)
    for end in ("exhausted", "closed", "dropped", "evaluated"):
        before = algorithm.state.env_steps
        algorithm.collect()
        held = algorithm.minibatches()
        next(held)
        if end == "exhausted":
            list(held)
        elif end == "closed":
            held.close()
        elif end == "evaluated":
            moments = algorithm.get_moments()
            with algorithm.evaluating():
                algorithm.collect()
            assert algorithm.get_moments().keys() == moments.keys()
        del held
        gc.collect()
        assert algorithm.state.env_steps == before + 16, end


def test_minibatches_that_were_not_asked_for_change_nothing() -> None:
    algorithm = built(sgd_minibatch_size=8)
    algorithm.collect()
    unasked = algorithm.minibatches()
    unasked.close()
    assert algorithm.state.env_steps == 0
    assert list(unasked) == []
    asked = algorithm.minibatches()
    next(asked)
    with pytest.raises(NotBufferedError):
        algorithm.minibatches()
    assert algorithm.state.env_steps == 0
    list(asked)
    assert algorithm.state.env_steps == 16


def test_a_copy_does_not_end_the_update_of_its_original() -> None:
    algorithm = built(sgd_minibatch_size=8)
    algorithm.collect()
    held = algorithm.minibatches()
    next(held)
    other = copy.deepcopy(algorithm)
    other.collect()
    assert algorithm.state.env_steps == 0
    assert len(list(held)) > 1
    assert algorithm.state.env_steps == 16
    torch.testing.assert_close(*(a.rollout.rewards * 0 for a in (algorithm, other)))
