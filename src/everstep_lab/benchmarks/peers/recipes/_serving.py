"""Request and result of a peer that trains a recipe; see `everstep_lab.reproduction`."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from .._gymnasium import Returns
from .._serving import versions_of
from ._envs import Array, Batch

#: Episodes of the evaluation, and points of a curve.
EPISODES, POINTS = 20, 50


class Curve:
    """Returns over env steps, seconds and processor time, recorded after each rollout.

    Args:
        num_envs: Number of environments.

    """

    def __init__(self, num_envs: int) -> None:
        self.returns = Returns(num_envs)
        self.points: list[tuple[int, float, float, float]] = []
        self.started: None | tuple[float, float] = None

    def begin(self) -> None:
        """Start the clock, when the first rollout begins."""
        if self.started is None:
            self.started = time.perf_counter(), time.process_time()

    def record(self, env_steps: int) -> None:
        """Add a point, if an episode has ended."""
        mean = self.returns.mean()
        if mean is not None and self.started is not None:
            seconds, processor = self.started
            took = time.perf_counter() - seconds, time.process_time() - processor
            self.points.append((env_steps, *took, mean))

    def thinned(self) -> dict[str, list[float]]:
        """At most `POINTS` points by name."""
        last = len(self.points) - 1
        chosen = sorted({*np.linspace(0, last, POINTS).astype(int).tolist()})
        points = [self.points[i] for i in chosen]
        return {
            "env_steps": [point[0] for point in points],
            "seconds": [round(point[1], 1) for point in points],
            "processor_seconds": [round(point[2], 1) for point in points],
            "return": [short(point[3]) for point in points],
        }


class Trained(Protocol):
    """A policy that was trained."""

    #: Env steps of the training.
    env_steps: int

    #: Returns of the training.
    curve: Curve

    def predict(self, obs: Array) -> Array:
        """Most likely actions `[N, …]` for observations `[N, D]` of the environment."""
        ...


def serve(train: Callable[[dict[str, Any], int], Trained], packages: tuple[str, ...]) -> None:
    """Train what the command line asks for, play episodes, and write the result.

    Args:
        train: Trains by a recipe's keys and a seed.
        packages: Distributions whose versions belong to the result.

    """
    request = json.loads(sys.argv[1])
    if not sys.stdin.isatty():
        threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    values, seed = request["values"], request["seed"]
    torch.manual_seed(seed)
    np.random.seed(seed)
    started = time.process_time()
    trained = train(values, seed)
    took = time.process_time() - started
    returns = play(trained, Batch(values["env_cls"], 1, 2**31 - 1 - seed - EPISODES))
    points = trained.curve.points
    result = {
        "env_steps": trained.env_steps,
        "seconds": round(points[-1][1], 1),
        "training": short(points[-1][3]),
        "curve": trained.curve.thinned(),
        "versions": versions_of(packages),
        "processor_seconds": round(took, 1),
        "evaluation": {
            "mean": short(float(np.mean(returns))),
            "std": short(float(np.std(returns))),
            "returns": [short(x) for x in returns],
        },
    }
    Path(request["result"]).write_text(json.dumps(result), encoding="utf-8")


def play(trained: Trained, batch: Batch) -> list[float]:
    """Returns of complete episodes in one environment."""
    returns: list[float] = []
    obs, total = batch.reset(), 0.0
    while len(returns) < EPISODES:
        obs, rewards, terminated, truncated, _ = batch.step(trained.predict(obs))
        total += float(rewards[0])
        if terminated[0] or truncated[0]:
            returns.append(total)
            total = 0.0
    batch.close()
    return returns


def short(number: float) -> float:
    """A number with five digits."""
    return float(f"{number:.5g}")


def _end_with_parent() -> None:
    """End this process when the parent's end of a pipe closes."""
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    os._exit(1)
