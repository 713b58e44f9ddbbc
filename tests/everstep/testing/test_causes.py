"""An environment that does not repeat by its seed is one finding, with its cause and its fix."""

import random
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import everstep
from everstep.testing import run_checks
from everstep.testing._facts import inspect_env


class Walk(gym.Env[Any, Any]):
    """A random walk whose episodes end after 12 env steps."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def draw(self) -> float:
        return float(self.np_random.normal())

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.x = 0, self.draw()
        return self.observation(), {}

    def observation(self) -> Any:
        return np.array([self.x, self.t / 10], np.float32)

    def step(self, action: Any) -> Any:
        self.t += 1
        self.x = float(np.clip(self.x + 0.2 * action - 0.1 + 0.1 * self.draw(), -9, 9))
        return self.observation(), self.x, self.t >= 12, False, {}


class NumPysGenerator(Walk):
    def draw(self) -> float:
        return float(np.random.normal())


class PythonsGenerator(Walk):
    def draw(self) -> float:
        return random.gauss(0, 1)


class PyTorchsGenerator(Walk):
    def draw(self) -> float:
        return float(torch.randn(()))


class TwoGenerators(Walk):
    def draw(self) -> float:
        return random.gauss(0, 1) + float(np.random.normal())


class Clock(Walk):
    def draw(self) -> float:
        return time.time() * 1e3 % 1


class SharedNumber(Walk):
    count: ClassVar[int] = 0

    def draw(self) -> float:
        type(self).count += 1
        return float(np.sin(self.count))


class SharedList(Walk):
    seen: ClassVar[list[int]] = []

    def draw(self) -> float:
        self.seen.append(1)
        return float(np.sin(len(self.seen)))


class Unseeded(Walk):
    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def draw(self) -> float:
        return float(self.rng.normal())


class FixedSeed(Unseeded):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)


class SeedIgnored(Walk):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset()


class Endless(Walk):
    def step(self, action: Any) -> Any:
        return (*super().step(action)[:2], False, False, {})


#: Words of what was received and of the fix, in this order.
FAULTS: dict[type[Walk], tuple[str, ...]] = {
    NumPysGenerator: ("`np.random`", "self.np_random", "super().reset(seed=seed)"),
    PythonsGenerator: ("`random`", "self.np_random"),
    PyTorchsGenerator: ("PyTorch's global generator", "torch.Generator"),
    TwoGenerators: ("`np.random`", "and", "`random`", "self.np_random"),
    Clock: ("the clock", "Count env steps"),
    SharedNumber: ("`SharedNumber.count`", "share", "`self.name = …`"),
    SharedList: ("`SharedList.seen`", "share", "constructor"),
    Unseeded: ("whatever the global generators", "Pass on the seed", "default_rng(seed)"),
    FixedSeed: ("the same states", "for seeds 0 and 1000", "Pass the seed on"),
    SeedIgnored: ("whatever the global generators", "super().reset(seed=seed)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_one_cause_is_one_finding(kind: type[Walk]) -> None:
    factory = everstep.factory(kind)
    results = run_checks(lambda n, horizon, device: factory(n, horizon, device=device))
    broken = [(x.name, x.violation) for x in results if x.violation is not None]
    assert [name for name, _ in broken] == ["seed"]
    assert broken[0][1] is not None
    text, at = f"{broken[0][1].received} {broken[0][1].fix}", 0
    for word in FAULTS[kind]:
        assert word in text[at:], text
        at = text.index(word, at)


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Walk, ("ended in 800 env steps",)), (Endless, ("none ended", "max_episode_steps=200"))],
)
def test_the_ends_of_episodes_are_told(kind: type[Walk], words: tuple[str, ...]) -> None:
    facts, _ = inspect_env(lambda: everstep.make(kind, 4), 200)
    assert all(word in facts["episodes"] for word in words)
