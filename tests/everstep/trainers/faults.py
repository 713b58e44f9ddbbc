"""Faults of trainings in two processes: `python -m tests.everstep.trainers.faults all 20`.

A job has a checkpoint each train step. A fault at a random moment must end it within a minute, with
its own message, and leave no process behind; the same command must go on from the last checkpoint.
With restarts the job must reach its budget by itself.

The launcher is PyTorch's. It is a fork of a process that has imported everything, and so are the
ranks, because importing PyTorch takes longer than the rest; `--real` is for the command line.
"""

import argparse
import contextlib
import ctypes
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from everstep import DiscreteDummyEnv
from everstep.cli._processes import outcome
from everstep.core.checkpoints import load_state
from everstep.loggers import read_metrics
from everstep.trainers._checkpointing import checkpoints_of
from tests.everstep.trainers.commands import Started

#: Seconds after a fault in which the job must have ended.
LIMIT = 60.0

#: Environment variable of the fault in an environment: its kind, and the env step of rank 1.
FAULT = "EVERSTEP_FAULT"

#: Environment variable by which processes of a job are found.
JOB = "EVERSTEP_FAULT_JOB"

COMMAND = (
    *("train", "tests.everstep.trainers.faults.Faulty"),
    *("--run-dir", "run", "--resume", "auto", "num_envs=2", "horizon=8"),
    *("model_config.hiddens=[8]", "checkpoint_every=1"),
)

#: Arguments of a job that does not end by itself.
ENDLESS = ["--no-mlflow", "--steps", "1_000_000_000"]

#: Fault, the exit code of its job, and text on the job's standard error. The disk's job is ended by
#: SIGTERM: 1 is the code of rank 0, which cannot save, and either rank may be the first to end.
#: So it is with a rank that another one has killed.
FAULTS = {
    "kill": ((137,), "was ended by SIGKILL"),
    "terminate": ((143,), ""),
    "raise": ((1,), "the simulator has crashed"),
    "nan": ((1,), "finite"),
    "hang": ((1,), "rank 1: the environment hangs: its `step`"),
    "lock": ((1, 137), "rank 1 has given no sign of life"),
    "stop": ((1, 137), "has given no sign of life"),
    "disk": ((1, 143), "No space left on device"),
    "tracker": ((0,), ""),
    "restart": ((0,), ""),
}


class Faulty(DiscreteDummyEnv):
    """A point on a line; rank 1 fails once, as the environment variable says."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        kind, _, step = os.environ.get(FAULT, "").partition(" ")
        self.kind, self.due, self.steps = kind, int(step or -1), 0
        Path(f"rank-{os.environ['RANK']}").write_text(str(os.getpid()))

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        self.steps += 1
        time.sleep(0.002)  # a job lasts seconds, so that moments are random
        row = super().step(action)
        if self.steps == self.due and os.environ["RANK"] == "1":
            Path("fault").write_text(str(time.monotonic()))
            if self.kind == "raise":
                raise RuntimeError("the simulator has crashed")
            if self.kind == "hang":
                time.sleep(1e6)
            if self.kind == "lock":
                ctypes.PyDLL(None).sleep(1_000_000)  # keeps Python's lock
            row["rewards"] = row["rewards"] * float("nan")
        return row


class Job(Started):
    """A launcher and its two ranks.

    Args:
        directory: Where they run.
        words: Further arguments of the command.
        real: Whether they are new interpreters rather than forks of this process.
        restarts: How often the launcher starts the ranks again.
        **variables: Environment variables.

    """

    def __init__(
        self,
        directory: Path,
        words: Sequence[str],
        *,
        real: bool,
        restarts: int = 0,
        **variables: str,
    ) -> None:
        self.directory = directory
        self.metrics = directory / "run" / "metrics.jsonl"
        self.lines, self.id = self.count(), uuid.uuid4().hex
        for name in ("rank-0", "rank-1", "fault", "output.txt"):
            (directory / name).unlink(missing_ok=True)
        variables = {"OMP_NUM_THREADS": "1", JOB: self.id, "EVERSTEP_TIMEOUT": "4", **variables}
        command = [*COMMAND, *words]
        if real:
            command += ["--processes", "2", "--max-restarts", str(restarts)]
        launch = None if real else functools.partial(_launch, self.id, restarts)
        super().__init__(directory, command, launch, variables)

    def count(self) -> int:
        """Complete lines of the statistics."""
        return self.metrics.read_bytes().count(b"\n") if self.metrics.exists() else 0

    def wait_for_a_line(self) -> None:
        """Wait for a train step of this job, and for a checkpoint of the run."""
        limit = time.monotonic() + 2 * LIMIT
        while self.count() <= self.lines and self.poll() is None and time.monotonic() < limit:
            self.lines = min(self.lines, self.count())  # those after the checkpoint were cut
            time.sleep(0.01)
        while not checkpoints_of(self.directory / "run") and time.monotonic() < limit:
            time.sleep(0.01)
        assert self.poll() is None, self.text()

    def send(self, rank: int, number: int) -> None:
        """Send a signal to a rank."""
        os.kill(int((self.directory / f"rank-{rank}").read_text()), number)

    def kill_and_wait(self, rank: int) -> None:
        """Kill a rank, and wait for a train step of the ranks that are started then."""
        self.send(rank, signal.SIGKILL)
        for name in ("rank-0", "rank-1"):
            (self.directory / name).unlink()
        while not (self.directory / "rank-1").exists() and self.poll() is None:
            time.sleep(0.01)
        self.lines = self.count()
        self.wait_for_a_line()

    def end(self, since: float, limit: float = LIMIT) -> float:
        """Wait for the end of all processes; the seconds that it took."""
        while (self.poll() is None or self._members()) and time.monotonic() < since + limit:
            time.sleep(0.01)
        seconds, left = time.monotonic() - since, self._members()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"processes were left: {self.text()}"
        return seconds

    def terminate(self) -> None:
        """End it by SIGTERM to the launcher."""
        os.kill(self.pid, signal.SIGTERM)
        self.end(time.monotonic())
        assert self.status == 143, self.text()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def _members(self) -> list[int]:
        """Processes of the launcher's session, and others that have the job's variable."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state, _, _, session = (place / "stat").read_text().rpartition(")")[2].split()[:4]
                is_own = int(session) == self.pid or self.id.encode() in _environ(place)
                if is_own and state != "Z":
                    found.append(int(place.name))
        return found


def _environ(process: Path) -> bytes:
    return (process / "environ").read_bytes()


def _launch(job: str, restarts: int, command: list[str]) -> int:
    """Be the launcher; the exit code."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id=job,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        start_method="fork",
    )
    return outcome(lambda: elastic_launch(config, _rank)(command))


def _rank(command: list[str]) -> None:
    """One rank: the program, without the signal handlers of the launcher."""
    from everstep.__main__ import main

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(command))


@contextlib.contextmanager
def disk(directory: Path, size: str = "4m") -> Iterator[None]:
    """Context in which a directory is a small disk; only root can mount one."""
    directory.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    subprocess.run(["mount", *options], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(directory: Path) -> None:
    """Fill a disk."""
    with open(directory / "filling", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def inject(fault: str, directory: Path, rng: random.Random, *, real: bool = False) -> float:
    """A job with one fault at a random moment; seconds from the fault to the job's end.

    Raises:
        AssertionError: If the job does not end as it should, or cannot go on.

    """
    words, variables, restarts = ENDLESS, {}, 0
    if fault in ("raise", "nan", "hang", "lock"):
        variables[FAULT] = f"{fault} {rng.randrange(2, 400)}"
    if fault == "restart":
        restarts, words = 3, ["--no-mlflow", "--steps", str(_steps_of(directory) + 3200)]
    if fault == "tracker":
        words = ["--steps", str(_steps_of(directory) + 480)]
        variables |= {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    job = Job(directory, words, real=real, restarts=restarts, **variables)
    if fault in ("kill", "terminate", "disk", "restart", "stop"):
        job.wait_for_a_line()
        time.sleep(rng.random() * 0.5)
    since = time.monotonic()
    if fault == "restart":
        for _ in range(rng.randrange(1, 4)):
            job.kill_and_wait(rng.randrange(2))
    if fault == "kill":
        job.send(rng.randrange(2), signal.SIGKILL)
    if fault == "stop":
        job.send(rng.randrange(2), signal.SIGSTOP)
    if fault == "terminate":
        job.send(rng.randrange(2), signal.SIGTERM)
    if fault == "disk":
        fill(directory / "run")
        time.sleep(rng.random())
        since = time.monotonic()
        job.send(0, signal.SIGTERM)
    if variables.get(FAULT):
        while not (directory / "fault").exists() and job.poll() is None:
            time.sleep(0.01)
        since = time.monotonic()
    trains_on = fault in ("restart", "tracker")  # to its budget
    seconds = job.end(since, limit=20 * LIMIT if trains_on else LIMIT)
    if variables.get(FAULT):
        seconds = time.monotonic() - float((directory / "fault").read_text())
    codes, message = FAULTS[fault]
    assert job.status in codes, (fault, job.status, job.text())
    assert message in job.text(), (fault, job.text())
    (directory / "run" / "filling").unlink(missing_ok=True)
    check(directory / "run", fault)
    return seconds


def _steps_of(directory: Path) -> int:
    """Env steps of the run so far."""
    path = directory / "run" / "metrics.jsonl"
    return max((int(x["env/steps"]) for x in read_metrics(path)), default=0) if path.exists() else 0


def check(run_dir: Path, fault: str) -> None:
    """Every train step is recorded once, and at most those of an unfinished checkpoint are lost."""
    steps = [line["algorithm/steps"] for line in read_metrics(run_dir / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1)), (fault, steps[-20:])
    newest = load_state(checkpoints_of(run_dir)[0])["trainer"]["algorithm/steps"]
    # A full disk takes no checkpoint, but some more lines.
    assert newest <= len(steps) if fault == "disk" else len(steps) - newest <= 2, (fault, newest)
    if fault == "terminate":
        assert newest == steps[-1]


def goes_on(directory: Path, *, real: bool = False) -> None:
    """The command makes another train step."""
    job = Job(directory, ENDLESS, real=real)
    job.wait_for_a_line()
    job.terminate()


def often(fault: str, times: int, *, seed: int = 0, real: bool = False) -> list[float]:
    """A fault many times, in one run; seconds from each fault to the job's end."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        directory = Path(place)
        if fault == "disk":
            stack.enter_context(disk(directory / "run"))
        seconds = [inject(fault, directory, rng, real=real) for _ in range(times)]
        goes_on(directory, real=real)
    return seconds


def import_everything() -> None:
    """Import what a training needs, so that forks do not; no thread may have started."""
    import torch.distributed.run  # noqa: F401

    import everstep.__main__
    import everstep.trainers

    everstep.__main__.parse(["doctor"])
    assert threading.active_count() == 1


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", choices=["all", *FAULTS])
    parser.add_argument("times", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", action="store_true", help="new interpreters instead of forks")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import_everything()
    for fault in FAULTS if given.fault == "all" else [given.fault]:
        if fault == "disk" and not can_mount():
            print("disk: not done, because only root can mount one")
            continue
        took = sorted(often(fault, given.times, seed=given.seed, real=given.real))
        median = took[len(took) // 2]
        print(
            f"{fault}: {len(took)} of {given.times} ended and went on; the end took "
            f"{median:.1f} s (median), at most {took[-1]:.1f} s",
            flush=True,
        )


def can_mount() -> bool:
    """Whether `disk` is possible."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


if __name__ == "__main__":
    from tests.everstep.trainers import faults  # its class has the module's name, not `__main__`

    faults.main()
