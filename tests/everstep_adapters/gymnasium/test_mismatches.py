"""Observations that their space does not fit are named, with what was expected and what came."""

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import everstep
from everstep.errors import EnvError

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
    "in a tuple": (TUPLE, (FOUR, FOUR), None, ("`obs[1]`", "(2,)", "(4,)")),
}


@pytest.mark.parametrize("case", CASES)
def test_an_observation_that_does_not_fit_is_named(case: str) -> None:
    space, first, later, words = CASES[case]

    class Env(gym.Env[Any, Any]):
        observation_space, action_space = space, spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return deepcopy(first), {}

        def step(self, action: Any) -> Any:
            return deepcopy(later), 0.0, False, False, {}

    def play(env: everstep.Env) -> None:
        env.reset()
        env.step(env.action_spec.rand((2,)))

    with everstep.make(Env, 2) as env, pytest.raises(EnvError) as raised:
        play(env)
    text, at = str(raised.value), 0
    for word in (*words, "`observation_space`"):
        assert word in text[at:], text
        at = text.index(word, at)
