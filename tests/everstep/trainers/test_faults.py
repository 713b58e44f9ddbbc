"""A fault of one process ends a training in several, with a message, and it can go on."""

import random
import signal
import time
from pathlib import Path

import pytest

from tests.everstep.trainers.faults import ENDLESS, FAULTS, Job, can_mount, disk, goes_on, inject

pytestmark = pytest.mark.long


@pytest.mark.parametrize("fault", [x for x in FAULTS if x != "disk"])
def test_a_fault_ends_all_and_the_run_goes_on(tmp_path: Path, fault: str) -> None:
    inject(fault, tmp_path, random.Random(0), real=True)
    if fault in ("kill", "hang"):
        goes_on(tmp_path, real=True)


@pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk")
def test_a_full_disk_ends_all(tmp_path: Path) -> None:
    with disk(tmp_path / "run"):
        inject("disk", tmp_path, random.Random(0), real=True)
        goes_on(tmp_path, real=True)


def test_a_job_that_was_stopped_as_a_whole_goes_on(tmp_path: Path) -> None:
    job = Job(tmp_path, ENDLESS, real=True)
    job.wait_for_a_line()
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for rank in range(2):
            job.send(rank, number)
        if number == signal.SIGSTOP:
            time.sleep(6)  # longer than a vector step may take
    time.sleep(5)
    job.lines = job.count()
    job.wait_for_a_line()
    job.terminate()
