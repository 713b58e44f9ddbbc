"""Specs of Everstep environments as Gymnasium's spaces, and their actions."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Unbounded,
)

from everstep.adapters import to_gymnasium
from everstep.env import Env
from everstep.errors import AdapterError
from tests.everstep_adapters.export.export_toys import Walk


class Told(Env):
    """Observes the action that it was given, as its specs say."""

    def __init__(self, observation_spec: Any, action_spec: Any, num_envs: int = 3) -> None:
        super().__init__(num_envs)
        self.observation_spec, self.action_spec = observation_spec, action_spec
        self.actions: list[Any] = []

    def reset(self, *, config: Any = None) -> Any:
        return self.observation_spec.rand([self.num_envs])

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return {"obs": self.reset(), "rewards": torch.zeros(self.num_envs, 1)}


def shape(*sizes: int) -> torch.Size:
    return torch.Size(sizes)


BOUNDS = torch.tensor([[-1.0, 0.0], [2.0, 5.0]])

SPECS: dict[str, tuple[Any, spaces.Space]] = {
    "unbounded": (Unbounded(3), spaces.Box(-np.inf, np.inf, (3,), np.float32)),
    "double": (
        Unbounded(2, dtype=torch.float64),
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
    ),
    "bfloat16": (
        Bounded(-1, 1, shape(2), dtype=torch.bfloat16),
        spaces.Box(-1, 1, (2,), np.float32),
    ),
    "bounds by element": (
        Bounded(low=BOUNDS[0], high=BOUNDS[1]),
        spaces.Box(BOUNDS[0].numpy(), BOUNDS[1].numpy(), dtype=np.float32),
    ),
    "image": (
        Bounded(0, 255, shape(3, 4, 4), dtype=torch.uint8),
        spaces.Box(0, 255, (3, 4, 4), np.uint8),
    ),
    "bytes": (Unbounded(3, dtype=torch.uint8), spaces.Box(0, 255, (3,), np.uint8)),
    "no dimension": (Unbounded(shape()), spaces.Box(-np.inf, np.inf, (), np.float32)),
    "one choice": (Categorical(4, shape=shape(1)), spaces.Discrete(4)),
    "one choice without a dimension": (Categorical(4, shape=shape()), spaces.Discrete(4)),
    "choices alike": (Categorical(4, shape=shape(2)), spaces.MultiDiscrete([4, 4])),
    "choices": (MultiCategorical([2, 5]), spaces.MultiDiscrete([2, 5])),
    "binary": (Binary(3), spaces.MultiBinary(3)),
    "bool": (Binary(3, dtype=torch.bool), spaces.MultiBinary(3)),
    "mapping": (
        Composite(b=Unbounded(1), a=Composite(c=Categorical(2, shape=shape(1)))),
        spaces.Dict(
            [
                ("b", spaces.Box(-np.inf, np.inf, (1,), np.float32)),
                ("a", spaces.Dict(c=spaces.Discrete(2))),
            ]
        ),
    ),
}

ONE_HOTS = {
    "one-hot": (OneHot(4), spaces.MultiBinary(4), spaces.Discrete(4)),
    "one-hot rows": (
        OneHot(4, shape=shape(2, 4)),
        spaces.MultiBinary([2, 4]),
        spaces.MultiDiscrete([4, 4]),
    ),
    "one-hots": (MultiOneHot([2, 3]), spaces.MultiBinary(5), spaces.MultiDiscrete([2, 3])),
}


@pytest.mark.parametrize(("spec", "space"), SPECS.values(), ids=SPECS.keys())
def test_spaces(spec: Any, space: spaces.Space) -> None:
    env = to_gymnasium(Told(spec, spec))
    assert env.single_observation_space == space
    assert env.single_action_space == space
    assert [*getattr(space, "spaces", ())] == [*getattr(env.single_action_space, "spaces", ())]
    check_values(env, spec)


@pytest.mark.parametrize(("spec", "seen", "chosen"), ONE_HOTS.values(), ids=ONE_HOTS.keys())
def test_spaces_of_one_hots(spec: Any, seen: spaces.Space, chosen: spaces.Space) -> None:
    env = to_gymnasium(Told(spec, spec))
    assert env.single_observation_space == seen
    assert env.single_action_space == chosen
    check_values(env, spec)


def check_values(env: Any, spec: Any) -> None:
    """Observations are in their space; whatever is in the action space is a value of the spec."""
    assert env.observation_space.contains(env.reset()[0])
    batched = spec.expand(env.num_envs, *spec.shape)
    for _ in range(20):
        assert env.observation_space.contains(env.step(env.action_space.sample())[0])
        assert batched.is_in(env.env.actions[-1])


def test_choices_are_the_same_choices() -> None:
    env = to_gymnasium(Told(Unbounded(1), MultiOneHot([2, 3]), num_envs=2))
    env.reset()
    env.step(np.array([[1, 0], [0, 2]]))
    expected = torch.tensor([[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]], dtype=torch.bool)
    assert torch.equal(env.env.actions[-1], expected)


def test_actions_that_do_not_fit() -> None:
    env = to_gymnasium(Walk(3))
    env.reset()
    with pytest.raises(AdapterError, match=r"`action` must have shape \(3,\); got \(3, 1\)"):
        env.step(np.zeros((3, 1), np.int64))
    with pytest.raises(AdapterError, match=r"`action` must have the dtype int64 .* got float64"):
        env.step(np.zeros(3))
    both = Composite(move=Unbounded(1), jump=Binary(1))
    env = to_gymnasium(Told(Unbounded(1), both))
    with pytest.raises(AdapterError, match=r"mapping of \['jump', 'move'\]; got \['move'\]"):
        env.step({"move": np.zeros((3, 1), np.float32)})
    with pytest.raises(AdapterError, match=r"`action\['jump'\]` must have shape \(3, 1\)"):
        env.step({"move": np.zeros((3, 1), np.float32), "jump": np.zeros(3, np.int8)})


def test_an_empty_mapping_is_refused() -> None:
    with pytest.raises(AdapterError, match="`observation` is an empty `Composite`"):
        to_gymnasium(Told(Composite(), Unbounded(1)))
