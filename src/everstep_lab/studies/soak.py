"""A long training with checkpoints, evaluations and trackers: does anything grow, or get slower?

    python -m everstep_lab.studies.soak --minutes 60

Samples memory of the process and of its children (on Linux without mapped files, whose pages the
system drops and reads again), descriptors, threads, and three rates of train steps, without
evaluations, whose episodes get longer: env steps

* per second: what a user sees, also of other programs on the machine;
* per second of processor time of the process, with the threads of trackers and checkpoints;
* per time of a fixed piece of work that is measured beside each sample: caches and clock rates that
  other programs take slow both down. The verdict is about this one.

The first twentieth is left out: libraries are imported, buffers are filled, and the policy learns.
The verdict compares the medians of the first and the last third of the rest. The rate must not have
fallen by more than its limit, two standard errors included. Exit code 1 if a limit is broken.
Trackers whose libraries are not installed are left out, and named.
"""

import argparse
import importlib.util
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import everstep
from everstep.callbacks import Callback
from everstep.core.files import write_file
from everstep.loggers import TRACKERS

#: Share of the run that is left out at its beginning.
WARM_UP = 0.05

#: Limits of the verdict: MiB an hour, and the share of the rate.
MEMORY_LIMIT, RATE_LIMIT = 10.0, 0.02


def fixed_work() -> float:
    """Seconds of processor time of work like a train step's: small operations, and Python."""
    generator = torch.Generator().manual_seed(0)
    weights, x = torch.randn(64, 64, generator=generator), torch.randn(64, 64, generator=generator)
    started = time.thread_time()
    for _ in range(15_000):
        x = torch.tanh(x @ weights).add_(0.1)
    return time.thread_time() - started


def memory_of(process: psutil.Process) -> float:
    """Memory in MiB, without mapped files where the system tells them apart."""
    memory = process.memory_info()
    return (memory.rss - getattr(memory, "shared", 0)) / 2**20


def clocks() -> np.ndarray:
    """Seconds now: of a clock, and of the processors in this process."""
    return np.array([time.monotonic(), time.process_time()])


class Sampler(Callback):
    """Samples the process, and stops the training when its time is over."""

    def __init__(self, minutes: float, count: int) -> None:
        self.seconds = 60 * minutes
        self.samples: list[dict[str, Any]] = []
        self.interval = self.seconds / count
        self.process = psutil.Process()
        self.trained, self.sampled_steps = np.zeros(2), 0

    def on_start(self, trainer: Any) -> None:
        """Begin to count."""
        super().on_start(trainer)
        self.started = self.sampled = time.monotonic()
        self.begun = clocks()

    def on_evaluation(self, stats: dict[str, Any]) -> None:
        """Leave its time out."""
        self.begun = clocks()

    def on_train_step(self, stats: dict[str, Any]) -> None:
        """Take a sample, if it is time to."""
        self.trained += clocks() - self.begun
        now = time.monotonic()
        if now - self.sampled >= self.interval:
            self.sampled = now
            self.take_sample(now - self.started, stats["env/steps"])
        if now - self.started >= self.seconds:
            self.trainer.stop()
        self.begun = clocks()

    def take_sample(self, seconds: float, env_steps: int) -> None:
        """Memory, descriptors, threads and rates of now."""
        children = 0.0
        for child in self.process.children(recursive=True):
            try:
                children += memory_of(child)
            except psutil.Error:
                continue
        work = fixed_work()
        rate, rate_of_processor = (env_steps - self.sampled_steps) / self.trained
        self.samples.append(
            {
                "seconds": seconds,
                "env steps": env_steps,
                "memory MiB": memory_of(self.process),
                "children MiB": children,
                "descriptors": self.process.num_fds(),
                "threads": self.process.num_threads(),
                "env steps/s": rate,
                "env steps/processor s": rate_of_processor,
                "fixed work ms": 1000 * work,
                "env steps/work": rate_of_processor * work,
            }
        )
        self.trained, self.sampled_steps = np.zeros(2), env_steps
        line = (f"{name} {value:,.1f}" for name, value in self.samples[-1].items())
        print("  ".join(line), flush=True)


class Samples:
    """Samples after the beginning.

    Args:
        samples: All.

    """

    def __init__(self, samples: list[dict[str, float]]) -> None:
        self.warm = samples[int(len(samples) * WARM_UP) :]
        self.third = len(self.warm) // 3

    def ends(self, name: str) -> tuple[float, float]:
        """Medians of the first and the last third."""
        values = [x[name] for x in self.warm]
        return statistics.median(values[: self.third]), statistics.median(values[-self.third :])

    def change(self, name: str) -> tuple[float, float]:
        """Change from the first to the last third, as a share, and its standard error."""
        first, last = self.ends(name)
        values = [x[name] for x in self.warm]
        spreads = (statistics.stdev(x) for x in (values[: self.third], values[-self.third :]))
        # A median's standard error is 1.25 times that of the mean, for normal errors.
        error = 1.25 * math.hypot(*spreads) / math.sqrt(self.third)
        return last / first - 1, error / first

    def slope(self, name: str) -> float:
        """Growth an hour."""
        hours = np.array([x["seconds"] for x in self.warm]) / 3600
        return float(np.polyfit(hours, [x[name] for x in self.warm], 1)[0])


def verdict(samples: list[dict[str, float]]) -> tuple[list[str], bool]:
    """Lines about memory, descriptors, threads and rate, and whether all are within limits."""
    found = Samples(samples)
    if found.third < 3:
        return ["too few samples for a verdict"], False
    facts = []
    for name in ("memory MiB", "children MiB"):
        slope = found.slope(name)
        text = f"{name:<13} {slope:+.1f} an hour (limit {MEMORY_LIMIT:+})"
        facts.append((text, slope <= MEMORY_LIMIT))
    for name in ("descriptors", "threads"):
        first, last = found.ends(name)
        facts.append((f"{name:<13} {first:.0f} at first, {last:.0f} at last", last <= first))
    change, error = found.change("env steps/work")
    lowest = change - 2 * error
    text = f"{change:+.1%} ± {error:.1%}, at least {lowest:+.1%} (limit −{RATE_LIMIT:.0%})"
    facts.append((f"rate          {text}", lowest >= -RATE_LIMIT))
    lines = [f"{'ok  ' if is_ok else 'FAIL'}  {text}" for text, is_ok in facts]
    for name in ("env steps/s", "env steps/processor s", "fixed work ms"):
        change, error = found.change(name)
        lines.append(f"      {name}: {change:+.1%} ± {error:.1%}")
    return lines, all(is_ok for _, is_ok in facts)


def installed_trackers() -> list[str]:
    """Names of the trackers whose libraries are installed."""
    return [name for name in TRACKERS if importlib.util.find_spec(name) is not None]


def main() -> int:
    """The command line: 0 if all stayed within the limits, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--run-dir", help="directory of the run (default: a temporary one)")
    parser.add_argument("--out", help="JSON file of the samples")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trackers = installed_trackers()
    print("trackers", *trackers, "| not installed:", *sorted(set(TRACKERS) - set(trackers)))
    sampler = Sampler(arguments.minutes, arguments.samples)
    with tempfile.TemporaryDirectory() as directory:
        config = everstep.TrainConfig(
            arguments.env,
            seed=0,
            target_kl_div=None,  # every update makes the same number of optimizer steps
            steps_per_eval=100,
            eval_episodes=5,
            checkpoint_every="10s",
            best="eval/episodes/return_mean",
            loggers=trackers or None,
            callbacks=[sampler],
        )
        run_dir = arguments.run_dir or Path(directory, "runs", "soak")
        with config.build(run_dir=run_dir, progress=False, track=bool(trackers)) as trainer:
            trainer.run(total_env_steps=float("inf"))
    lost = {name: tracker.undelivered for name, tracker in trainer.trackers.items()}
    print("points not delivered", lost)
    lines, is_ok = verdict(sampler.samples)
    print("\n".join(lines))
    if arguments.out:
        text = json.dumps({"samples": sampler.samples, "verdict": lines, "undelivered": lost})
        write_file(arguments.out, text + "\n")
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
