"""Rewards, flags, spaces and resets of single environments that Gymnasium takes as they are."""

import array
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from everstep.errors import EnvError
from everstep_adapters import GymnasiumEnv
from everstep_adapters.pettingzoo.vector import AgentsVectorEnv
from tests.everstep_adapters.gymnasium.gymnasium_toys import MODES, zeros

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]

BOX = spaces.Box(-np.inf, np.inf, (2,), dtype=np.float32)


class Counting(gymnasium.Env[Any, int]):
    """Observes its env steps; ends after three of them, as `returned` has it."""

    def __init__(self, resets: str = "", **returned: Callable[[bool], Any]) -> None:
        self.observation_space, self.action_space = BOX, spaces.Discrete(2)
        self.resets, self.returned, self.t = resets, returned, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        if self.resets == "to other actions":
            self.action_space = spaces.Discrete(3)
        if self.resets == "to other bounds":
            self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        return self._observed(), {}

    def _observed(self) -> Any:
        return np.full(2, self.t, np.float32)

    def step(self, action: int) -> Any:
        self.t += 1
        is_end, observation = self.t == 3, self._observed()
        if is_end and self.resets == "itself":
            observation, _ = self.reset()
        elif is_end and self.resets == "itself, later":
            self.reset()
        kinds = {"reward": 1.0, "terminated": False, "truncated": is_end}
        kinds |= {key: value(is_end) for key, value in self.returned.items()}
        return observation, *kinds.values(), {}


def played(inner: Any, count: int = 6) -> list[Any]:
    env = GymnasiumEnv(inner)
    try:
        env.reset()
        return [env.step(zeros(env)).clone() for _ in range(count)]
    finally:
        env.close()


def batch(make: Callable[[], Any], kind: str = "sync", mode: str = "SAME_STEP") -> Any:
    options: Any = {"autoreset_mode": AutoresetMode[mode]}
    if kind == "sync":
        return SyncVectorEnv([make] * 2, **options)
    return AsyncVectorEnv([make] * 2, context="fork", **options)


NO_FLAGS: dict[str, Callable[[bool], Any]] = {
    "None": lambda end: None,
    "a list": lambda end: [end],
    "a text": str,
    "NaN": lambda end: float("nan"),
    "a chance": lambda end: 0.3,
    "a list of arrays": lambda end: [np.array(end)],
}


@pytest.mark.parametrize("value", NO_FLAGS.values(), ids=NO_FLAGS)
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_flags_that_are_neither_true_nor_false_are_named(name: str, value: Any) -> None:
    """Python's truth of `[False]` is True, and Gymnasium would end every episode at once."""
    with pytest.raises(EnvError, match=rf"`{name}` must be True or False; got "):
        played(batch(partial(Counting, **{name: value})))


def test_flags_may_be_of_any_library() -> None:
    kinds: list[Callable[[bool], Any]] = [
        *(int, float, np.bool_, np.uint8, np.array, torch.tensor),
        lambda end: np.array([end]),
    ]
    for kind in kinds:
        rows = played(batch(partial(Counting, terminated=kind, truncated=lambda end: False)))
        assert [bool(row["terminated"][0]) for row in rows] == [False, False, True] * 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_rewards_that_are_no_number_are_named(kind: str) -> None:
    rewards: list[Any] = [None, "1.5", [1.0], np.ones(1), torch.ones(1, requires_grad=True), 1j]
    for reward in rewards if kind == "sync" else rewards[2:3]:
        with pytest.raises(EnvError, match=r"`reward` must be one number; .*`float\(reward\)`"):
            played(batch(partial(Counting, reward=lambda _, x=reward: x), kind))


def test_rewards_may_be_of_any_library() -> None:
    for reward in (2, True, np.float16(2), np.array(2.0), torch.tensor(2.0)):
        rows = played(batch(partial(Counting, reward=lambda _, x=reward: x)), 1)
        assert rows[0]["rewards"].tolist() == [[float(reward)]] * 2


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("what", ["actions", "bounds"])
def test_spaces_that_a_reset_changes_are_named(what: str, kind: str) -> None:
    with pytest.raises(EnvError, match=r"_space` of .* was changed by `reset`, from .* to "):
        played(batch(partial(Counting, f"to other {what}"), kind), 1)


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_that_resets_itself_where_it_is_truncated_is_named(mode: str) -> None:
    """The observation is the next episode's, whose value is not that of the one that ended."""
    with pytest.raises(EnvError, match=r"resets itself in the env step that truncates an episode"):
        played(batch(lambda: TimeLimit(Counting("itself"), 9), mode=mode))


def test_what_returns_the_last_observation_may_reset_itself() -> None:
    class Terminating(Counting):
        def __init__(self) -> None:
            super().__init__("itself", terminated=bool, truncated=lambda end: False)

    rows = played(batch(partial(Counting, "itself, later")))
    assert [row["final_obs"][0].tolist() for row in rows] == [[1, 1], [2, 2], [3, 3]] * 2
    rows = played(batch(Terminating))  # nothing is bootstrapped from there
    assert [bool(row["terminated"][0]) for row in rows] == [False, False, True] * 2


def test_the_environments_methods_are_put_back() -> None:
    inner = SyncVectorEnv([lambda: TimeLimit(Counting(), 9)] * 2)
    played(inner, 2)
    assert all("step" in vars(env) and "reset" in vars(env.unwrapped) for env in inner.envs)
    inner = SyncVectorEnv([lambda: TimeLimit(Counting(), 9)] * 2)
    played(inner, 3)
    assert not any({"step", "reset"} & {*vars(x), *vars(x.unwrapped)} for x in inner.envs)


MEMORY: dict[str, Callable[[], Any]] = {
    "memoryview": lambda: memoryview(np.zeros(2, np.float32)),
    "array": lambda: array.array("f", [0, 0]),
    "deque": lambda: deque([np.zeros(()), np.zeros(())]),
    "list of views": lambda: list(np.zeros((2, 1), np.float32)),
    "fortran": lambda: np.zeros((2, 2), np.float32, order="F")[0],
    "reversed": lambda: np.zeros(2, np.float32)[::-1],
    "tensor": lambda: torch.zeros(2),
}


@pytest.mark.parametrize("make", MEMORY.values(), ids=MEMORY)
def test_memory_of_any_kind_is_copied_before_a_reset_overwrites_it(make: Any) -> None:
    class Reusing(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.memory = make()

        def _observed(self) -> Any:
            for i in range(2):
                if isinstance(self.memory[i], np.ndarray):
                    self.memory[i][...] = self.t
                else:
                    self.memory[i] = self.t
            observed = self.memory
            is_nested = isinstance(observed, list) and observed[0].ndim
            return [x[0:1].reshape(()) for x in observed] if is_nested else observed

    rows = played(batch(Reusing))
    assert [row["final_obs"][0].tolist() for row in rows] == [[1, 1], [2, 2], [3, 3]] * 2


def test_tensors_that_numpy_cannot_read_are_named() -> None:
    class Tensors(Counting):
        dtype, requires_grad = torch.float32, True

        def _observed(self) -> Any:
            return torch.zeros(2, dtype=self.dtype, requires_grad=self.requires_grad)

    class Halves(Tensors):
        dtype, requires_grad = torch.bfloat16, False

    for kind in (Tensors, Halves):
        with pytest.raises(EnvError, match=r"`obs` must be an array of shape \(2,\); got a Tensor"):
            played(batch(kind))


@pytest.mark.parametrize("rewards", [{"a": None}, {"a": np.ones(1)}])
@pytest.mark.parametrize("flags", [{"a": [False]}, {"a": None}])
def test_agents_return_numbers_and_flags(rewards: Any, flags: Any) -> None:
    class Agents:
        def __init__(self) -> None:
            self.agents = self.possible_agents = ["a"]
            self.rewards, self.flags = {"a": 1.0}, {"a": False}

        def observation_space(self, agent: str) -> Any:
            return BOX

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2)

        def reset(self, **_: Any) -> Any:
            return {"a": np.zeros(2, np.float32)}, {}

        def step(self, actions: Any) -> Any:
            return self.reset()[0], self.rewards, self.flags, {"a": False}, {"a": {}}

        def close(self) -> None:
            """Nothing is open."""

    agents = Agents()
    env = AgentsVectorEnv([agents], ["a"])
    env.reset()
    env.step(np.zeros(1, np.int64))
    agents.rewards = rewards
    with pytest.raises(EnvError, match=r"`rewards\['a'\]` must be one number"):
        env.step(np.zeros(1, np.int64))
    agents.flags = flags
    with pytest.raises(EnvError, match=r"`terminations\['a'\]` must be True or False"):
        env.step(np.zeros(1, np.int64))
