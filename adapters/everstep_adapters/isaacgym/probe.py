"""The reset style of a task, determined by making its episodes time out."""

from typing import Any, NamedTuple

import torch

from everstep.errors import AdapterError

from .endings import FINAL_OBS, describe_style, list_styles, parse_style, reset_same_step
from .tasks import Outcome, Task

#: Env steps in which episodes must end once the clock is one env step before its usual end.
_MOST_ENV_STEPS = 4


class Profile(NamedTuple):
    """Properties of a task that its interface does not show."""

    #: Reset style: `"A"`, `"B"`, `"C"` or `"D"`.
    style: str

    #: Source of the style.
    known_from: str

    #: Env steps of an episode, a number or a tensor `[N]`; None if unknown.
    limit: Any

    #: Key of final observations in `extras`; None if there is none.
    final_key: None | str

    #: Outcome of an env step.
    outcome: Outcome


def study(task: Task, reset_style: None | str, max_episode_length: Any) -> Profile:
    """The properties of a task. Takes a few env steps of it.

    Args:
        task: The task.
        reset_style: Letter or name of its style; None to determine it.
        max_episode_length: Replaces the task's attribute of this name, unless None.

    Raises:
        AdapterError: If the style cannot be determined, or the task cannot have the given one.

    """
    longest = task.max_episode_length if max_episode_length is None else max_episode_length
    usual = None if longest is None else longest - 1
    if task.interface != "VecTask":
        if reset_style is not None and parse_style(reset_style) != "C":
            raise AdapterError(
                f"{task.name} resets in the env step that ends an episode, as its interface says; "
                f"got `reset_style={reset_style!r}`. Leave it out."
            )
        reset_same_step(task)  # legged_gym reports time-outs only from the first reset on
        return _look("C", "its interface", usual, task)
    if reset_style is None:
        return _probe(task, longest)
    style = parse_style(reset_style)
    if style == "D" and task.method("reset_done") is None:
        style = describe_style(style)
        raise AdapterError(f"{task.name} has no `reset_done`, so its style cannot be {style}.")
    return _look(style, "given", usual, task)


def _look(style: str, known_from: str, limit: Any, task: Task) -> Profile:
    """The rest of the properties, for a known style."""
    outcome = task.step(task.zero_actions())
    key = FINAL_OBS[0] if task.gives_final_obs else _final_key(outcome)
    return Profile(style, known_from, limit, key, outcome)


def _final_key(outcome: Outcome) -> None | str:
    return next((key for key in FINAL_OBS if key in outcome.extras), None)


def _probe(task: Task, longest: Any) -> Profile:
    """The properties of a VecTask, from its clock after all episodes were made to time out.

    A task sets its clock back when it resets. If it does so in the env step in which time is up,
    the style is C. Otherwise the clock shows the style after one more env step: 0 if the reset came
    after the clock had moved (A), 1 if it came before (B), and a larger number if nothing was reset
    (D). Takes up to six env steps with actions of 0, and synchronises.

    Raises:
        AdapterError: If the clock does not show the style; names the option that sets it.

    """
    if longest is None or isinstance(longest, torch.Tensor) or not 2 <= longest < 2**31:
        rule = "its `max_episode_length` must be a finite number of at least 2"
        raise _unknown(task, f"{rule}; got {longest}")
    waiting = task.step(task.zero_actions()).done  # resets what A and B have pending at first
    start = int(longest) - 2
    task.set_clock(start)
    outcome, ended, env_steps = _until_all_end(task, waiting.flatten(), longest)
    limit = start + env_steps
    if bool((task.clock[ended] == 0).all()):
        return Profile("C", "its clock", limit, _final_key(outcome), outcome)
    task.step(task.zero_actions())
    style = _lazy_style(task, task.clock[ended], limit)
    return Profile(style, "its clock", limit, None, outcome)


def _until_all_end(
    task: Task, waiting: torch.Tensor, longest: float
) -> tuple[Outcome, torch.Tensor, int]:
    """The outcome that ended all remaining episodes, their rows `[N]`, and its number of env steps.

    Episodes that fail before are left out: they show nothing about the clock.
    """
    left = waiting if bool(waiting.all()) else ~waiting
    for env_steps in range(1, _MOST_ENV_STEPS + 1):
        outcome = task.step(task.zero_actions())
        done = outcome.done.flatten()
        if bool(done[left].all()):
            return outcome, left.to(task.clock.device), env_steps
        left = left & ~done
    end = f"when `{task.clock_name}` was at `max_episode_length` ({longest})"
    raise _unknown(task, f"its episodes did not end {end}")


def _lazy_style(task: Task, clock: torch.Tensor, limit: int) -> str:
    """A, B or D, from the clock of the rows that had ended one env step before.

    Raises:
        AdapterError: If it shows something else, or different things.

    """
    values = set(clock.tolist())
    if values == {0}:
        return "A"
    if values == {1}:
        return "B"
    has_reset = task.method("reset_done") is not None
    if has_reset and all(value > limit for value in values):
        return "D"
    raise _unknown(
        task,
        f"one env step after its episodes had ended after {limit}, `{task.clock_name}` shows "
        f"{sorted(values)}{'' if has_reset else ', and it has no `reset_done`'}",
    )


def _unknown(task: Task, reason: str) -> AdapterError:
    return AdapterError(
        f"The reset style of {task.name} cannot be determined: {reason}. Pass `reset_style=` one "
        f"of {list_styles()}."
    )
