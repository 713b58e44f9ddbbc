"""Train one file with several seeds, evaluate each policy, and print a table.

    python examples/seeds.py examples/gymnasium_cartpole/train.yaml --seeds 10

Every run is a process of its own, started by the command that the README shows. Seconds are those
of the process, imports and start-up included.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EVERSTEP = [sys.executable, "-m", "everstep"]


def train(file: Path, seed: int, run_dir: Path) -> dict[str, float]:
    """Return that one seed reaches, and its training time in seconds."""
    start = time.perf_counter()
    command = [*EVERSTEP, "train", "-f", str(file), "--run-dir", str(run_dir), f"seed={seed}"]
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    evaluate = [*EVERSTEP, "eval", str(run_dir), "--episodes", "100", "--json"]
    found = subprocess.run(evaluate, check=True, capture_output=True, text=True)
    return {
        "seed": seed,
        "env_steps": last["env/steps"],
        "return_mean_100": last["episodes/return_mean_100"],
        "eval_mean": json.loads(found.stdout)["episodes/return_mean"],
        "seconds": seconds,
    }


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="directory that the runs stay in")
    options = parser.parse_args()
    print("| seed | env steps | last 100 episodes | evaluation, 100 episodes | seconds |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(options.seeds):
            row = train(options.file, seed, (options.keep or Path(directory)) / str(seed))
            reached = (row["return_mean_100"], row["eval_mean"])
            told = [f"{x:.2f}" if abs(x) < 10 else f"{x:.1f}" for x in reached]
            print(
                f"| {row['seed']} | {row['env_steps']:,} | {told[0]} | {told[1]} "
                f"| {row['seconds']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
