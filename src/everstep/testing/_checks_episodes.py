"""Checks of how episodes end and begin."""

from collections.abc import Callable

import torch

from ..data import DataKeys
from ._player import Row, Trace, traces
from ._results import NotApplicable, Violation
from ._subject import Subject

#: What an env step is, by where episodes ended in it, bool `[N]`.
Kind = Callable[[torch.Tensor], bool]


def check_none_end(subject: Subject) -> None:
    """Where no episode ends none begins, unless the row before was the end of one."""
    _check_kind(subject, "no episode ended", lambda done: not bool(done.any()))


def check_some_end(subject: Subject) -> None:
    """Where some episodes end, new ones begin there, in that row or after it; others go on."""
    _check_kind(subject, "some ended", lambda done: bool(done.any()) and not bool(done.all()))


def check_all_end(subject: Subject) -> None:
    """Where all episodes end at once, new ones begin in all environments."""
    _check_expectation(subject)
    _check_kind(subject, "all ended", lambda done: bool(done.all()))


def _check_kind(subject: Subject, what: str, kind: Kind) -> None:
    """Check the env steps of a kind, and those after them.

    Raises:
        NotApplicable: Where there was none.
        Violation: Where one breaks a rule.

    """
    seen = 0
    for trace in episodic(subject):
        for rows in trace.segments:
            seen += sum(kind(row.done) for row in rows)
            _check_rows(rows, kind, trace)
    if not seen:
        sizes = " or ".join(map(str, subject.num_envs_choices))
        raise NotApplicable(
            f"in {subject.num_steps} env steps of {sizes} environments there was none in which "
            f"{what}; raise `num_steps`, or choose actions that end episodes (`choose_action`)"
        )


def _check_expectation(subject: Subject) -> None:
    """Check that episodes end, where the suite says that they do or do not."""
    every = [row for trace in traces(subject) for rows in trace.segments for row in rows]
    ended = any(bool(row.done.any()) for row in every)
    if subject.episodes_end is None or subject.episodes_end is ended:
        return
    raise Violation(
        "`episodes_end`",
        f"The suite says that episodes {'' if subject.episodes_end else 'do not '}end.",
        f"{'ends' if ended else 'none'} in {subject.num_steps} env steps",
        "Raise `num_steps`, choose actions that end episodes (`choose_action`), or mend the flags.",
    )


def episodic(subject: Subject) -> list[Trace]:
    """Traces of environments whose episodes end.

    Raises:
        NotApplicable: Where they never do.

    """
    found = [trace for trace in traces(subject) if trace.episode_keys]
    if not found:
        raise NotApplicable("the environment declares no `episode_keys`: its episodes never end")
    return found


def _check_rows(rows: list[Row], kind: Kind, trace: Trace) -> None:
    """Check rows from a reset on, where they or the rows before them are of a kind."""
    pending = torch.zeros(trace.num_envs, dtype=torch.bool)
    before_is_of_kind = False
    for t, row in enumerate(rows):
        is_of_kind = kind(row.done)
        if is_of_kind or before_is_of_kind:
            _check_row(
                row, pending, f"env step {t} after a reset, with {trace.num_envs} in a batch"
            )
        pending = (pending | row.done) & ~row.first
        before_is_of_kind = is_of_kind


def _check_row(row: Row, pending: torch.Tensor, when: str) -> None:
    """Check one row.

    Args:
        row: The row.
        pending: Where an episode had ended before and none had begun, bool `[N]`.
        when: What an error says about the env step.

    """
    ends = "`terminated` or `truncated`"
    rules = [
        (
            row.first & ~row.done & ~pending & row.valid,
            "`first`",
            f"A row is `first` where {ends} is set in it, or else is not valid.",
            f"Set {ends} where an episode ends, and `first` only where `obs` opens another.",
        ),
        (
            pending & row.valid,
            "`valid`",
            "After an end without `first`, rows are not valid up to the one that is `first`: "
            "their actions are ignored.",
            "Set `first` in the row that ends where its `obs` opens the next episode (and return "
            "`final_obs`); or else declare `valid`, False in the row of the reset.",
        ),
        (
            ~row.valid & row.done,
            "`terminated`, `truncated`",
            "A row that is not valid ends nothing.",
            "Clear both where `valid` is False.",
        ),
        (
            ~row.valid & (row.rewards != 0),
            "`rewards`",
            "A row that is not valid has the reward 0.",
            "Set rewards to 0 where `valid` is False.",
        ),
    ]
    for broken, what, rule, fix in rules:
        if broken.any():
            env = int(broken.nonzero()[0])
            raise Violation(what, rule, f"{told(row, env)} in environment {env} at {when}", fix)


def told(row: Row, env: int) -> str:
    """Reward and flags of one environment, in words."""
    flags = [
        name
        for name in (DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST, DataKeys.VALID)
        if getattr(row, name)[env]
    ]
    return f"reward {row.rewards[env].item():g} and {' and '.join(flags) or 'no flag'}"
