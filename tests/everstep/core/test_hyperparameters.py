"""Hyperparameters that two algorithms are built from."""

from typing import Any

import pytest
import torch

from everstep import AlgorithmConfig, ContinuousDummyEnv
from everstep.errors import ConfigError


@pytest.mark.parametrize("names", [("lr",), ("lr_pi", "lr_v")])
def test_algorithms_of_one_config_do_not_share_a_learning_rate(names: tuple[str, ...]) -> None:
    rates = {name: torch.tensor(1e-3) for name in names}
    config = AlgorithmConfig(num_envs=2, horizon=4, seed=0, optimizer_config=dict(rates))
    first, second = config.build(ContinuousDummyEnv), config.build(ContinuousDummyEnv)
    for group in first.optimizer.param_groups:
        group["lr"].fill_(0.5)  # as a schedule does
    assert _learning_rates(second) == pytest.approx([1e-3] * len(names))
    assert [float(x) for x in rates.values()] == pytest.approx([1e-3] * len(names))


def test_a_schedule_does_not_write_into_the_config() -> None:
    lr = torch.tensor(1e-3)
    config = AlgorithmConfig(
        num_envs=2, horizon=4, seed=0, optimizer_config={"lr": lr}, lr_schedule=[(0, 0.25)]
    )
    assert _learning_rates(config.build(ContinuousDummyEnv)) == [0.25]
    assert float(lr) == pytest.approx(1e-3)


def _learning_rates(algorithm: Any) -> list[float]:
    return [float(group["lr"]) for group in algorithm.optimizer.param_groups]


def test_lr_is_the_optimizers_learning_rate() -> None:
    config = AlgorithmConfig(num_envs=2, horizon=4, lr=0.25, optimizer_config={"eps": 1e-5})
    (group,) = config.build(ContinuousDummyEnv).optimizer.param_groups
    assert (group["lr"], group["eps"]) == (0.25, 1e-5)


def test_lr_changes_where_it_was_set() -> None:
    algorithm = AlgorithmConfig(num_envs=2, horizon=4, lr=0.25).build(ContinuousDummyEnv)
    algorithm.update_algorithm_parameter("lr", 0.5)
    assert _learning_rates(algorithm) == [0.5]
    algorithm.update_algorithm_parameter("gamma", 0.5)  # the config with both is valid
    assert algorithm.hparams.lr == 0.5


def test_lr_is_given_once() -> None:
    with pytest.raises(ConfigError) as raised:
        AlgorithmConfig(lr=0.25, optimizer_config={"lr": 0.5}).validate()
    assert raised.value.problems == (
        "`lr` and `optimizer_config.lr` are one learning rate; got 0.25 and 0.5. Drop one of them.",
    )


class Asking(torch.optim.SGD):
    """Asks the driver whether a graph is captured, as optimizers do where PyTorch has CUDA."""

    def step(self, closure: Any = None) -> Any:
        torch.cuda.is_current_stream_capturing()


class Failing(torch.optim.SGD):
    """Fails by itself, with CUDA in its words."""

    def step(self, closure: Any = None) -> Any:
        raise RuntimeError("CUDA is needed by this optimizer")


def test_a_trial_step_passes_over_a_missing_driver_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_current_stream_capturing() -> bool:
        raise RuntimeError("CUDA error: no driver")

    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", is_current_stream_capturing)
    AlgorithmConfig(optimizer_cls=Asking).validate()
    with pytest.raises(ConfigError, match="Failing cannot take a step here: CUDA is needed"):
        AlgorithmConfig(optimizer_cls=Failing).validate()
