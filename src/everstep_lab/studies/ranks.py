"""Speed of one training in two and four processes, and a model of it.

    python -m everstep_lab.studies.ranks cartpole
    python -m everstep_lab.studies.ranks halfcheetah
    python -m everstep_lab.studies.ranks cartpole --against ../older  # two source trees
    python -m everstep_lab.studies.ranks gpus  # the model with figures by NVIDIA

Sides take turns: two and four ranks with a thread each; one process with a thread, and the work of
one rank; one process with two threads, and the work of two. As many unconnected processes at once
tell what the machine itself costs. Prints medians of the ratios of neighbours, and what the model
says: ranks compute for as long as unconnected processes do, and latency and bytes of the
collectives are added. It also prints what waiting for the slowest of all ranks adds to that, if
their cores differ in speed as those of this machine do, and as much for plain arithmetic.
"""

import argparse
import json
import math
import os
import random
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
ELEMENTS = (2, 64, 1024, 8192, 65536)

#: Pieces of plain arithmetic that are timed, and about how many seconds each takes.
ARITHMETIC, SECONDS = 200, 0.015


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
            if not line:
                sys.exit("A process of the benchmark has ended; its error is above.")
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
        file: Any = getattr(dist, "FileStore")(store, ranks)  # noqa: B009 - its stubs lack it
        dist.init_process_group("gloo", store=file, rank=rank, world_size=ranks)
    env, num_envs, horizon = WORKS[name]
    num_envs *= share * ranks
    clock = Clock()
    if ranks > 1:
        from everstep.core.ranks._collectives import Collectives

        timed = clock.timed("collectives", Collectives._finish)
        setattr(Collectives, "_finish", timed)  # noqa: B010 - mypy refuses an assignment
    source: Any = env
    if env.startswith("envpool:"):
        from everstep.env.registry import factory

        source = factory(env, vector_kwargs={"num_threads": threads})
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
    reducer: Any = algorithm.reducer
    for name in ("statistics", "moments", "gradients"):
        noted = clock.noted(getattr(type(reducer), name))
        setattr(type(reducer), name, clock.timed(name, noted))
    for _ in range(3):
        algorithm.collect()
        algorithm.step()
    _answer(None)
    while request := sys.stdin.readline().strip():
        if request == "sums":
            _answer([_seconds_of_sum(reducer.collectives, elements) for elements in ELEMENTS])
            continue
        if request == "arithmetic":
            _answer(_seconds_of_arithmetic())
            continue
        before = _sent(algorithm)
        clock.reset()
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(request)):
            clock.pieces.append([])
            algorithm.collect()
            algorithm.step()
        found: dict[str, Any] = {
            "seconds": time.perf_counter() - began,
            "cpu": time.process_time() - cpu,
        }
        found |= clock.seconds
        for key, x, y in zip(("sent", "bytes"), _sent(algorithm), before, strict=True):
            found[key] = x - y
        found = {name: x / int(request) for name, x in found.items()}
        _answer(found | {"pieces": clock.pieces})


def _sent(algorithm: Any) -> tuple[int, int]:
    """Collectives so far, and their bytes; one process has none."""
    collectives = getattr(algorithm.reducer, "collectives", None)
    return (0, 0) if collectives is None else (collectives.count, collectives.bytes)


class Clock:
    """Seconds in functions, by name, and between the collectives of each train step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.pieces: list[list[float]] = []
        self._last = 0.0

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

    def reset(self) -> None:
        """Begin a measurement."""
        self.seconds.clear()
        self.pieces.clear()
        self._last = time.perf_counter()

    def noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, at which a piece of a train step ends."""

        def call(*arguments: Any, **options: Any) -> Any:
            now = time.perf_counter()
            if self.pieces:
                self.pieces[-1].append(now - self._last)
            self._last = now
            return function(*arguments, **options)

        return call


def _answer(value: Any) -> None:
    print("answer " + json.dumps(value), flush=True)


def _seconds_of_sum(collectives: Any, elements: int) -> tuple[float, float]:
    """Seconds of a sum over all ranks, the mean without the slowest tenth; of the processor."""
    import torch

    times, cpu = [], time.process_time()
    for _ in range(200):
        x = torch.ones(elements)
        began = time.perf_counter()
        collectives.sum(x)
        times.append(time.perf_counter() - began)
    cpu = (time.process_time() - cpu) / len(times)
    return statistics.mean(sorted(times)[: len(times) * 9 // 10]), cpu


def _seconds_of_arithmetic() -> list[float]:
    """Seconds of pieces of the same arithmetic, on numbers that are in the cache."""
    import torch

    x = torch.ones(48, 48)
    place, times, n = torch.empty_like(x), [], 1000
    for i in range(1 + ARITHMETIC):
        began = time.perf_counter()
        for _ in range(n):
            torch.mm(x, x, out=place)
        times.append(time.perf_counter() - began)
        if i == 0:
            n = max(1, round(n * SECONDS / times.pop()))
    return times


class Fit(NamedTuple):
    """Cost of sums in which each rank sends to every other one: seconds a sum, message and byte."""

    each: float
    message: float
    byte: float

    @classmethod
    def of(cls, *sums: Sequence[tuple[float, float]]) -> "Fit":
        """From sums of `ELEMENTS` over 2, 4 and 8 ranks: seconds, and those of the processor.

        Two ranks have a core each. More share cores, where a sum takes what all of them compute:
        the messages of one are the difference between the processor's seconds of 8 and of 4.
        """
        (two, _), (_, four), (_, eight) = (zip(*each, strict=True) for each in sums)
        small = slice(3)  # sizes whose bytes cost nothing
        message = (statistics.mean(eight[small]) - statistics.mean(four[small])) / 4
        byte = (two[-1] - two[0]) / (4 * (ELEMENTS[-1] - ELEMENTS[0]))
        return cls(max(statistics.mean(two[small]) - message, 0.0), message, byte)


def computing(pieces: Sequence[Sequence[float]], n: int) -> float:
    """Seconds of a train step's computation, if each piece takes as long as the slowest rank's.

    The mean over random choices of as many train steps, which are taken for those of `n` ranks.
    """
    generator = random.Random(0)
    chosen = ([generator.choice(pieces) for _ in range(n)] for _ in range(-(-2000 // n)))
    return float(statistics.mean(sum(map(max, zip(*steps, strict=True))) for steps in chosen))


def collecting(sides: dict[str, float], fit: Fit, n: int) -> float:
    """Seconds of a train step's collectives, given how many there are (`sent`), and their bytes."""
    seconds = sides["sent"] * (fit.each + (n - 1) * fit.message)
    return seconds + (n - 1) * sides["bytes"] * fit.byte


def at_once(sides: Sequence[Side], rounds: str) -> tuple[float, list[list[float]]]:
    """Seconds of a train step of unconnected processes that train at once, the mean; its pieces."""
    for side in sides:
        side.ask(rounds)
    found = [side.wait() for side in sides]
    pieces = [pieces for each in found for pieces in each["pieces"]]
    return float(statistics.mean(each["seconds"] for each in found)), pieces


def compare_trees(name: str, tree: Path, pairs: int, rounds: str) -> None:
    """Print the ratio of processor times of one process with two versions of Everstep.

    Each pair is of new processes, which differ by some per cent with the places of their memory.
    """
    ratios = []
    for i in range(pairs):
        sides = [Side(name, tree=tree), Side(name)]
        seconds: dict[int, list[float]] = {0: [], 1: []}
        for k in range(4):
            for which in (0, 1) if (i + k) % 2 else (1, 0):
                seconds[which].append(sides[which].measure(rounds)["cpu"])
        ratios.append(statistics.median(seconds[0]) / statistics.median(seconds[1]))
        for side in sides:
            side.close()
    ratios.sort()
    reach = 0.98 * math.sqrt(pairs)  # of the ranks, a 95 % interval of the median
    low, high = ratios[max(0, round(pairs / 2 - reach))], ratios[round(pairs / 2 + reach) - 1]
    print(
        f"processor time of {tree} / of this: {statistics.median(ratios):.3f}, 95 % interval of "
        f"the median {low:.3f} to {high:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
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
    two, four, eight = (Side(name, ranks=n) for n in (2, 4, 8))
    wide = Side(name, threads=2, share=2)
    shared = max(1.0, 4 / (os.cpu_count() or 1))  # ranks of four on a core
    singles = [Side(name) for _ in range(4)]
    found: dict[str, list[float]] = {}
    for i in range(pairs):
        pair, alone = two.measure(rounds), singles[0].measure(rounds)["seconds"]
        threaded, (beside, pieces) = wide.measure(rounds)["seconds"], at_once(singles[:2], rounds)
        quad, (crowded, _) = four.measure(rounds), at_once(singles, rounds)
        fit = Fit.of(*(side.measure("sums") for side in (two, four, eight)))
        for single in singles[:2]:
            single.ask("arithmetic")
        arithmetic = [[x] for single in singles[:2] for x in single.wait()]
        costs = {n: collecting(pair, fit, n) for n in (2, *DRAWN)}
        even = {n: beside + cost for n, cost in costs.items()}
        slowest = {n: computing(pieces, n) + cost for n, cost in costs.items()}
        # On shared cores the slowest costs nothing: a rank that waits leaves its core to another.
        even[4] = crowded + shared * collecting(quad, fit, 4)
        ratios = {
            "two ranks / one rank, env steps a second": 2 * alone / pair["seconds"],
            "two unconnected processes / one, env steps a second": 2 * alone / beside,
            "two ranks / one process of two threads": threaded / pair["seconds"],
            "model / measured seconds of two ranks": even[2] / pair["seconds"],
            "the same, and the slowest is waited for": slowest[2] / pair["seconds"],
            "model / measured seconds of four ranks": even[4] / quad["seconds"],
            "collectives' part of two ranks' seconds": pair["collectives"] / pair["seconds"],
            "messages' part, of the model": collecting(pair, fit, 2) / pair["seconds"],
            "gradients' part of two ranks' seconds": pair["gradients"] / pair["seconds"],
            "a collective, us": 1e6 * fit.each,
            "a message, us": 1e6 * fit.message,
            "bandwidth, MB/s": 1e-6 / fit.byte,
            **{f"efficiency of {n} ranks": beside / even[n] for n in DRAWN},
            **{
                f"efficiency of {n} ranks, and the slowest is waited for": computing(pieces, 1)
                / slowest[n]
                for n in DRAWN
            },
            **{
                f"efficiency of {n} processes of the same arithmetic, without collectives, "
                "and the slowest is waited for": computing(arithmetic, 1) / computing(arithmetic, n)
                for n in DRAWN
            },
        }
        for what, ratio in ratios.items():
            found.setdefault(what, []).append(ratio)
        print(
            f"pair {i + 1}: ms a train step: two ranks {1e3 * pair['seconds']:.1f}, one "
            f"{1e3 * alone:.1f}, two at once {1e3 * beside:.1f}, two threads {1e3 * threaded:.1f}, "
            f"model {1e3 * even[2]:.1f}; four ranks {1e3 * quad['seconds']:.1f}, four at once "
            f"{1e3 * crowded:.1f}, model {1e3 * even[4]:.1f}; two ranks: {pair['sent']:.0f} "
            f"collectives of {pair['bytes'] / 1e3:.0f} kB in {1e3 * pair['collectives']:.1f} ms, "
            f"gradients {1e3 * pair['gradients']:.1f} ms",
            flush=True,
        )
    for side in (two, four, eight, wide, *singles):
        side.close()
    for what, each in found.items():
        print(f"{what}: {statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})")


#: Trainings on one GPU by NVIDIA, an L40: env steps of an update, env steps a second,
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
