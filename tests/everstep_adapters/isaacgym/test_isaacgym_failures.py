"""Tasks that fail, and attributes under other names."""

from typing import Any

import pytest
import torch

from everstep.errors import EnvError
from everstep_adapters import IsaacGymEnv
from tests.everstep_adapters.isaacgym.isaacgym_tasks import (
    LONGEST,
    NEVER,
    TASKS,
    LabEnv,
    LazyAfter,
    LeggedTask,
    Waiting,
)


@pytest.mark.parametrize("kind", [*TASKS.values(), LeggedTask, LabEnv])
def test_what_a_task_raises_is_an_error_that_names_it(kind: Any) -> None:
    task = kind([[3], [4]], LONGEST)
    env = IsaacGymEnv(task)
    env.reset()
    cause = ValueError("the leg broke")

    def fail(actions: torch.Tensor) -> None:
        raise cause

    task.step = fail
    with pytest.raises(EnvError, match=f"{kind.__name__} failed in `step`: .*leg broke") as error:
        env.step(torch.zeros(2, 1))
    assert error.value.__cause__ is cause


def test_a_reset_that_fails_is_named_too() -> None:
    task = Waiting([[3], [4]], LONGEST)
    env = IsaacGymEnv(task)

    def fail() -> None:
        raise RuntimeError("no state")

    task.reset_done = fail
    with pytest.raises(EnvError, match=r"Waiting failed in `reset_done`: .*no state"):
        env.reset()


def test_omniverse_has_the_limit_under_another_name() -> None:
    """OmniIsaacGymEnvs' tasks set `_max_episode_length`."""

    class Omniverse(LazyAfter):
        def __init__(self) -> None:
            super().__init__([[NEVER], [NEVER]], LONGEST)
            self._max_episode_length = self.__dict__.pop("max_episode_length")

        def check_ends(self) -> None:
            self.reset_buf.copy_(self.progress_buf >= self._max_episode_length - 1)

        def report_time_outs(self) -> None:
            pass

    assert f"after {LONGEST - 1} env steps" in IsaacGymEnv(Omniverse()).describe()["limit"]
