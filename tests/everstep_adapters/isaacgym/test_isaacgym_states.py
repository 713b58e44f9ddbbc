"""States of tasks that offer one: rows after one is set are those that followed it."""

import copy
from typing import Any

import pytest
import torch

from everstep.errors import CheckpointError
from everstep_adapters.isaacgym import IsaacGymEnv

from .isaacgym_tasks import TASKS

SCRIPTS = [[3, 2], [4], [1, 5]]
STEPS = 9


def offering(style: str) -> type:
    """A class of tasks that offer their state."""

    base: Any = TASKS[style]

    class Offering(base):  # type: ignore[misc]
        def tensors(self) -> dict[str, torch.Tensor]:
            own = {k: x for k, x in vars(self).items() if isinstance(x, torch.Tensor)}
            world = {f"world.{k}": getattr(self.world, k) for k in ("episode", "elapsed", "place")}
            return {**own, **world}

        def state_dict(self) -> Any:
            return {name: x.clone() for name, x in self.tensors().items()}

        def load_state_dict(self, state: Any) -> None:
            own = self.tensors()
            if any(own[name].shape != x.shape for name, x in state.items()):
                raise ValueError("another number of environments")
            for name, x in state.items():
                own[name].copy_(x)

    return Offering


def play(env: Any, actions: torch.Tensor) -> list[Any]:
    return [env.step(action).clone() for action in actions]


@pytest.mark.parametrize("style", TASKS)
def test_a_task_continues_from_its_state(style: str) -> None:
    first, second = (IsaacGymEnv(offering(style)(SCRIPTS)) for _ in range(2))
    actions = torch.randn(2 * STEPS, 3, 1, generator=torch.Generator().manual_seed(0))
    first.reset()
    play(first, actions[:STEPS])
    state = copy.deepcopy(first.state_dict())
    assert state is not None
    expected = play(first, actions[STEPS:])
    second.load_state_dict(state)
    for ours, theirs in zip(play(second, actions[STEPS:]), expected, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs.keys(True, True))


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    env = IsaacGymEnv(offering("A")(SCRIPTS))
    env.reset()
    state, before = copy.deepcopy(env.state_dict()), copy.deepcopy(env.state_dict())
    assert state is not None
    state["task"]["world.place"] += 1
    for pending in (None, torch.zeros(2, 1, dtype=torch.bool), torch.zeros(3, 1)):
        with pytest.raises(CheckpointError, match="The state is not of Offering"):
            env.load_state_dict({**state, "pending": pending})
        assert repr(env.state_dict()) == repr(before)


def test_a_task_without_one_has_no_state() -> None:
    assert IsaacGymEnv(TASKS["A"](SCRIPTS)).state_dict() is None
