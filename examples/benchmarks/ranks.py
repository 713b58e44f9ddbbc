"""Speed of one training in two processes, and a model of it.

    python examples/benchmarks/ranks.py cartpole
    python examples/benchmarks/ranks.py halfcheetah
    python examples/benchmarks/ranks.py cartpole --against ../older  # one process, two source trees

Sides take turns: two ranks with a thread each; one process with a thread, and the work of one rank;
one process with two threads, and the work of both. Two unconnected processes at once tell what the
machine itself costs. Prints medians of the ratios of neighbours, and what the model says: time of
an unconnected process, plus latency and bytes of the collectives, both measured here.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: Works: environment, environments a rank, env steps a rollout, options of the environment.
WORKS: dict[str, tuple[str, int, int]] = {
    "cartpole": ("gymnasium:CartPole-v1", 1024, 32),
    "halfcheetah": ("envpool:HalfCheetah-v4", 64, 64),
}

#: Minibatches of an epoch, epochs, and hidden layers.
MINIBATCHES, EPOCHS, HIDDENS = 4, 4, (64, 64)

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

    torch.set_num_threads(threads)
    if ranks > 1:
        file = dist.FileStore(store, ranks)
        dist.init_process_group("gloo", store=file, rank=rank, world_size=ranks)
    env, num_envs, horizon = WORKS[name]
    num_envs *= share * ranks
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
    _answer(None)
    while request := sys.stdin.readline().strip():
        if request == "sums":
            _answer([_seconds_of_sum(elements) for elements in ELEMENTS])
            continue
        reducer: Any = getattr(algorithm.parts, "reducer", None)  # older versions have none
        before = getattr(reducer, "collectives", 0), getattr(reducer, "bytes", 0)
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(request)):
            algorithm.collect()
            algorithm.step()
        after = getattr(reducer, "collectives", 0), getattr(reducer, "bytes", 0)
        each = [time.perf_counter() - began, after[0] - before[0], after[1] - before[1]]
        _answer([x / int(request) for x in [*each, time.process_time() - cpu]])


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


def fitted(seconds: list[float]) -> tuple[float, float]:
    """Latency, and seconds a byte, of sums: the first is that of the smallest."""
    latency = seconds[0]
    return latency, (seconds[-1] - latency) / (4 * ELEMENTS[-1])


def expected(
    alone: float, collectives: float, sent: float, fit: tuple[float, float], n: int
) -> float:
    """Seconds of a train step of `n` ranks: rings, whose steps each have half of the latency."""
    latency, byte = fit
    return alone + collectives * latency * (n - 1) + sent * byte * 2 * (n - 1) / n


def compare_trees(name: str, tree: Path, pairs: int, rounds: str) -> None:
    """Print the ratio of processor times of one process with two versions of Everstep."""
    sides = [Side(name, tree=tree), Side(name)]
    ratios = []
    for i in range(pairs):
        order = sides if i % 2 else sides[::-1]
        seconds = {id(side): side.measure(rounds)[3] for side in order}
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
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20, help="train steps of a measurement")
    parser.add_argument(
        "--against", type=Path, metavar="TREE", help="compare one process with another source tree"
    )
    parser.add_argument("--serve", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        ranks, threads, share, store, rank = given.serve
        serve(given.work, int(ranks), int(threads), int(share), store, int(rank))
        return
    if given.against:
        compare_trees(given.work, given.against, given.pairs, str(given.rounds))
        return
    pair = Side(given.work, ranks=2)
    single, other = Side(given.work), Side(given.work)
    wide = Side(given.work, threads=2, share=2)
    sides, rounds = (pair, single, other, wide), str(given.rounds)
    against_one, against_two, models, efficiencies = [], [], [], []
    for i in range(given.pairs):
        together, sent, size, _ = pair.measure(rounds)
        alone, *_ = single.measure(rounds)
        threaded, *_ = wide.measure(rounds)
        other.ask(rounds)
        beside, *_ = single.measure(rounds)
        other.wait()
        fit = fitted(pair.measure("sums"))
        model = expected(beside, sent, size, fit, 2)
        against_one.append(2 * alone / together)
        against_two.append(threaded / together)
        models.append(model / together)
        efficiencies.append([beside / expected(beside, sent, size, fit, n) for n in (8, 64, 512)])
        print(
            f"pair {i + 1}: ms a train step: two ranks {1e3 * together:.1f}, one "
            f"{1e3 * alone:.1f}, two at once {1e3 * beside:.1f}, two threads "
            f"{1e3 * threaded:.1f}, model {1e3 * model:.1f}; {sent:.0f} collectives of "
            f"{size / 1e3:.0f} kB in all; latency {1e6 * fit[0]:.0f} us, "
            f"{1e-6 / fit[1]:.0f} MB/s",
            flush=True,
        )
    for side in sides:
        side.close()
    for what, ratios in (
        ("two ranks / one rank, transitions a second", against_one),
        ("two ranks / one process of two threads", against_two),
        ("model / measured seconds of two ranks", models),
    ):
        print(f"{what}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    for n, each in zip((8, 64, 512), zip(*efficiencies, strict=True), strict=True):
        print(f"efficiency of {n} ranks, as the model has it: {statistics.median(each):.3f}")


if __name__ == "__main__":
    main()
