"""Evaluations and videos that a seed repeats, and how a run was made, as its record says it."""

import shlex
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import Trainer
from everstep.__main__ import main
from everstep.conditions import HitsUpperBound, Or
from everstep.errors import ConfigError
from everstep.loggers import read_metrics
from everstep.trainers import TrainConfig
from everstep.visualization import read_run, write_report
from everstep.visualization._repeating import commands_of

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 16, "seed": 3, "track": False, "progress": False}


def evaluations(trainer: Any, **options: Any) -> list[dict[str, float]]:
    """Statistics of three evaluations, with train steps between them."""
    found = []
    with trainer:
        for _ in range(3):
            trainer.step()
            found.append(trainer.eval(episodes=4, **options))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluations_of_one_seed_are_the_same(deterministic: bool) -> None:
    def trained(**options: Any) -> list[dict[str, float]]:
        made = everstep.make("gymnasium:CartPole-v1", 2)
        trainer = Trainer("CartPole-v1", eval_env=made, run_dir=None, **{**SMALL, **options})
        return evaluations(trainer, deterministic=deterministic)

    first = trained()
    assert first == trained()
    assert first != trained(seed=4)


@pytest.mark.slow
def test_the_trainer_of_a_file_evaluates_as_that_of_a_program() -> None:
    options = {k: x for k, x in SMALL.items() if k not in ("track", "progress")}
    config = TrainConfig("CartPole-v1", eval_episodes=4, total_env_steps=64, **options)
    from_file = evaluations(config.build(run_dir=None, progress=False))
    made = everstep.make("gymnasium:CartPole-v1", 4)
    program = Trainer("CartPole-v1", eval_env=made, eval_episodes=4, run_dir=None, **SMALL)
    assert from_file == evaluations(program)


@pytest.mark.slow
def test_a_seed_that_was_drawn_repeats_evaluations(tmp_path: Path) -> None:
    def trained(run_dir: Path, **options: Any) -> Any:
        made = everstep.make("gymnasium:CartPole-v1", 2)
        trainer = Trainer("CartPole-v1", eval_env=made, run_dir=run_dir, **{**SMALL, **options})
        return trainer.algorithm.hparams.seed, evaluations(trainer)

    seed, first = trained(tmp_path / "a", seed=None)
    assert first == trained(tmp_path / "b", seed=seed)[1]


def test_the_environment_of_the_training_is_no_evaluation_environment() -> None:
    env = everstep.make("gymnasium:CartPole-v1", 4, horizon=16)
    with pytest.raises(ConfigError, match="`eval_env` is the environment of the training"):
        Trainer(env, eval_env=env, run_dir=None, seed=0)


# ---- budgets and schedules ---------------------------------------------------------------------


class Rates(everstep.callbacks.Callback):
    """Keeps env steps and learning rate of every train step."""

    def __init__(self) -> None:
        self.found: list[tuple[int, float]] = []

    def on_train_step(self, stats: dict[str, Any]) -> None:
        self.found.append((stats["env/steps"], stats["coefficients/lr"]))


class Steady(everstep.DiscreteDummyEnv):
    """An environment whose rollouts have 8 env steps, and whose rates anneal."""


DUMMY: dict[str, Any] = {
    **{"num_envs": 2, "horizon": 4, "seed": 0, "lr": 1e-2, "lr_schedule": "linear"},
    **{"progress": False, "track": False},
}


def dummy(**options: Any) -> tuple[Any, list[tuple[int, float]]]:
    rates = Rates()
    defaults = {key: x for key, x in DUMMY.items() if "lr" not in options or "lr" not in key}
    trainer = Trainer(Steady, callbacks=[rates], **{"run_dir": None, **defaults, **options})
    return trainer, rates.found


def test_a_budget_that_is_reached_trains_nothing(caplog: pytest.LogCaptureFixture) -> None:
    trainer, found = dummy()
    stats = trainer.run(total_env_steps=20)
    weights = trainer.algorithm.get_weights()
    assert [steps for steps, _ in found] == [8, 16, 24]
    assert [rate for _, rate in found] == pytest.approx([1e-2, 6e-3, 2e-3])
    for _ in range(3):
        assert trainer.run(total_env_steps=20) == stats
    assert len(found) == 3
    assert all((x == weights[k]).all() for k, x in trainer.algorithm.get_weights().items())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "Already at 24 env steps (total_env_steps: 20): nothing is trained." in lines[0]
    assert "`run(additional_env_steps=…)`" in lines[0]


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        ({"lr_schedule": [(0, 1e-3), (12, 0.0)]}, [8, 16]),
        ({"clip_param_schedule": [(0, 0.2), (12, 0.0)]}, [8, 16]),
        ({"lr": lambda left: max(0.0, 1e-3 * (left - 0.5))}, [8, 16, 24]),
        ({"clip_param": lambda left: 0.2 * (left > 0.75)}, [8, 16]),
    ],
)
def test_a_schedule_that_has_ended_in_0_within_the_budget_is_the_end(
    caplog: pytest.LogCaptureFixture, schedule: dict[str, Any], steps: list[int]
) -> None:
    trainer, found = dummy(**schedule)
    trainer.run(total_env_steps=40)
    assert [step for step, _ in found] == steps
    trainer.run(additional_env_steps=4)
    assert len(found) == len(steps)
    line = caplog.records[-1].getMessage()
    assert "nothing is trained. To train further, change the schedule" in line
    assert "additional" not in line
    if "lr_schedule" in schedule:
        trainer.algorithm.update_algorithm_parameter("lr_schedule", None)
        trainer.run(additional_env_steps=4)
        assert len(found) == len(steps) + 1


def test_more_env_steps_let_linear_schedules_end_later(caplog: pytest.LogCaptureFixture) -> None:
    trainer, found = dummy()
    trainer.run(total_env_steps=16)
    trainer.run(additional_env_steps=16)
    assert [steps for steps, _ in found] == [8, 16, 24, 32]
    assert [rate for _, rate in found] == pytest.approx([1e-2, 5e-3, 5e-3, 2.5e-3])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "The budget is now 32 env steps instead of 16, which changes learning rate 0 to "
        "learning rate 0.005 at 16 env steps."
    )


def test_a_larger_budget_says_that_it_has_other_epochs(caplog: pytest.LogCaptureFixture) -> None:
    trainer, _ = dummy(num_sgd_iters=[[0, 3], [20, 1]], lr_schedule=None)
    trainer.run(total_env_steps=16)
    trainer.run(additional_env_steps=16)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("which changes 3 epochs to 1 epochs at 16 env steps.")


@pytest.mark.parametrize(
    "arguments",
    [
        {"stop_conditions": [HitsUpperBound("losses/vf", 1e9)]},
        {"total_env_steps": float("inf")},
        {"total_env_steps": 1e6, "stop_conditions": [HitsUpperBound("algorithm/steps", 2)]},
        {"stop_conditions": [Or([HitsUpperBound("env/steps", 9), HitsUpperBound("losses/vf", 1)])]},
    ],
    ids=["condition", "no end", "train steps", "one of two"],
)
def test_nothing_is_trained_past_the_end(arguments: dict[str, Any]) -> None:
    trainer, found = dummy()
    trainer.run(total_env_steps=16)
    trainer.run(**arguments)
    assert len(found) == 2


def test_a_train_step_by_hand_past_the_end_is_refused() -> None:
    trainer, _ = dummy()
    trainer.run(total_env_steps=16)
    with pytest.raises(ConfigError, match="would learn nothing"):
        trainer.step()
    trainer.algorithm.update_algorithm_parameter("lr_schedule", None)
    assert trainer.step()["coefficients/lr"] == pytest.approx(1e-2)


@pytest.mark.parametrize(
    ("schedules", "train_steps"),
    [
        ({"lr_schedule": [(0, 1e-2), (16, 0.0)]}, 2),
        ({"lr_schedule": None, "clip_param_schedule": [(0, 0.2), (16, 0.1)]}, 5),
        ({"lr_schedule": None, "entropy_coeff_schedule": [(0, 0.2), (16, 0.0)]}, 5),
    ],
)
def test_a_learning_rate_that_ends_in_0_ends_the_training(
    schedules: dict[str, Any], train_steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, found = dummy(**schedules)
    trainer.run(total_env_steps=40)
    assert len(found) == train_steps
    said = [record.getMessage() for record in caplog.records]
    assert any("A schedule ends in 0 at 16 env steps" in x for x in said) is (train_steps == 2)


def test_two_budgets_are_refused() -> None:
    trainer, _ = dummy()
    with pytest.raises(ConfigError, match="`additional_env_steps` counts from now"):
        trainer.run(total_env_steps=16, additional_env_steps=16)
    with pytest.raises(ConfigError, match="`additional_env_steps` expected a number > 0"):
        trainer.run(additional_env_steps=0)


# ---- the record of a run that went on ----------------------------------------------------------


def numbers_of(run_dir: Path) -> list[dict[str, float]]:
    """The lines of `metrics.jsonl`, without times and memory."""
    others = ("time", "profiling/", "memory/")
    return [
        {k: x for k, x in line.items() if not k.startswith(others)}
        for line in read_metrics(run_dir / "metrics.jsonl")
    ]


def repeated(run_dir: Path) -> Path:
    """The run that the report's commands train."""
    run = read_run(run_dir)
    commands, reasons = commands_of(run, str(run_dir / "config.yaml"))
    assert reasons == []
    for command in commands:
        words = shlex.split(command)
        is_alone = "--run-dir" not in words and "resume" not in words
        more = ["--run-dir", f"{run_dir}-repeated"] if is_alone else []
        assert main([*words[1:], *more, "--no-mlflow"]) == 0
    return Path(f"{run_dir}-repeated")


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["once", "resumed", "again", "stopped"])
def test_the_commands_of_a_report_repeat_the_run(ways: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    options = {**SMALL, "run_dir": run_dir}
    with Trainer("CartPole-v1", callbacks=[Stops()] if ways == "stopped" else [], **options) as one:
        one.run(total_env_steps=200)
        if ways == "again":
            one.run(additional_env_steps=100)
    if ways in ("resumed", "stopped"):
        with Trainer.load(run_dir, total_env_steps=400, progress=False, track=False) as two:
            two.run()
    assert numbers_of(repeated(run_dir)) == numbers_of(run_dir)
    config = (run_dir / "config.yaml").read_text()
    assert ("this file alone cannot repeat it" in config) is (ways != "once")


class Stops(everstep.callbacks.Callback):
    """Stops the training after two train steps."""

    def on_train_step(self, stats: dict[str, Any]) -> None:
        if stats["algorithm/steps"] == 2:
            self.trainer.stop()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["by hand", "changed"])
def test_a_report_says_why_no_command_repeats_a_run(way: str, tmp_path: Path) -> None:
    class Changes(everstep.callbacks.Callback):
        def on_train_step(self, stats: dict[str, Any]) -> None:
            value = 0.01 * stats["algorithm/steps"]
            self.trainer.algorithm.update_algorithm_parameter("entropy_coeff", value)

    trainer = Trainer(
        Steady, run_dir=tmp_path, callbacks=[Changes()] if way != "by hand" else [], **DUMMY
    )
    if way == "by hand":
        trainer.step()
    trainer.run(total_env_steps=40)
    trainer.close()
    run = read_run(tmp_path)
    _, reasons = commands_of(run, "config.yaml")
    expected = "made train steps itself" if way == "by hand" else "changed hyperparameters while"
    assert any(expected in reason for reason in reasons)
    assert len(run.history) == 2
    page = write_report(tmp_path).read_text() if way == "by hand" else ""
    assert ("cannot be repeated by commands" in page) is (way == "by hand")


@pytest.mark.slow
def test_a_resumed_run_follows_the_schedule_that_it_had(tmp_path: Path) -> None:
    options = {**DUMMY, "run_dir": tmp_path}
    with Trainer(Steady, callbacks=[Stops()], **options) as one:
        one.run(total_env_steps=64)
    two = Trainer(Steady, resume=True, **options)
    assert two.step()["coefficients/lr"] == pytest.approx(1e-2 * (1 - 16 / 64))
    two.close()
