"""Time that wrapping a Gymnasium vector environment adds to an env step, in microseconds.

    OMP_NUM_THREADS=1 python -m everstep_lab.studies.adapter_overhead

Two equal environments take the same actions, one directly, one through `everstep.wrap`, in blocks
of env steps that alternate. Actions are tensors on the one side and arrays on the other, made
beforehand. Prints the time of the block that a tenth of all beat, which tells what the code costs,
and the median, which on a busy machine also tells what else it did.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

import everstep

#: Env steps of a block: few, so that most blocks are spared what else the machine does.
BLOCK = 20


def microseconds(step: Callable[[Any], Any], actions: Sequence[Any]) -> float:
    """Of one env step, over a block of them."""
    start = time.perf_counter_ns()
    for i in range(BLOCK):
        step(actions[i % len(actions)])
    return (time.perf_counter_ns() - start) / BLOCK / 1e3


class Numbers(gymnasium.Wrapper):
    """Three numbers in the infos of each env step."""

    def step(self, action: Any) -> Any:
        """The environment's, with the numbers."""
        *returned, info = self.env.step(action)
        return *returned, {**info, "speed": 1.5, "height": 0.5, "effort": 2.0}


#: Rows of the table: how CartPole-v1 is vectorised.
KINDS: dict[str, dict[str, Any]] = {
    "its own": {},
    "sync": {"vectorization_mode": "sync"},
    "sync, three infos": {"vectorization_mode": "sync", "wrappers": [Numbers]},
}


def measure(num_envs: int, vectorization: str, pairs: int) -> str:
    """A row of the table."""
    options = KINDS[vectorization]
    bare = gymnasium.make_vec("CartPole-v1", num_envs=num_envs, **options)
    wrapped = everstep.wrap(gymnasium.make_vec("CartPole-v1", num_envs=num_envs, **options))
    bare.reset(seed=0)
    wrapped.seed(0)
    wrapped.reset()
    arrays = [np.random.default_rng(i).integers(2, size=num_envs) for i in range(64)]
    tensors = [torch.from_numpy(array).unsqueeze(-1) for array in arrays]
    found = []
    for pair in range(pairs):
        sides: list[tuple[Callable[[Any], Any], Sequence[Any]]] = [
            (bare.step, arrays),
            (wrapped.step, tensors),
        ]
        order = sides if pair % 2 else sides[::-1]
        times = [microseconds(*side) for side in order]
        found.append(times if pair % 2 else times[::-1])
    kept = found[pairs // 10 :]  # the first ones warm up
    direct, through = (np.quantile([times[side] for times in kept], [0.1, 0.5]) for side in (0, 1))
    added = through - direct
    return (
        f"| {vectorization} | {num_envs} | {direct[0]:.0f} | {direct[1]:.0f} "
        f"| {added[0]:.1f} | {added[1]:.1f} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=500, help="pairs of blocks of env steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| CartPole-v1, vectorised by | num_envs | directly | median | added | median |")
    print("|---|---|---|---|---|---|")
    for vectorization in KINDS:
        for num_envs in (8, 64):
            print(measure(num_envs, vectorization, options.pairs), flush=True)


if __name__ == "__main__":
    main()
