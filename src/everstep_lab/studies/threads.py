"""The gain of a second thread, and what the machine has to give.

    python -m everstep_lab.studies.threads cpu-rl8-default --pairs 5

For each row of a benchmark, the rate of an iteration with two threads over that with one, in blocks
that alternate. Beside it what two processes with one thread each reach together over one alone:
they share nothing but the machine, so two threads can hardly gain more.
"""

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from everstep_lab.benchmarks import Bench, Cell, Ratio, Side, cells, load_case, ratio_of

#: Threads of the sides; two of one thread, for the machine itself.
SIDES = (1, 1, 2)


def measure(cell: Cell, pairs: int) -> tuple[float, Ratio, Ratio]:
    """Env steps a second of one thread; two threads, and two processes, over one."""
    with ExitStack() as stack:
        one, other, two = (
            stack.enter_context(Bench("cpu", threads).start("everstep", cell)) for threads in SIDES
        )
        for side in (one, other, two):
            side.ask("warm", cell.measure.warm_up)
        iterations = max(1, round(cell.measure.block_s / one.ask("run", 1)["total_s"]))

        def alone(side: Side) -> float:
            found = side.ask("run", iterations)
            return float(found["env_steps"] / found["total_s"])

        def together() -> float:
            with ThreadPoolExecutor(2) as pool:
                return sum(pool.map(alone, (one, other)))

        rates: list[float] = []
        threads, processes = [], []
        for pair in range(pairs):
            blocks: list[Callable[[], float]] = [lambda: alone(one), lambda: alone(two), together]
            order = blocks if pair % 2 == 0 else blocks[::-1]
            found = {block: block() for block in order}
            single, double, both = (found[block] for block in blocks)
            rates.append(single)
            threads.append(double / single)
            processes.append(both / single)
    return sorted(rates)[pairs // 2], ratio_of(threads), ratio_of(processes)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", nargs="?", default="cpu-rl8-default", help="a benchmark")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", nargs="*", default=[], help="rows of the benchmark; all if none")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    print(f"{options.case}, of {os.cpu_count()} processors\n")
    print("| row | env steps/s, one thread | two threads ÷ one (95 %) | two processes ÷ one |")
    print("|---|---|---|---|")
    for cell in cells(load_case(options.case, options.set), ["fp32"]):
        if options.rows and cell.name not in options.rows:
            continue
        rate, *ratios = measure(cell, options.pairs)
        shown = [
            f"{ratio.median:.2f}" + (f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.low else "")
            for ratio in ratios
        ]
        print(f"| {cell.name} | {rate:,.0f} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
