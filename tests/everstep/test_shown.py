"""`repr` of public objects: short, on one line, with what tells one from another."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep import AlgorithmConfig, RecurrentAlgorithmConfig, TrainConfig
from everstep.callbacks import Callback
from everstep.distributions import Categorical
from everstep.loggers import MlflowLogger, TensorBoardLogger
from everstep.schedulers import (
    ClipScheduler,
    ConstantScheduler,
    FunctionScheduler,
    InterpScheduler,
    StepScheduler,
)
from everstep.visualization import read_run


class Stops(Callback):
    pass


class Plain:
    """A callback without the base class."""

    def on_start(self, trainer: Any) -> None: ...
    def on_train_step(self, stats: dict[str, Any]) -> None: ...
    def on_evaluation(self, stats: dict[str, Any]) -> None: ...
    def on_checkpoint(self, path: Path) -> None: ...
    def on_end(self, status: str) -> None: ...


def half(left: float) -> float:
    return left / 2


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (AlgorithmConfig(), "AlgorithmConfig()"),
        (
            AlgorithmConfig(lr=1e-3, optimizer_cls=torch.optim.AdamW, model_config={"bias": False}),
            "AlgorithmConfig(model_config={'bias': False}, optimizer_cls=AdamW, lr=0.001)",
        ),
        (RecurrentAlgorithmConfig(seq_len=8), "RecurrentAlgorithmConfig(seq_len=8)"),
        (
            TrainConfig("CartPole-v1", gamma=0.9, callbacks=[Stops(), Plain()], keep_last=3),
            "TrainConfig('gymnasium:CartPole-v1', keep_last=3, callbacks=[Stops(), Plain()], "
            "gamma=0.9)",
        ),
        (Stops(), "Stops()"),
        (ConstantScheduler(0.5), "ConstantScheduler(0.5)"),
        (InterpScheduler([(0, 1.0), (9, 0.0)]), "InterpScheduler([(0, 1.0), (9, 0.0)])"),
        (StepScheduler([(0, 1.0)]), "StepScheduler([(0, 1.0)])"),
        (ClipScheduler(0.2), "ClipScheduler(coeff=0.2, scheduler=ConstantScheduler(0.2))"),
        (everstep.objectives.PPO(AlgorithmConfig(), entropy_coeff=torch.zeros(())), "PPO()"),
        (Categorical({"logits": torch.zeros(2, 1, 3)}, None), "Categorical(logits [2, 1, 3])"),
    ],
)
def test_objects_are_shown_in_short(shown: Any, text: str) -> None:
    assert repr(shown) == text


def test_functions_of_a_schedule_are_named() -> None:
    assert "half" in repr(FunctionScheduler("lr", half, 100))


def test_a_run_and_its_parts_are_shown_on_one_line(tmp_path: Path) -> None:
    with everstep.Trainer(
        everstep.DiscreteDummyEnv,
        num_envs=4,
        horizon=8,
        run_dir=tmp_path / "run",
        track=False,
        callbacks=[Stops(), Plain()],
        progress=False,
    ) as trainer:
        trainer.run(total_env_steps=64)
    algorithm = trainer.algorithm
    assert repr(trainer.callbacks) == "Callbacks([Stops(), Plain()])"
    run = read_run(tmp_path / "run")
    assert repr(run) == f"RunRecord('{tmp_path / 'run'}', 64 env steps, 2 records)"
    parts = (trainer, algorithm, algorithm.policy, algorithm.env, algorithm.hparams, run)
    for part in (*parts, algorithm.lr_scheduler, algorithm.objective, algorithm.state):
        text = repr(part)
        assert "\n" not in text
        assert " object at 0x" not in text, text
        assert len(text) < 500, text


def test_a_logger_of_mlflow_is_shown(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/no/mlflow.db"
    (tmp_path / "no").touch()  # no directory: the store cannot be made
    logger = MlflowLogger(tmp_path, tracking_uri=uri, patience=0.0, wait=0.0)
    assert repr(logger) == f"MlflowLogger({uri}, undelivered=0)"
    logger.close()


def test_a_logger_of_tensorboard_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoardLogger(tmp_path / "board")
    assert repr(board) == f"TensorBoardLogger({tmp_path / 'board'}, undelivered=0)"
    board.close()


#: Public classes whose objects are not made by users, or are given to libraries.
UNSHOWN = {
    *("EnvConformance", "Subject", "Actor", "Follower", "Exploration"),
    *("MLflowPolicyModel", "MLflowRecurrentPolicyModel"),
}


def test_no_public_class_has_pythons_own_repr() -> None:
    found = set()
    for name in (
        *("callbacks", "conditions", "loggers", "bonuses", "objectives", "symmetry", "views"),
        *("distillation", "visualization", "testing", "policies", "env", "models"),
        *("distributions", "adapters"),
    ):
        module = importlib.import_module(f"everstep.{name}")
        for each in getattr(module, "__all__", ()):
            kind = getattr(module, each, None)
            is_class = isinstance(kind, type) and not getattr(kind, "_is_protocol", False)
            if is_class and kind.__repr__ is object.__repr__:
                found.add(each)
    assert found == UNSHOWN
