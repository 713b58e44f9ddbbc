"""Ends of Gymnasium's episodes: every row, in every autoreset mode, by environment or adapter."""

import math
from functools import partial
from types import FunctionType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import PassiveEnvChecker, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from everstep.errors import AdapterError, EnvError
from everstep_adapters import GymnasiumEnv
from tests.everstep_adapters.gymnasium.gymnasium_toys import (
    ACTION,
    MODES,
    SCRIPTS,
    Columns,
    Scripted,
    check_stream,
    in_processes,
    scripted,
)

# Python 3.12 and JAX warn of forks in a process that has threads, which `AsyncVectorEnv` does.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]

# The law: rows are those of environments stepped one by one.


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_those_of_environments_stepped_by_hand(mode: str, name: str) -> None:
    check_stream(GymnasiumEnv(scripted(name, mode)), name, mode)


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_the_same_when_environments_are_processes(mode: str, shared_memory: bool) -> None:
    env = GymnasiumEnv(in_processes("mixed", mode, shared_memory))
    check_stream(env, "mixed", mode)
    env.close()


def limited(*limits: int) -> Any:
    """A function that makes CartPole without a `spec`, in wrappers with limits."""

    def make() -> Any:
        env = gymnasium.make("CartPole-v1").unwrapped
        env.spec = None
        for limit in limits:
            env = TimeLimit(PassiveEnvChecker(env), limit)
        return env

    return make


@pytest.mark.parametrize(
    ("makes", "limit"),
    [
        ([limited(), limited()], None),
        ([limited(20), limited(20)], 20),
        ([limited(20), limited(30)], 30),
        ([limited(20), limited()], None),
        ([limited(50, 90), limited(50)], 50),
        ([partial(gymnasium.make, "CartPole-v1")], 500),
        ([partial(gymnasium.make, "CartPole-v1", max_episode_steps=-1)], None),
        ([lambda: TimeLimit(gymnasium.make("CartPole-v1"), 30)], 30),
    ],
)
def test_a_limit_that_an_environment_has_is_known(makes: Any, limit: None | int) -> None:
    """Of several the largest: no episode is longer. Of several wrappers the least."""
    assert GymnasiumEnv(SyncVectorEnv(makes)).max_episode_steps == limit
    assert GymnasiumEnv(RecordEpisodeStatistics(SyncVectorEnv(makes))).max_episode_steps == limit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("makes", "limit"),
    [
        ([limited(), limited()], None),
        ([limited(20), limited(30)], 30),
        ([limited(20), limited()], None),
        ([partial(gymnasium.make, "CartPole-v1")], 500),
    ],
)
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_limit_is_known_of_environments_in_processes(
    makes: Any, limit: None | int, context: str
) -> None:
    inner = AsyncVectorEnv(makes, context=context)
    for vector_env in (inner, RecordEpisodeStatistics(inner)):
        assert GymnasiumEnv(vector_env).max_episode_steps == limit
    inner.close()


class Closed(TimeLimit):
    """Takes no attribute that it has not."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("everstep"):
            raise AttributeError(f"{name} is not one of mine")
        super().__setattr__(name, value)


def own_worker(*arguments: Any) -> None:
    """A worker in whose frames no environment is called `env`."""
    from gymnasium.vector import async_vector_env

    code = async_vector_env._async_worker.__code__
    names = tuple("mine" if name == "env" else name for name in code.co_varnames)
    run = FunctionType(code.replace(co_varnames=names), async_vector_env.__dict__)
    run(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["attributes", "worker"])
def test_processes_that_cannot_be_asked_have_no_known_limit(kind: str) -> None:
    make = (lambda: Closed(limited()(), 9)) if kind == "attributes" else limited(9)
    worker = own_worker if kind == "worker" else None
    env = GymnasiumEnv(AsyncVectorEnv([make] * 2, worker=worker, context="fork"))
    assert env.max_episode_steps is None
    env.reset()
    env.step(torch.zeros(2, 1, dtype=torch.int64))
    env.close()


def test_a_limit_may_be_that_of_the_vector_environment() -> None:
    """Where those in its `envs` say nothing."""
    env: Any = SyncVectorEnv([limited(), limited()])
    assert GymnasiumEnv(env).max_episode_steps is None
    env.spec = gymnasium.spec("CartPole-v1")
    assert GymnasiumEnv(env).max_episode_steps == 500


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("mode", MODES)
def test_a_limit_of_the_adapter_truncates_and_resets_single_rows(mode: str, limit: int) -> None:
    env = GymnasiumEnv(scripted("mixed", mode), max_episode_steps=limit)
    assert "final_obs" in env.episode_keys
    check_stream(env, "mixed", mode, limit)


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_resets_single_rows_of_processes(mode: str) -> None:
    env = GymnasiumEnv(in_processes("mixed", mode), max_episode_steps=3)
    check_stream(env, "mixed", mode, 3)
    env.close()


@pytest.mark.parametrize("copy", [True, False])
def test_modes_agree_on_everything_but_reset_rows(copy: bool) -> None:
    streams = {}
    for mode in MODES:
        vector_kwargs = {"copy": copy}
        env = GymnasiumEnv.make("CartPole-v1", 1, autoreset_mode=mode, vector_kwargs=vector_kwargs)
        env.seed(3)
        env.reset()
        rows = [env.step(torch.tensor([[t // 2 % 2]])).clone() for t in range(300)]
        ended = [row["obs"] if mode == "NEXT_STEP" else row["final_obs"] for row in rows]
        streams[mode] = [
            (end.tolist(), row["rewards"].item(), row["terminated"].item())
            for end, row in zip(ended, rows, strict=True)
            if "valid" not in env.episode_keys or row["valid"].item()
        ]
    assert streams["SAME_STEP"] == streams["DISABLED"]
    # The action of a reset row is lost, so only the first episode has the same actions.
    length = next(i for i, row in enumerate(streams["NEXT_STEP"]) if row[2])
    assert streams["NEXT_STEP"][: length + 1] == streams["SAME_STEP"][: length + 1]


@pytest.mark.parametrize("vectorization_mode", ["sync", "vector_entry_point"])
def test_the_stream_is_that_of_the_vector_environment(vectorization_mode: str) -> None:
    env = GymnasiumEnv.make("CartPole-v1", 4, vectorization_mode=vectorization_mode)
    by_hand = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode=vectorization_mode)
    env.seed(11)
    np.testing.assert_array_equal(env.reset(), by_hand.reset(seed=11)[0])
    for action in np.random.default_rng(0).integers(2, size=(200, 4)):
        row = env.step(torch.from_numpy(action)[:, None])
        obs, rewards, terminated, truncated, _ = by_hand.step(action)
        np.testing.assert_array_equal(row["obs"], obs)
        np.testing.assert_array_equal(row["rewards"][:, 0], rewards)
        np.testing.assert_array_equal(row["terminated"][:, 0], terminated)
        np.testing.assert_array_equal(row["truncated"][:, 0], truncated)


# Numbers, one row at a time.


@pytest.mark.parametrize(
    ("mode", "keys"),
    [
        ("NEXT_STEP", {"terminated", "truncated", "first", "valid"}),
        ("SAME_STEP", {"terminated", "truncated", "first", "final_obs"}),
        ("DISABLED", {"terminated", "truncated", "first", "final_obs"}),
    ],
)
def test_episode_keys_are_the_keys_of_every_row(mode: str, keys: set[str]) -> None:
    env = GymnasiumEnv(scripted("mixed", mode))
    env.reset()
    assert env.episode_keys == keys
    row = env.step(ACTION)
    assert set(row.keys()) == keys | {"obs", "rewards"}
    assert {tuple(row[key].shape) for key in keys - {"final_obs"}} == {(3, 1)}
    assert {row[key].dtype for key in keys - {"final_obs"}} == {torch.bool}
    assert row["rewards"].dtype == torch.float32
    assert row["rewards"].shape == (3, 1)


def test_a_reset_row_holds_nothing_that_the_environment_says_of_it() -> None:
    inner = Columns({"autoreset_mode": AutoresetMode.NEXT_STEP})
    inner.rewards[:] = [math.nan, 999.0, 1.0]
    inner.terminated[:2] = True
    inner.truncated[0] = True
    env = GymnasiumEnv(inner)
    env.reset()
    env.step(ACTION)
    row = env.step(ACTION)  # the environment repeats itself, as some do
    assert row["rewards"].flatten().tolist() == [0.0, 0.0, 1.0]
    assert row["terminated"].flatten().tolist() == [False, False, False]
    assert row["truncated"].flatten().tolist() == [False, False, False]
    assert row["first"].flatten().tolist() == [True, True, False]
    assert row["valid"].flatten().tolist() == [False, False, True]
    again = env.step(ACTION)
    assert again["valid"].all()
    assert again["terminated"].flatten().tolist() == [True, True, False]


def test_reset_clears_what_was_pending() -> None:
    env = GymnasiumEnv(scripted("all done, always", "NEXT_STEP"))
    env.reset()
    assert (env.step(ACTION)["terminated"] | env.step(ACTION)["first"]).any()
    env.reset()
    env.step(ACTION)
    env.reset()
    row = env.step(ACTION)
    assert row["valid"].all()
    assert not row["first"].any()
    assert row["rewards"].flatten().tolist() == [301.0, 301.0, 301.0]


def test_processes_without_shared_memory_reset_done_rows_again_after_a_reset() -> None:
    # If this fails, Gymnasium has mended it and `_pending_survives_reset` can go.
    env = GymnasiumEnv(in_processes("all done, always", "NEXT_STEP", shared_memory=False))
    env.reset()
    env.step(ACTION)
    env.reset()
    row = env.step(ACTION)
    assert not row["valid"].any()
    assert row["first"].all()
    assert row["obs"][:, 2].tolist() == [0.0, 0.0, 0.0]
    env.close()


def test_wrapped_statistics_do_not_change_the_rows() -> None:
    env = GymnasiumEnv(RecordEpisodeStatistics(scripted("mixed", "SAME_STEP")))
    check_stream(env, "mixed", "SAME_STEP")


# Final observations, in the forms that environments leave them in.

FINAL = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=np.float32)


def rows_of(final: Any, where: Any) -> Any:
    array = np.full(3, None, dtype=object)
    for i in where:
        array[i] = final[i]
    return array


def ended_row(infos: dict[str, Any], **flags: list[bool]) -> Any:
    inner = Columns({"autoreset_mode": AutoresetMode.SAME_STEP})
    inner.infos = infos
    for key, values in flags.items():
        getattr(inner, key)[:] = values
    env = GymnasiumEnv(inner)
    env.reset()
    return env.step(ACTION)


@pytest.mark.parametrize("key", ["final_obs", "final_observation", "terminal_observation"])
@pytest.mark.parametrize(
    "form",
    [
        lambda: rows_of(FINAL, [0, 2]),
        lambda: list(rows_of(FINAL, [0, 2])),
        lambda: FINAL,
        lambda: torch.from_numpy(FINAL),
        lambda: FINAL[::-1][::-1],
    ],
    ids=["objects", "list", "dense", "tensor", "strides"],
)
def test_final_observations_are_found_in_every_form(form: Any, key: str) -> None:
    row = ended_row({key: form()}, terminated=[True, False, False], truncated=[False, False, True])
    assert row["final_obs"].tolist() == [[1, 2], [1, 1], [5, 6]]
    assert row["obs"].tolist() == [[1, 1], [1, 1], [1, 1]]
    assert row["first"].flatten().tolist() == [True, False, True]


@pytest.mark.parametrize("infos", [{}, {"final_obs": rows_of(FINAL, [])}])
def test_a_lost_final_observation_is_nan_where_its_value_is_wanted(infos: dict[str, Any]) -> None:
    row = ended_row(infos, terminated=[False, True, True], truncated=[True, True, False])
    assert row["final_obs"].isnan().all(-1).tolist() == [True, False, False]
    assert row["final_obs"][1:].isfinite().all()


def test_a_mask_beside_dense_final_observations_says_which_are_there() -> None:
    mask = np.array([True, False, True])
    row = ended_row({"final_obs": FINAL, "_final_obs": mask}, truncated=[True, True, False])
    assert row["final_obs"].isnan().any(-1).tolist() == [False, True, False]
    assert row["final_obs"][0].tolist() == [1, 2]


def test_a_lost_final_observation_of_integers_is_an_error() -> None:
    inner = Columns({"autoreset_mode": AutoresetMode.SAME_STEP})
    inner.single_observation_space = spaces.Box(0, 255, (2,), dtype=np.uint8)
    inner.buffer = np.zeros((2, 3), dtype=np.uint8)
    inner.truncated[1] = True
    env = GymnasiumEnv(inner)
    env.reset()
    with pytest.raises(EnvError, match=r"rows \[1\].*NEXT_STEP"):
        env.step(ACTION)


@pytest.mark.parametrize("as_tuple", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_final_observations_of_nested_spaces(dense: bool, as_tuple: bool) -> None:
    parts = (FINAL, np.array([4, 5, 6]))

    def pack(items: Any) -> Any:
        return tuple(items) if as_tuple else dict(zip("ab", items, strict=True))

    subspaces = pack((spaces.Box(-9, 9, (2,)), spaces.Discrete(3, start=4)))
    inner = Columns({"autoreset_mode": AutoresetMode.SAME_STEP})
    inner.single_observation_space = (spaces.Tuple if as_tuple else spaces.Dict)(subspaces)
    inner.reset = lambda **_: (pack(parts), {})
    final = (
        pack(parts) if dense else rows_of([pack(part[i] for part in parts) for i in range(3)], [1])
    )
    done = np.array([False, True, False])
    returned = pack((FINAL * 0, np.array([4, 4, 4])))
    inner.step = lambda _: (returned, inner.rewards, ~done & False, done, {"final_obs": final})
    env = GymnasiumEnv(inner)
    env.reset()
    row = env.step(ACTION)
    first, second = ("0", "1") if as_tuple else ("a", "b")
    assert row["final_obs", first].tolist() == [[0, 0], [3, 4], [0, 0]]
    assert row["final_obs", second].tolist() == [[0], [1], [0]]  # counted from 0


# The limit of the adapter.


def test_rows_start_at_random_phases_and_then_keep_the_limit() -> None:
    fns = [partial(Scripted, [("terminated", 10**9)], i) for i in range(32)]
    env = GymnasiumEnv(SyncVectorEnv(fns), max_episode_steps=10, random_phase=True)
    action = torch.zeros(32, 1, dtype=torch.int64)

    def ends(seed: int) -> torch.Tensor:
        env.seed(seed)
        env.reset()
        return torch.cat([env.step(action)["truncated"].clone() for _ in range(20)], dim=1)

    truncated = ends(5)
    assert truncated[:, :10].sum(1).tolist() == [1] * 32
    assert truncated[:, :10].any(0).sum() > 5
    assert torch.equal(truncated[:, :10], truncated[:, 10:])
    assert torch.equal(truncated, ends(5))
    assert not torch.equal(truncated, ends(6))


def test_a_limit_is_refused_where_single_rows_cannot_be_reset() -> None:
    with pytest.raises(AdapterError, match=r"SyncVectorEnv.*CartPoleVectorEnv.*'sync'"):
        GymnasiumEnv(gymnasium.make_vec("CartPole-v1", 2), max_episode_steps=5)
    wrapped = RecordEpisodeStatistics(gymnasium.make_vec("CartPole-v1", 2))
    with pytest.raises(AdapterError, match="single rows"):
        GymnasiumEnv(wrapped, max_episode_steps=5)
    inner = in_processes("mixed", "NEXT_STEP", shared_memory=False)
    with pytest.raises(AdapterError, match="shared_memory=True"):
        GymnasiumEnv(inner, max_episode_steps=5)
    inner.close()


def test_a_limit_works_through_wrappers() -> None:
    env = GymnasiumEnv(RecordEpisodeStatistics(scripted("mixed", "SAME_STEP")), max_episode_steps=2)
    check_stream(env, "mixed", "SAME_STEP", 2)


def test_limits_without_sense_are_errors() -> None:
    with pytest.raises(AdapterError, match="expected int > 0 or null; got 0"):
        GymnasiumEnv(scripted("mixed", "DISABLED"), max_episode_steps=0)
    with pytest.raises(AdapterError, match="needs `max_episode_steps`"):
        GymnasiumEnv(scripted("mixed", "DISABLED"), random_phase=True)


def test_an_environment_that_ignores_the_mask_is_caught() -> None:
    inner = gymnasium.make_vec("CartPole-v1", 4)  # resets every row, whatever the mask
    env = GymnasiumEnv(inner, autoreset_mode="DISABLED")
    env.seed(0)
    env.reset()
    action = torch.tensor([[0], [1], [0], [1]])

    def play() -> None:
        for t in range(50):
            env.step(action if t % 3 else 1 - action)

    with pytest.raises(EnvError, match=r"reset_mask.*DISABLED"):
        play()
