"""Train DoorKey with and without random network distillation, and print a table.

    python -m examples.doorkey.train --seeds 3

Prints mean returns of the last 100 episodes, after so many env steps. Both have the same settings,
but for the bonus. Each run is a process of its own; `--keep` is the directory that runs stay in.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from everstep import Trainer
from everstep.bonuses import RandomNetworkDistillation

from .env import DoorKey
from .networks import ThingsInView

SETTINGS: dict[str, Any] = {
    "num_envs": 64,
    "horizon": 128,
    "sgd_minibatch_size": 1024,
    "num_sgd_iters": 4,
    "model_config": {"hiddens": [64, 64], "activation_fn": "relu"},
    "optimizer_config": {"lr": 1e-3},
    "entropy_coeff": 0.001,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "max_grad_norm": 0.5,
    "lr_schedule": None,
    "normalize_observations": False,
    "normalize_rewards": False,
    "vf_loss": "mse",
    "vf_coeff": 0.5,
    "vf_clip_param": None,
}

#: What the bonuses look at are choices, so there is nothing to normalise beforehand.
COMMON: dict[str, Any] = {"gamma_intrinsic": 0.99, "pre_normalization_steps": 0}

#: Options of the bonus, where there is one: `whole` looks at the whole view.
BONUSES: dict[str, None | dict[str, Any]] = {
    "rnd": {
        **COMMON,
        "network_cls": ThingsInView,
        "target_config": {"hiddens": [64]},
        "predictor_config": {"hiddens": [64, 64, 64]},
    },
    "whole": COMMON,
    "ppo": None,
}


def train(which: str, seed: int, budgets: Sequence[int], run_dir: Path) -> dict[str, Any]:
    """Mean returns of the last 100 episodes after each of so many env steps, and the seconds."""
    start = time.perf_counter()
    options = BONUSES[which]
    bonuses = [] if options is None else [RandomNetworkDistillation(**options)]
    returns = []
    with Trainer(
        DoorKey, seed=seed, run_dir=run_dir, track=False, bonuses=bonuses, **SETTINGS
    ) as trainer:
        for budget in budgets:
            stats = trainer.run(total_env_steps=budget)
            returns.append(stats.get("episodes/return_mean_100", math.nan))
    return {"returns": returns, "seconds": time.perf_counter() - start}


def in_a_process(which: str, seed: int, budgets: Sequence[int], run_dir: Path) -> dict[str, Any]:
    """Result of `train` in a process of its own."""
    command = [sys.executable, "-m", "examples.doorkey.train", "--one", which, str(seed)]
    command += ["--keep", str(run_dir), "--env-steps", *map(str, budgets)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--env-steps", type=int, nargs="*", default=[100_000, 200_000, 300_000])
    parser.add_argument("--which", nargs="*", default=["rnd", "ppo"], choices=list(BONUSES))
    parser.add_argument("--keep", type=Path, help="directory that the runs stay in")
    parser.add_argument("--one", nargs=2, metavar=("WHICH", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    budgets = options.env_steps
    if options.one:
        torch.set_num_threads(1)
        which, seed = options.one
        print(json.dumps(train(which, int(seed), budgets, options.keep)))
        return
    print(f"| seed | | {' | '.join(f'{budget:,} env steps' for budget in budgets)} | seconds |")
    print("|---|---" + "|---" * len(budgets) + "|---|")
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(options.seeds):
            for which in options.which:
                run_dir = (options.keep or Path(directory)) / which / str(seed)
                row = in_a_process(which, seed, budgets, run_dir)
                returns = " | ".join(f"{value:.2f}" for value in row["returns"])
                print(f"| {seed} | {which} | {returns} | {row['seconds']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
