"""Tasks whose clock is set back at a goal, as in IsaacGymEnvs' ShadowHandOpenAI_FF."""

from typing import Any

import pytest
import torch

from everstep.errors import AdapterError
from everstep_adapters import IsaacGymEnv
from tests.everstep_adapters.isaacgym.isaacgym_tasks import TASKS, LazyBefore

LONGEST = 80


class Hand:
    """The mixin of a hand that turns an object, at random, with the clock of a VecTask.

    An object that is near its goal zeroes `progress_buf`; enough goals, or a fall, end an episode.
    The order of goal, fall, clock and reset is that of `compute_hand_reward`.
    """

    goals, falls, most_goals = 0.1, 0.01, 50

    def __init__(self, num_envs: int, seed: int, longest: int = LONGEST, later: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.later = later
        super().__init__([[10**6]] * num_envs, longest)  # type: ignore[call-arg]
        self.successes = torch.zeros(num_envs)

    def happens(self: Any, chance: float) -> torch.Tensor:
        return torch.rand(self.num_envs, generator=self.generator) < chance

    def reset_idx(self: Any, env_ids: torch.Tensor, goal_env_ids: Any = None) -> None:
        rows = torch.zeros(self.num_envs, dtype=torch.bool)
        rows[env_ids] = True
        self.successes[env_ids] = 0.0
        super().reset_rows(rows)  # type: ignore[misc]

    def check_ends(self: Any) -> None:
        reached = self.happens(self.goals)
        self.successes = self.successes + reached
        fell = self.happens(self.falls)
        self.progress_buf[:] = torch.where(reached, 0, self.progress_buf)
        over = fell | (self.successes >= self.most_goals)
        is_up = self.progress_buf >= self.max_episode_length - 1 + self.later
        self.reset_buf.copy_(over | is_up)


def make(style: str, num_envs: int, seed: int, **options: Any) -> Any:
    chances = {k: options.pop(k) for k in ("goals", "falls", "most_goals") if k in options}
    return type("Task", (Hand, TASKS[style]), chances)(num_envs, seed, **options)


def found(task: Any) -> IsaacGymEnv:
    """The task wrapped, or None if the style is asked for."""
    try:
        return IsaacGymEnv(task)
    except AdapterError as error:
        assert "Pass `reset_style=`" in str(error)  # noqa: PT017  others are faults
        return None  # type: ignore[return-value]


# With half of them reaching the goal, falling, or done at the first goal, in an env step, too.
CHANCES: dict[str, dict[str, float]] = {
    "few goals": {},
    "many goals": {"goals": 0.5},
    "many falls": {"falls": 0.5},
    "one goal is all": {"goals": 0.3, "most_goals": 1},
}


@pytest.mark.parametrize("chances", CHANCES.values(), ids=CHANCES.keys())
@pytest.mark.parametrize(
    "num_envs", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 256, 1024))]
)
@pytest.mark.parametrize("style", TASKS)
def test_the_style_is_right_or_asked_for(style: str, num_envs: int, chances: Any) -> None:
    envs = [found(make(style, num_envs, seed, **chances)) for seed in range(10)]
    assert {env.reset_style for env in envs if env is not None} <= {style}
    assert sum(env is not None for env in envs) >= (10 if num_envs > 2 else 7)
    limits = {env.describe()["limit"] for env in envs if env is not None}
    assert style == "D" or limits == {"time-outs: after 79 env steps, counted by `progress_buf`"}


@pytest.mark.parametrize("later", [0, 1])
def test_the_limit_is_the_tasks(later: int) -> None:
    for seed in range(10):
        env = IsaacGymEnv(make("B", 64, seed, later=later))
        assert f"after {79 + later} env steps" in env.describe()["limit"]


class FailsInTurn(LazyBefore):
    """Every environment fails in the first and in the third env step."""

    steps = 0

    def check_ends(self) -> None:
        super().check_ends()
        self.steps += 1
        if self.steps in (1, 3):
            self.reset_buf.fill_(1)


def test_failures_at_the_wrong_moment_do_not_change_the_limit() -> None:
    env = IsaacGymEnv(FailsInTurn([[10**6]] * 4, LONGEST))
    assert (env.reset_style, env.describe()["limit"]) == (
        "B",
        "time-outs: after 79 env steps, counted by `progress_buf`",
    )


def test_time_outs_are_truncations_and_falls_are_terminations() -> None:
    task = make("B", 64, 0, goals=0.0, falls=0.02)
    env = IsaacGymEnv(task)
    env.reset()
    ends = torch.zeros(2)
    for _ in range(300):
        row = env.step(torch.zeros(64, 1))
        up = (task.progress_buf >= LONGEST - 1).unsqueeze(-1)
        assert torch.equal(row["truncated"], up & row["valid"])
        ends += torch.tensor([float(row[key].sum()) for key in ("terminated", "truncated")])
    assert ends.min() > 20


@pytest.mark.parametrize("style", "AB")
def test_an_end_at_a_goal_is_no_time_out(style: str) -> None:
    """The goal sets the clock back also in the env step in which time would be up."""
    task = make(style, 64, 0, goals=0.3, falls=0.0, most_goals=1, longest=5)
    env = IsaacGymEnv(task)
    env.reset()
    ends = torch.zeros(2)
    for _ in range(40):
        row = env.step(torch.zeros(64, 1))
        up = (task.progress_buf >= 4).unsqueeze(-1)
        assert torch.equal(row["truncated"], up & row["valid"])
        ends += torch.tensor([float(row[key].sum()) for key in ("terminated", "truncated")])
    assert ends.min() > 20


class Late(Hand, LazyBefore):
    """One env step passes between the end and the reset, as in DeXtreme's ADR."""

    goals, falls = 0.03, 0.0

    def __init__(self, num_envs: int, seed: int) -> None:
        self.is_due = torch.zeros(num_envs, dtype=torch.bool)
        super().__init__(num_envs, seed, longest=9)

    def pre_physics_step(self, actions: torch.Tensor) -> None:
        due, self.is_due = self.is_due, (self.reset_buf != 0) & ~self.is_due
        self.reset_idx(due)
        self.actions = actions.clone()

    def check_ends(self) -> None:
        before = self.reset_buf.clone()
        super().check_ends()
        self.reset_buf |= before


@pytest.mark.parametrize("num_envs", [1, 2, 64])
def test_a_reset_may_be_one_env_step_late(num_envs: int) -> None:
    for seed in range(10):
        env = found(Late(num_envs, seed))
        assert env is None or env.reset_style == "B"
        assert env is not None or num_envs < 64
    env = IsaacGymEnv(Late(num_envs, 0), reset_style="B")
    env.reset()
    rows = [env.step(torch.zeros(num_envs, 1)).clone() for _ in range(60)]
    ended = [row["terminated"] | row["truncated"] for row in rows]
    for row, before, last in zip(rows[2:], ended, ended[1:], strict=False):
        assert torch.equal(row["first"], before | last)
        assert torch.equal(row["valid"], ~row["first"])
        # As in any task of style B, the state of the reset itself was never observed.
        assert (row["obs"][:, 2:3][before] == 1).all()
    assert sum(int(rows.sum()) for rows in ended) >= 3 * num_envs


def test_the_tasks_method_is_put_back() -> None:
    task = make("A", 2, 0)
    IsaacGymEnv(task)
    assert "reset_idx" not in vars(task)
