"""How do time and memory grow with environments, horizon, width and minibatch?

    python -m everstep_lab.studies.scaling --out docs/images
    python -m everstep_lab.studies.scaling --quick --out /tmp/scaling

PPO with two perceptrons of two hidden layers, 32 numbers observed, in an environment that costs
next to nothing. One thing grows at a time, in powers of two; the others stay at `BASE`. For each
point: microseconds an env step of `collect` and of `step` (the median of at least three), and the
most memory that is there at one time, in the rollout and beside it (see `memory.py`).

Writes `scaling.json`, and a picture for each of the four.

Needs matplotlib: `pip install matplotlib`.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torchrl.data import Unbounded

from everstep import Algorithm, AlgorithmConfig
from everstep.core.files import replacing, write_file
from everstep_lab.studies.memory import Noise, peak_of, rollout_bytes

#: What stays as it is while something else grows; a minibatch of 0 is the whole rollout.
BASE = {"num_envs": 256, "horizon": 32, "width": 64, "minibatch": 0}

#: What grows, from and to which power of two.
SWEEPS = {"num_envs": (4, 11), "horizon": (3, 8), "width": (4, 9), "minibatch": (8, 13)}

#: Names of what grows, for pictures.
LABELS = {
    "num_envs": "environments",
    "horizon": "vector steps a rollout",
    "width": "units a hidden layer",
    "minibatch": "transitions a minibatch",
}

#: Seconds that a point is measured for, where it does not need longer.
SECONDS = 2.0

Point = dict[str, float]


def build(size: dict[str, int], device: str) -> Algorithm:
    """PPO of that size."""
    config = AlgorithmConfig(
        sgd_minibatch_size=size["minibatch"] or None,
        horizons_per_env_reset=-1,
        model_config={"hiddens": (size["width"], size["width"])},
        seed=0,
    )
    return config.build(Noise(Unbounded(32), size["num_envs"], size["horizon"], device=device))


def measure(size: dict[str, int], device: str, least: int, seconds: float) -> Point:
    """Microseconds an env step, and bytes; of at least so many iterations, for so many seconds."""
    algorithm = build(size, device)
    env_steps = size["num_envs"] * size["horizon"]
    times: list[tuple[float, float]] = []
    end = None
    while len(times) <= least or time.perf_counter() < (end or 0):
        collected = algorithm.collect()["profiling/collect_ms"]
        times.append((collected, algorithm.step()["profiling/step_ms"]))
        end = end or time.perf_counter() + seconds  # the first one warms up
    collect_ms, step_ms = (statistics.median(each) for each in zip(*times[1:], strict=True))
    where = torch.device(device)
    beside = [peak_of(call, where).most for call in (algorithm.collect, algorithm.step)]
    rollout = rollout_bytes(algorithm.rollout)
    return {
        "collect_us": 1e3 * collect_ms / env_steps,
        "step_us": 1e3 * step_ms / env_steps,
        "rollout_bytes": rollout,
        "peak_bytes": rollout + max(beside),
    }


def draw(name: str, points: dict[int, Point], out: Path) -> None:
    """Write a picture of what grows with `name`."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 3), layout="constrained")
    kinds = {
        "µs an env step": {"collect": "collect_us", "step": "step_us"},
        "bytes": {"rollout": "rollout_bytes", "rollout and the most beside it": "peak_bytes"},
    }
    for place, (label, lines) in enumerate(kinds.items(), start=1):
        axes = figure.add_subplot(1, 2, place, xlabel=LABELS[name], ylabel=label)
        for title, key in lines.items():
            axes.plot(list(points), [point[key] for point in points.values()], "o-", label=title)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        if label == "bytes":
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    with replacing(out) as path:
        figure.savefig(path, dpi=120, format=out.suffix[1:])


def main() -> None:
    """Measure, write and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two points each, to see it work")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"base": BASE, "threads": torch.get_num_threads(), "sweeps": {}}
    for name, (low, high) in SWEEPS.items():
        last = low + 1 if options.quick else high
        points = {}
        for value in (2**power for power in range(low, last + 1)):
            least, seconds = (1, 0.0) if options.quick else (3, SECONDS)
            points[value] = measure({**BASE, name: value}, options.device, least, seconds)
            words = ", ".join(f"{key} {number:.4g}" for key, number in points[value].items())
            print(f"{name} {value}: {words}", flush=True)
        found["sweeps"][name] = points
        draw(name, points, options.out / f"scaling_{name}.png")
    write_file(options.out / "scaling.json", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
