"""Kill a training at random moments: `python tests/everstep/trainers/kills.py SIGKILL 100`.

One run in one directory, with a checkpoint each train step. It is killed, continued by the same
command, and killed again. Each time the statistics must have every train step once.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from everstep.checkpoints import load_state
from everstep.loggers import read_metrics
from everstep.trainers._checkpointing import checkpoints_of

COMMAND = [
    *(sys.executable, "-m", "everstep", "train", "everstep.env.DiscreteDummyEnv"),
    *("--run-dir", "run", "--resume", "auto", "--no-mlflow", "--steps", "1_000_000_000"),
    *("num_envs=4", "horizon=8", "model_config.hiddens=[8]", "checkpoint_every=1"),
]


def kill_often(directory: Path, number: signal.Signals, times: int) -> list[float]:
    """Seconds that the process needed to end, each time."""
    rng = random.Random(0)
    seconds = []
    for _ in range(times):
        process = subprocess.Popen(
            COMMAND, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            before = _size(directory)
            while _size(directory) == before and process.poll() is None:
                time.sleep(0.01)
            time.sleep(rng.random())
            process.send_signal(number)
            began = time.monotonic()
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
        seconds.append(time.monotonic() - began)
        expected = -9 if number == signal.SIGKILL else 128 + number
        assert process.returncode == expected, err.decode()
        _check(directory / "run", exact_end=number != signal.SIGKILL)
    return seconds


def _size(directory: Path) -> int:
    metrics = directory / "run" / "metrics.jsonl"
    return metrics.stat().st_size if metrics.exists() else 0


def _check(run_dir: Path, *, exact_end: bool) -> None:
    steps = [line["algorithm/steps"] for line in read_metrics(run_dir / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1))
    found = [load_state(path)["trainer"]["algorithm/steps"] for path in checkpoints_of(run_dir)]
    assert not found or found[0] <= steps[-1]
    assert not exact_end or found[0] == steps[-1]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as place:
        took = sorted(kill_often(Path(place), signal.Signals[sys.argv[1]], int(sys.argv[2])))
    print(f"{len(took)} of {sys.argv[2]} continued; the slowest end took {took[-1]:.2f} s")
