"""Isaac Lab's and mjlab's environments as their users hold them, and finite horizons."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import everstep
from everstep.errors import AdapterError
from everstep_adapters import IsaacGymEnv
from tests.everstep_adapters.isaacgym.isaacgym_tasks import (
    LIMIT,
    LONGEST,
    NEVER,
    SCRIPTS,
    LabEnv,
    RslEnv,
    check_rows,
    play,
    some_actions,
)


class Managed(LabEnv):
    """`ManagerBasedRLEnv`: no flags before the first env step, new tensors in each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cfg = SimpleNamespace(is_finite_horizon=False, compute_final_obs=self.final)
        del self.reset_terminated, self.reset_time_outs

    def step(self, actions: torch.Tensor) -> Any:
        self.reset_terminated = torch.zeros(self.num_envs, dtype=torch.bool)
        self.reset_time_outs = torch.zeros(self.num_envs, dtype=torch.bool)
        self.extras.pop("final_obs", None)
        returned = super().step(actions)
        if not (self.reset_terminated | self.reset_time_outs).any():
            self.extras.pop("final_obs", None)  # only where something was reset
        return returned


class Mjlab(Managed):
    """mjlab's `ManagerBasedRlEnv`, which can also be asked for its observations."""

    def get_observations(self) -> Any:
        return self.observations()


@pytest.mark.few(9)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", [LabEnv, Managed, Mjlab])
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - {"failures in the last env step"}))
def test_fresh_environments_are_wrapped(name: str, final: bool, kind: Any) -> None:
    task = kind(SCRIPTS[name], LONGEST, final=final)
    env = everstep.wrap(task, observation_keys=["policy"])
    assert isinstance(env, IsaacGymEnv)
    assert env.describe()["family"].endswith("Isaac Lab")
    assert ("final_obs" in env.episode_keys) is final
    check_rows(env, "C", SCRIPTS[name], LIMIT, knows_failures=True)


class Waits(Mjlab):
    """mjlab's with `auto_reset=False`: ended environments must be reset before the next step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cfg.auto_reset = False
        self.waiting = torch.zeros(self.num_envs, dtype=torch.bool)

    def reset(self, *, env_ids: Any = None) -> Any:
        if env_ids is None:
            env_ids = torch.arange(self.num_envs)
        chosen = torch.zeros(self.num_envs, dtype=torch.bool)
        chosen[env_ids] = True
        self.world.start(chosen)
        self.episode_length_buf[chosen] = 0
        self.waiting &= ~chosen
        return self.observations(), self.extras

    def step(self, actions: torch.Tensor) -> Any:
        assert not self.waiting.any()
        start, self.world.start = self.world.start, lambda _: None  # type: ignore[method-assign]
        clock = self.episode_length_buf + 1
        returned = super().step(actions)
        self.world.start = start  # type: ignore[method-assign]
        self.episode_length_buf = clock
        self.waiting = self.reset_terminated | self.reset_time_outs
        return returned


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - {"failures in the last env step"}))
def test_environments_that_wait_for_a_reset_keep_their_final_observations(name: str) -> None:
    env = everstep.wrap(Waits(SCRIPTS[name], LONGEST), observation_keys=["policy"])
    assert env.describe()["resets"] == "D (external), known from its config"
    assert "final_obs" in env.episode_keys
    check_rows(env, "C", SCRIPTS[name], LIMIT, knows_failures=True)


@pytest.mark.usefixtures("float64")
def test_stepped_environments_are_wrapped_too() -> None:
    task = Managed(SCRIPTS["both"], LONGEST, final=True)
    task.reset()
    for _ in range(3):
        task.step(torch.zeros(2, 1))
    check_rows(
        everstep.wrap(task, observation_keys=["policy"]),
        *("C", SCRIPTS["both"], LIMIT),
        knows_failures=True,
    )


class Wrapped(RslEnv):
    """rsl_rl's wrapper of a task with a finite horizon: it withholds `time_outs`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unwrapped = SimpleNamespace(cfg=SimpleNamespace(is_finite_horizon=True))

    def step(self, actions: torch.Tensor) -> Any:
        returned = super().step(actions)
        self.extras.pop("time_outs")
        return returned


def finite(kind: Any) -> Any:
    task = kind([[3], [NEVER]], LONGEST)
    if kind is Managed:
        task.cfg.is_finite_horizon = True
    return task


@pytest.mark.parametrize("kind", [Managed, Wrapped])
def test_the_end_of_a_finite_horizon_is_a_termination(kind: Any) -> None:
    env = everstep.wrap(finite(kind))
    assert "finite horizon" in env.describe()["limit"]
    _, rows = play(env, some_actions(20, 2))
    ends = torch.stack([row["terminated"] for row in rows]).sum(0).flatten().tolist()
    assert ends[0] > ends[1] > 1
    assert not any(row["truncated"].any() for row in rows)


def test_a_finite_horizon_can_be_overruled() -> None:
    env = everstep.wrap(finite(Managed), time_outs="flags")
    _, rows = play(env, some_actions(20, 2))
    assert any(row["truncated"][1].item() for row in rows)


def test_others_are_still_refused() -> None:
    task = Managed([[3]], LONGEST)
    del task.episode_length_buf
    with pytest.raises(AdapterError, match="No adapter can wrap"):
        everstep.wrap(task)
