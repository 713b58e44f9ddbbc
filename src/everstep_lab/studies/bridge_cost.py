"""Time of a vector step through the bridge, beside other ways to step the same rows.

    OMP_NUM_THREADS=1 python -m everstep_lab.studies.bridge_cost CartPole-v1
    OMP_NUM_THREADS=1 python -m everstep_lab.studies.bridge_cost procgen --python old/bin/python
    OMP_NUM_THREADS=1 python -m everstep_lab.studies.bridge_cost all --python old/bin/python

CartPole-v1: 64 rows of this Python's Gymnasium, in a loop (the environment's own time), through
the bridge in one process and in two, in an `AsyncVectorEnv`, and, if it is installed, in
stable-baselines3's `SubprocVecEnv`. Procgen: 64 rows of coinrun through the bridge; what the
environment itself takes is timed by a program that the other Python runs.

Blocks of vector steps alternate. Prints the time of the block that a tenth of all beat, which tells
what the code costs, and the median, in microseconds an env step; the processor time of this process
and of all that it has started, which other work of the machine changes less; and the median of what
each block took beyond the environment's own block beside it, and of the ratio of their throughputs.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv

from everstep_adapters.bridge.client import start

ROWS, BLOCK = 64, 20

#: What the other Python runs: blocks in its own process, a line each time that it is asked.
OWN = """
import sys, time
import numpy as np
from procgen import ProcgenGym3Env
env = ProcgenGym3Env(num=64, env_name="coinrun")
actions = np.random.RandomState(0).randint(0, 15, (16, 64))
for line in sys.stdin:
    begin = time.perf_counter()
    for i in range(20):
        env.act(actions[i % 16])
        env.observe()
    print((time.perf_counter() - begin) / 20 / 64 * 1e6, flush=True)
"""


def block(step: Callable[[Any], Any], actions: "np.ndarray[Any, Any]") -> float:
    """Microseconds of an env step, over a block of vector steps."""
    begin = time.perf_counter()
    for i in range(BLOCK):
        step(actions[i % len(actions)])
    return (time.perf_counter() - begin) / BLOCK / ROWS * 1e6


def cartpole() -> dict[str, Callable[[], float]]:
    """A block of each way to step CartPole's rows."""
    actions = np.random.default_rng(0).integers(0, 2, (16, ROWS))
    envs = [gymnasium.make("CartPole-v1") for _ in range(ROWS)]

    def loop(chosen: Any) -> None:
        for env, action in zip(envs, chosen.tolist(), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    made: dict[str, Any] = {
        "bridge": start(sys.executable, "gymnasium:CartPole-v1", ROWS),
        "bridge, 2 processes": start(sys.executable, "gymnasium:CartPole-v1", ROWS, processes=2),
        "AsyncVectorEnv": AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * ROWS),
    }
    try:
        from stable_baselines3.common.vec_env import SubprocVecEnv
    except ImportError:
        print("stable-baselines3 is not installed: SubprocVecEnv is left out")
    else:
        made["SubprocVecEnv"] = SubprocVecEnv(
            [lambda: gymnasium.make("CartPole-v1")] * ROWS, start_method="fork"
        )
    for env in (*envs, *made.values()):
        env.reset()
    sides = {name: lambda env=env: block(env.step, actions) for name, env in made.items()}
    return {"the environment's own": lambda: block(loop, actions), **sides}


def procgen(python: str) -> dict[str, Callable[[], float]]:
    """A block of Procgen in its own process, and through the bridge."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    own: Any = subprocess.Popen([python, "-c", OWN], **pipes)

    def ask() -> float:
        own.stdin.write("\n")
        own.stdin.flush()
        return float(own.stdout.readline())

    env: Any = start(python, "procgen:coinrun", ROWS)
    env.reset()
    actions = np.random.default_rng(0).integers(0, 15, (16, ROWS))
    return {"the environment's own": ask, "bridge": lambda: block(env.step, actions)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("env", choices=["CartPole-v1", "procgen", "all"])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--blocks", type=int, default=60)
    arguments = parser.parse_args()
    if arguments.env != "procgen":
        report("CartPole-v1", cartpole(), arguments.blocks)
    if arguments.env != "CartPole-v1":
        report("coinrun", procgen(arguments.python), arguments.blocks)


def report(name: str, sides: dict[str, Callable[[], float]], blocks: int) -> None:
    """Time the sides of an environment, and print their table; the first is its own time."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    used = dict.fromkeys(sides, 0.0)
    for _ in range(blocks):
        for side, run in sides.items():
            before = processor_time()
            times[side].append(run())
            used[side] += processor_time() - before
    print(f"{name}, µs an env step: best tenth, median, processor; beyond its own; throughput")
    own, *_ = (np.array(found) for found in times.values())
    for side, found in times.items():
        processor = used[side] / blocks / BLOCK / ROWS * 1e6
        row = f"{side:24}{np.quantile(found, 0.1):8.1f}{np.median(found):8.1f}{processor:8.1f}"
        print(f"{row}{np.median(found - own):8.1f}{np.median(own / found):8.2f}")


def processor_time() -> float:
    """Seconds that this process, and all that it has started, have computed."""
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(stat[11]) + int(stat[12])
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            waiting += map(int, children.read_text().split())
    return total / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
