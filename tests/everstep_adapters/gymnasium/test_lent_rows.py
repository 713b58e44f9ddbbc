"""Rollouts whose rows the environment writes itself, which hold what copies would."""

import pickle
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

import everstep
from everstep import AlgorithmConfig
from everstep.data import DataKeys
from everstep.env import Env
from everstep.errors import EnvError
from everstep_adapters.gymnasium import GymnasiumEnv
from everstep_adapters.gymnasium.rows import FLAG_ORDER, RowMemory
from tests.toys import BOTH, TERMINATED, TRUNCATED, Episode, ScriptedEnv

ENVS, HORIZON = 3, 8
RND = {"rnd": {"pre_normalization_steps": 1, "pre_normalization_length": 2}}


class Shown(gym.ObservationWrapper):
    """A scripted environment whose observations are of another space."""

    def __init__(self, env: gym.Env, kind: str) -> None:
        super().__init__(env)
        self.kind = kind
        box = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = {
            "float32": box,
            "float64": gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "choice": gym.spaces.Discrete(7, start=2),
            "bytes": gym.spaces.Box(0, 255, (4,), np.uint8),
            "nested": gym.spaces.Dict(
                {"x": box, "more": gym.spaces.Dict({"n": gym.spaces.Discrete(5)})}
            ),
        }[kind]

    def observation(self, obs: Any) -> Any:
        n = int(abs(obs.sum()) * 10)
        return {
            "float32": obs.astype(np.float32),
            "float64": obs,
            "choice": 2 + n % 7,
            "bytes": np.full((4,), n % 256, np.uint8),
            "nested": {"x": obs.astype(np.float32), "more": {"n": n % 5}},
        }[self.kind]


def environment(mode: AutoresetMode, kind: str, seed: int, limit: None | int) -> GymnasiumEnv:
    """Episodes of drawn lengths and ends."""
    draw = random.Random(seed)

    def script() -> list[Episode]:
        ends = (TERMINATED, TRUNCATED, BOTH)
        return [Episode(draw.randint(1, 6), draw.choice(ends)) for _ in range(4)]

    scripts = [script() for _ in range(ENVS)]
    makers = [lambda i=i, s=s: Shown(ScriptedEnv(i, s), kind) for i, s in enumerate(scripts)]
    vector = SyncVectorEnv(makers, autoreset_mode=mode)
    return GymnasiumEnv(vector, HORIZON, max_episode_steps=limit)


def built(env: Any, **options: Any) -> Any:
    algorithm: Any = AlgorithmConfig(
        **{"num_sgd_iters": 1, "sgd_minibatch_size": 8, "seed": 0, **options}
    ).build(env)
    return algorithm


def collected(algorithm: Any, rollouts: int = 3) -> list[dict[str, Any]]:
    """Everything in each rollout, and its statistics."""
    found = []
    for _ in range(rollouts):
        stats = algorithm.collect()
        rollout = algorithm.rollout
        tensors = {f"obs {i}": x for i, x in enumerate(rollout.obs)}
        tensors |= {f"final {i}": x for i, x in enumerate(rollout.final_obs)}
        names = ("rewards", "values", "logp", "terminated", "truncated", "first", "valid", "final")
        tensors |= {name: getattr(rollout, name) for name in names}
        stats = {k: x for k, x in stats.items() if not k.startswith("profiling/")}
        found.append({**{k: x.clone() for k, x in tensors.items()}, **stats})
        algorithm.step()
    return found


def assert_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        for name, x in mine.items():
            if isinstance(x, torch.Tensor):
                torch.testing.assert_close(
                    x, theirs[name], rtol=0, atol=0, equal_nan=True, msg=name
                )
            else:
                assert x == theirs[name], name


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Vector steps whose outcomes are copied."""
    from everstep.core.rollouts import _rollout

    found: list[int] = []
    copy = _rollout._copy

    def counted(*arguments: Any) -> None:
        found.append(1)
        copy(*arguments)

    monkeypatch.setattr(_rollout, "_copy", counted)
    return found


MODES = list(AutoresetMode)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("kind", ["float32", "float64", "choice", "bytes", "nested"])
@pytest.mark.parametrize("options", [{}, {"bonuses": [RND]}], ids=["plain", "bonus"])
@pytest.mark.parametrize("limit", [None, 4])
def test_rows_that_are_lent_hold_what_copies_would(
    mode: AutoresetMode,
    kind: str,
    options: dict[str, Any],
    limit: None | int,
    monkeypatch: pytest.MonkeyPatch,
    copies: list[int],
) -> None:
    lent = collected(built(environment(mode, kind, 1, limit), **options))
    if kind != "nested":
        assert len(copies) <= 3 * HORIZON  # of samples at most
    count = len(copies)
    monkeypatch.setattr(GymnasiumEnv, "borrow_rows", lambda *_: None)
    plain = collected(built(environment(mode, kind, 1, limit), **options))
    assert len(copies) >= count + (3 * HORIZON if kind != "nested" else 0)
    assert_same(lent, plain)


class Around(Env):
    """An environment of the user's around one that writes its rows itself."""

    def __init__(self, env: GymnasiumEnv, change: Callable[[Any, TensorDict], TensorDict]) -> None:
        super().__init__(env.num_envs, env.horizon)
        self.env, self.change = env, change
        for name in ("observation_spec", "action_spec", "episode_keys"):
            setattr(self, name, getattr(env, name))

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, config: Any = None) -> Any:
        return self.env.reset(config=config)

    def step(self, action: Any) -> TensorDict:
        self.action = action
        return self.change(self, self.env.step(action))


def halved(around: Around, row: TensorDict) -> TensorDict:
    return row.clone().set(DataKeys.REWARDS, row[DataKeys.REWARDS] / 2)


def halved_in_place(around: Around, row: TensorDict) -> TensorDict:
    row[DataKeys.REWARDS].div_(2)
    return row


def replaced(around: Around, row: TensorDict) -> TensorDict:
    with row.unlock_():
        row[DataKeys.REWARDS] = row[DataKeys.REWARDS] / 2
    return row


def twice(around: Around, row: TensorDict) -> TensorDict:
    return around.env.step(around.action)


@pytest.mark.parametrize("change", [halved, halved_in_place, twice])
def test_environments_around_it_may_change_rows(
    change: Callable[..., TensorDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> list[dict[str, Any]]:
        env = environment(AutoresetMode.SAME_STEP, "float32", 2, None)
        return collected(built(Around(env, change)))

    lent = run()
    monkeypatch.setattr(GymnasiumEnv, "borrow_rows", lambda *_: None)
    assert_same(lent, run())


def test_a_tensor_that_was_replaced_in_a_row_is_an_error() -> None:
    env = environment(AutoresetMode.SAME_STEP, "float32", 2, None)
    with pytest.raises(EnvError, match=r"locked TensorDict.*copy"):
        built(Around(env, replaced)).collect()


def with_more(around: Around, row: TensorDict) -> TensorDict:
    with row.unlock_():
        row["final_obs"] = row["obs"]
    return row


def test_a_key_that_was_added_to_a_row_is_looked_at() -> None:
    env = environment(AutoresetMode.NEXT_STEP, "float32", 2, None)
    with pytest.raises(EnvError, match="final_obs"):
        built(Around(env, with_more)).collect()


def test_copies_of_an_environment_show_what_they_write() -> None:
    env = environment(AutoresetMode.NEXT_STEP, "float32", 7, None)
    env.reset()
    copy = deepcopy(env)
    actions = torch.zeros(ENVS, 1, dtype=torch.int64)
    assert torch.equal(copy._memory.data["obs"], env._memory.data["obs"])
    mine, theirs = copy.step(actions).clone(), env.step(actions)
    assert all(map(torch.equal, mine.values(), theirs.values()))
    assert torch.equal(copy.reset(), env.reset())


@pytest.mark.parametrize("staged", [False, True])
def test_copies_of_memory_hold_what_it_held(staged: bool) -> None:
    parts = environment(AutoresetMode.NEXT_STEP, "float32", 7, None)._parts
    memory = RowMemory(parts, frozenset(FLAG_ORDER), ENVS, torch.device("cpu"), staged=staged)
    for number in (1.0, 2.0, 3.0):  # staged memory has two sides
        memory.writable().rewards[...] = number
        memory.publish()
    for copy in (deepcopy(memory), pickle.loads(pickle.dumps(memory))):
        assert all(map(torch.equal, copy.data.values(), memory.data.values()))
        copy.writable().rewards[...] = 4.0
        assert bool((copy.publish()["rewards"] == 4.0).all())
        assert bool((memory.data["rewards"] == 3.0).all())


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_steps_between_rollouts_are_not_written_into_them(mode: AutoresetMode) -> None:
    env = environment(mode, "float32", 3, None)
    algorithm = built(env)
    algorithm.collect()
    before = algorithm.buffer.clone()
    row = env.step(torch.zeros(ENVS, 1, dtype=torch.int64))
    assert all(map(torch.equal, before.values(), algorithm.buffer.values()))
    assert row is env._memory.data


def test_rows_are_given_back_after_an_error() -> None:
    env = environment(AutoresetMode.NEXT_STEP, "float32", 3, None)
    algorithm = built(env)
    algorithm.collect()
    algorithm.calls._write_into = None
    original, env._calls.step = env._calls.step, lambda actions: 1 / 0
    with pytest.raises(ZeroDivisionError):
        algorithm.collect()
    env._calls.step = original
    assert env._memory.borrowed is None
    assert env.step(torch.zeros(ENVS, 1, dtype=torch.int64)) is env._memory.data


def test_rows_that_are_reset_from_outside_are_where_the_rollout_ended() -> None:
    env = environment(AutoresetMode.NEXT_STEP, "float32", 4, None)
    algorithm = built(env)
    algorithm.collect()
    last = algorithm.rollout.obs[0][-1].clone()
    waiting = torch.from_numpy(env._endings.pending.copy())
    obs = env.reset_rows(waiting)
    assert torch.equal(obs[~waiting], last[~waiting])


def test_copies_of_an_algorithm_write_into_their_own() -> None:
    algorithm = built(environment(AutoresetMode.NEXT_STEP, "float32", 5, None))
    collected(algorithm, 1)
    copy = deepcopy(algorithm)
    before, generator = algorithm.buffer.clone(), torch.get_rng_state()
    mine = collected(copy, 2)
    assert all(map(torch.equal, before.values(), algorithm.buffer.values()))
    torch.set_rng_state(generator)
    assert_same(mine, collected(algorithm, 2))


def test_two_algorithms_may_have_one_environment() -> None:
    env = everstep.make("CartPole-v1", ENVS, horizon=HORIZON)
    one, other = built(env), built(env)
    one.collect()
    before = one.buffer.clone()
    other.collect()
    assert all(map(torch.equal, before.values(), one.buffer.values()))
    one.step()
    one.collect()
    assert torch.equal(one.rollout.obs[0][1:], torch.stack([x[0] for x in one.rollout._obs[1:]]))


def test_rows_of_other_dtypes_are_not_borrowed() -> None:
    env = environment(AutoresetMode.NEXT_STEP, "float32", 6, None)
    env.reset()
    row = env._memory.data.clone()
    assert env.borrow_rows([row.lock_()]) is not None
    double = env._memory.data.clone().set(DataKeys.REWARDS, torch.zeros(ENVS, 1).double())
    fewer = env._memory.data.exclude(DataKeys.FIRST)
    assert env.borrow_rows([double]) is None
    assert env.borrow_rows([fewer]) is None


class Own(Env):
    """An environment of a user's that writes its rows itself, if it is asked to."""

    episode_keys = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST})

    def __init__(self, *, borrows: bool) -> None:
        super().__init__(ENVS, HORIZON)
        self.observation_spec, self.action_spec = Unbounded(2), Categorical(2, shape=[1])
        self.state, self.borrows, self.row = torch.zeros(ENVS, 2), borrows, None

    def reset(self, *, config: Any = None) -> torch.Tensor:
        return self.state.zero_()

    def step(self, action: Any) -> Any:
        self.state += action - 0.4
        ends = self.state[:, :1] > 2
        self.state[ends.squeeze(-1)] = 0.0
        found = {"obs": self.state, "rewards": self.state.sum(1, keepdim=True), "first": ends}
        found |= {"terminated": ends, "truncated": torch.zeros_like(ends)}
        if self.row is None:
            return TensorDict(found, [ENVS])
        for name, x in found.items():
            self.row[name].copy_(x)
        return self.row

    def borrow_rows(self, rows: Any) -> Any:
        if not self.borrows:
            return None
        env = self

        class Borrowed:
            def use(self, t: int) -> None:
                env.row = rows[t]

            def give_back(self) -> None:
                env.row = None

        return Borrowed()


def test_environments_of_a_user_may_write_their_rows(copies: list[int]) -> None:
    lent = Own(borrows=True)
    found = collected(built(lent))
    assert len(copies) <= 3 * HORIZON
    assert lent.row is None
    assert_same(found, collected(built(Own(borrows=False))))
