"""How near an iteration comes to what nothing can do without.

    OMP_NUM_THREADS=1 python -m everstep_lab.studies.limit cpu-cartpole --rounds 7

The limit of an iteration, a rollout and its update, is the time of its products of matrices and
convolutions at the rate of one large product, and of the environment alone with random actions.
The share of it in the time that an iteration takes is 1 where the rest costs nothing. Products are
counted by PyTorch in the general way; the three times are measured in turns, in one process, with
as many threads as PyTorch has. Medians over rounds, with the least and the most of the shares.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator

import torch
from torch.utils.flop_counter import FlopCounterMode

from everstep.core.fast import SWITCH
from everstep.core.memory import keep_freed_memory
from everstep_lab.benchmarks import Cell, cells, load_case
from everstep_lab.benchmarks._everstep import Everstep
from everstep_lab.benchmarks.peers.env import Env

#: Rows and columns of the matrices whose product is the peak.
SIZE = 1024


def flops_of(program: Everstep) -> int:
    """Floating-point operations of an iteration's products and convolutions."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "0"
    try:
        # oneDNN's LSTM is one operation, whose products are not seen.
        with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counted:
            program.iterate()
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before
    return int(counted.get_total_flops())


def peak() -> float:
    """Floating-point operations a second of a large product: the best of eight."""
    left, right = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - start)
    return 2 * SIZE**3 / best


def measure(cell: Cell, threads: int, rounds: int) -> str:
    """A line of the table."""
    work = cell.order("everstep", "cpu", threads) | {"seed": 0}
    program, env = Everstep(work), Env(work)
    flops = flops_of(program)
    for each in (program, env):
        each.iterate()

    def found() -> Iterator[tuple[float, float, float, float]]:
        for _ in range(rounds):
            rate = peak()
            alone = statistics.median(env.iterate().collect_s for _ in range(5))
            parts = [program.iterate() for _ in range(5)]
            actual = statistics.median(part.collect_s + part.update_s for part in parts)
            yield rate, alone, actual, (flops / rate + alone) / actual

    rates, alone, actual, shares = zip(*found(), strict=True)
    rate = statistics.median(rates)
    program.close()
    env.close()
    return (
        f"| {cell.name} | {flops / 1e9:,.2f} | {rate / 1e9:,.0f} | {1e3 * flops / rate:,.2f} | "
        f"{1e3 * statistics.median(alone):,.2f} | {1e3 * statistics.median(actual):,.2f} | "
        f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f}) |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", default=["cpu-cartpole"], help="benchmarks")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    keep_freed_memory()
    threads = torch.get_num_threads()
    print("| row | GFLOP | GFLOP/s | products, ms | environment, ms | iteration, ms | share |")
    print("|---|---|---|---|---|---|---|")
    for case in options.cases:
        for cell in cells(load_case(case, options.set), ["fp32"]):
            print(measure(cell, threads, options.rounds), flush=True)


if __name__ == "__main__":
    main()
