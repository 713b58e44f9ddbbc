"""A long training with checkpoints, evaluations and trackers: does anything grow, or get slower?

    python examples/benchmarks/soak.py --minutes 60

Samples resident memory, descriptors and threads of the process, memory of its children, and env
steps per second of processor time in train steps (without evaluations). Beside each sample a fixed
piece of work is timed: other programs on the machine slow both down, so the verdict is about the
ratio. Prints the samples and a verdict; exit code 1 if a limit is broken. Trackers whose libraries
are not installed are left out, and named.
"""

import argparse
import importlib.util
import json
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
from everstep.loggers import TRACKERS

#: Share of the run that is left out at its beginning: libraries are imported, buffers filled.
WARM_UP = 0.2

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


class Sampler(Callback):
    """Samples the process, and stops the training when its time is over."""

    def __init__(self, minutes: float, count: int) -> None:
        self.seconds, self.samples = 60 * minutes, []
        self.interval = self.seconds / count
        self.process = psutil.Process()
        self.trained = self.steps = self.sampled_steps = 0.0

    def on_start(self, trainer: Any) -> None:
        super().on_start(trainer)
        self.started = self.sampled = time.monotonic()
        self.begun = time.thread_time()

    def on_evaluation(self, stats: dict[str, Any]) -> None:
        self.begun = time.thread_time()

    def on_train_step(self, stats: dict[str, Any]) -> None:
        self.trained += time.thread_time() - self.begun
        now = time.monotonic()
        if now - self.sampled >= self.interval:
            self.sampled = now
            self.take_sample(now - self.started, stats["env/steps"])
        if now - self.started >= self.seconds:
            self.trainer.stop()
        self.begun = time.thread_time()

    def take_sample(self, seconds: float, env_steps: int) -> None:
        memory = self.process.memory_info().rss
        children = 0
        for child in self.process.children(recursive=True):
            try:
                children += child.memory_info().rss
            except psutil.Error:
                continue
        work = fixed_work()
        rate = (env_steps - self.sampled_steps) / self.trained
        self.samples.append(
            {
                "seconds": seconds,
                "env steps": env_steps,
                "memory MiB": memory / 2**20,
                "children MiB": children / 2**20,
                "descriptors": self.process.num_fds(),
                "threads": self.process.num_threads(),
                "env steps/s": rate,
                "fixed work ms": 1000 * work,
                "env steps/work": rate * work,
            }
        )
        self.trained, self.sampled_steps = 0.0, env_steps
        line = (f"{name} {value:,.1f}" for name, value in self.samples[-1].items())
        print("  ".join(line), flush=True)


def verdict(samples: list[dict[str, float]]) -> tuple[list[str], bool]:
    """Lines about memory, descriptors, threads and rate, and whether all are within limits."""
    warm = samples[int(len(samples) * WARM_UP) :]
    if len(warm) < 6:
        return ["too few samples for a verdict"], False
    hours = np.array([x["seconds"] for x in warm]) / 3600
    third = len(warm) // 3

    def ends(name: str) -> tuple[float, float]:
        values = [x[name] for x in warm]
        return statistics.median(values[:third]), statistics.median(values[-third:])

    slope = float(np.polyfit(hours, [x["memory MiB"] for x in warm], 1)[0])
    first, last = ends("env steps/work")
    change = last / first - 1
    facts = [
        (f"memory        {slope:+.1f} MiB an hour (limit {MEMORY_LIMIT})", slope <= MEMORY_LIMIT),
        (f"rate          {change:+.1%} (limit −{RATE_LIMIT:.0%})", change >= -RATE_LIMIT),
    ]
    for name in ("descriptors", "threads"):
        first, last = ends(name)
        facts.append((f"{name:<13} {first:.0f} at first, {last:.0f} at last", last <= first))
    lines = [f"{'ok  ' if is_ok else 'FAIL'}  {text}" for text, is_ok in facts]
    return lines, all(is_ok for _, is_ok in facts)


def installed_trackers() -> list[str]:
    """Names of the trackers whose libraries are installed."""
    return [name for name in TRACKERS if importlib.util.find_spec(name) is not None]


def main() -> int:
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
        Path(arguments.out).write_text(text + "\n", encoding="utf-8")
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
