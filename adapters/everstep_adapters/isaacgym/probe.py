"""The reset style of a task, from its calls of `reset_idx` when its episodes are timed out."""

from typing import Any, NamedTuple

import torch

from everstep.errors import AdapterError

from .endings import FINAL_OBS, describe_style, list_styles, parse_style, reset_same_step
from .source import Outcome, Task

#: Env steps in which episodes must end once the clock is one env step before its usual end, and
#: after which an ended one was reset, or waits.
_MOST_ENV_STEPS = 5

#: Env steps for which environments that have ended must go on, to be ones that wait for
#: `reset_done`: with IsaacGymEnvs' ADR one passes before the reset.
_PATIENCE = 2

#: Marks that an object has no attribute of its own.
_NONE = object()

#: Times that all episodes are made to end, as some may fail just then; and times that it is tried.
_TRIALS, _MOST_TRIALS = 3, 9


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

    #: Outcome of a vector step.
    outcome: Outcome


def detect(task: Task, reset_style: None | str, max_episode_length: Any) -> Profile:
    """The properties of a task. Takes a few vector steps of it.

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
        style, source = ("D", "its config") if task.waits_for_reset else ("C", "its interface")
        if reset_style is not None and parse_style(reset_style) != style:
            raise AdapterError(
                f"{task.name} resets at {describe_style(style)}, as {source} says; got "
                f"`reset_style={reset_style!r}`. Leave it out."
            )
        reset_same_step(task)  # legged_gym reports time-outs only from the first reset on
        return _look(style, source, usual, task)
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
    """The properties of a VecTask, from episodes that are made to time out, three times or more.

    Takes 18 vector steps with actions of 0, at most 54, and synchronises.

    Raises:
        AdapterError: If the style cannot be determined; names the option that sets it.

    """
    if longest is None or isinstance(longest, torch.Tensor) or not 2 <= longest < 2**31:
        rule = "its `max_episode_length` must be a finite number of at least 2"
        raise _unknown(task, f"{rule}; got {longest}")
    limits: list[int] = []
    with Resets(task) as resets:
        for _ in range(_MOST_TRIALS):
            if "D" in resets.styles or (resets.styles and len(limits) >= _TRIALS):
                break
            limits += _time_out(task, resets, int(longest) - 2)
    if not limits:
        end = f"when `{task.clock_name}` was at `max_episode_length` ({longest})"
        raise _unknown(task, f"its episodes did not end {end}")
    if len(resets.styles) != 1:
        shown = " and ".join(sorted(resets.styles)) or "none: it makes none, or for other rows"
        raise _unknown(task, f"its calls of `reset_idx` show {shown}")
    (style,) = resets.styles
    source = "its clock" if style == "D" else "its calls of `reset_idx`"
    assert resets.outcome is not None  # that of an end
    key = _final_key(resets.outcome) if style == "C" else None
    return Profile(style, source, max(limits), key, resets.outcome)


def _time_out(task: Task, resets: "Resets", start: int) -> list[int]:
    """Most env steps of the episodes that end after the clock is set to `start`, shortly before.

    An episode may fail earlier; none ends later. Empty if no episode ends, or one runs on. Rows
    whose clock is set back without an end, as at a goal, are left out. So are rows that wait for a
    reset, unless all rows do.
    """
    ended = resets.step()
    running = torch.ones_like(ended) if bool(ended.all()) else ~ended
    resets.set_clock(start)
    found: list[int] = []
    for env_steps in range(1, _MOST_ENV_STEPS + 1):
        ended = resets.step()
        if bool((running & ended).any()):
            found = [start + env_steps]
        running &= ~ended & (task.clock == start + env_steps)
    return [] if bool(running.any()) else found


class Resets:
    """Steps a task, and finds reset styles by when the task calls `reset_idx` for each row.

    A row that is reset in the env step that ends it shows C. If it is reset in the next env step,
    it shows B before the clock advances and A after that. If it is not reset for some env steps, it
    shows D. The clock alone does not suffice: a task may also set it back when a goal is reached,
    as IsaacGymEnvs' ShadowHandOpenAI_FF does.

    Args:
        task: The task. Its `reset_idx` is replaced in a `with` block of this object.

    """

    #: Styles that rows showed.
    styles: set[str]

    #: What the last vector step returned that ended an episode.
    outcome: None | Outcome = None

    def __init__(self, task: Task) -> None:
        self._task, self.styles = task, set()
        self._has_reset_done = task.method("reset_done") is not None
        own = getattr(task.env, "reset_idx", None)
        # An attribute of the task itself comes first: it may be a function that was set there.
        is_set = "reset_idx" in getattr(task.env, "__dict__", {})
        self._own, self._owner = own, task.env if is_set else getattr(own, "__self__", None)
        # What the first env step resets had not ended.
        ones = torch.ones(task.num_envs, dtype=torch.bool, device=task.clock.device)
        self._ended = self._at_once = ones
        self._waited = torch.zeros_like(task.clock)

    def __enter__(self) -> "Resets":
        """Listen to the task."""
        if self._owner is not None:
            self._before = getattr(self._owner, "__dict__", {}).get("reset_idx", _NONE)
            self._owner.reset_idx = self._reset_idx
        return self

    def __exit__(self, *error: object) -> None:
        """Put the task's method back."""
        if self._owner is None:
            return
        if self._before is _NONE:
            del self._owner.reset_idx
        else:
            self._owner.reset_idx = self._before

    def _reset_idx(self, env_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self._clocks[env_ids] = self._task.clock[env_ids].to(self._clocks)
        assert self._own is not None
        return self._own(env_ids, *args, **kwargs)

    def set_clock(self, value: float) -> None:
        """Set the clock of every row; rows that have ended show no style in the next step."""
        self._task.set_clock(value)
        self._at_once = torch.ones_like(self._at_once)

    def step(self) -> torch.Tensor:
        """The rows that have ended, bool `[N]`, after a vector step with actions of 0."""
        task, before = self._task, self._task.clock.clone()
        self._clocks = torch.full_like(before, -1)  # where `reset_idx` is called, when it is
        outcome = task.step(task.zero_actions())
        done, called = outcome.done.flatten().to(before.device), self._clocks >= 0
        waiting = self._ended & ~self._at_once
        goes_on = (before > 0) & (task.clock == before + 1)
        self._waited = (self._waited + goes_on) * (waiting & ~called)
        shown = {
            "A": waiting & called & (self._clocks == before + 1),
            "B": waiting & called & (self._clocks == before),
            "C": ~self._ended & done & called,
            "D": self._waited >= _PATIENCE,
        }
        if not self._has_reset_done:
            del shown["D"]
        self.styles |= {style for style, rows in shown.items() if bool(rows.any())}
        if bool(done.any()):
            self.outcome = outcome
        # What is reset before the clock advances has ended earlier.
        self._ended, self._at_once = done, done & called & (self._clocks != before)
        return done


def _unknown(task: Task, reason: str) -> AdapterError:
    return AdapterError(
        f"The reset style of {task.name} cannot be determined: {reason}. Pass `reset_style=` one "
        f"of {list_styles()}."
    )
