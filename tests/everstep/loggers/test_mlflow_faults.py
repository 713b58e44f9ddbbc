"""Faults of an MLflow store during real trainings: one line, a whole record, and an end."""

import contextlib
import logging
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep import DiscreteDummyEnv, Trainer
from everstep.loggers import MlflowLogger, read_metrics
from everstep.loggers import delivery as delivering
from everstep.loggers.delivery import in_one_line

mlflow = pytest.importorskip("mlflow")

# SQLAlchemy 2.1 deprecates a loader strategy that MLflow's store uses.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*noload:DeprecationWarning")]


@pytest.fixture
def database(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a store, whose deliveries follow each other quickly."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(delivering, "_PERIOD", 0.01)
    monkeypatch.setattr(delivering, "_LONGEST_PAUSE", 0.05)
    return Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Context in which another connection has the database for itself."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA busy_timeout = 10000")
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


def training(database: Path, **options: Any) -> Trainer:
    """A trainer whose connection to the store waits for locks for a short time only."""
    options = {"tracking_uri": f"sqlite:///{database}?timeout=0.05", "patience": 0.5, **options}
    return Trainer(
        DiscreteDummyEnv,
        num_envs=4,
        horizon=8,
        seed=0,
        run_dir=database.parent / "run",
        loggers=[{"mlflow": options}],
        progress=False,
    )


def logger_of(trainer: Trainer) -> MlflowLogger:
    assert trainer.mlflow is not None
    return trainer.mlflow


def stored(database: Path, trainer: Trainer) -> tuple[list[int], str]:
    """Steps of one metric in the store, and the run's status; read without MLflow."""
    query = "SELECT step FROM metrics WHERE key = 'losses/vf' AND run_uuid = ? ORDER BY step"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        run_id = [logger_of(trainer).run_id]
        steps = [step for (step,) in connection.execute(query, run_id)]
        [[status]] = connection.execute("SELECT status FROM runs WHERE run_uuid = ?", run_id)
    return steps, status


def recorded(trainer: Trainer) -> list[int]:
    return [r["step"] for r in read_metrics(Path(trainer.run_dir or "", "metrics.jsonl"))]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    ours = [x for x in caplog.records if x.name.startswith("everstep")]
    return [x.getMessage() for x in ours if x.levelno >= logging.WARNING]


def until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


def steps(trainer: Trainer, count: int = 3) -> None:
    for _ in range(count):
        trainer.step()


@pytest.mark.long
def test_what_was_queued_while_the_database_was_locked_is_written_after_it(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with training(database) as trainer:
        steps(trainer)
        with locked(database):
            steps(trainer)
            until(lambda: warned(caplog))
        steps(trainer)
        until(lambda: logger_of(trainer).undelivered == 0)
    assert stored(database, trainer) == (recorded(trainer), "FINISHED")
    assert len(recorded(trainer)) == 9
    [line] = warned(caplog)
    record = f"{trainer.run_dir}/metrics.jsonl has every statistic."
    # Of a metric or of `config.yaml`: whichever was sent first while it was locked.
    assert line.endswith(f"OperationalError: database is locked. Training continues. {record}")
    assert "\n" not in line


def test_a_database_that_is_locked_from_the_start_gets_everything_after_it(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.ExitStack() as stack:
        with locked(database):
            trainer = stack.enter_context(training(database, wait=0.1))
            steps(trainer)
            assert logger_of(trainer).run_id is None
        until(lambda: logger_of(trainer).undelivered == 0)
    assert stored(database, trainer) == (recorded(trainer), "FINISHED")
    assert len(warned(caplog)) == 1


def test_a_database_that_stays_locked_does_not_hold_up_the_end(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection waits for the lock longer than `close` does."""
    uri = f"sqlite:///{database}?timeout=20"
    trainer = training(database, tracking_uri=uri)
    with locked(database):
        steps(trainer)
        trainer.close()
        assert len(recorded(trainer)) == 3
        [line] = warned(caplog)
        count = logger_of(trainer).undelivered
        assert f" has not answered for 0.5 s at the end. {count} points were not delivered" in line
    assert count >= 3


@pytest.mark.parametrize("is_replaced", [False, True])
def test_points_wait_for_a_database_that_is_gone(
    database: Path, caplog: pytest.LogCaptureFixture, empty_store: Path, is_replaced: bool
) -> None:
    away = database.with_name("away.db")
    with training(database) as trainer:
        steps(trainer)
        until(lambda: logger_of(trainer).undelivered == 0)
        database.rename(away)
        if is_replaced:
            shutil.copy(empty_store, database)
        steps(trainer)
        until(lambda: warned(caplog))
        away.rename(database)
        until(lambda: logger_of(trainer).undelivered == 0)
    assert stored(database, trainer) == (recorded(trainer), "FINISHED")
    [line] = warned(caplog)
    assert "FileNotFoundError: the database was moved, deleted or replaced. Training" in line


def test_points_for_a_deleted_database_are_counted(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with training(database) as trainer:
        steps(trainer)
        until(lambda: logger_of(trainer).undelivered == 0)
        database.unlink()
        steps(trainer)
    assert not database.exists()
    assert len(recorded(trainer)) == 6
    assert len(warned(caplog)) == 1
    assert logger_of(trainer).undelivered > 0


def test_a_store_that_is_read_only_costs_one_line(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with training(database, tracking_uri=f"sqlite:///file:{database}?mode=ro&uri=true") as trainer:
        steps(trainer)
    assert len(recorded(trainer)) == 3
    [line] = warned(caplog)
    assert "OperationalError: attempt to write a readonly database. Training continues" in line


def test_an_error_is_one_line() -> None:
    told = sqlite3.OperationalError("database is locked")
    error = RuntimeError("(raised as a result of Query-invoked autoflush)\n[SQL: INSERT]")
    error.__cause__ = ValueError("wrapped")
    error.__cause__.orig = told  # type: ignore[attr-defined]
    assert in_one_line(error) == "OperationalError: database is locked"
    assert in_one_line(KeyError("a\nb")) == "KeyError: 'a\\nb'"
    assert in_one_line(ValueError("two\nlines." + " x" * 500)).startswith("ValueError: two lines.")
    assert len(in_one_line(ValueError("x" * 1000))) < 350
