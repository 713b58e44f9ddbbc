"""What wrapping a Gymnasium vector environment adds to an env step, in microseconds.

    OMP_NUM_THREADS=1 python examples/benchmarks/adapter_overhead.py

Two equal environments take the same actions, one directly, one through `everstep.wrap`; blocks of
env steps alternate, and each pair of blocks gives one difference. Actions are tensors on the one
side and arrays on the other, made beforehand.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

import everstep

#: Env steps of a block, blocks of each side, and pairs that are left out at the start.
BLOCK, PAIRS, WARM_UP = 500, 61, 11


def microseconds(step: Callable[[Any], Any], actions: Sequence[Any]) -> float:
    """Of one env step, over a block of them."""
    start = time.perf_counter_ns()
    for i in range(BLOCK):
        step(actions[i % len(actions)])
    return (time.perf_counter_ns() - start) / BLOCK / 1e3


def measure(num_envs: int, vectorization: str) -> str:
    """A row of the table."""
    options = {} if vectorization == "its own" else {"vectorization_mode": vectorization}
    bare = gymnasium.make_vec("CartPole-v1", num_envs=num_envs, **options)
    wrapped = everstep.wrap(gymnasium.make_vec("CartPole-v1", num_envs=num_envs, **options))
    bare.reset(seed=0)
    wrapped.seed(0)  # type: ignore[attr-defined]
    wrapped.reset()
    arrays = [np.random.default_rng(i).integers(2, size=num_envs) for i in range(64)]
    tensors = [torch.from_numpy(array).unsqueeze(-1) for array in arrays]
    pairs = []
    for pair in range(PAIRS):
        sides = [(bare.step, arrays), (wrapped.step, tensors)]
        order = sides if pair % 2 else sides[::-1]
        found = [microseconds(*side) for side in order]
        pairs.append(found if pair % 2 else found[::-1])
    kept = pairs[WARM_UP:]
    direct = statistics.median(pair[0] for pair in kept)
    differences = sorted(pair[1] - pair[0] for pair in kept)
    quarter = len(differences) // 4
    low, middle, high = (differences[i] for i in (quarter, 2 * quarter, 3 * quarter))
    return (
        f"| {vectorization} | {num_envs} | {direct:.0f} | {middle:.1f} ({low:.1f} to {high:.1f}) |"
    )


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    print("| CartPole-v1, vectorised by | num_envs | directly, µs | added, µs (quartiles) |")
    print("|---|---|---|---|")
    for vectorization in ("its own", "sync"):
        for num_envs in (8, 64):
            print(measure(num_envs, vectorization), flush=True)


if __name__ == "__main__":
    main()
