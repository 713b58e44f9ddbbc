"""A point that must remember where it was told to go, and a teacher that is told all the time.

`python examples/distillation/point.py` trains for each seed a teacher by PPO, then an LSTM by
distillation, and with `--alone` another one by PPO of as many env steps. It prints mean returns of
200 episodes.
"""

import argparse
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded

from everstep import Policy, RecurrentTrainer, Trainer, evaluate
from everstep.core.intervals import mean_interval
from everstep.distillation import Distillation
from everstep.env import Env

#: Env steps of an episode, and of them those in which the goal is shown.
LENGTH, SHOWN = 40, 2

#: Distance of the goal within which an env step is rewarded by 1.
NEAR = 0.2

#: Settings of a student: labels have no noise that a small rate would average.
STUDENT: dict[str, Any] = {"lr": 2e-3, "sgd_minibatch_size": 8, "num_sgd_iters": 8}


class Point(Env):
    """A point in a square moves by the action; it is to come near a goal, and to stay there.

    The leaf `seen` has its place and, in the first env steps of an episode, the goal's; the leaf
    `goal` has the goal's all the time.
    """

    episode_keys = frozenset({"terminated", "truncated", "first"})

    def __init__(self, num_envs: int, horizon: int = 40, *, device: Any = "cpu") -> None:
        self.num_envs, self.max_horizon, self.device = num_envs, horizon, torch.device(device)
        self.horizon = horizon
        self.observation_spec = Composite(
            seen=Unbounded(5, device=device), goal=Unbounded(2, device=device)
        )
        self.action_spec = Bounded(-1.0, 1.0, shape=(2,), device=device)
        self._generator = torch.Generator(self.device)
        self._steps = torch.zeros(num_envs, 1, dtype=torch.int64, device=device)
        self._place, self._goal = torch.zeros(2, num_envs, 2, device=device)

    def seed(self, seed: int) -> None:
        """Seed places and goals."""
        self._generator.manual_seed(seed)

    def reset(self, *, config: None | dict[str, Any] = None) -> TensorDict:
        """Begin episodes, at different times."""
        self._begin(torch.ones_like(self._steps, dtype=torch.bool))
        return self._observation()

    def step(self, action: torch.Tensor) -> TensorDict:
        """Move."""
        self._place = (self._place + 0.2 * action.clamp(-1, 1)).clamp(-1, 1)
        self._steps = self._steps + 1
        distance = (self._place - self._goal).norm(dim=-1, keepdim=True)
        ended = self._steps == LENGTH
        self._begin(ended)
        outcome = {
            "obs": self._observation(),
            "rewards": (distance < NEAR).float() - 0.1 * distance,
            "terminated": ended,
            "truncated": torch.zeros_like(ended),
            "first": ended,
        }
        return TensorDict(outcome, [self.num_envs], device=self.device)

    def _begin(self, where: torch.Tensor) -> None:
        drawn = 2 * torch.rand(2, self.num_envs, 2, generator=self._generator) - 1
        place, goal = drawn.to(self.device)
        self._place, self._goal = place.where(where, self._place), goal.where(where, self._goal)
        self._steps = self._steps.masked_fill(where, 0)

    def _observation(self) -> TensorDict:
        is_shown = self._steps < SHOWN
        shown = torch.cat([self._place, self._goal * is_shown, is_shown.float()], -1)
        return TensorDict({"seen": shown, "goal": self._goal}, [self.num_envs], device=self.device)


def train_teacher(seed: int, budget: int = 200_000) -> Policy:
    """A policy that sees everything."""
    options: dict[str, Any] = {"lr_schedule": "linear", "num_sgd_iters": 10}
    quiet: dict[str, Any] = {"run_dir": None, "progress": False}
    trainer = Trainer(Point, num_envs=32, horizon=80, seed=seed, **options, **quiet)
    trainer.run(total_env_steps=budget)
    return trainer.algorithm.policy


def train_student(seed: int, budget: int, **arguments: Any) -> Any:
    """An LSTM that acts on `seen` alone; its values may see the goal."""
    trainer = RecurrentTrainer(
        Point,
        num_envs=32,
        horizon=80,
        seq_len=40,
        seed=seed,
        lr_schedule="linear",
        model_config={"actor_obs": ["seen"]},
        run_dir=None,
        progress=False,
        **arguments,
    )
    trainer.run(total_env_steps=budget)
    return trainer.algorithm.policy


def mean_return(policy: Any) -> float:
    """Mean return of 200 episodes without noise."""
    env = Point(50)
    env.seed(1000)
    return evaluate(policy, env, episodes=200)["episodes/return_mean"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--alone", action="store_true")
    given = parser.parse_args()
    shares: dict[str, list[float]] = {}
    for seed in range(given.seeds):
        teacher = train_teacher(seed)
        best = mean_return(teacher)
        ways: dict[str, dict[str, Any]] = {
            "distilled": {**STUDENT, "objective": Distillation(teacher)}
        }
        if given.alone:
            ways["PPO"] = {"num_sgd_iters": 10}
        for name, arguments in ways.items():
            student = train_student(seed, given.steps, **arguments)
            shares.setdefault(name, []).append(100 * mean_return(student) / best)
            print(f"seed {seed}: teacher {best:.2f}, {name} {shares[name][-1]:.1f} %", flush=True)
    for name, found in shares.items():
        value, low, high = mean_interval(found)
        print(f"{name}: {value:.1f} % of the teacher ({low:.1f} to {high:.1f})")
