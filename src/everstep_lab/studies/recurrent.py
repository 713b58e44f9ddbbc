"""Recurrent policies natively, and by PyTorch's LSTM.

    OMP_NUM_THREADS=1 python -m everstep_lab.studies.recurrent --rounds 9

Processor time of `collect` and `step` of PPO with the default LSTM, of two trainings that alternate
in one process: one is native, the other one is not. Each row has medians, and the median and the
range of the ratios of rounds. The first round is not counted.
"""

import argparse
import os
import statistics
import time
from typing import Any

import torch

from everstep import DiscreteDummyEnv, RecurrentAlgorithmConfig, factory
from everstep.core.fast import SWITCH
from everstep.core.memory import keep_freed_memory

CARTPOLE = factory("gymnasium:CartPole-v1")

#: Environment and options of each row.
ROWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rl8's defaults, 256 × 32": (DiscreteDummyEnv, {"num_envs": 256, "horizon": 32}),
    "rl8's defaults, 2048 × 32": (DiscreteDummyEnv, {"num_envs": 2048, "horizon": 32}),
    "CartPole 64 × 32, width 64, sequences of 16": (
        CARTPOLE,
        {"num_envs": 64, "horizon": 32, "seq_len": 16, "sgd_minibatch_size": 32}
        | {"model_config": {"hidden_size": 64}},
    ),
    "CartPole 64 × 128, width 256, sequences of 32": (
        CARTPOLE,
        {"num_envs": 64, "horizon": 128, "seq_len": 32, "sgd_minibatch_size": 64},
    ),
    "CartPole 8 × 128, width 256, sequences of 128": (
        CARTPOLE,
        {"num_envs": 8, "horizon": 128, "seq_len": 128, "sgd_minibatch_size": 4},
    ),
}


def measure(row: str, rounds: int) -> str:
    """A line of the table."""
    env, options = ROWS[row]
    config = RecurrentAlgorithmConfig(**options, num_sgd_iters=4, device="cpu", seed=0)
    algorithms = {switch: config.build(env) for switch in ("0", "1")}
    found: dict[str, list[tuple[float, ...]]] = {"0": [], "1": []}
    for i in range(rounds + 1):
        for switch, algorithm in algorithms.items():
            os.environ[SWITCH] = switch
            torch.manual_seed(i)
            start = time.process_time()
            algorithm.collect()
            between = time.process_time()
            algorithm.step()
            if i:
                found[switch].append((between - start, time.process_time() - between))
    cells = []
    for part in (slice(0, 1), slice(1, 2), slice(0, 2)):
        general, native = ([sum(times[part]) for times in found[switch]] for switch in ("0", "1"))
        ratios = [x / y for x, y in zip(general, native, strict=True)]
        cells.append(
            f"{1e3 * statistics.median(general):.0f} | {1e3 * statistics.median(native):.0f} | "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    return f"| {row} | {' | '.join(cells)} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("rows", nargs="*", default=list(ROWS), help="beginnings of names of rows")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    columns = [
        f"{part}, {way}"
        for part in ("collect", "step", "both")
        for way in ("PyTorch", "native", "ratio")
    ]
    print(f"| milliseconds | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
    for row in ROWS:
        if any(row.startswith(beginning) for beginning in arguments.rows):
            print(measure(row, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
