"""Memory of training: the rollout, once, and one chunk of a minibatch.

Observations are wide here, so that the rollout outweighs what belongs to single rows; networks and
chunks are small, so that a second buffer could not hide behind them.
"""

import importlib
from typing import Any

import pytest
import torch
from torchrl.data import Bounded, Unbounded

from everstep import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.bonuses import _rnd
from everstep.models import Model
from everstep.views import ViewRequirement

#: The rollout, and what is there beside it and a chunk, at most, to the rollout.
BOUND = 1.15


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark that measures this, with chunks of 128 rows."""
    monkeypatch.setattr("everstep.algorithms.build.CHUNK_ROWS", 128)
    monkeypatch.setattr("everstep.algorithms.estimates.FINAL_ROWS", 128)
    monkeypatch.setattr(_rnd, "CHUNK", 128)
    return importlib.import_module("everstep_lab.studies.memory")


class Windowed(Model):
    """Sees the mean of a window."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.view_requirements["obs"] = ViewRequirement(shift=3)
        width = observation_spec.shape.numel()
        self.policy, self.value = torch.nn.Linear(width, 4), torch.nn.Linear(width, 1)

    def forward(self, batch: Any, /) -> Any:
        self.seen = batch["obs", "inputs"].mean(1)
        return {"logits": self.policy(self.seen).unsqueeze(1)}

    def value_function(self) -> torch.Tensor:
        return self.value(self.seen)


NUMBERS, IMAGES = Unbounded(256), Bounded(0, 255, (4, 36, 36), dtype=torch.uint8)
SMALL: dict[str, Any] = {"model_config": {"hiddens": (8,)}}
BONUS = {"rnd": {"pre_normalization_steps": 0, "features": 8, "hiddens": (8,)}}

#: Observations, whether episodes end, kind of algorithm, options.
CASES: dict[str, tuple[Any, bool, Any, dict[str, Any]]] = {
    "whole": (NUMBERS, False, AlgorithmConfig, SMALL),
    "shuffled": (NUMBERS, False, AlgorithmConfig, {**SMALL, "sgd_minibatch_size": 512}),
    "episodes": (NUMBERS, True, AlgorithmConfig, SMALL),
    "normalized": (
        NUMBERS,
        True,
        AlgorithmConfig,
        {**SMALL, "normalize_observations": True, "normalize_rewards": "running"},
    ),
    "bonus": (NUMBERS, True, AlgorithmConfig, {**SMALL, "bonuses": [BONUS]}),
    "windows": (NUMBERS, False, AlgorithmConfig, {"model_cls": Windowed}),
    "images": (IMAGES, False, AlgorithmConfig, {"sgd_minibatch_size": 64}),
    "recurrent": (
        NUMBERS,
        True,
        RecurrentAlgorithmConfig,
        {"seq_len": 8, "sgd_minibatch_size": 16, "model_config": {"hidden_size": 8}},
    ),
}


def build(memory: Any, name: str) -> Any:
    spec, ends, config, options = CASES[name]
    defaults = {"seed": 0, "num_sgd_iters": 1, "horizons_per_env_reset": -1}
    return config(**{**defaults, **options}).build(memory.Noise(spec, 64, 64, ends=ends))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_rollout_and_a_chunk_are_all_there_is(memory: Any, name: str) -> None:
    algorithm = build(memory, name)
    budget = memory.Budget.of(algorithm)
    assert max(budget.ratios) <= BOUND, budget
    observations = min(leaf.nbytes for leaf in algorithm.rollout.obs)
    assert max(budget.collect.largest, budget.step.largest) < observations


def test_a_second_buffer_is_noticed(memory: Any) -> None:
    algorithm = build(memory, "whole")
    collect = algorithm.collect

    def careless() -> None:
        copies = [leaf.clone() for leaf in algorithm.rollout.obs]
        collect()
        del copies

    algorithm.collect = careless
    budget = memory.Budget.of(algorithm)
    assert budget.ratios[0] > BOUND
    assert budget.collect.largest >= algorithm.rollout.obs[0].nbytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["episodes", "bonus", "recurrent"])
def test_storage_stays_where_it_is(memory: Any, name: str) -> None:
    algorithm = build(memory, name)
    addresses = []
    for _ in range(3):
        algorithm.collect()
        algorithm.step()
        kept = [x for bonus in algorithm.bonuses for x in bonus.cache]
        tensors = [*memory.tensors_of(algorithm.rollout), *kept]
        assert len(tensors) > 15
        addresses.append([x.data_ptr() for x in tensors])
    assert addresses[0] == addresses[1] == addresses[2]
