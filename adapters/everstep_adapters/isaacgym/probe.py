"""Finding out when a task resets what has ended, by letting its clock run out."""

from typing import Any, NamedTuple

import torch

from everstep.errors import AdapterError

from .endings import FINAL_OBS, STYLES, parse_style, reset_same_step, told
from .tasks import Outcome, Task

#: Env steps in which episodes must end once the clock is one env step before its usual end.
_PATIENCE = 4

_WAY_OUT = "Say when it resets, `reset_style=` one of " + ", ".join(
    f"{letter!r} ({word!r})" for letter, word in STYLES.items()
)


class Found(NamedTuple):
    """What was found out about a task."""

    #: `"A"`, `"B"`, `"C"` or `"D"`.
    style: str

    #: Where that is known from.
    known_from: str

    #: Env steps of an episode, a number or a tensor `[N]`; None where nobody says.
    limit: Any

    #: Where final observations are in `extras`; None where they are not.
    final_key: None | str

    #: What an env step returned.
    outcome: Outcome


def study(task: Task, reset_style: None | str, max_episode_length: Any) -> Found:
    """What an adapter has to know about a task; takes it a few env steps.

    Args:
        task: The task.
        reset_style: Letter or word of when it resets; None to find out.
        max_episode_length: What the task's attribute of this name would say; None to ask it.

    Raises:
        AdapterError: Where it cannot be found out, or is given as what it cannot be.

    """
    longest = task.max_episode_length if max_episode_length is None else max_episode_length
    usual = None if longest is None else longest - 1
    if task.interface != "VecTask":
        if reset_style is not None and parse_style(reset_style) != "C":
            raise AdapterError(
                f"{task.name} resets what has ended in the same env step, as its interface says; "
                f"got `reset_style={reset_style!r}`. Leave it out."
            )
        reset_same_step(task)  # legged_gym reports time-outs only from the first reset on
        return _look("C", "its interface", usual, task)
    if reset_style is None:
        return _probe(task, longest)
    style = parse_style(reset_style)
    if style == "D" and task.method("reset_done") is None:
        raise AdapterError(f"{task.name} has no `reset_done`, so its style cannot be {told('D')}.")
    return _look(style, "given", usual, task)


def _look(style: str, known_from: str, limit: Any, task: Task) -> Found:
    """What is left to be found where the style is known."""
    outcome = task.step(task.zero_actions())
    return Found(style, known_from, limit, _final_key(outcome), outcome)


def _final_key(outcome: Outcome) -> None | str:
    return next((key for key in FINAL_OBS if key in outcome.extras), None)


def _probe(task: Task, longest: Any) -> Found:
    """When a VecTask resets, from what its clock shows after all episodes were made to time out.

    A task sets its clock back when it resets. Where it does so in the env step in which time is up
    the style is C. Otherwise the clock tells after one env step more: 0 where the reset came after
    the clock had moved (A), 1 where it came before (B); and it has moved on where nothing was
    reset (D). Takes up to six env steps with actions of 0, and synchronises.

    Raises:
        AdapterError: Where the clock does not tell; names the option that does.

    """
    if longest is None or isinstance(longest, torch.Tensor) or not 2 <= longest < 2**31:
        raise AdapterError(
            f"When {task.name} resets cannot be found out: its `max_episode_length` would have to "
            f"be a number from 2 on; got {longest}. {_WAY_OUT}."
        )
    waiting = task.step(task.zero_actions()).done  # resets what A and B have pending at first
    start = int(longest) - 2
    task.set_clock(start)
    outcome, ended, env_steps = _until_all_end(task, waiting.flatten(), longest)
    limit = start + env_steps
    if bool((task.clock[ended] == 0).all()):
        return Found("C", "its clock", limit, _final_key(outcome), outcome)
    task.step(task.zero_actions())
    style = _lazy_style(task, task.clock[ended], limit)
    return Found(style, "its clock", limit, None, outcome)


def _until_all_end(
    task: Task, waiting: torch.Tensor, longest: float
) -> tuple[Outcome, torch.Tensor, int]:
    """The env step that ended all that were left, which these were, `[N]`, and its number.

    Those that fail on the way are left out: they say nothing about the clock.
    """
    left = waiting if bool(waiting.all()) else ~waiting
    for env_steps in range(1, _PATIENCE + 1):
        outcome = task.step(task.zero_actions())
        done = outcome.done.flatten()
        if bool(done[left].all()):
            return outcome, left.to(task.clock.device), env_steps
        left = left & ~done
    raise AdapterError(
        f"When {task.name} resets cannot be found out: its episodes did not end when "
        f"`{task.clock_name}` came to `max_episode_length` ({longest}). {_WAY_OUT}."
    )


def _lazy_style(task: Task, clock: torch.Tensor, limit: int) -> str:
    """A, B or D, from the clock of what had ended one env step before.

    Raises:
        AdapterError: Where it shows something else, or different things.

    """
    shown = set(clock.tolist())
    if shown == {0}:
        return "A"
    if shown == {1}:
        return "B"
    if all(value > limit for value in shown) and task.method("reset_done") is not None:
        return "D"
    raise AdapterError(
        f"When {task.name} resets cannot be found out: one env step after its episodes had ended "
        f"after {limit}, `{task.clock_name}` shows {sorted(shown)}"
        f"{'' if task.method('reset_done') else ', and it has no `reset_done`'}. {_WAY_OUT}."
    )
