"""The adapter gives back what it borrows of a task, and closes what it opens."""

import sys
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch

import everstep
from everstep.errors import AdapterError, EnvError
from everstep_adapters import IsaacGymEnv
from tests.everstep_adapters.isaacgym.isaacgym_tasks import LONGEST, AtOnce, LazyAfter


def resets_of(task: Any) -> list[int]:
    return task.__dict__.setdefault("calls", [])


def wrapped(task: Any) -> Any:
    """A `reset_idx` of one's own, set on the task as curricula and loggers do."""
    original = task.reset_idx

    def reset_idx(env_ids: torch.Tensor) -> Any:
        resets_of(task).append(len(env_ids))
        return original(env_ids)

    return reset_idx


@pytest.mark.parametrize("kind", [LazyAfter, AtOnce])
@pytest.mark.parametrize("bound", [False, True], ids=["function", "method"])
def test_a_method_that_is_set_on_a_task_stays(kind: Any, bound: bool) -> None:
    task = kind([[3], [4]], LONGEST)
    own = wrapped(task)
    if bound:
        function = own
        own = MethodType(lambda self, env_ids: function(env_ids), task)
    task.reset_idx = own
    env = IsaacGymEnv(task)
    assert task.__dict__["reset_idx"] is own
    assert env.reset_style == IsaacGymEnv(kind([[3], [4]], LONGEST)).reset_style
    before = len(resets_of(task))
    env.reset()
    for _ in range(10):
        env.step(torch.zeros(2, 1))
    assert len(resets_of(task)) > before


def test_a_method_that_is_set_on_a_class_stays() -> None:
    task = LazyAfter([[3], [4]], LONGEST)

    class Patched(LazyAfter):
        @classmethod
        def reset_idx(cls, env_ids: torch.Tensor) -> Any:  # type: ignore[override]
            return LazyAfter.reset_idx(task, env_ids)

    own = vars(Patched)["reset_idx"]
    task.__class__ = Patched
    IsaacGymEnv(task)
    assert vars(Patched)["reset_idx"] is own


def test_a_task_without_one_of_its_own_has_none_afterwards() -> None:
    task = LazyAfter([[3], [4]], LONGEST)
    IsaacGymEnv(task)
    assert "reset_idx" not in vars(task)


def test_a_method_stays_if_the_task_fails() -> None:
    task = LazyAfter([[3], [4]], LONGEST)
    own = task.reset_idx = wrapped(task)

    def fail(actions: torch.Tensor) -> None:
        raise ValueError("the leg broke")

    task.step = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(EnvError, match="leg broke"):
        IsaacGymEnv(task)
    assert task.__dict__["reset_idx"] is own


class Closable(LazyAfter):
    opened: list["Closable"] = []  # noqa: RUF012
    closes = 0

    def close(self) -> None:
        self.closes += 1


@pytest.mark.parametrize("breaks", [False, True])
def test_a_task_that_is_refused_is_closed(monkeypatch: pytest.MonkeyPatch, breaks: bool) -> None:
    made: list[Closable] = []

    class Broken(Closable):
        def close(self) -> None:
            super().close()
            raise RuntimeError("the simulator is gone")

    def make(**options: Any) -> Any:
        made.append((Broken if breaks else Closable)([[3]] * options["num_envs"], LONGEST))
        return made[0]

    module = ModuleType("isaacgymenvs")
    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "isaacgymenvs", module)
    with pytest.raises(AdapterError, match="no observation nothing"):
        everstep.make("isaacgym:Ant", 2, observation_keys=("nothing",))
    assert made[0].closes == 1


def test_a_simulator_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**options: Any) -> Any:
        raise KeyError("Aunt")

    module = ModuleType("isaacgymenvs")
    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "isaacgymenvs", module)
    with pytest.raises(AdapterError, match="IsaacGymEnvs cannot make 'Aunt'"):
        everstep.make("isaacgym:Aunt", 2)
