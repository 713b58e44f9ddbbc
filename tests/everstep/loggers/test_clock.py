"""A clock that is set back: the order and the distance of records stay, and so do checkpoints."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.loggers import JsonlLogger, clock, read_metrics
from everstep.loggers.clock import Clock


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A machine's clocks, which a test sets: `wall` anywhere, `elapsed` only forward."""
    machine = SimpleNamespace(wall=1e9, elapsed=50.0)
    times = SimpleNamespace(time=lambda: machine.wall, monotonic=lambda: machine.elapsed)
    monkeypatch.setattr(clock, "time", times)

    def passes(seconds: float) -> None:
        machine.wall += seconds
        machine.elapsed += seconds

    machine.passes = passes
    return machine


def test_time_does_not_go_back_and_goes_on_at_its_pace(machine: Any) -> None:
    now = Clock()
    start = now()
    machine.passes(10.0)
    machine.wall -= 3600
    assert now() == start + 10
    machine.passes(5.0)
    assert now() == start + 15
    machine.wall -= 86400
    machine.passes(1.0)
    assert now() == start + 16


def test_time_follows_a_clock_that_is_set_forward(machine: Any) -> None:
    now = Clock()
    start = now()
    machine.wall += 100.0
    assert now() == start + 100
    assert start == 1e9


def test_time_begins_after_the_last_record(machine: Any) -> None:
    now = Clock(after=1e9 + 500)
    assert now() == 1e9 + 500
    machine.passes(2.0)
    assert now() == 1e9 + 502


def test_lines_of_a_file_are_in_the_order_of_time(tmp_path: Path, machine: Any) -> None:
    for _ in range(2):  # the second process begins after its machine was set back, too
        logger = JsonlLogger(tmp_path / "metrics.jsonl")
        for step in range(3):
            logger.log_metrics({"a": 1.0}, step=step)
            machine.passes(1.0)
            machine.wall -= 1000.0
        logger.close()
    times = [record["time"] for record in read_metrics(tmp_path / "metrics.jsonl")]
    assert times == [1e9, 1e9 + 1, 1e9 + 2, 1e9 + 2, 1e9 + 3, 1e9 + 4]


@pytest.mark.parametrize("last", ['{"step": 1, "time": "NaN"}', '{"step": 1}', "[1]", "3"])
def test_a_last_line_without_a_time(tmp_path: Path, machine: Any, last: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(last + "\n")
    logger = JsonlLogger(path)
    logger.log_metrics({}, step=2)
    logger.close()
    assert json.loads(path.read_text().splitlines()[-1])["time"] == 1e9


FAKETIME = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]

#: Trains with a checkpoint a second; the clock is set back by a day between train steps.
PROGRAM = """
import select, sys, time
from pathlib import Path
import everstep

offset, resume = Path(sys.argv[1]), sys.argv[2] == "resume"
offset.write_text("-2d" if resume else "+0d")
begun = time.time()
with everstep.Trainer(
    everstep.DiscreteDummyEnv, run_dir="run", num_envs=4, horizon=8, seed=0, track=False,
    checkpoint_every="1s", keep_last=100, resume=resume,
) as trainer:
    for turn in range(6):
        if turn == 3 and not resume:
            offset.write_text("-1d")
            assert time.time() < begun - 80_000
        trainer.run(total_env_steps=trainer.state["env/steps"] + 32)
        select.select([], [], [], 1.1)  # libfaketime breaks `time.sleep`
print(trainer.state["algorithm/steps"])
"""


@pytest.mark.long
@pytest.mark.skipif(not FAKETIME, reason="needs libfaketime")
def test_a_training_whose_clock_is_set_back(tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    environment = {
        **os.environ,
        "LD_PRELOAD": str(FAKETIME[0]),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
    }
    offset.write_text("+0d")
    begun = time.time()
    for how, count in (("new", 6), ("resume", 12)):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(offset), how],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (0, f"{count}\n"), done.stderr
    ended = time.time()
    records = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [record["algorithm/steps"] for record in records] == list(range(1, 13))
    times = [record["time"] for record in records]
    assert times == sorted(times)
    assert begun < times[0] < times[-1] < ended
    assert all(after - before > 1 for before, after in itertools.pairwise(times[:6]))
    names = {path.name for path in (tmp_path / "run/checkpoints").iterdir()}
    assert {f"{steps:010d}" for steps in range(1, 13)} <= names
