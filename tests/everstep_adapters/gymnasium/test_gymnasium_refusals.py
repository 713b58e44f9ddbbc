"""Returned values that their spaces cannot hold, and rewards that are vectors."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from everstep.errors import AdapterError, EnvError
from everstep_adapters import GymnasiumEnv
from tests.everstep_adapters.gymnasium.gymnasium_toys import MODES, Columns, zeros

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]


def play(env: GymnasiumEnv, count: int = 4) -> list[Any]:
    env.reset()
    return [env.step(zeros(env)).clone() for _ in range(count)]


class Counting(gymnasium.Env[Any, int]):
    """Observes `values[t]` in an integer space, and ends an episode with the last of them."""

    def __init__(self, values: list[Any], declared: Any = np.int8, nested: bool = False) -> None:
        info = np.iinfo(declared)
        box = spaces.Box(info.min, info.max, (1,), dtype=declared)
        self.observation_space = spaces.Dict(a=box) if nested else box
        self.action_space = spaces.Discrete(2)
        self.values, self.nested = values, nested

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return self._observed(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return self._observed(), 0.0, False, self.t == len(self.values) - 1, {}

    def _observed(self) -> Any:
        space = self.observation_space["a"] if self.nested else self.observation_space
        wide = np.uint64 if space.dtype.kind == "u" else np.int64
        value = np.array([self.values[self.t]], wide)
        return {"a": value} if self.nested else value


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("values", "declared", "named"),
    [
        ([0, 300, 0], np.int8, r"int8, -128 to 127.*got 300"),
        ([0, 0, 300], np.int8, r"int8, -128 to 127.*got 300"),
        ([300, 0, 0], np.uint8, r"uint8, 0 to 255.*got 300"),
        ([0, 2**40, 0], np.int32, r"int32.*got 1099511627776"),
    ],
)
def test_integers_that_their_dtype_has_not_are_refused(
    values: list[int], declared: Any, named: str, mode: str, nested: bool
) -> None:
    make = [partial(Counting, x, declared, nested) for x in ([0] * 9, values)]
    env = GymnasiumEnv(SyncVectorEnv(make, autoreset_mode=AutoresetMode[mode]))
    with pytest.raises(EnvError, match=rf"`(final_)?obs.*{named}.*wider dtype"):
        play(env)


def test_integers_that_fit_may_come_in_a_wider_dtype() -> None:
    env = GymnasiumEnv(SyncVectorEnv([partial(Counting, [0, 5, -7, 127])] * 2))
    assert [row["obs"].flatten().tolist() for row in play(env, 3)] == [[5, 5], [-7, -7], [127, 127]]


class Batch(Columns):
    """A vector environment whose integers are one dtype and whose space is another."""

    def __init__(self, returned: Any, mode: str) -> None:
        super().__init__({"autoreset_mode": AutoresetMode[mode]})
        self.single_observation_space = spaces.Box(-128, 127, (2,), dtype=np.int8)
        self.buffer = np.zeros((2, self.num_envs), dtype=returned)

    def step(self, actions: Any) -> Any:
        self.buffer += 299 if self.buffer.dtype.kind == "i" else 0.5
        obs, *others, _ = super().step(actions)
        return obs, *others, {"final_obs": obs.copy()}


@pytest.mark.parametrize("mode", MODES)
def test_batches_of_integers_that_their_dtype_has_not_are_refused(mode: str) -> None:
    with pytest.raises(EnvError, match=r"`obs` must hold numbers of int8.*got 300"):
        play(GymnasiumEnv(Batch(np.int64, mode)))
    with pytest.raises(EnvError, match=r"`obs` must have a dtype that fits int8; got float64"):
        play(GymnasiumEnv(Batch(np.float64, mode)))


# Rewards that are vectors.


class Objectives(gymnasium.Env[Any, int]):
    """Two rewards each env step; says so as mo-gymnasium's environments do, or not."""

    def __init__(self, says_so: bool = True) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        if says_so:
            self.reward_space = spaces.Box(-1, 1, (2,), dtype=np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), np.array([0.5, 0.25], np.float32), False, False, {}


class LinearReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """As mo-gymnasium's of this name."""

    def step(self, action: Any) -> Any:
        obs, reward, *others = self.env.step(action)
        return obs, np.dot(reward, [1.0, 2.0]), *others


@pytest.mark.parametrize("wrapped", [False, True])
def test_rewards_that_are_vectors_are_refused_where_the_environment_says_so(wrapped: bool) -> None:
    def make() -> Any:
        return TimeLimit(Objectives(), 5) if wrapped else Objectives()

    with pytest.raises(AdapterError, match=r"rewards of .* are vectors, Box.*LinearReward"):
        GymnasiumEnv(SyncVectorEnv([make] * 2))
    rows = play(GymnasiumEnv(SyncVectorEnv([lambda: LinearReward(make())] * 2)), 2)
    assert [row["rewards"].flatten().tolist() for row in rows] == [[1, 1], [1, 1]]
    batch = Columns({"autoreset_mode": AutoresetMode.NEXT_STEP})
    batch.reward_space = spaces.Box(-1, 1, (3, 2))  # as its `MOSyncVectorEnv` has it
    with pytest.raises(AdapterError, match=r"rewards of .* are vectors, Box.*LinearReward"):
        GymnasiumEnv(batch)


@pytest.mark.parametrize("kind", ["sync", "async", "batch"])
def test_rewards_that_are_vectors_are_named_where_nothing_said_so(kind: str) -> None:
    make = [partial(Objectives, False)] * 3
    batch = Columns({"autoreset_mode": AutoresetMode.NEXT_STEP})
    batch.rewards = np.zeros((3, 2))
    inner: Any = {
        "sync": lambda: SyncVectorEnv(make),
        "async": lambda: AsyncVectorEnv(make, context="fork"),
        "batch": lambda: batch,
    }[kind]()
    env = GymnasiumEnv(inner)
    with pytest.raises(EnvError, match=r"Rewards are one number.*LinearReward"):
        play(env, 1)
    env.close()
