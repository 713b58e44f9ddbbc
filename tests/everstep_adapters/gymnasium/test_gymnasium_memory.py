"""Environments that write into what they have returned, and rows that are not independent."""

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorWrapper,
)
from gymnasium.wrappers import TimeLimit, TransformObservation
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import everstep
from everstep.errors import AdapterError, EnvError
from everstep_adapters import GymnasiumEnv
from everstep_adapters.common.kept_ends import copied
from tests.everstep_adapters.gymnasium.gymnasium_toys import MODES, zeros

# Python 3.12 and JAX warn of forks in a process that has threads, which `AsyncVectorEnv` does.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]

SAME = AutoresetMode.SAME_STEP

#: Where the environments of one batch reuse memory.
REUSES = {
    "leaves": ["step", "reset", "both", "alternately", "reset, returning a copy", "info"],
    "nested leaves": ["a nested leaf"] * 2,
}


def play(env: GymnasiumEnv, count: int) -> list[Any]:
    env.reset()
    return [env.step(zeros(env)).clone() for _ in range(count)]


class Reusing(gymnasium.Env[Any, int]):
    """Counts its env steps up to 3, in memory that it writes to again."""

    def __init__(self, reuses: str) -> None:
        box = spaces.Box(-np.inf, np.inf, (2,), dtype=np.float32)
        self.is_nested = reuses == "a nested leaf"
        inner = spaces.Dict({"b": spaces.Tuple([box, box])})
        self.observation_space = inner if self.is_nested else box
        self.action_space = spaces.Discrete(2)
        self.reuses = reuses
        self.buffers = [np.zeros(2, np.float32) for _ in range(2)]
        self.state, self.t, self.infos = self.buffers[0], 0, {"x": np.zeros(1)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t, self.infos["x"][:] = 0, 0
        if self.reuses in ("step", "info"):
            self.state = np.zeros(2, np.float32)
        for buffer in (self.state, *self.buffers):
            buffer[:] = 0
        return self._observed(copies="copy" in self.reuses), self.infos

    def step(self, action: int) -> Any:
        self.t += 1
        if self.reuses == "alternately":
            self.state = self.buffers[self.t % 2]
        if self.reuses.startswith("reset"):
            self.state = np.zeros(2, np.float32)
        self.state[:] = self.t
        self.infos["x"][:] = self.t
        return self._observed(), 0.0, False, self.t == 3, self.infos

    def _observed(self, copies: bool = False) -> Any:
        observed = self.state.copy() if copies or self.reuses == "info" else self.state
        return {"b": (observed.copy(), observed)} if self.is_nested else observed


def vectorized(kind: str, mode: str, make: list[Callable[[], Any]]) -> VectorEnv:
    options: Any = {"autoreset_mode": AutoresetMode[mode]}
    if kind.startswith("sync"):
        return SyncVectorEnv(make, copy="copies" in kind, **options)
    return AsyncVectorEnv(make, shared_memory="shared" in kind, context="fork", **options)


@pytest.mark.few(6)
@pytest.mark.parametrize("reuses", REUSES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "sync, copies", "async, shared", "async"])
def test_the_observation_that_ends_an_episode_is_the_one_before_the_reset(
    kind: str, mode: str, reuses: str
) -> None:
    env = GymnasiumEnv(vectorized(kind, mode, [partial(Reusing, x) for x in REUSES[reuses]]))
    env.reset()
    rows = [env.step(zeros(env)).clone() for _ in range(8)]
    end = "obs" if mode == "NEXT_STEP" else "final_obs"
    ends = [row[end] for row in rows if row["truncated"].any()]
    leaves = [end["b"]["1"] if reuses == "nested leaves" else end for end in ends]
    assert [leaf.tolist() for leaf in leaves] == [[[3, 3]] * env.num_envs] * 2
    counted = [1, 2, 3, 1, 2, 3] if mode == "NEXT_STEP" else [1, 2, 3, 1, 2, 3, 1, 2]
    assert env.metrics()["x"] == pytest.approx(np.mean(counted))  # two rows of 8 are resets
    env.close()


def test_wrappers_and_copies_that_everstep_makes_are_right_too() -> None:
    def make() -> Any:
        env = TimeLimit(Reusing("reset"), 2)
        return TransformObservation(env, lambda x: x, env.observation_space)

    inner = [vectorized("sync", "SAME_STEP", [make] * 2) for _ in range(2)]
    for env in (
        GymnasiumEnv(inner[0], max_episode_steps=2),
        everstep.make(make, 2, autoreset_mode="SAME_STEP"),
        GymnasiumEnv(RecordEpisodeStatistics(inner[1])),
    ):
        env.reset()
        rows = [env.step(zeros(env)).clone() for _ in range(4)]
        assert [row["final_obs"].tolist() for row in rows[1::2]] == [[[2, 2], [2, 2]]] * 2


class Batch(VectorEnv):
    """Resets in the same step; `final` says what its infos hold of the ends."""

    def __init__(self, final: str, as_tensors: bool = False, length: int = 3) -> None:
        self.metadata = {"autoreset_mode": SAME}
        box = spaces.Box(-np.inf, np.inf, (2,), dtype=np.float32)
        self.is_nested = "leaf" in final
        self.single_observation_space = spaces.Dict(a=box, b=box) if self.is_nested else box
        self.single_action_space = spaces.Discrete(2)
        self.num_envs, self.final, self.length = 3, final, length
        self.state = torch.zeros(3, 2) if as_tensors else np.zeros((3, 2), np.float32)
        self.goal = self.state + 7
        self.t = np.zeros(3, np.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t[:] = [0, 1, 0]
        self.state[:] = 0
        return self._observed(self._copied(self.state)), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        self.state += 1
        truncated, infos = self.t == self.length, {}
        returned = self._copied(self.state)
        if truncated.any():
            final = {"a copy": self._copied(self.state), "the state": self.state}
            final |= {"what is returned": returned, "one leaf": self.state}
            final |= {"a leaf that never changes": self._copied(self.state)}
            value = final[self.final.removesuffix(", one by one")]
            infos["final_obs"] = self._observed(value)
            if self.final.endswith("one by one"):
                infos["final_obs"] = np.array([None] * 3, dtype=object)
                for i in np.flatnonzero(truncated):
                    infos["final_obs"][i] = value[i]
            for array in (self.state, returned):
                array[truncated] = 0
            self.t[truncated] = 0
        rewards, flags = np.zeros(3), (np.zeros(3, bool), truncated)
        if isinstance(self.state, torch.Tensor):
            rewards, *flags = (torch.from_numpy(x) for x in (rewards, *flags))  # type: ignore
        return self._observed(returned), rewards, *flags, infos

    def _copied(self, value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value.copy()

    def _observed(self, value: Any) -> Any:
        if not self.is_nested:
            return value
        return {"a": value, "b": self.goal if "never" in self.final else self._copied(value)}


@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize(
    "final", ["the state", "what is returned", "one leaf", "the state, one by one"]
)
def test_batches_whose_final_observations_are_overwritten_are_refused(
    final: str, as_tensors: bool
) -> None:
    env = GymnasiumEnv(Batch(final, as_tensors))
    with pytest.raises(EnvError, match=r"writes into final observations.*obs.*copy.*NEXT_STEP"):
        play(env, 6)


@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize("final", ["a copy", "a copy, one by one", "a leaf that never changes"])
def test_batches_with_copies_and_leaves_that_never_change_are_not(
    final: str, as_tensors: bool
) -> None:
    env = GymnasiumEnv(Batch(final, as_tensors))
    env.reset()
    for t in range(1, 13):
        row = env.step(zeros(env))
        if t % 3 == 0:
            leaf = row["final_obs"]["a"] if "leaf" in final else row["final_obs"]
            assert leaf[0].tolist() == [3, 3]


class Held(VectorEnv):
    """Observes `values[t]`, in memory that it writes to, which is what its infos hold, too.

    `final` are the values at the ends; without them, those of the reset that overwrites them.
    """

    def __init__(
        self,
        values: list[float],
        final: list[float] | None = None,
        *,
        dtype: Any = np.float32,
        is_shared: bool = False,
        as_tensors: bool = False,
        terminates: bool = False,
    ) -> None:
        self.metadata, self.terminates = {"autoreset_mode": SAME}, terminates
        least = max(-9, np.iinfo(dtype).min) if np.dtype(dtype).kind in "iu" else -9
        self.single_observation_space = spaces.Box(least, 9, (1,), dtype)
        self.single_action_space = spaces.Discrete(2)
        self.num_envs, self.values, self.final, self.is_shared = 1, values, final, is_shared
        self.as_tensors, self.t, self.episode = as_tensors, 0, 0
        self.state, self.ends = self.made(np.zeros((2, 1, 1), dtype))

    def made(self, array: Any) -> Any:
        return torch.from_numpy(array) if self.as_tensors else array

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t, self.state[:] = 0, self.values[0]
        return self._observed(), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        is_end, infos = self.t == len(self.values), {}
        if is_end:
            infos["final_obs"] = self.state
            if self.final is not None:
                self.ends[:] = self.final[self.episode % len(self.final)]
                infos["final_obs"] = self.ends
            self.t, self.episode = 0, self.episode + 1
        self.state[:] = self.values[self.t]
        flags = [self.made(np.zeros(1, bool)), self.made(np.array([is_end]))]
        flags = flags[::-1] if self.terminates else flags
        return self._observed(), self.made(np.zeros(1, np.float32)), *flags, infos

    def _observed(self) -> Any:
        return self.state if self.is_shared else copied(self.state)


def finals(env: Held, count: int) -> list[float]:
    rows = play(GymnasiumEnv(env), count)
    return [float(row["final_obs"]) for row in rows if row["truncated"].any()]


@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize("is_shared", [False, True])
def test_observations_that_never_change_may_lie_in_memory_that_is_written_to(
    is_shared: bool, as_tensors: bool
) -> None:
    env = Held([7, 7, 7], is_shared=is_shared, as_tensors=as_tensors)
    assert finals(env, 30) == [7] * 10


@pytest.mark.parametrize("as_tensors", [False, True])
def test_final_observations_in_shared_memory_are_refused_at_the_first_change(
    as_tensors: bool,
) -> None:
    env = Held([7, 7, 7], is_shared=True, as_tensors=as_tensors)
    wrapped = GymnasiumEnv(env)
    play(wrapped, 9)
    env.values = [7, 7, 8]
    wrapped.step(zeros(wrapped))
    with pytest.raises(EnvError, match="writes into final observations"):
        wrapped.step(zeros(wrapped))


@pytest.mark.parametrize("as_tensors", [False, True])
def test_what_may_be_overwritten_is_lost_until_it_is_refused(as_tensors: bool) -> None:
    env = Held([0, 1, 2], as_tensors=as_tensors)
    wrapped = GymnasiumEnv(env)
    rows = play(wrapped, 11)
    ends = [row["final_obs"] for row in rows if row["truncated"].any()]
    assert len(ends) == 3
    assert all(x.isnan().all() for x in ends)
    with pytest.raises(EnvError, match="writes into final observations"):
        wrapped.step(zeros(wrapped))


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("as_tensors", [False, True])
def test_episodes_that_end_where_they_begin_are_not_refused(
    as_tensors: bool, is_shared: bool
) -> None:
    """Final observations in memory of their own equal those of the reset, by chance."""
    ends = [0.0, 0.0, 0.0, 5.0, *[0.0] * 8]
    found = finals(Held([0, 1, 2], ends, is_shared=is_shared, as_tensors=as_tensors), 36)
    assert found[3:] == ends[3:]
    assert np.isnan(found[:3]).all()


DOUBT = r"may have overwritten the final observations of rows \[0\].*copy.*NEXT_STEP or DISABLED"


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("as_tensors", [False, True])
def test_integers_in_doubt_are_refused_before_one_is_used(as_tensors: bool, dtype: Any) -> None:
    """They have no NaN: a row that may be overwritten, and is needed, is never returned."""
    for values in ([0, 1, 2], [0, 0, 0], [0]):  # a leaf may change at its end alone
        env = GymnasiumEnv(Held(values, dtype=dtype, as_tensors=as_tensors))
        assert not [row for row in play(env, len(values) - 1) if row["truncated"].any()]
        with pytest.raises(EnvError, match=DOUBT):
            env.step(zeros(env))


@pytest.mark.parametrize("as_tensors", [False, True])
def test_integers_in_memory_that_was_cleared_may_equal_the_reset(as_tensors: bool) -> None:
    """An end at which they are others shows that no reset writes there."""
    ends = [5.0, *[0.0] * 6]
    assert finals(Held([0, 1, 2], ends, dtype=np.int32, as_tensors=as_tensors), 21) == ends


def test_integers_of_terminated_rows_are_not_needed() -> None:
    """They are counted until they are refused; what is missing then is not used."""
    env = GymnasiumEnv(Held([0, 1, 2], dtype=np.int32, terminates=True))
    rows = play(env, 11)
    assert sum(int(row["terminated"].any()) for row in rows) == 3
    with pytest.raises(EnvError, match="writes into final observations"):
        env.step(zeros(env))


def test_integers_beside_numbers_that_can_be_marked_are_lost() -> None:
    """NaN in one leaf marks the row."""

    class Mixed(Held):
        def __init__(self) -> None:
            super().__init__([0, 1, 2])
            real = self.single_observation_space
            self.single_observation_space = spaces.Dict(
                real=real, whole=spaces.Box(-9, 9, (1,), np.int32)
            )

        def _observed(self) -> Any:
            return {"real": copied(self.state), "whole": self.state.astype(np.int32)}

        def step(self, actions: Any) -> Any:
            observed, *others, infos = super().step(actions)
            if infos:
                self.whole = self.state.astype(np.int32)
                infos["final_obs"] = {"real": infos["final_obs"], "whole": self.whole}
            return observed, *others, infos

    rows = play(GymnasiumEnv(Mixed()), 11)
    ends = [row["final_obs"] for row in rows if row["truncated"].any()]
    assert len(ends) == 3
    assert all(end["real"].isnan().all() for end in ends)


# Rows that are one.


class Simulator:
    def __init__(self) -> None:
        self.x = 0

    def step(self) -> None:
        self.x += 1

    def reset(self) -> None:
        self.x = 0


SIMULATOR, MEMORY = Simulator(), np.zeros(2, np.float32)


class Sharing(gymnasium.Env[Any, int]):
    """Shares with its copies what `shares` says."""

    in_class = np.zeros(2, np.float32)
    table = np.arange(5)

    def __init__(self, shares: str) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self.simulator: Any = SIMULATOR if shares == "a simulator" else Simulator()
        #: Where else a simulator may be.
        self.parts: Any = {"robots": [SIMULATOR]} if shares == "a part of a mapping" else {}
        self.config = SimpleNamespace()
        if shares == "a simulator in an object":
            self.config.simulator = SIMULATOR
        self.shares = shares
        if shares == "an array":
            self.state = MEMORY
        elif shares == "an array of the class":
            self.state = self.in_class
        else:
            self.state = np.zeros(2, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.simulator.reset()
        self.state[:] = 0
        return self._observed(), {}

    def step(self, action: int) -> Any:
        self.simulator.step()
        self.state += 1
        return self._observed(), 0.0, False, False, {}

    def _observed(self) -> Any:
        if self.shares == "what it returns":
            return self.in_class
        return self.state.copy()


class OfClass(Sharing):
    world = SIMULATOR


class Slotted(Sharing):
    __slots__ = ("world",)

    def __init__(self, shares: str) -> None:
        super().__init__(shares)
        self.world = SIMULATOR


def with_own_state(env: Any) -> Any:
    env.simulator, env.state = Simulator(), np.zeros(2, np.float32)
    return env


def one_twice(shares: str) -> list[Callable[[], Any]]:
    env = Sharing(shares)
    if shares == "the environment":
        return [lambda: env] * 2
    if shares == "the environment in wrappers":
        return [lambda: TimeLimit(env, 5)] * 2
    if shares == "a generator":
        env.reset(seed=0)
        return [lambda: with_own_state(copy.copy(env))] * 2
    kind = {"a simulator of the class": OfClass, "a simulator in a slot": Slotted}
    return [partial(kind.get(shares, Sharing), shares)] * 2


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ("the environment", "one environment, Sharing"),
        ("the environment in wrappers", "one environment, Sharing"),
        ("a simulator", "one simulation, Simulator"),
        ("a part of a mapping", "one simulation, Simulator"),
        ("a simulator in an object", "one simulation, Simulator"),
        ("a simulator of the class", "one simulation, Simulator"),
        ("a simulator in a slot", "one simulation, Simulator"),
        ("a generator", "one generator of random numbers"),
        ("an array", "write into one array, `Sharing.state`"),
        ("an array of the class", "write into one array"),
        ("what it returns", "return observations in one memory"),
    ],
)
def test_rows_that_are_not_independent_are_refused(shares: str, named: str) -> None:
    inner = SyncVectorEnv(one_twice(shares))
    with pytest.raises((AdapterError, EnvError), match=rf"[Rr]ows.*{named}.*own"):
        play(GymnasiumEnv(inner), 1)


def test_rows_may_share_tables_and_spaces() -> None:
    play(GymnasiumEnv(SyncVectorEnv([partial(Sharing, "nothing")] * 3)), 2)


def test_a_function_that_makes_one_environment_is_refused_by_make() -> None:
    env = Sharing("nothing")
    with pytest.raises(AdapterError, match=r"Rows 0 and 1 .* have one environment"):
        everstep.make(lambda: env, 4)


# Wrappers of a batch that resets in the same step.


class Changing(VectorWrapper):
    """Observations times `factor`, of final ones too if they are `final`, and within a limit."""

    def __init__(self, env: Any, factor: float = 1.0, final: str = "", limit: float = 9.0) -> None:
        super().__init__(env)
        self.factor, self.final, self.limit = factor, final, limit

    def _changed(self, value: Any) -> Any:
        return np.clip(value * self.factor, -self.limit, self.limit)

    def reset(self, **options: Any) -> Any:
        observation, infos = self.env.reset(**options)
        return self._changed(observation), infos

    def step(self, actions: Any) -> Any:
        observation, *others, infos = self.env.step(actions)
        if self.final and "final_obs" in infos:
            final = [x if x is None else self._changed(x) for x in infos["final_obs"]]
            if self.final == "in place":
                for x, y in zip(infos["final_obs"], final, strict=True):
                    x[:] = y
            else:
                infos = infos | {"final_obs": final}
        return self._changed(observation), *others, infos


@pytest.mark.parametrize("kind", ["sync", "async, shared"])
@pytest.mark.parametrize("factor", [0.5, -2.0])
def test_wrappers_that_change_only_observations_are_refused(factor: float, kind: str) -> None:
    """The value of a truncated episode would be that of an observation which nobody sees."""
    env = GymnasiumEnv(Changing(vectorized(kind, "SAME_STEP", [partial(Reusing, "")] * 2), factor))
    with pytest.raises(EnvError, match=r"wrapper of .* changes its observ.*final.*Wrap each"):
        play(env, 4)
    env.close()


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"factor": 0.5, "final": "new"}, 1.5),
        ({"factor": 0.5, "final": "in place"}, 1.5),
        ({"limit": 2.5, "final": "new"}, 2.5),
        ({"limit": 3.5}, 3),
    ],
    ids=str,
)
def test_wrappers_that_change_final_observations_too_or_nothing_are_not(
    options: Any, ends: float
) -> None:
    inner = vectorized("sync", "SAME_STEP", [partial(Reusing, "")] * 2)
    rows = play(GymnasiumEnv(Changing(inner, **options)), 6)
    found = [row["final_obs"].tolist() for row in rows if row["truncated"].any()]
    assert found == [[[ends, ends]] * 2] * 2


def test_wrappers_are_looked_at_for_some_ends_and_leave_no_trace() -> None:
    """Copies of each batch that ends an episode would cost as long as the training lasts."""
    inner = vectorized("sync", "SAME_STEP", [partial(Reusing, "")] * 2)
    names = {*vars(inner)}
    env = GymnasiumEnv(Changing(inner, factor=0.5, final="new"))
    assert {*vars(inner)} - names == {"step"}
    copied = copy.deepcopy(inner)
    play(env, 3 * 8)
    assert {*vars(inner)} == names
    before = [single.unwrapped.t for single in inner.envs]
    copied.reset()
    copied.step(np.zeros(2, np.int64))
    assert [single.unwrapped.t for single in inner.envs] == before
