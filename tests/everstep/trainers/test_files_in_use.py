"""The files of a run while something happens to them: removed, moved, replaced, full, forked."""

import errno
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.callbacks import Callback
from everstep.core.checkpoints import save_state
from everstep.core.interrupts import call_all, text_of
from everstep.errors import ConfigError
from everstep.loggers import JsonlLogger, read_metrics
from everstep.trainers import _checkpointing

posix = pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be removed there")


class Then(Callback):
    """Calls a function after a train step."""

    def __init__(self, function: Callable[[], object], at: int = 3) -> None:
        self.function, self.left = function, at

    def on_train_step(self, stats: Any) -> None:
        self.left -= 1
        if not self.left:
            self.function()


def train(run_dir: Path, function: Callable[[], object], steps: int = 6, **options: Any) -> None:
    given = {"num_envs": 2, "horizon": 8, "checkpoint_every": 2, "track": False, **options}
    with everstep.Trainer(
        "CartPole-v1", run_dir=run_dir, callbacks=[Then(function)], **given
    ) as trainer:
        trainer.run(stop_conditions=[everstep.conditions.HitsUpperBound("algorithm/steps", steps)])
    trainer.algorithm.env.close()


def steps_of(run_dir: Path) -> int:
    return len(read_metrics(run_dir / "metrics.jsonl"))


@posix
def test_a_run_that_is_removed_while_it_trains_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"

    def remove() -> None:
        while any(x.name == "everstep-checkpoint" for x in threading.enumerate()):
            time.sleep(0.01)
        shutil.rmtree(run_dir)

    train(run_dir, remove)
    assert steps_of(run_dir) == 6
    assert [x.message for x in caplog.records if "was removed while a run writes it" in x.message]
    with everstep.Trainer.load(run_dir, track=False) as trainer:
        assert trainer.state["algorithm/steps"] == 6
        with pytest.raises(ConfigError, match="another trainer of this process writes"):
            everstep.Trainer.load(run_dir, track=False)
    trainer.algorithm.env.close()


@posix
def test_a_run_that_is_moved_while_it_trains_is_named_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir, other = tmp_path / "run", tmp_path / "other"
    train(run_dir, lambda: run_dir.rename(other))
    assert steps_of(other) == 6
    assert sum("was moved while a run writes it" in x.message for x in caplog.records) == 1
    assert (run_dir / "config.yaml").exists()
    assert list((run_dir / "checkpoints").iterdir())


@posix
def test_a_record_that_is_replaced_goes_on_in_what_stands_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an editor does that saves by renaming."""
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    logger.log_metrics({"a": 1.0}, step=1)
    (tmp_path / "edited").write_text('{"step": 1, "time": 1, "a": 7.0}\n')
    (tmp_path / "edited").replace(path)
    for step in (2, 3):
        logger.log_metrics({"a": float(step)}, step=step)
    logger.close()
    assert [x["a"] for x in read_metrics(path)] == [7.0, 2.0, 3.0]
    assert sum("was replaced while" in x.message for x in caplog.records) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
@pytest.mark.parametrize("how", ["exit", "train"])
def test_a_fork_does_not_write_into_the_record_of_its_parent(tmp_path: Path, how: str) -> None:
    run_dir = tmp_path / "run"
    found: list[int] = []

    def fork() -> None:
        before = (run_dir / "metrics.jsonl").read_bytes()
        child = os.fork()
        if child == 0:
            code = 9
            try:
                if how == "exit":
                    trainer._end(None, SystemExit(7))  # type: ignore[arg-type]
                else:
                    trainer.step()
            except ConfigError as error:
                code = 5 if "was forked from the one that writes" in str(error) else 9
            except SystemExit:
                trainer.close()
                code = 7
            finally:
                os._exit(code)
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert (run_dir / "metrics.jsonl").read_bytes() == before

    options: Any = {"num_envs": 2, "horizon": 8, "track": False, "callbacks": [Then(fork)]}
    with everstep.Trainer("CartPole-v1", run_dir=run_dir, **options) as trainer:
        trainer.run(stop_conditions=[everstep.conditions.HitsUpperBound("algorithm/steps", 5)])
    trainer.algorithm.env.close()
    assert found == [{"exit": 7, "train": 5}[how]]
    assert steps_of(run_dir) == 5


def test_two_threads_write_a_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's thread flushes what the training writes."""
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    write = os.write

    def slow(descriptor: int, content: bytes) -> int:
        time.sleep(0.002)
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", slow)
    errors: list[BaseException] = []
    over = threading.Event()

    def flush() -> None:
        try:
            while not over.is_set():
                logger._write_pending()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    for step in range(100):
        logger.log_metrics({"a": 1.0}, step=step)
    over.set()
    thread.join()
    logger.close()
    assert errors == []
    assert [x["step"] for x in read_metrics(logger.path)] == list(range(100))


class OddError(BaseException):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("error", [MemoryError(), OddError()], ids=["memory", "odd"])
def test_an_error_of_the_thread_is_one_line_with_its_name(
    tmp_path: Path,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[Path] = []

    def save(path: Path, state: Any) -> None:
        calls.append(path)
        if len(calls) in (2, 3):
            raise error
        save_state(path, state)

    monkeypatch.setattr(_checkpointing, "save_state", save)
    train(tmp_path / "run", lambda: None, checkpoint_every=1)
    lines = [x for x in caplog.records if "could not be written" in x.getMessage()]
    assert len(lines) == 1
    assert f"{type(error).__name__}. Training continues" in lines[0].getMessage()
    assert everstep.trainers._checkpointing.checkpoints_of(tmp_path / "run")[0].name == "0000000006"


def test_a_later_error_of_one_cause_is_not_told_again(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk fails in every file; what is of files needs no traceback."""

    def fail(error: Exception) -> Callable[[], None]:
        def call() -> None:
            raise error

        return call

    full = [OSError(errno.ENOSPC, "No space left on device", name) for name in "ab"]
    with caplog.at_level(logging.ERROR), pytest.raises(OSError, match="'a'"):
        call_all(*map(fail, full))
    assert caplog.records == []
    others = [PermissionError(errno.EACCES, "no"), ValueError("other")]
    with pytest.raises(OSError, match="'a'"):
        call_all(*map(fail, [full[0], *others]))
    assert [bool(x.exc_info) for x in caplog.records] == [False, True]
    assert text_of(OddError()) == "OddError"


def test_a_run_says_which_stretches_it_had_after_it_was_removed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(run_dir, lambda: (run_dir / "history.jsonl").unlink())
    [stretch] = map(json.loads, (run_dir / "history.jsonl").read_text().splitlines())
    assert stretch["status"] == "FINISHED"
