"""Train a world without an end with several seeds, evaluate each policy, and print a table.

    python examples/worlds.py examples/cartpole/train.yaml

Runs stay in `runs/cartpole/train/0` and so on, where `curves.py` finds them. Returns are those of
whole episodes, from one reset to the next. The first and the last are of training; 1,000 others
follow, with sampled actions and with the most likely ones. Seconds are those of training, as a
process of its own, imports and start-up included.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from curves import episodes

from everstep.config import load

EVERSTEP = [sys.executable, "-m", "everstep"]

COLUMNS = ("seed", "env steps", "first", "last", "sampled", "most likely", "seconds")


def train(file: Path, seed: int, run_dir: Path) -> float:
    """Seconds that a training took."""
    start = time.perf_counter()
    command = [*EVERSTEP, "train", "-f", str(file), "--run-dir", str(run_dir), "--no-mlflow"]
    subprocess.run([*command, f"seed={seed}"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def evaluate(run_dir: Path, *flags: str) -> float:
    """Mean return of 1,000 whole episodes."""
    config = load(run_dir / "config.yaml").values
    horizon = config["horizon"] * config["horizons_per_env_reset"]
    command = [*EVERSTEP, "eval", str(run_dir), "--episodes", "1000", "--num-envs", "250", "--json"]
    command += [*flags, f"horizon={horizon}"]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(found.stdout)["episodes/return_mean"])


def row(file: Path, seed: int, run_dir: Path) -> str:
    """A row of the table."""
    seconds = train(file, seed, run_dir)
    (_, first), *_, (steps, last) = episodes(run_dir / "metrics.jsonl")
    returns = [first, last, evaluate(run_dir, "--stochastic"), evaluate(run_dir)]
    numbers = [f"{value:.3g}" if abs(value) < 1 else f"{value:.1f}" for value in returns]
    return f"| {seed} | {steps:,.0f} | {' | '.join(numbers)} | {seconds:.0f} |"


def main() -> None:
    """Train, evaluate and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    runs = Path("runs") / options.file.resolve().parent.name / options.file.stem
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for seed in range(options.seeds):
        print(row(options.file, seed, runs / str(seed)), flush=True)


if __name__ == "__main__":
    main()
