"""Cost of memory that is released between minibatches.

    python -m everstep_lab.studies.page_faults

Milliseconds and minor page faults of each update of PPO on 256 environments × 32 env steps, with
two threads and a model whose gradients are not written out, once as glibc is by default and once
with `MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_` so large that it keeps what it has. They
are read when a process starts, so each has one of its own. Linux with glibc, on a CPU.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys

#: What makes glibc keep memory.
KEEPING = {"MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_MMAP_THRESHOLD_": "1073741824"}


def updates(count: int, threads: int, num_envs: int = 256) -> list[tuple[float, int]]:
    """Milliseconds and minor page faults of updates, behind two that warm up."""
    import torch

    from everstep import AlgorithmConfig, DiscreteDummyEnv

    torch.set_num_threads(threads)
    # A model that PyTorch differentiates: the gradients of others need no new memory.
    model_config = {"activation_fn": "hard_swish"}
    config = AlgorithmConfig(num_envs=num_envs, horizon=32, seed=0, model_config=model_config)
    algorithm = config.build(DiscreteDummyEnv)
    found = []
    for _ in range(count + 2):
        algorithm.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        milliseconds = algorithm.step()["profiling/step_ms"]
        after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        found.append((milliseconds, after - before))
    return found[2:]


def measure(kept: bool, count: int, threads: int) -> str:
    """A row of the table, measured in a process of its own."""
    given = {name: value for name, value in os.environ.items() if name not in KEEPING}
    command = [sys.executable, __file__, "--child", f"--updates={count}", f"--threads={threads}"]
    environment = {**given, **(KEEPING if kept else {})}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    columns = list(zip(*json.loads(run.stdout), strict=True))
    cells = [
        f"{min(column):,.0f} | {statistics.median(column):,.0f} | {max(column):,.0f}"
        for column in columns
    ]
    return f"| {'kept' if kept else 'given back'} | {' | '.join(cells)} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each kind, alternating")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(updates(options.updates, options.threads)))
        return
    print("| memory | ms, least | median | most | page faults, least | median | most |")
    print("|---|---|---|---|---|---|---|")
    for _ in range(options.rounds):
        for kept in (False, True):
            print(measure(kept, options.updates, options.threads), flush=True)


if __name__ == "__main__":
    main()
