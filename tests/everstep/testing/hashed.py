"""Environments whose rows depend on more than their seed, but not within one process."""

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

NAMES = {"north", "east", "south", "west", "up", "down", "in", "out"}


class Sorted(gym.Env[Any, Any]):
    """An order of names that is the same in each process."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def number(self) -> float:
        return self.of_order(sorted(NAMES))

    @staticmethod
    def of_order(names: list[str]) -> float:
        number = 0.0
        for name in names:
            number = number / 9 + len(name) + ord(name[0]) / 1000
        return number % 9

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observation(), {}

    def observation(self) -> Any:
        return np.array([self.number(), self.t / 10], np.float32)

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observation(), float(action), self.t >= 12, False, {}


class Unsorted(Sorted):
    """The order of a set."""

    def number(self) -> float:
        return self.of_order(list(NAMES))


class Hashed(Sorted):
    """The hash of a text, from the third env step on."""

    def number(self) -> float:
        return hash("south") % 9973 / 9973 if self.t > 2 else 0.0


class Numbered(Sorted):
    """The number of the process."""

    def number(self) -> float:
        return os.getpid() % 9973 / 9973
