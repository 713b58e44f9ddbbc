"""Train tasks with nothing but environment, budget and seed, beside stable-baselines3's defaults.

    python examples/defaults/compare.py --peer-python venvs/sb3/bin/python --seeds 5
    python examples/defaults/compare.py --report

Every training is a process of its own with one thread, and a line of `results.jsonl`; a training
that has its line is not run again. Both sides step the same Gymnasium environments for the same
number of env steps, and then play 20 complete episodes in one environment with the deterministic
policy. Seconds are the processor's, for making environments and policy and for training: on a
machine that does nothing else, those of a clock.

`--only` chooses tasks. `--set KEY=VALUE` trains Everstep with other values than its defaults; its
lines of `results.jsonl` have them in the name of the side. stable-baselines3 sees the environment
in PyTorch one row at a time, so its interpreter needs Everstep, too.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results.jsonl")

EPISODES = 20


class Task(NamedTuple):
    """A task, and the env steps that it is trained for."""

    #: Id of a Gymnasium environment, `envpool:` and one of EnvPool, or `torch:` and a class here.
    env: str
    env_steps: int
    #: Whether velocities are hidden, so that the policy needs a recurrent state.
    recurrent: bool = False
    #: MiniGrid: `"flat"` for the symbols of the view as a vector, `"pixels"` for its picture.
    view: None | str = None


TASKS = {
    "CartPole-v1": Task("CartPole-v1", 50_000),
    "Acrobot-v1": Task("Acrobot-v1", 150_000),
    "Pendulum-v1": Task("Pendulum-v1", 200_000),
    "MountainCarContinuous-v0": Task("MountainCarContinuous-v0", 300_000),
    "LunarLander-v3": Task("LunarLander-v3", 500_000),
    "HalfCheetah-v4": Task("envpool:HalfCheetah-v4", 1_000_000),
    "Hopper-v4": Task("envpool:Hopper-v4", 1_000_000),
    "Walker2d-v4": Task("envpool:Walker2d-v4", 1_000_000),
    "MiniGrid-Empty-5x5-v0": Task("MiniGrid-Empty-5x5-v0", 200_000, view="flat"),
    "MiniGrid-DoorKey-5x5-v0": Task("MiniGrid-DoorKey-5x5-v0", 200_000, view="flat"),
    "MiniGrid-Empty-5x5-v0 in pixels": Task("MiniGrid-Empty-5x5-v0", 50_000, view="pixels"),
    "Pendulum-v1 in PyTorch": Task("torch:TorchPendulum", 200_000),
    "CartPole-v1 without velocities": Task("CartPole-v1", 100_000, recurrent=True),
}


# ---- environments -----------------------------------------------------------------------------


class OneOfAPool(gym.Env):
    """One environment of EnvPool as a Gymnasium environment."""

    def __init__(self, name: str) -> None:
        import envpool

        self.pool = envpool.make_gymnasium(name, num_envs=1)
        self.observation_space = gym.spaces.Box(
            -np.inf, np.inf, self.pool.observation_space.shape, np.float64
        )
        self.action_space = self.pool.action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.pool.reset()[0][0], {}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = self.pool.step(np.asarray(action)[None])
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


def torch_env(task: Task) -> Any:
    """The class of an environment in PyTorch."""
    from torchrl.data import Bounded

    from examples.adapter_training.tasks import Native, PendulumDynamics

    class TorchPendulum(Native):
        """Pendulum-v1, all rows in one tensor."""

        def __init__(self, num_envs: int, /, horizon: None | int = None, **kwargs: Any) -> None:
            spec = Bounded(-2.0, 2.0, [1])
            super().__init__(PendulumDynamics, spec, num_envs, horizon, **kwargs)

    return {"TorchPendulum": TorchPendulum}[task.env.removeprefix("torch:")]


class OneRow(gym.Env):
    """An environment in PyTorch with one row as a Gymnasium environment."""

    def __init__(self, env: Any) -> None:
        self.env = env
        shape, space = env.observation_spec.shape, env.action_spec.space
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, tuple(shape), np.float32)
        self.action_space = gym.spaces.Box(space.low.numpy(), space.high.numpy())

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        import torch

        if seed is not None:
            torch.manual_seed(seed)
        return self.env.reset()[0].numpy(), {}

    def step(self, action: Any) -> Any:
        import torch

        done = self.env.step(torch.as_tensor(action)[None])
        reward, ends = float(done["rewards"]), (bool(done["terminated"]), bool(done["truncated"]))
        return done["final_obs"][0].numpy(), reward, *ends, {}


def make_env(task: Task) -> gym.Env:
    """One environment of a task."""
    if task.env.startswith("envpool:"):
        return OneOfAPool(task.env.removeprefix("envpool:"))
    if task.env.startswith("torch:"):
        return OneRow(torch_env(task)(1))
    if task.view:
        from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

        if task.view == "pixels":
            return ImgObsWrapper(RGBImgPartialObsWrapper(gym.make(task.env)))
        return gym.wrappers.FlattenObservation(ImgObsWrapper(gym.make(task.env)))
    env = gym.make(task.env)
    if not task.recurrent:
        return env
    space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return gym.wrappers.TransformObservation(env, lambda x: np.asarray(x[::2], np.float32), space)


def play(env: gym.Env, predict: Callable[..., Any]) -> list[float]:
    """Returns of complete episodes with `predict(obs, state, episode_start)`."""
    returns = []
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=1000 + episode)
        state, start, total, ended = None, True, 0.0, False
        while not ended:
            action, state = predict(obs, state, np.array([start]))
            obs, reward, terminated, truncated, _ = env.step(action)
            total, start, ended = total + float(reward), False, terminated or truncated
        returns.append(total)
    return returns


# ---- both sides -------------------------------------------------------------------------------


def everstep(task: Task, seed: int, *changes: str) -> Callable[..., Any]:
    """Train Everstep's default policy; `changes` are keys with other values than the defaults."""
    import yaml

    import everstep

    source: Any = task.env
    if task.env.startswith("torch:"):
        source = torch_env(task)
    elif task.view or task.recurrent:
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

        kind = "CnnPolicy" if task.view == "pixels" else "MlpPolicy"
        model = PPO(kind, make_env(task), seed=seed)
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
    returns = play(make_env(TASKS[name]), predict)
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


def report(*, seeds: bool = False) -> str:
    """A table in Markdown: the means and the ratio of times, or each seed and the times."""
    columns = ["seconds of both"] if seeds else ["time, theirs ÷ ours", "env steps"]
    head = ["task", "Everstep", "stable-baselines3", *columns]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, task in TASKS.items():
        cells, times = [], []
        for side in SIDES:
            own = [line for line in found() if (line["side"], line["task"]) == (side, name)]
            if own:
                returns = [line["return"] for line in own]
                mean = f"**{rounded(interquartile_mean(returns))}**"
                cells.append(", ".join(map(rounded, returns)) if seeds else mean)
                times.append(float(np.median([line["seconds"] for line in own])))
        if len(cells) == len(SIDES):
            ratio = [f"{times[1] / times[0]:.1f}", f"{task.env_steps:,}"]
            cells += [f"{times[0]:.0f}, {times[1]:.0f}"] if seeds else ratio
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--peer-python", help="interpreter with stable-baselines3 and sb3-contrib")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--report", action="store_true", help="print the tables of results.jsonl")
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        side, name, seed = arguments.train
        train(side, name, int(seed))
    elif arguments.report:
        print(report(), report(seeds=True), sep="\n\n")
    else:
        pythons = {" ".join(["everstep", *arguments.set]): sys.executable}
        if arguments.peer_python:
            pythons["stable-baselines3"] = arguments.peer_python
        run_all(arguments.only, arguments.seeds, pythons)


if __name__ == "__main__":
    main()
