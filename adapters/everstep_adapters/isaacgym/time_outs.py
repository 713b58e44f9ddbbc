"""Which ends of episodes are time-outs: what a task says of it is checked, or counted anew."""

from typing import Any, Protocol

import torch

from everstep.errors import AdapterError

from .tasks import Outcome, Task

#: Names of the ways to tell time-outs, as the option `time_outs` has them.
WAYS = ("clock", "terminate", "reported", "flags")

#: Both columns of an env step: `terminated` and `truncated`, bool `[N, 1]`.
Ends = tuple[torch.Tensor, torch.Tensor]


class TimeOuts(Protocol):
    """How an end is told from a time-out."""

    #: What `describe` says about it.
    note: str

    def before(self) -> None:
        """Look at the task before an env step."""
        ...

    def split(self, outcome: Outcome, ended: torch.Tensor) -> Ends:
        """`terminated` and `truncated` of an env step.

        Args:
            outcome: What the task returned.
            ended: Where an episode ended, bool `[N, 1]`.

        """
        ...


class Clock:
    """An end is a time-out where the clock had come to its limit.

    Tasks that reset themselves in the env step set their clock back in it, so what counts is the
    clock before it. A failure in the last env step of an episode cannot be told from a time-out.

    Args:
        task: The task.
        limit: Env steps of an episode, a number or a tensor `[N]`.

    """

    def __init__(self, task: Task, limit: Any) -> None:
        self._task, self._last = task, limit - 1
        self._is_up = task.clock >= self._last
        told = f"{limit:g}" if not isinstance(limit, torch.Tensor) else "each row's own number of"
        self.note = f"after {told} env steps, counted by `{task.clock_name}`"

    def before(self) -> None:
        """See `TimeOuts.before`."""
        self._is_up = self._task.clock >= self._last  # new memory: the clock moves on

    def split(self, outcome: Outcome, ended: torch.Tensor) -> Ends:
        """See `TimeOuts.split`."""
        truncated = ended & self._task.column(self._is_up, "clock")
        return ended ^ truncated, truncated


class Reports:
    """What the task reports, and only where an episode ended.

    Args:
        task: The task.
        source: `"terminate"` for a buffer of terminations, as AMP tasks have it; `"reported"` for
            one of time-outs; `"flags"` for those that `step` returns.

    """

    def __init__(self, task: Task, source: str) -> None:
        self._task, self._source = task, source
        told = {
            "terminate": "where the task's buffer of terminations is not set",
            "reported": "where the task reports one and an episode ended",
            "flags": "as `step` returns them",
        }
        self.note = told[source]

    def before(self) -> None:
        """See `TimeOuts.before`."""

    def split(self, outcome: Outcome, ended: torch.Tensor) -> Ends:
        """See `TimeOuts.split`."""
        if self._source == "flags":
            assert outcome.flags is not None
            return outcome.flags
        if self._source == "terminate":
            reported = terminations(self._task, outcome)
            assert reported is not None
            terminated = ended & (self._task.column(reported, "terminate") != 0)
            return terminated, ended ^ terminated
        reported = time_outs(self._task, outcome)
        if reported is None:  # nothing was reported so far
            return ended.clone(), torch.zeros_like(ended)
        truncated = ended & (self._task.column(reported, "time_outs") != 0)
        return ended ^ truncated, truncated


def terminations(task: Task, outcome: Outcome) -> None | torch.Tensor:
    """The task's buffer of what was not a time-out, `[N]`; None where it has none."""
    found = outcome.extras.get("terminate")
    if found is None:
        found = getattr(task.env, "_terminate_buf", None)
    return found


def time_outs(task: Task, outcome: Outcome) -> None | torch.Tensor:
    """What the task reports as time-outs, `[N]`; None where it reports none.

    legged_gym computes its buffer in every env step, but puts it into `extras` only where an
    episode ended: the buffer comes first.
    """
    found = getattr(task.env, "time_out_buf", None)
    return outcome.extras.get("time_outs") if found is None else found


def make_time_outs(task: Task, seen: Outcome, limit: Any, way: None | str) -> TimeOuts:
    """How time-outs of a task are told.

    Args:
        task: The task.
        seen: What an env step returned.
        limit: Env steps of an episode; None where nobody says, infinity where there is no limit.
        way: One of `WAYS`, or None to choose by what the task has.

    Raises:
        AdapterError: Where the task lacks what is needed.

    """
    has = {
        "flags": seen.flags is not None,
        "terminate": terminations(task, seen) is not None,
        "clock": limit is not None,
        "reported": time_outs(task, seen) is not None,
    }
    if way is None:
        # The clock of a VecTask is surer than its report; others count in different ways.
        counted = "clock" if task.interface == "VecTask" else "reported"
        order = ("flags", "terminate", counted, "reported", "clock")
        way = next((name for name in order if has[name]), None)
    if way is None:
        raise AdapterError(
            f"{task.name} does not say how long an episode may be, so a time-out would count as a "
            "failure: set its `max_episode_length`, or pass `max_episode_length=` (`math.inf` "
            "where nothing but the task itself ends episodes)."
        )
    if way not in WAYS or not has[way]:
        known = ", ".join(repr(name) for name in WAYS if has[name])
        raise AdapterError(f"`time_outs` of {task.name} must be one of {known}; got {way!r}.")
    return Clock(task, limit) if way == "clock" else Reports(task, way)
