"""Train CartPole-v1 and Pendulum-v1 through every adapter, and print a table.

    python examples/adapter_training/train.py --seeds 3

Each adapter wraps the same task and is trained with the same settings for the same number of env
steps, and should end with the same return, up to the noise of its seeds. Each run is a process of
its own. `--adapters` and `--tasks` choose some.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from tasks import (
    CartPoleDynamics,
    IsaacTask,
    PendulumDynamics,
    native_cartpole,
    native_pendulum,
)

import everstep
from everstep.env import Env

NUM_ENVS = 16

SETTINGS: dict[str, Any] = {
    "model_config": {"hiddens": [64, 64], "activation_fn": "tanh"},
    "gae_lambda": 0.95,
    "max_grad_norm": 0.5,
    "optimizer_config": {"lr": 1e-3},
    "lr_schedule_kind": "interp",
    "sgd_minibatch_size": 256,
    "normalize_observations": False,
    "vf_clip_param": None,
    "vf_coeff": 0.5,
    "vf_loss": "mse",
}

#: Settings of each task, and the env steps that it is trained for.
TASKS: dict[str, tuple[dict[str, Any], int]] = {
    "CartPole-v1": (
        {
            "gamma": 0.99,
            "horizon": 64,
            "lr_schedule": [[0, 1e-3], [150_000, 0]],
            "num_sgd_iters": 6,
            "target_kl_div": 0.015,
        },
        150_000,
    ),
    "Pendulum-v1": (
        {
            "gamma": 0.9,
            "horizon": 64,
            "lr_schedule": [[0, 1e-3], [200_000, 1e-4]],
            "normalize_rewards": "running",
            "num_sgd_iters": 10,
        },
        200_000,
    ),
}


def native(task: str) -> Env:
    """An environment written in PyTorch."""
    make = native_cartpole if task == "CartPole-v1" else native_pendulum
    return make(NUM_ENVS)


def isaacgym(task: str) -> Env:
    """A task with IsaacGym's interface."""
    dynamics = CartPoleDynamics if task == "CartPole-v1" else PendulumDynamics
    return everstep.wrap(IsaacTask(dynamics, NUM_ENVS))


def made(spec: str, **options: Any) -> Callable[[str], Env]:
    """An environment from a spec string, in the unit of actions of those that are written here."""
    options |= {"action_bounds": "clip"}
    return lambda task: everstep.make(f"{spec}:{task}", NUM_ENVS, **options)


def processes(task: str) -> Env:
    """One process for each environment."""
    return everstep.make(
        f"gymnasium:{task}",
        NUM_ENVS,
        action_bounds="clip",
        vectorization_mode="async",
        vector_kwargs={"context": "fork"},
    )


ADAPTERS: dict[str, Callable[[str], Env]] = {
    "PyTorch, native": native,
    "Gymnasium, sync": made("gymnasium", vectorization_mode="sync"),
    "Gymnasium, async": processes,
    "Gymnasium, its default": made("gymnasium"),
    "EnvPool": made("envpool"),
    "TorchRL, GymEnv in SerialEnv": made("torchrl"),
    "TorchRL, ParallelEnv": made("torchrl", parallel=True),
    "IsaacGym-style task": isaacgym,
}


def train(adapter: str, task: str, seed: int) -> dict[str, float]:
    """Mean return of the last 100 episodes, and env steps a second."""
    settings, steps = TASKS[task]
    env = ADAPTERS[adapter](task)
    start = time.perf_counter()
    with everstep.Trainer(env, seed=seed, run_dir=None, **SETTINGS, **settings) as trainer:
        stats = trainer.run(total_env_steps=steps)
    seconds = time.perf_counter() - start
    env.close()
    return {"return": stats["episodes/return_mean_100"], "steps_per_second": steps / seconds}


def in_a_process(adapter: str, task: str, seed: int) -> dict[str, float]:
    """Result of `train` in a process of its own."""
    command = [sys.executable, __file__, "--one", adapter, task, str(seed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(adapter: str, task: str, seeds: int) -> str:
    """A row of the table."""
    # Vector environments seed their rows by consecutive numbers: those of two runs must not meet.
    found = [in_a_process(adapter, task, 1000 * seed) for seed in range(seeds)]
    returns = [one["return"] for one in found]
    each = ", ".join(f"{value:.0f}" for value in returns)
    speed = statistics.median(one["steps_per_second"] for one in found)
    mean, spread = statistics.mean(returns), statistics.stdev(returns)
    return f"| {task} | {adapter} | {each} | {mean:.0f} ± {spread:.0f} | {speed:,.0f} |"


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--adapters", nargs="*", default=list(ADAPTERS), choices=list(ADAPTERS))
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument(
        "--one", nargs=3, metavar=("ADAPTER", "TASK", "SEED"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        adapter, task, seed = options.one
        print(json.dumps(train(adapter, task, int(seed))))
        return
    print("| task | adapter | last 100 episodes, seed by seed | mean | env steps a second |")
    print("|---|---|---|---|---|")
    for task in options.tasks:
        for adapter in options.adapters:
            print(row(adapter, task, options.seeds), flush=True)


if __name__ == "__main__":
    main()
