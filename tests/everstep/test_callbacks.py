"""Callbacks as they are written on a first day, and what the record keeps whatever they do."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everstep
from everstep import DiscreteDummyEnv, Trainer
from everstep.callbacks import Callback
from everstep.conditions import And, HitsUpperBound, StopsIncreasing
from everstep.errors import ConfigError

OPTIONS: dict[str, Any] = {"num_envs": 2, "horizon": 4, "progress": False}


def trained(callback: Any, run_dir: None | Path = None, **options: Any) -> Trainer:
    with Trainer(
        DiscreteDummyEnv, callbacks=[callback], run_dir=run_dir, track=False, **OPTIONS, **options
    ) as trainer:
        trainer.run(total_env_steps=40)
    return trainer


def test_parts_of_a_trainer_say_what_they_are(tmp_path: Path) -> None:
    trainer = trained(Callback(), tmp_path / "run")
    assert repr(trainer.logger) == f"LoggerGroup([JsonlLogger('{tmp_path / 'run'}/metrics.jsonl')])"
    name = type(trainer.callbacks.members[0]).__name__
    assert repr(trainer.callbacks) == f"Callbacks([{name}()])"


class Stops(Callback):
    """Ends the training in a hook, without a call of `super()` in `on_start`."""

    def on_start(self, trainer: Any) -> None:
        self.started = True

    def on_train_step(self, stats: dict[str, Any]) -> None:
        self.trainer.stop()


def test_a_callback_knows_its_trainer_without_super() -> None:
    assert trained(Stops()).state["algorithm/steps"] == 1


class ReturnsFalse(Callback):
    """Ends the training as those of stable-baselines3 do."""

    def on_train_step(self, stats: dict[str, Any]) -> Any:
        return False


class StopsOfAnotherLibrary(Callback):
    """Has the methods of stable-baselines3's callbacks."""

    def _on_step(self) -> bool:
        return False

    def on_training_start(self) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (ReturnsFalse(), "ReturnsFalse.on_train_step returned False, which ends nothing. Call"),
        (StopsOfAnotherLibrary(), "StopsOfAnotherLibrary._on_step, on_training_start is not call"),
    ],
)
def test_what_ends_nothing_is_said_once(
    callback: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert trained(callback).state["env/steps"] == 40
    assert [x for x in caplog.messages if message in x] == caplog.messages
    assert len(caplog.messages) == 1


class Hides(Callback):
    """Puts what is no number where the statistics of every train step come from."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def on_train_step(self, stats: dict[str, Any]) -> None:
        self.trainer.state["mine"] = self.value


@pytest.mark.parametrize("value", ["text", None, np.zeros(3), 10**400])
def test_the_record_has_every_line_whatever_the_state_holds(
    value: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    with Trainer(
        DiscreteDummyEnv, callbacks=[Hides(value)], run_dir=run_dir, track=False, **OPTIONS
    ) as trainer:
        trainer.run(total_env_steps=40)
        del trainer.state["mine"]  # type: ignore[typeddict-item]  # which no checkpoint needs
    lines = [json.loads(x) for x in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [x["algorithm/steps"] for x in lines] == [1, 2, 3, 4, 5]
    assert not any("mine" in x for x in lines)
    assert sum("`mine`" in x and "not recorded" in x for x in caplog.messages) == 1


class Closes(Callback):
    """Closes the trainer that goes on."""

    def on_train_step(self, stats: dict[str, Any]) -> None:
        self.trainer.close()


def test_a_closed_trainer_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="This trainer was closed, and with it the record in"):
        trained(Closes(), tmp_path / "in_a_hook", seed=0)
    trainer = trained(Callback(), tmp_path / "after_it", seed=0)
    calls = (trainer.run, trainer.step, trainer.eval)
    for call, options in zip(calls, ({"total_env_steps": 80}, {}, {}), strict=True):
        with pytest.raises(ConfigError, match=r"Trainer\.load\('.*after_it'\).*everstep.evaluate"):
            call(**options)  # type: ignore[operator]
    assert caplog.messages == []
    with Trainer.load(tmp_path / "after_it", track=False, progress=False) as again:
        assert again.run(additional_env_steps=8)["env/steps"] == 48


UNKNOWN = [
    HitsUpperBound("return", 3),  # type: ignore[arg-type]
    StopsIncreasing("rollout/ep_rew_mean"),  # type: ignore[arg-type]
    And([HitsUpperBound("env/steps", 3), HitsUpperBound("eval/returns/mean", 3)]),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("condition", UNKNOWN, ids=repr)
def test_a_condition_that_is_never_met_is_named(
    condition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(DiscreteDummyEnv, run_dir=None, **OPTIONS)
    trainer.run(total_env_steps=8, stop_conditions=[condition])
    [message] = caplog.messages
    assert message.startswith("`stop_conditions`: ")
    assert "unknown statistic" in message


class Adds(Callback):
    def on_train_step(self, stats: dict[str, Any]) -> None:
        stats["mine"] = stats["env/steps"]


def test_statistics_of_callbacks_end_and_choose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not caplog.messages
    own: dict[str, Any] = {"run_dir": tmp_path / "run", "track": False, **OPTIONS}
    condition: Any = HitsUpperBound("mine", 16)  # type: ignore[arg-type]
    with Trainer(DiscreteDummyEnv, callbacks=[Adds()], best="mine", **own) as trainer:
        assert trainer.run(total_env_steps=80, stop_conditions=[condition])["env/steps"] == 16
    assert (tmp_path / "run" / "best").is_dir()
    assert caplog.messages == []


def test_statistics_of_callbacks_end_a_training_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(
        "env_cls: everstep.env.DiscreteDummyEnv\nnum_envs: 2\nhorizon: 4\n"
        f"callbacks: [{__name__}.Adds]\n"
        "stop: [{HitsUpperBound: {key: mine, bound: 16}}]\n"
    )
    config = everstep.TrainConfig.from_file(tmp_path / "train.yaml")
    with config.build(run_dir=None, progress=False) as trainer:
        assert trainer.run()["env/steps"] == 16


def test_a_run_whose_program_has_statistics_of_its_own_is_resumed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    condition: Any = HitsUpperBound("mine", 100)  # type: ignore[arg-type]
    with Trainer(
        DiscreteDummyEnv, callbacks=[Adds()], best="mine", run_dir=run_dir, track=False, **OPTIONS
    ) as trainer:
        trainer.run(total_env_steps=40, stop_conditions=[condition])
    with Trainer.load(run_dir, track=False, progress=False, total_env_steps=80) as trainer:
        assert trainer.run()["env/steps"] == 80


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("run_dir", ["run", "auto"])
def test_a_trainer_that_cannot_be_made_leaves_nothing(
    run_dir: str, existed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Any, *arguments: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.chdir(tmp_path)
    if existed:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patched:
        patched.setattr("everstep.trainers._base.write_file", full)
        with pytest.raises(OSError, match="No space left"):
            Trainer(DiscreteDummyEnv, run_dir=run_dir, track=False, **OPTIONS)
    assert [x for x in sorted(tmp_path.rglob("*")) if x.name != "runs"] == before
    with Trainer(DiscreteDummyEnv, run_dir=run_dir, track=False, **OPTIONS) as trainer:
        trainer.run(total_env_steps=8)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Fails:
    """A logger whose error cannot be shown."""

    def log_params(self, params: Any) -> None:
        raise UnspeakableError

    log_metrics: Any = log_params
    close: Any = log_params


def test_a_logger_whose_error_has_no_text_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    fails: Any = Fails()
    with Trainer(
        DiscreteDummyEnv, loggers=[fails], run_dir=run_dir, track=False, **OPTIONS
    ) as trainer:
        trainer.run(total_env_steps=24)
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 3
    assert any("Fails failed: UnspeakableError. " in x for x in caplog.messages)


def test_a_best_policy_of_evaluations_that_are_not_made_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(Callback(), tmp_path / "run", best="eval/returns/mean")
    assert any("`best`: eval/returns/mean" in x and "makes none" in x for x in caplog.messages)


def test_tests_that_are_not_made_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Trainer(DiscreteDummyEnv, num_test_episodes=3, run_dir=None, **OPTIONS)
    assert any("`num_test_episodes` has no effect" in x for x in caplog.messages)


@pytest.mark.parametrize("number", [np.int64(2), np.uint8(2), 2.0])
def test_numbers_of_numpy_are_numbers(number: Any) -> None:
    trainer = Trainer(DiscreteDummyEnv, run_dir=None, **{**OPTIONS, "num_envs": number})
    assert type(trainer.algorithm.hparams.num_envs) is int
    if number != 2.0 or isinstance(number, np.integer):
        env = everstep.make(DiscreteDummyEnv, number)
        assert type(env.num_envs) is int
