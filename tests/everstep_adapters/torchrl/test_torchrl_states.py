"""States of TorchRL environments: rows after one is set are those that followed it."""

import tempfile
from typing import Any

import pytest
import torch
from torchrl.envs import Compose, InitTracker, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.custom import PendulumEnv

import everstep
from everstep.core.checkpoints import load_file, save_file
from everstep.errors import CheckpointError
from everstep_adapters.torchrl import TorchRLEnv

from .torchrl_toys import SCRIPTS, ScriptedEnv

STEPS = 12


class Restorable(ScriptedEnv):
    """Offers its counts."""

    def state_dict(self, *_: Any, **__: Any) -> Any:
        return {"episodes": list(self.episodes), "elapsed": list(self.elapsed)}

    def load_state_dict(self, state: Any, *_: Any, **__: Any) -> Any:
        if len(state["elapsed"]) != len(self.elapsed):
            raise ValueError("another number of rows")
        self.episodes, self.elapsed = list(state["episodes"]), list(state["elapsed"])


def stateless() -> Any:
    return TorchRLEnv(PendulumEnv(), num_envs=3, max_episode_steps=7, random_phase=True)


def serial() -> Any:
    return everstep.make("torchrl:torchrl.envs.custom.PendulumEnv", 3, max_episode_steps=7)


def transformed() -> Any:
    transforms = Compose(StepCounter(9), RewardSum(), InitTracker())
    return TorchRLEnv(TransformedEnv(SerialEnv(3, PendulumEnv), transforms))


def own() -> Any:
    return TorchRLEnv(Restorable(SCRIPTS["mixed"]), time_limit=5)


def play(env: Any, actions: torch.Tensor) -> list[Any]:
    return [env.step(action).clone() for action in actions]


def actions_of(env: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (2 * STEPS, env.num_envs, *env.action_spec.shape)
    drawn = torch.rand(shape, generator=generator)
    return drawn if env.action_spec.dtype.is_floating_point else drawn.round().long()


def state_after(env: Any, steps: int) -> Any:
    """The state, as a checkpoint of another process has it."""
    env.seed(1)
    env.reset()
    play(env, actions_of(env)[:steps])
    with tempfile.TemporaryDirectory() as directory:
        save_file(f"{directory}/state", env.state_dict())
        return load_file(f"{directory}/state")


@pytest.mark.parametrize("make", [stateless, serial, transformed, own])
def test_an_environment_continues_from_its_state(make: Any) -> None:
    first, second = make(), make()
    state = state_after(first, STEPS)
    expected = play(first, actions_of(first)[STEPS:])
    second.seed(7)
    second.load_state_dict(state)
    for ours, theirs in zip(play(second, actions_of(first)[STEPS:]), expected, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs.keys(True, True))
    first.close()
    second.close()


def broken_at(state: Any, place: str) -> Any:
    if place == "a tensor":
        state["data"]["items"]["th"] = torch.zeros(2)
    elif place == "the batch":
        state["data"]["shape"] = [2]
    elif place == "a key":
        del state["data"]["items"]["thdot"]
    elif place == "a generator":
        state["env"]["2"]["rng"] = {"generator": torch.zeros(3, dtype=torch.uint8)}
    elif place == "a layer":
        del state["env"]["2"]
    else:
        state["phases"] = torch.zeros(5)
    return state


@pytest.mark.parametrize(
    "place", ["a tensor", "the batch", "a key", "a generator", "a layer", "phases"]
)
def test_a_state_that_does_not_fit_changes_nothing(place: str) -> None:
    env = stateless()
    state = broken_at(state_after(stateless(), 2), place)
    before = repr(state_after(env, 5))
    with pytest.raises(CheckpointError, match="The state is not of TransformedEnv"):
        env.load_state_dict(state)
    with tempfile.TemporaryDirectory() as directory:
        save_file(f"{directory}/state", env.state_dict())
        assert repr(load_file(f"{directory}/state")) == before


def test_an_environment_with_an_unknown_layer_has_no_state() -> None:
    env = TorchRLEnv(ScriptedEnv(SCRIPTS["mixed"]))
    env.reset()
    assert env.state_dict() is None
