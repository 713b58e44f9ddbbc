"""Speed of one training in two and four processes, and a model of it.

    python examples/benchmarks/ranks.py cartpole
    python examples/benchmarks/ranks.py halfcheetah
    python examples/benchmarks/ranks.py cartpole --against ../older  # one process, two source trees
    python examples/benchmarks/ranks.py gpus  # the model with figures by NVIDIA

Sides take turns: two and four ranks with a thread each; one process with a thread, and the work of
one rank; one process with two threads, and the work of two. As many unconnected processes at once
tell what the machine itself costs. Prints medians of the ratios of neighbours, and what the model
says: time of an unconnected process, plus latency, bytes and delays of as many ranks' collectives.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: Works: environment, environments a rank, and env steps a rollout.
WORKS: dict[str, tuple[str, int, int]] = {
    "cartpole": ("gymnasium:CartPole-v1", 1024, 32),
    "halfcheetah": ("envpool:HalfCheetah-v4", 64, 64),
}

#: Minibatches of an epoch, epochs, and hidden layers.
MINIBATCHES, EPOCHS, HIDDENS = 4, 4, (64, 64)

#: Numbers of ranks that the model is drawn to.
DRAWN = (8, 64, 512)

#: Elements of the float32 tensors whose sums are timed.
ELEMENTS = (2, 64, 1024, 8192, 65536, 262144)


class Side:
    """Processes that train when they are asked to, and sleep in between.

    Args:
        name: The work.
        ranks: Number of connected processes.
        threads: Threads of each.
        share: Environments of each, in units of the work's.
        tree: Source tree of Everstep; the installed one if None.

    """

    def __init__(
        self,
        name: str,
        *,
        ranks: int = 1,
        threads: int = 1,
        share: int = 1,
        tree: None | Path = None,
    ) -> None:
        paths = [] if tree is None else [str(tree / "src"), str(tree / "adapters")]
        paths += [x for x in os.environ.get("PYTHONPATH", "").split(os.pathsep) if x]
        self.store = tempfile.NamedTemporaryFile(delete=False)  # noqa: SIM115 - for its name
        words = [name, "--serve", str(ranks), str(threads), str(share), self.store.name]
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, *words, str(rank)],
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": str(threads),
                    "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    "PYTHONPATH": os.pathsep.join(paths),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        self.wait()

    def ask(self, request: str) -> None:
        """Let all processes begin."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(request + "\n")
            process.stdin.flush()

    def wait(self) -> Any:
        """The answer of the first process."""
        answers = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            while line and not line.startswith("answer "):
                line = process.stdout.readline()
            answers.append(json.loads(line.removeprefix("answer ")))
        return answers[0]

    def measure(self, request: str) -> Any:
        """Ask, and wait."""
        self.ask(request)
        return self.wait()

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.communicate("\n", timeout=60)
        Path(self.store.name).unlink(missing_ok=True)


def serve(name: str, ranks: int, threads: int, share: int, store: str, rank: int) -> None:
    """Be one process of a side."""
    import torch
    import torch.distributed as dist

    from everstep import AlgorithmConfig

    if ranks > 1:
        from everstep.cli._processes import bind  # as the command line does

        bind()
    torch.set_num_threads(threads)
    if ranks > 1:
        file = dist.FileStore(store, ranks)
        dist.init_process_group("gloo", store=file, rank=rank, world_size=ranks)
    env, num_envs, horizon = WORKS[name]
    num_envs *= share * ranks
    clock = Clock()
    if ranks > 1:
        from everstep.reducers._collectives import Collectives

        timed = clock.timed("collectives", Collectives._wait)
        setattr(Collectives, "_wait", timed)  # noqa: B010 - mypy refuses an assignment
    source: Any = env
    if env.startswith("envpool:"):
        from everstep.registry import factory

        source = factory(env, num_threads=threads)
    config = AlgorithmConfig(
        num_envs=num_envs,
        horizon=horizon,
        sgd_minibatch_size=num_envs * horizon // MINIBATCHES,
        num_sgd_iters=EPOCHS,
        model_config={"hiddens": HIDDENS},
        horizons_per_env_reset=-1,
        seed=0,
    )
    algorithm = config.build(source)
    for _ in range(3):
        algorithm.collect()
        algorithm.step()
    if hasattr(algorithm, "_add_gradients"):  # a method of this version
        timed = clock.timed("gradients", algorithm._add_gradients)
        setattr(algorithm, "_add_gradients", timed)  # noqa: B010 - mypy refuses an assignment
    _answer(None)
    while request := sys.stdin.readline().strip():
        if request == "sums":
            _answer([_delay(), *(_seconds_of_sum(elements) for elements in ELEMENTS)])
            continue
        before = _sent(algorithm)
        clock.seconds.clear()
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(request)):
            algorithm.collect()
            algorithm.step()
        found = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
        found |= clock.seconds
        for key, x, y in zip(("sent", "bytes"), _sent(algorithm), before, strict=True):
            found[key] = x - y
        _answer({name: x / int(request) for name, x in found.items()})


def _sent(algorithm: Any) -> tuple[int, int]:
    """Collectives so far, and their bytes; one process has none."""
    reducer: Any = getattr(algorithm.parts, "reducer", None)  # older versions have none
    collectives = getattr(reducer, "collectives", None)
    return (0, 0) if collectives is None else (collectives.count, collectives.bytes)


class Clock:
    """Seconds in functions, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose seconds are added."""

        def call(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                took = time.perf_counter() - began
                self.seconds[name] = self.seconds.get(name, 0.0) + took

        return call


def _answer(value: Any) -> None:
    print("answer " + json.dumps(value), flush=True)


def _seconds_of_sum(elements: int) -> float:
    """Seconds of a sum over all ranks, the median."""
    import torch
    import torch.distributed as dist

    x = torch.ones(elements)
    times = []
    for _ in range(200):
        began = time.perf_counter()
        dist.all_reduce(x.fill_(1.0))
        times.append(time.perf_counter() - began)
    return statistics.median(times[20:])


def _delay() -> float:
    """Seconds, beside its own, that a sum takes between computations of 10 ms, the mean.

    Ranks do not arrive at once, and those that wait are woken up.
    """
    import torch
    import torch.distributed as dist

    x, left, right = torch.ones(ELEMENTS[0]), torch.randn(8192, 64), torch.randn(64, 64)

    def seconds(*, summed: bool) -> float:
        dist.barrier()
        began = time.perf_counter()
        for _ in range(60):
            for _ in range(13):
                torch.mm(left, right)
            if summed:
                dist.all_reduce(x.fill_(1.0))
        return (time.perf_counter() - began) / 60

    seconds(summed=True)
    each = [seconds(summed=True) - seconds(summed=False) for _ in range(3)]
    return max(0.0, statistics.median(each) - _seconds_of_sum(ELEMENTS[0]))


class Fit(NamedTuple):
    """Cost of sums: seconds of a step, seconds a byte, and the delay of each."""

    latency: float
    byte: float
    delay: float

    @classmethod
    def of(cls, n: int, delay: float, *seconds: float) -> "Fit":
        """From the delay and the seconds of sums of `ELEMENTS` over `n` ranks; the smallest is the
        latency."""
        byte = (seconds[-1] - seconds[0]) / (4 * ELEMENTS[-1])
        return cls(seconds[0] / (n - 1), byte * n / (2 * (n - 1)), delay / math.log2(n))


def expected(alone: float, sides: dict[str, float], fit: Fit, n: int) -> float:
    """Seconds of a train step of `n` ranks.

    Sums are rings, whose steps each have half of the latency. Delays grow with the logarithm.

    Args:
        alone: Seconds of an unconnected process.
        sides: Collectives of a train step (`sent`), and their bytes.
        fit: Cost of sums.
        n: Number of ranks.

    """
    each = fit.latency * (n - 1) + fit.delay * math.log2(n)
    return alone + sides["sent"] * each + sides["bytes"] * fit.byte * 2 * (n - 1) / n


def at_once(sides: Sequence[Side], rounds: str) -> float:
    """Seconds of a train step of unconnected processes that train at once, the mean."""
    for side in sides:
        side.ask(rounds)
    return float(statistics.mean(side.wait()["seconds"] for side in sides))


def compare_trees(name: str, tree: Path, pairs: int, rounds: str) -> None:
    """Print the ratio of processor times of one process with two versions of Everstep."""
    sides = [Side(name, tree=tree), Side(name)]
    ratios = []
    for i in range(pairs):
        order = sides if i % 2 else sides[::-1]
        seconds = {id(side): side.measure(rounds)["cpu"] for side in order}
        ratios.append(seconds[id(sides[0])] / seconds[id(sides[1])])
    for side in sides:
        side.close()
    middle = statistics.median(ratios)
    print(
        f"processor time of {tree} / of this: {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=[*WORKS, "gpus"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10, help="train steps of a measurement")
    parser.add_argument(
        "--against", type=Path, metavar="TREE", help="compare one process with another source tree"
    )
    parser.add_argument("--serve", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work == "gpus":
        gpus()
    elif given.serve:
        ranks, threads, share, store, rank = given.serve
        serve(given.work, int(ranks), int(threads), int(share), store, int(rank))
    elif given.against:
        compare_trees(given.work, given.against, given.pairs, str(given.rounds))
    else:
        compare_ranks(given.work, given.pairs, str(given.rounds))


def compare_ranks(name: str, pairs: int, rounds: str) -> None:
    """Print ratios of two and four ranks, of one process, and of the model."""
    two, four, wide = Side(name, ranks=2), Side(name, ranks=4), Side(name, threads=2, share=2)
    singles = [Side(name) for _ in range(4)]
    found: dict[str, list[float]] = {}
    for i in range(pairs):
        pair, alone = two.measure(rounds), singles[0].measure(rounds)["seconds"]
        threaded, beside = wide.measure(rounds)["seconds"], at_once(singles[:2], rounds)
        quad, crowded = four.measure(rounds), at_once(singles, rounds)
        fit, crowd = Fit.of(2, *two.measure("sums")), Fit.of(4, *four.measure("sums"))
        prompt = fit._replace(delay=0.0)
        models = expected(beside, pair, fit, 2), expected(crowded, quad, crowd, 4)
        ratios = {
            "two ranks / one rank, transitions a second": 2 * alone / pair["seconds"],
            "two unconnected processes / one, transitions a second": 2 * alone / beside,
            "two ranks / one process of two threads": threaded / pair["seconds"],
            "model / measured seconds of two ranks": models[0] / pair["seconds"],
            "model / measured seconds of four ranks": models[1] / quad["seconds"],
            "collectives' part of two ranks' seconds": pair["collectives"] / pair["seconds"],
            "latency and bytes alone": expected(0.0, pair, prompt, 2) / pair["seconds"],
            "gradients' part of two ranks' seconds": pair["gradients"] / pair["seconds"],
            "latency, us": 1e6 * fit.latency,
            "bandwidth, MB/s": 1e-6 / fit.byte,
            "delay of a collective, us": 1e6 * fit.delay,
            **{
                f"efficiency of {n} ranks{name}": beside / expected(beside, pair, costs, n)
                for name, costs in (("", fit), (" without delays", prompt))
                for n in DRAWN
            },
        }
        for what, ratio in ratios.items():
            found.setdefault(what, []).append(ratio)
        print(
            f"pair {i + 1}: ms a train step: two ranks {1e3 * pair['seconds']:.1f}, one "
            f"{1e3 * alone:.1f}, two at once {1e3 * beside:.1f}, two threads {1e3 * threaded:.1f}, "
            f"model {1e3 * models[0]:.1f}; four ranks {1e3 * quad['seconds']:.1f}, four at once "
            f"{1e3 * crowded:.1f}, model {1e3 * models[1]:.1f}; two ranks: {pair['sent']:.0f} "
            f"collectives of {pair['bytes'] / 1e3:.0f} kB in {1e3 * pair['collectives']:.1f} ms, "
            f"gradients {1e3 * pair['gradients']:.1f} ms",
            flush=True,
        )
    for side in (two, four, wide, *singles):
        side.close()
    for what, each in found.items():
        print(f"{what}: {statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})")


#: Trainings on one GPU by NVIDIA, an L40: transitions of an update, transitions a second,
#: optimizer steps, and weights. Source: Isaac Lab, "Performance Benchmarks"; sizes of the networks
#: and of updates are those of its configurations.
GPU_WORKS = {
    "Isaac-Cartpole-Direct, 4096 x 32": (4096 * 32, 260_000, 64, 2_000),
    "Isaac-Velocity-Rough-G1, 4096 x 24": (4096 * 24, 62_000, 20, 650_000),
}

#: NVIDIA's figures of NCCL for trees of its protocol LL, in seconds: once, a step between GPUs of
#: one machine over PCIe, and between machines. Source: NCCL, `src/graph/tuning.cc`.
NCCL_BASE, NCCL_PCIE, NCCL_NETWORK = 4.4e-6, 1.0e-6 * 1.8, 5.0e-6

#: Bytes a second of such sums: of 25 GB/s of PCIe 4.0 or the network, as that file reckons.
NCCL_BYTES = 25e9 * 0.9 / 3.8 / 2


def gpus() -> None:
    """Print the model's efficiency of GPUs, eight a machine; nothing here is measured."""
    for name, (rows, rate, steps, weights) in GPU_WORKS.items():
        alone = rows / rate
        for n in DRAWN:
            machines = n // 8
            hops = 7 * NCCL_PCIE + math.log2(machines) * NCCL_NETWORK
            sent = steps * 4 * weights + 10_000
            cost = (steps + 6) * (NCCL_BASE + 2 * hops) + sent / NCCL_BYTES
            print(f"{name}: {n} GPUs: efficiency {alone / (alone + cost):.3f}")


if __name__ == "__main__":
    main()
