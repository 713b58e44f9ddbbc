"""Metrics of an environment of one's own: the protocol's `metrics`."""

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from everstep import AlgorithmConfig, DiscreteDummyEnv, Trainer
from everstep.env.calls import read_metrics
from everstep.errors import EnvError


class Measured(DiscreteDummyEnv):
    """Sums distances in place; `metrics` is their mean since its last call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.distances, self.steps = torch.zeros(()), 0

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        outcome = super().step(action)
        self.distances += self.state.abs().mean()
        self.steps += 1
        return outcome

    def metrics(self) -> dict[str, Any]:
        mean = self.distances / self.steps if self.steps else math.nan
        self.distances, self.steps = torch.zeros(()), 0
        return {"distance": mean, "level": 3, "unknown": math.nan}


def test_metrics_are_logged_with_the_rollout_they_belong_to() -> None:
    algorithm = AlgorithmConfig(num_envs=4, horizon=8).build(Measured)
    for _ in range(2):
        stats: dict[str, Any] = {**algorithm.collect()}
        assert stats["env/distance"] == pytest.approx(-stats["rewards/mean"], rel=1e-5)
        assert stats["env/level"] == 3.0
        assert "env/unknown" not in stats


def test_they_reach_loggers_and_evaluations() -> None:
    logged: list[dict[str, float]] = []

    class Sink:
        def log_params(self, params: Any) -> None: ...

        def log_metrics(self, metrics: Any, *, step: int) -> None:
            logged.append(dict(metrics))

        def close(self, status: str = "FINISHED") -> None: ...

    with Trainer(
        Measured, num_envs=4, horizon=8, run_dir=None, loggers=[Sink()], eval_env=Measured(2, 8)
    ) as trainer:
        trainer.step()
        trainer.eval(episodes=3)
    assert logged[0]["env/level"] == logged[1]["eval/env/level"] == 3.0
    assert logged[1]["eval/env/distance"] > 0


class Returning:
    """Not an environment: `metrics` returns what it was given."""

    def __init__(self, returned: Any) -> None:
        self.metrics = lambda: returned


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("reward/forward", "env/reward/forward"),
        ("speed (m/s) #1", "env/speed _m/s_ _1"),
        ("steps", "env/steps_"),
        ("resets", "env/resets_"),
    ],
)
def test_names_are_those_that_mlflow_accepts(name: str, key: str) -> None:
    assert read_metrics(Returning({name: True})) == {key: 1.0}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "must return a mapping of names to numbers; got list"),
        ({"x": torch.zeros(3)}, r"got \[3\] for 'x'"),
        ({"x": "far"}, "got 'far' for 'x'"),
        ({"x": None}, "got None for 'x'"),
    ],
)
def test_what_is_no_number_is_refused(returned: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        read_metrics(Returning(returned))


def test_an_attribute_of_that_name_is_not_called() -> None:
    env = DiscreteDummyEnv(2)
    env.metrics = {"mine": 1}  # type: ignore[attr-defined]
    assert read_metrics(env) == {}
