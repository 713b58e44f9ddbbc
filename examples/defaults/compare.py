"""Train tasks with nothing but environment, budget and seed, beside stable-baselines3's defaults.

    python -m examples.defaults.compare --peer-python venvs/sb3/bin/python --seeds 5
    python -m examples.defaults.compare --sets choosing held-out
    python -m examples.defaults.compare --sets known choosing held-out --report

Every training is a process of its own with one thread, and a line of `results.jsonl`; a training
that has its line is not run again. Both sides step the same Gymnasium environments for the same
number of env steps, and then play 20 complete episodes in one environment with the deterministic
policy (more where chance decides, and a part of one that never ends). Seconds are the processor's,
for making environments and policy and for training: on a machine that does nothing else, those of
a clock.

`tasks.py` has the tasks in sets; `--only` chooses some by name. `--set KEY=VALUE` trains
Everstep with other values than its defaults; its lines of `results.jsonl` have them in the name of
the side. stable-baselines3 sees the environment in PyTorch one row at a time, so its interpreter
needs Everstep, too.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from examples.defaults.tasks import KINDS, SETS, TASKS, Task, make_env, torch_env

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results.jsonl")


def play(task: Task, predict: Callable[..., Any]) -> list[float]:
    """Returns of complete episodes with `predict(obs, state, episode_start)`, unscaled."""
    env, returns = make_env(task), []
    is_choice = isinstance(env.action_space, gym.spaces.Discrete)
    for episode in range(task.episodes):
        obs, _ = env.reset(seed=1000 + episode)
        state, start, total, steps, ended = None, True, 0.0, 0, False
        while not ended:
            action, state = predict(obs, state, np.array([start]))
            obs, reward, *ends, _ = env.step(int(action) if is_choice else action)
            total, start, steps = total + float(reward), False, steps + 1
            ended = any(ends) or steps == task.cut
        returns.append(total / task.reward_scale)
    return returns


# ---- both sides -------------------------------------------------------------------------------


def everstep(task: Task, seed: int, *changes: str) -> Callable[..., Any]:
    """Train Everstep's default policy; `changes` are keys with other values than the defaults."""
    import yaml

    import everstep

    source: Any = task.env
    if task.env.startswith("torch:"):
        source = torch_env(task)
    elif task.env.partition(":")[0] in KINDS or task[2:] != Task("", 0)[2:]:
        source = lambda: make_env(task)  # noqa: E731
    trainer_cls = everstep.RecurrentTrainer if task.recurrent else everstep.Trainer
    options = {key: yaml.safe_load(value) for key, _, value in (x.partition("=") for x in changes)}
    with trainer_cls(source, seed=seed, run_dir=None, progress=False, **options) as trainer:
        trainer.run(total_env_steps=task.env_steps)
        return trainer.algorithm.policy.predict


def stable_baselines3(task: Task, seed: int) -> Callable[..., Any]:
    """Train the default policy of stable-baselines3, or of its recurrent PPO."""
    import torch

    torch.set_num_threads(1)
    if task.recurrent:
        from sb3_contrib import RecurrentPPO

        model: Any = RecurrentPPO("MlpLstmPolicy", make_env(task), seed=seed)
    else:
        from stable_baselines3 import PPO

        env = make_env(task)
        space, kind = env.observation_space, "MlpPolicy"
        if isinstance(space, gym.spaces.Dict):
            kind = "MultiInputPolicy"
        elif len(space.shape or ()) == 3:
            kind = "CnnPolicy"
        model = PPO(kind, env, seed=seed)
    model.learn(task.env_steps)
    return lambda obs, state, start: model.predict(obs, state, start, deterministic=True)


SIDES: dict[str, Callable[..., Any]] = {
    "everstep": everstep,
    "stable-baselines3": stable_baselines3,
}


def train(side: str, name: str, seed: int) -> None:
    """Train, evaluate, and print the line of a training."""
    start = time.process_time()
    kind, *changes = side.split()
    predict = SIDES[kind](TASKS[name], seed, *changes)
    seconds = time.process_time() - start
    returns = play(TASKS[name], predict)
    line = {"side": side, "task": name, "seed": seed, "return": float(np.mean(returns))}
    print(json.dumps({**line, "seconds": round(seconds, 1)}))


# ---- all trainings ----------------------------------------------------------------------------


def found() -> list[dict[str, Any]]:
    """The lines that are there."""
    return (
        [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    )


def run_all(tasks: list[str], seeds: int, pythons: dict[str, str]) -> None:
    """Run every training that has no line yet, one after the other, sides alternating."""
    there = {(line["side"], line["task"], line["seed"]) for line in found()}
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    for seed in range(seeds):
        for name in tasks:
            for side, python in pythons.items():
                if (side, name, seed) in there:
                    continue
                command = [python, __file__, "--train", side, name, str(seed)]
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
                if done.returncode:
                    print(done.stderr, file=sys.stderr)
                    continue
                with RESULTS.open("a") as file:
                    file.write(done.stdout.splitlines()[-1] + "\n")


def interquartile_mean(x: list[float]) -> float:
    """Mean of the middle half; with fewer than four values the median."""
    cut = len(x) // 4
    return float(np.mean(sorted(x)[cut : len(x) - cut])) if cut else float(np.median(x))


def rounded(x: float) -> str:
    """A return with three or four digits."""
    form = ",.0f" if abs(x) >= 100 else ".1f" if abs(x) >= 10 else ".2f"
    return format(x, form).replace("-", "−")


def mean_of(returns: list[float]) -> str:
    """The interquartile mean in bold; empty without returns."""
    return f"**{rounded(interquartile_mean(returns))}**" if returns else ""


def report(tasks: str = "known", *, seeds: bool = False) -> str:
    """A set's table in Markdown: means and budgets, or each seed and the times."""
    head = ["task", "Everstep", "stable-baselines3", "seconds of both" if seeds else "env steps"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, task in SETS[tasks].items():
        cells, times = [], []
        for side in SIDES:
            own = [line for line in found() if (line["side"], line["task"]) == (side, name)]
            returns = [line["return"] for line in sorted(own, key=lambda line: line["seed"])]
            each = ", ".join(map(rounded, returns)) if seeds else mean_of(returns)
            cells.append(each or "–")
            times.append(float(np.median([line["seconds"] for line in own] or [np.nan])))
        last = f"{times[0]:.0f}, {times[1]:.0f}" if seeds else f"{task.env_steps:,}"
        if cells != ["–", "–"]:
            lines.append(f"| {name} | {' | '.join([*cells, last]).replace('nan', '–')} |")
    return "\n".join(lines)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="*", default=["known"], choices=list(SETS))
    parser.add_argument("--only", nargs="*", default=[], choices=list(TASKS), metavar="TASK")
    parser.add_argument("--peer-python", help="interpreter with stable-baselines3 and sb3-contrib")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--report", action="store_true", help="print the tables of results.jsonl")
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        side, name, seed = arguments.train
        train(side, name, int(seed))
    elif arguments.report:
        for tasks in arguments.sets:
            print(report(tasks), report(tasks, seeds=True), sep="\n\n", end="\n\n")
    else:
        pythons = {" ".join(["everstep", *arguments.set]): sys.executable}
        if arguments.peer_python:
            pythons["stable-baselines3"] = arguments.peer_python
        own = arguments.only or [name for tasks in arguments.sets for name in SETS[tasks]]
        run_all(own, arguments.seeds, pythons)


if __name__ == "__main__":
    main()
