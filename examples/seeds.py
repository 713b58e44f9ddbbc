"""Train one file with several seeds, evaluate each policy, and print a table.

    python examples/seeds.py examples/gymnasium_cartpole/train.yaml --seeds 10
    python examples/seeds.py recipe:mujoco/HalfCheetah-v4 total_env_steps=300_000 --processes 1 2 4

Every run is a process of its own, or several, started by the command that the README shows. Seconds
are those of the process, imports and start-up included. With several numbers of processes a second
table has the means over seeds of both returns, and Student's 95 % interval of each.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EVERSTEP = [sys.executable, "-m", "everstep"]


#: 97.5 % quantiles of Student's distribution, of 2 to 10 seeds.
STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def train(file: str, keys: list[str], seed: int, processes: int, run_dir: Path) -> dict[str, float]:
    """Return that one seed reaches, and its training time in seconds."""
    start = time.perf_counter()
    named = [file] if file.startswith("recipe:") else ["-f", file]
    words = [*named, *keys, f"seed={seed}", "--run-dir", str(run_dir)]
    if processes > 1:
        words += ["--processes", str(processes)]
    trained = subprocess.run([*EVERSTEP, "train", *words], capture_output=True, text=True)
    if trained.returncode:
        sys.exit(trained.stderr)
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
    parser.add_argument("file", help="a file, or recipe:NAME")
    parser.add_argument("keys", nargs="*", metavar="key=value", help="keys of the file to change")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[1], metavar="N")
    parser.add_argument("--keep", type=Path, help="directory that the runs stay in")
    options = parser.parse_intermixed_args()
    print("| seed | env steps | last 100 episodes | evaluation, 100 episodes | seconds |")
    print("|---|---|---|---|---|")
    kinds = ("return_mean_100", "eval_mean")
    reached: dict[int, dict[str, list[float]]] = {
        n: {kind: [] for kind in kinds} for n in options.processes
    }
    with tempfile.TemporaryDirectory() as directory:
        for processes in options.processes:
            for seed in range(options.seeds):
                run_dir = (options.keep or Path(directory)) / f"{processes}-{seed}"
                row = train(options.file, options.keys, seed, processes, run_dir)
                for kind in kinds:
                    reached[processes][kind].append(row[kind])
                returns = " | ".join(_text(row[kind]) for kind in kinds)
                print(
                    f"| {seed} | {row['env_steps']:,} | {returns} | {row['seconds']:.0f} |",
                    flush=True,
                )
    if len(reached) > 1:
        for kind, name in zip(kinds, ("last 100 episodes", "evaluation"), strict=True):
            print(f"\n| processes | {name}, each seed | mean | 95 % interval |\n|---|---|---|---|")
            for processes, values in reached.items():
                print(f"| {processes} | {_with_interval(values[kind])} |")


def _with_interval(values: list[float]) -> str:
    mean = statistics.mean(values)
    half = STUDENT[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5
    each = ", ".join(map(_text, values))
    return f"{each} | {_text(mean)} | {_text(mean - half)} to {_text(mean + half)}"


def _text(x: float) -> str:
    return f"{x:.2f}" if abs(x) < 10 else f"{x:.1f}"


if __name__ == "__main__":
    main()
