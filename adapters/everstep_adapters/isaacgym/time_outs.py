"""Time-outs and terminations of a task, from its clock or from its reports."""

from typing import Any

import torch

from everstep.errors import AdapterError

from .source import Outcome, Task

#: Values of the option `time_outs`, and their lines in `describe`.
SOURCES = {
    "clock": "after {limit} env steps, counted by `{clock}`",
    "terminate": "where the task's buffer of terminations is not set",
    "reported": "where the task reports one and an episode ended",
    "flags": "as `step` returns them",
    "never": "none, every end is a termination: the task has a finite horizon",
}


class TimeOuts:
    """The split of ended episodes into terminations and time-outs.

    By the clock, an end is a time-out if the clock has reached its limit. Tasks that reset
    themselves in the env step set their clock back in it, so the clock before the env step counts;
    of others it is the one after it, as reaching a goal may have set it back. A failure in the last
    env step of an episode counts as a time-out.

    Args:
        task: The task.
        source: One of `SOURCES`.
        limit: Env steps of an episode, a number or a tensor `[N]`.
        resets_at_once: Whether the task resets itself in the env step that ends an episode.

    """

    #: Its line in `describe`.
    description: str

    def __init__(self, task: Task, source: str, limit: Any, resets_at_once: bool) -> None:
        self._task, self._source, self._limit = task, source, limit
        self._reads_before = source == "clock" and resets_at_once
        of_rows = isinstance(limit, torch.Tensor) or limit is None
        text = "each row's own number of" if of_rows else f"{limit:g}"
        self.description = SOURCES[source].format(limit=text, clock=task.clock_name)
        self.before()

    def before(self) -> None:
        """Read the clock before a vector step, if the vector step may reset it."""
        if self._reads_before:
            self._is_up = self._task.clock >= self._limit - 1  # new memory: the clock moves on

    def split(self, outcome: Outcome, ended: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`terminated` and `truncated` of a vector step, bool `[N, 1]`.

        Args:
            outcome: What the task returned.
            ended: Where an episode ended, bool `[N, 1]`.

        """
        if self._source == "never":
            return ended.clone(), torch.zeros_like(ended)
        if self._source == "flags":
            assert outcome.flags is not None
            return outcome.flags
        if self._source == "terminate":
            failed = terminations(self._task, outcome)
            assert failed is not None
            terminated = ended & (self._task.column(failed, "terminate") != 0)
            return terminated, ended ^ terminated
        if self._source == "clock":
            is_up = self._is_up if self._reads_before else self._task.clock >= self._limit
        else:
            is_up = time_outs(self._task, outcome)
        if is_up is None:  # nothing was reported so far
            return ended.clone(), torch.zeros_like(ended)
        truncated = ended & (self._task.column(is_up, "time_outs") != 0)
        return ended ^ truncated, truncated


def terminations(task: Task, outcome: Outcome) -> None | torch.Tensor:
    """The task's buffer of ends that were no time-outs, `[N]`; None if it has none."""
    buffer = outcome.extras.get("terminate")
    return getattr(task.env, "_terminate_buf", None) if buffer is None else buffer


def time_outs(task: Task, outcome: Outcome) -> None | torch.Tensor:
    """The time-outs that the task reports, `[N]`; None if it reports none.

    legged_gym computes its buffer in every vector step, but puts it into `extras` only if an
    episode ended: the buffer comes first.
    """
    buffer = getattr(task.env, "time_out_buf", None)
    return outcome.extras.get("time_outs") if buffer is None else buffer


def make_time_outs(
    task: Task, outcome: Outcome, limit: Any, source: None | str, resets_at_once: bool
) -> TimeOuts:
    """The time-outs of a task.

    Args:
        task: The task.
        outcome: Outcome of a vector step.
        limit: Env steps of an episode; None if unknown, infinity if there is no limit.
        source: One of `SOURCES`, or None for the most reliable that the task has.
        resets_at_once: Whether the task resets itself in the env step that ends an episode.

    Raises:
        AdapterError: If the task lacks what is needed.

    """
    has = {
        "flags": outcome.flags is not None,
        "terminate": terminations(task, outcome) is not None,
        "clock": limit is not None,
        "reported": time_outs(task, outcome) is not None,
        "never": task.has_finite_horizon,
    }
    if source is None and has["never"]:
        source = "never"
    if source is None:
        # The clock of a VecTask is more reliable than its report; others count in different ways.
        counted = "clock" if task.interface == "VecTask" else "reported"
        order = ("flags", "terminate", counted, "reported", "clock")
        source = next((name for name in order if has[name]), None)
    if source is None:
        raise AdapterError(
            f"{task.name} does not say how long an episode may be, so a time-out would count as a "
            "failure: set its `max_episode_length`, or pass `max_episode_length=` (`math.inf` "
            "if only the task itself ends episodes)."
        )
    if not has.get(source):
        known = ", ".join(repr(name) for name in SOURCES if has[name])
        raise AdapterError(f"`time_outs` of {task.name} must be one of {known}; got {source!r}.")
    return TimeOuts(task, source, limit, resets_at_once)
