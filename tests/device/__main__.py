"""Operations and launches of a rollout and an update on a GPU, counted without one.

    python -m tests.device
    python -m tests.device rsl_rl skrl rl_games rl8

Three usual shapes, with fewer environments: operations are as many with any number of them, as
long as a rollout is worked on in one piece. On a GPU it measures, with all of them.
With names of peers of `everstep bench`, which this interpreter must have, it counts an iteration of
theirs and of ours in the benchmarks for a GPU: the loads of `everstep_lab.benchmarks._roofline`.
"""

import importlib
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import everstep
from everstep import AlgorithmConfig, ContinuousDummyEnv, DiscreteDummyEnv
from everstep_lab.benchmarks import Cell, cells, load_case, peers
from everstep_lab.benchmarks._roofline import Load
from everstep_lab.benchmarks.peers._serving import totals
from tests.device.installed import installed, unavailable
from tests.device.machine import Counts

#: Environment, how many of them there are, and hyperparameters; minibatches of 16 environments.
SHAPES: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "rl8's default: 32 vector steps, 256-256, 4 x 1 steps": (
        DiscreteDummyEnv,
        8192,
        {"horizon": 32, "num_sgd_iters": 4, "model_config": {"hiddens": (256, 256)}},
    ),
    "Isaac's usual: 24 vector steps, 512-256-128, 5 x 4 steps": (
        ContinuousDummyEnv,
        4096,
        {
            "horizon": 24,
            "num_sgd_iters": 5,
            "sgd_minibatch_size": 96,
            "model_config": {"hiddens": (512, 256, 128), "activation_fn": "elu"},
        },
    ),
    "CartPole of Gymnasium: 128 vector steps, 64-64, 4 x 4 steps": (
        everstep.factory("gymnasium:CartPole-v1"),
        64,
        {
            "horizon": 128,
            "num_sgd_iters": 4,
            "sgd_minibatch_size": 512,
            "model_config": {"hiddens": (64, 64), "activation_fn": "tanh"},
        },
    ),
}


def count(env: Any, **options: Any) -> list[Counts]:
    """Counts of the last rollout and the last update of a training of a few."""
    with installed() as machine:
        algorithm = AlgorithmConfig(num_envs=16, seed=0, device="cuda", **options).build(env)
        for _ in range(3 if options["cuda_graphs"] else 2):
            found = []
            for work in (algorithm.collect, algorithm.step):
                machine.counts = Counts()
                work()
                found.append(machine.counts)
        algorithm.env.close() if hasattr(algorithm.env, "close") else None
    return found


def measure(env: Any, num_envs: int, **options: Any) -> list[str]:
    """Launches, kernels, and milliseconds of rollout and update on a GPU."""
    if "sgd_minibatch_size" in options:
        options["sgd_minibatch_size"] *= num_envs // 16
    config = AlgorithmConfig(num_envs=num_envs, seed=0, device="cuda", **options)
    algorithm, found = config.build(env), []
    for work in (algorithm.collect, algorithm.step) * 4:
        work()
    times: dict[str, list[float]] = {"collect": [], "step": []}
    for work in (algorithm.collect, algorithm.step) * 10:
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times[work.__name__].append(1e3 * (time.perf_counter() - start))
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    for work in (algorithm.collect, algorithm.step):
        with profile(activities=activities, acc_events=True) as seen:
            work()
        rows = [(x.name, "CUDA" in str(x.device_type), x.device_time) for x in seen.events()]
        counts = totals(rows)
        found.append(
            f"{counts['kernels']:>7,.0f} kernels {counts['launches']:>6,.0f} launches "
            f"{counts['waits']:>4.0f} waits {median(times[work.__name__]):>7.1f} ms "
            f"{counts['busy_ms']:>6.1f} ms busy"
        )
    algorithm.env.close() if hasattr(algorithm.env, "close") else None
    return found


#: Classes of the peers' programs.
PROGRAMS = {"rsl_rl": "RslRl", "skrl": "Skrl", "rl_games": "RlGames", "rl8": "Rl8"}


def count_peers(names: Sequence[str]) -> None:
    """Loads of an iteration of peers, and of ours, in the benchmarks that they are in."""
    sys.path.insert(0, str(Path(peers.__file__).parents[1]))  # as the bench starts them
    # Tensors that are not PyTorch's own cannot be viewed in inference mode.
    plain: Any = lambda mode=True: torch.no_grad() if mode else nullcontext()  # noqa: E731
    torch.inference_mode = plain  # type: ignore[misc]
    for case in ("gpu-isaac-shape", "gpu-rl8-default"):
        cell = cells(load_case(case))[0]
        for name in ("everstep", *(x for x in names if x in cell.peers)):
            print(f"{case}, {name}: {load_of(cell, name)}", flush=True)


def load_of(cell: Cell, name: str) -> Load:
    """An iteration of a side of a benchmark, with all of its environments.

    Work on rows is as many times that of 16 environments as there are more of them.
    """
    order = cell.order(name, "cuda", 1)
    module = "everstep_lab.benchmarks._everstep" if name == "everstep" else f"peers.{name}"
    make = getattr(importlib.import_module(module), PROGRAMS.get(name, "Everstep"))
    found = []
    for num_envs in (16, 32):
        with installed() as machine:
            program = make({**order, "num_envs": num_envs, "seed": 0})
            for _ in range(3):
                machine.counts = Counts()
                program.iterate()
            found.append(machine.counts)
    one, two = found
    flops, traffic = (
        x + (y - x) * (order["num_envs"] - 16) / 16
        for x, y in ((one.flops, two.flops), (one.traffic, two.traffic))
    )
    return Load(
        order["num_envs"] * order["horizon"],
        one.launches,
        one.kernels.total(),
        one.syncs.total(),
        round(flops / 1e12, 3),
        round(traffic / 1e9, 1),
    )


def main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    is_real = torch.cuda.is_available()
    if not is_real and (reason := unavailable()) is not None:
        raise SystemExit(reason)
    if names := sys.argv[1:]:
        count_peers(names)
        return
    for name, (env, num_envs, options) in SHAPES.items():
        print(name)
        for graphs in (False, True):
            if is_real:
                for what, text in zip(
                    ("rollout", "update"),
                    measure(env, num_envs, cuda_graphs=graphs, **options),
                    strict=True,
                ):
                    print(f"  {'recorded' if graphs else 'eager':<9}{what:<8}{text}")
                continue
            rollout, update = count(env, cuda_graphs=graphs, **options)
            for what, counts in (("rollout", rollout), ("update", update)):
                print(
                    f"  {'recorded' if graphs else 'eager':<9}{what:<8}"
                    f"{counts.kernels.total():>7,} operations {counts.launches:>6,} launches "
                    f"{counts.syncs.total():>4} waits"
                )


if __name__ == "__main__":
    main()
