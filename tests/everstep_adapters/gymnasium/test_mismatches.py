"""Observations that their space does not fit are named, with what was expected and what came."""

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import everstep
from everstep.errors import EnvError
from everstep.testing import run_checks

BOX, PAIR = spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (2,))
NAMED = spaces.Dict(a=BOX, b=spaces.Dict(c=PAIR))
TUPLE = spaces.Tuple((BOX, PAIR))
FOUR, TWO = np.zeros(4, np.float32), np.zeros(2, np.float32)

#: Space, first observation, later ones, and words of the error in this order.
CASES: dict[str, tuple[Any, Any, Any, tuple[str, ...]]] = {
    "shape": (BOX, TWO, TWO, ("`reset`", "Environment 0", "`obs`", "(4,)", "(2,)")),
    "shape of a later one": (BOX, FOUR, TWO, ("`step`", "`obs`", "(4,)", "(2,)")),
    "a batch": (BOX, FOUR, FOUR[None], ("`obs`", "(4,)", "(1, 4)")),
    "a scalar": (BOX, 0.5, 0.5, ("`obs`", "(4,)", "()")),
    "nothing": (BOX, FOUR, None, ("`obs`", "(4,)", "NoneType")),
    "ragged": (BOX, [[0.0], [0.0, 1.0]], None, ("`obs`", "(4,)", "different lengths")),
    "words": (BOX, FOUR, np.array(list("abcd")), ("`obs`", "(4,)")),
    "dtype": (
        spaces.Box(0, 5, (4,), np.int32),
        np.zeros(4, np.int32),
        np.full(4, 0.5),
        ("`obs`", "int32", "float64"),
    ),
    "a key too few": (NAMED, {"a": FOUR}, None, ("`obs`", "keys ['a', 'b']", "got ['a']")),
    "another key": (NAMED, {"a": FOUR, "x": {}}, None, ("`obs`", "['a', 'b']", "['a', 'x']")),
    "a nested shape": (
        NAMED,
        {"a": FOUR, "b": {"c": FOUR}},
        None,
        ("`obs['b']['c']`", "(2,)", "(4,)"),
    ),
    "an array for a dict": (NAMED, FOUR, None, ("`obs`", "a dict of ['a', 'b']", "ndarray")),
    "a tuple too short": (TUPLE, (FOUR,), None, ("`obs`", "a tuple of 2", "tuple of 1")),
    "a key too many": (
        NAMED,
        {"a": FOUR, "b": {"c": TWO}, "x": FOUR},
        None,
        ("`obs`", "keys ['a', 'b']", "got ['a', 'b', 'x']"),
    ),
    "a nested key too many": (
        NAMED,
        {"a": FOUR, "b": {"c": TWO}},
        {"a": FOUR, "b": {"c": TWO, "d": TWO}},
        ("`obs['b']`", "keys ['c']", "got ['c', 'd']"),
    ),
    "a tuple too long": (TUPLE, (FOUR, TWO, TWO), None, ("`obs`", "tuple of 2", "tuple of 3")),
    "in a tuple": (TUPLE, (FOUR, FOUR), None, ("`obs[1]`", "(2,)", "(4,)")),
}


def kind_of(space: Any, first: Any, later: Any) -> type[gym.Env[Any, Any]]:
    class Env(gym.Env[Any, Any]):
        observation_space, action_space = space, spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return deepcopy(first), {}

        def step(self, action: Any) -> Any:
            return deepcopy(later), 0.0, False, False, {}

    return Env


def play(env: everstep.Env) -> None:
    env.reset()
    env.step(env.action_spec.rand((2,)))


MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "processes": {"vectorization_mode": "async"},
    "processes, SAME_STEP": {
        "vectorization_mode": "async",
        "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP},
    },
    "processes without shared memory": {
        "vectorization_mode": "async",
        "vector_kwargs": {"shared_memory": False},
    },
}


@pytest.mark.few(13)
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_an_observation_that_does_not_fit_is_named(case: str, mode: str) -> None:
    space, first, later, words = CASES[case]
    if mode != "sync":  # those of which the processes say it name the environment first
        words = tuple(word for word in words if word not in ("Environment 0", "`reset`", "`step`"))
    kind = kind_of(space, first, first if later is None and case != "nothing" else later)
    with everstep.make(kind, 2, **MODES[mode]) as env, pytest.raises(EnvError) as raised:
        play(env)
    text, at = str(raised.value), 0
    assert "nvironment 0" in text or "nvironment 1" in text
    for word in (*words, "`observation_space`"):
        assert word in text[at:], text
        at = text.index(word, at)


WIDE = spaces.Box(0, 100, (2,), np.int8)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")
@pytest.mark.parametrize("mode", [x for x in MODES if x != "sync"])
def test_integers_that_would_wrap_in_a_process_are_named(mode: str) -> None:
    values = np.array([1, 300])
    with everstep.make(kind_of(WIDE, [1, 2], values), 2, **MODES[mode]) as env:
        assert env.reset().tolist() == [[1, 2], [1, 2]]
        with pytest.raises(EnvError, match=r"`obs` must hold numbers of int8.*got 300 \(int64\)"):
            env.step(env.action_spec.rand((2,)))


FITTING: dict[str, tuple[Any, Any]] = {
    "numbers of a list": (BOX, [0, 1, 0.5, True]),
    "an array for a tuple": (
        spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
        np.array([1, 2]),
    ),
    "a list for a tuple": (TUPLE, [FOUR, TWO]),
    "another float": (BOX, FOUR.astype(np.float64)),
    "a choice of another dtype": (spaces.Discrete(3), np.uint8(2)),
    "flags": (spaces.MultiBinary(2), [True, False]),
}


@pytest.mark.few(6)
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", FITTING)
def test_what_fits_is_read(case: str, mode: str) -> None:
    space, value = FITTING[case]
    with everstep.make(kind_of(space, value, value), 2, **MODES[mode]) as env:
        play(env)


class Batch(gym.vector.VectorEnv[Any, Any, Any]):
    """A vector environment of its own class, whose observations have a key of their own."""

    num_envs, metadata = 2, {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space, single_action_space = spaces.Dict(a=BOX), spaces.Discrete(2)
    observation_space = gym.vector.utils.batch_space(single_observation_space, 2)
    action_space = gym.vector.utils.batch_space(single_action_space, 2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return {"a": np.zeros((2, 4), np.float32), "x": np.zeros(2)}, {}


def test_a_key_too_many_of_a_batch_is_named() -> None:
    with pytest.raises(EnvError, match=r"`obs` must have the keys \['a'\]; got \['a', 'x'\]"):
        everstep.wrap(Batch(), horizon=4).reset()


@pytest.mark.slow
def test_a_check_finds_keys_and_entries_that_the_space_lacks() -> None:
    for case in ("a key too many", "a tuple too long"):
        space, first, _, words = CASES[case]
        kind = kind_of(space, first, first)
        results = run_checks(lambda n, horizon, device, kind=kind: everstep.make(kind, n))
        text = str([str(result.violation) for result in results if result.violation])
        assert all(word in text for word in words), text
