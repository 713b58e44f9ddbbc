"""Rows that share what their steps change are told; those that share what does not are not."""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import everstep
from everstep.testing import CHECKS, CheckResult, run_checks
from everstep.testing._suite import _result, subject_of


class Walk(gym.Env[Any, Any]):
    """A random walk, which `memory` may push; episodes end after 9 env steps."""

    observation_space = spaces.Box(-99, 99, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.x = 0, self.drawn()
        self.begin()
        return np.array([self.x], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.x += self.drawn() + 0.01 * float(action) + 0.001 * self.pushed()
        return np.array([self.x], np.float32), self.x, False, self.t >= 9, {}

    def drawn(self) -> float:
        return float(self.np_random.normal())

    def begin(self) -> None:
        """Called by `reset`."""

    def pushed(self) -> float:
        """Called by `step`."""
        return 0.0


class Counted(Walk):
    """Counts its env steps in a list, which it is given."""

    def __init__(self, memory: list[int]) -> None:
        self.memory = memory

    def begin(self) -> None:
        self.memory.clear()

    def pushed(self) -> float:
        self.memory.append(1)
        return len(self.memory)


class InClass(Counted):
    memory: list[int] = []  # noqa: RUF012 - that is what it is about

    def __init__(self) -> None: ...


class InDefault(Counted):
    def __init__(self, memory: list[int] = []) -> None:  # noqa: B006 - the same
        super().__init__(memory)


class InMapping(Counted):
    def __init__(self, parts: Any) -> None:
        super().__init__(parts["world"].memory)
        self.parts = parts


class InArray(Walk):
    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def begin(self) -> None:
        self.parts.world.state[:] = 0

    def pushed(self) -> float:
        self.parts.world.state += 1
        return float(self.parts.world.state[0])


class InClosure(Walk):
    def __init__(self, push: Callable[[bool], float]) -> None:
        self.push = push

    def begin(self) -> None:
        self.push(True)

    def pushed(self) -> float:
        return self.push(False)


def pusher() -> Callable[[bool], float]:
    memory: list[int] = []

    def push(is_first: bool) -> float:
        if is_first:
            memory.clear()
        memory.append(1)
        return len(memory)

    return push


class NumberOfClass(Walk):
    count = 0

    def begin(self) -> None:
        type(self).count = 0

    def pushed(self) -> float:
        type(self).count += 1
        return self.count


class Strange(Counted):
    """Its parts cannot be looked at."""

    def __init__(self, memory: list[int]) -> None:
        super().__init__(memory)
        self.part = Unreadable()


class Unreadable:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __len__(self) -> int:
        raise RuntimeError("no")


def copies(cls: Any, *values: Any) -> Callable[[], Any]:
    return functools.partial(cls, *values)


def checked(make: Callable[[], Any]) -> CheckResult:
    def make_env(num_envs: int, horizon: int, device: Any) -> Any:
        return everstep.wrap(SyncVectorEnv([make] * num_envs))

    return _result(
        subject_of(make_env, num_envs_choices=(2,)), "independence", CHECKS["independence"]
    )


def space(**attributes: Any) -> SimpleNamespace:
    return SimpleNamespace(**attributes)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (copies(Counted, []), "`Counted.memory`"),
        (copies(InClass), "`InClass.memory`"),
        (copies(InDefault), "`InDefault.memory`"),
        (copies(InMapping, {"world": space(memory=[])}), "memory"),
        (copies(InArray, space(world=space(state=np.zeros(2)))), "state"),
        (copies(InClosure, pusher()), "a variable of pusher"),
        (copies(NumberOfClass), ""),
        (copies(Strange, []), "memory"),
        (lambda: gym.wrappers.TimeLimit(Counted(SHARED), 7), "`Counted.memory`"),
    ],
)
def test_rows_that_share_what_steps_change_are_told(make: Any, named: str) -> None:
    found = checked(make)
    assert found.status == "failed", found
    assert found.violation is not None
    assert "row 1 gives other results at env step" in found.violation.received
    assert named in found.violation.received


SHARED: list[int] = []
TABLE, CACHE, CONFIG = np.arange(9.0), dict[int, float](), {"gains": [1.0, 2.0]}


class Cached(Walk):
    """Shares a cache, which changes, with results that depend on their keys alone."""

    def pushed(self) -> float:
        return CACHE.setdefault(self.t, TABLE[self.t % 9] * CONFIG["gains"][0])


class Logging(Walk):
    """Shares a list of what has happened, which nothing reads."""

    def __init__(self, log: list[float]) -> None:
        self.log = log

    def pushed(self) -> float:
        self.log.append(self.x)
        return 0.0


class OwnMemory(Counted):
    def __init__(self) -> None:
        super().__init__([])


class GlobalGenerator(Walk):
    """Seeds NumPy's global generator, from which all rows draw."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is not None:
            np.random.seed(seed)
        return super().reset(seed=seed, options=options)

    def drawn(self) -> float:
        return float(np.random.normal())


@pytest.mark.parametrize(
    "make",
    [Walk, Cached, copies(Logging, []), OwnMemory, GlobalGenerator, lambda: InClosure(pusher())],
)
def test_rows_may_share_what_does_not_change_them(make: Any) -> None:
    found = checked(make)
    assert found.status == "passed", found


class Unseeded(Walk):
    def drawn(self) -> float:
        return float(np.random.default_rng().normal())


class Picky(Walk):
    def step(self, action: Any) -> Any:
        raise ValueError("this action is not allowed now")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Unseeded, "a row does not follow its seed"),
        (Picky, "a row alone cannot be played: this action is not allowed now"),
    ],
)
def test_rows_that_cannot_be_compared_are_not_judged(make: Any, reason: str) -> None:
    found = checked(make)
    assert found.status == "not applicable"
    assert reason in found.reason


def test_rows_without_environments_of_their_own_are_not_judged() -> None:
    make = everstep.factory("gymnasium:CartPole-v1")
    found = {x.name: x for x in run_checks(lambda n, h, d: make(n, h, device=d))}
    assert "not environments of their own" in found["independence"].reason
