"""End trainings at random moments: `python -m tests.everstep.trainers.kills SIGKILL 1000`.

Runs have a checkpoint each train step. One is ended, continued by the same command, and ended
again. Each time the newest checkpoint must be readable, the statistics must have every train step
once, and the next process must make another train step. A process of SIGTERM must have saved all
and left none of its own behind.

Most trainings are forks of a process that has imported everything and has no thread, because
importing PyTorch takes longer than the rest; `--real N` are processes of the command line.
"""

import argparse
import contextlib
import gc
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep.core.checkpoints import load_state
from everstep.loggers import read_metrics
from everstep.trainers._checkpointing import checkpoints_of
from tests.everstep.trainers.commands import Started

#: The environments of the trainings, in turn.
ENVIRONMENTS = (("everstep.env.DiscreteDummyEnv",), ("gymnasium:CartPole-v1",))

#: One with processes.
WORKERS = ("gymnasium:CartPole-v1", "env_kwargs.vectorization_mode=async")

COMMAND = (
    *("--run-dir", "run", "--resume", "auto", "--no-mlflow", "--steps", "1_000_000_000"),
    *("num_envs=2", "horizon=8", "model_config.hiddens=[8]", "checkpoint_every=1"),
)

#: Seconds that a process may take to begin, and to end.
PATIENCE = 120.0


class Training(Started):
    """One process of `everstep train`, in a session of its own.

    Args:
        directory: Where it runs.
        words: The environment and other arguments.
        real: Whether it is a new interpreter rather than a fork of this process.

    """

    def __init__(self, directory: Path, words: Sequence[str], *, real: bool) -> None:
        self.metrics = directory / "run" / "metrics.jsonl"
        self.size = self._size()
        super().__init__(directory, ["train", *words, *COMMAND], None if real else _train, {})

    def wait_for_a_line(self) -> None:
        """Wait for a train step of this process."""
        limit = time.monotonic() + PATIENCE
        while self._size() <= self.size and self.poll() is None and time.monotonic() < limit:
            self.size = min(self.size, self._size())  # lines after the checkpoint were cut
            time.sleep(0.005)

    def end(self, number: int) -> float:
        """Send a signal, and wait for the process and those that it started; seconds it took."""
        assert self.poll() is None, self.log.read_text()[-3000:]
        os.kill(self.pid, number)
        began = time.monotonic()
        while self.poll() is None and time.monotonic() < began + PATIENCE:
            time.sleep(0.005)
        seconds = time.monotonic() - began
        while self._has_members() and time.monotonic() < began + PATIENCE:
            time.sleep(0.005)
        left = self._has_members()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        assert not left, "processes were left"
        return seconds

    def _has_members(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _size(self) -> int:
        with contextlib.suppress(FileNotFoundError):  # a run without a checkpoint begins anew
            return self.metrics.stat().st_size
        return 0


def _train(command: list[str]) -> Any:
    """Train in this process; the exit code."""
    from everstep.__main__ import main

    return main(command)


def end_often(
    number: signal.Signals,
    times: int,
    *,
    real: int = 0,
    workers: int = 0,
    seed: int = 0,
    per_run: int = 25,
) -> list[float]:
    """End trainings `times` times; seconds that each took to end.

    Args:
        number: SIGKILL, or a signal that is answered.
        times: How often.
        real: How many of them are new interpreters.
        workers: How many of them, at least, have an environment of processes.
        seed: Seed of the moments.
        per_run: How often one run is ended.

    Raises:
        AssertionError: If a run did not go on as it should.

    """
    rng, seconds = random.Random(seed), list[float]()
    while len(seconds) < times:
        words: Sequence[str] = ENVIRONMENTS[len(seconds) // per_run % len(ENVIRONMENTS)]
        if len(seconds) < workers:
            words = WORKERS
        with tempfile.TemporaryDirectory() as place:
            directory = Path(place)
            for _ in range(min(per_run, times - len(seconds))):
                training = Training(directory, words, real=len(seconds) < real)
                # Some are killed while they load the checkpoint; the one after may not be.
                early = number == signal.SIGKILL and rng.random() < 0.2 and len(seconds) % 2 == 0
                if early:
                    time.sleep(rng.random() * 0.5)
                else:
                    training.wait_for_a_line()
                    time.sleep(rng.random() ** 2 * 0.4)
                seconds.append(training.end(number))
                expected = -number if number == signal.SIGKILL else 128 + number
                assert training.status == expected, training.log.read_text()[-3000:]
                _check(directory / "run", exact_end=number != signal.SIGKILL)
                if len(seconds) % 50 == 0:
                    print(f"{len(seconds)} of {times}", flush=True)
            training = Training(directory, words, real=len(seconds) <= real)  # the last, too
            training.wait_for_a_line()
            assert training.poll() is None, training.log.read_text()[-3000:]
            training.end(signal.SIGKILL)
            text = training.log.read_text()
            assert "damaged" not in text, text[-3000:]
            assert "Traceback" not in text or "async" in words[-1], text[-3000:]  # its workers'
    return seconds


def _check(run_dir: Path, *, exact_end: bool) -> None:
    if not (run_dir / "metrics.jsonl").exists():
        return
    steps = [line["algorithm/steps"] for line in read_metrics(run_dir / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1)), steps[-20:]
    found = [load_state(path)["trainer"]["algorithm/steps"] for path in checkpoints_of(run_dir)]
    assert not found or found[0] <= len(steps), (found, steps[-5:])
    assert not exact_end or found[0] == steps[-1], (found, steps[-5:])


def import_everything() -> None:
    """Import what a training needs, so that forks do not; no thread may have started."""
    import gymnasium.vector  # noqa: F401

    import everstep_adapters.gymnasium.env
    import everstep_adapters.gymnasium.state  # noqa: F401

    assert threading.active_count() == 1
    gc.freeze()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("signal", choices=["SIGKILL", "SIGTERM", "SIGHUP"])
    parser.add_argument("times", type=int)
    parser.add_argument("--real", type=int, default=0, help="how many are new interpreters")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="how many have processes")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import_everything()
    number = signal.Signals[given.signal]
    options = {"real": given.real, "workers": given.workers, "seed": given.seed}
    took = sorted(end_often(number, given.times, **options))
    late = took[min(len(took) - 1, int(0.99 * len(took)))]
    slowest = f"the end took {late:.2f} s (99th percentile), at most {took[-1]:.2f} s"
    print(f"{len(took)} of {given.times} went on; {slowest}")
