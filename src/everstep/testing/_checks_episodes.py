"""Checks of the ends and beginnings of episodes."""

from collections.abc import Callable

import torch

from ._player import FLAGS, Row, Trace, traces
from ._results import NotApplicable, Violation
from ._subject import Subject

#: Predicate of a vector step on the environments whose episodes ended, bool `[N]`.
Kind = Callable[[torch.Tensor], bool]


def check_none_end(subject: Subject) -> None:
    """A new episode begins only after one has ended, in the same row or the row before."""
    _check_kind(subject, "no episode ended", lambda done: not bool(done.any()))


def check_some_end(subject: Subject) -> None:
    """If some episodes end, only these environments begin new ones, in that row or later."""
    _check_kind(subject, "some ended", lambda done: bool(done.any()) and not bool(done.all()))


def check_all_end(subject: Subject) -> None:
    """If all episodes end at once, new ones begin in all environments."""
    _check_expectation(subject)
    _check_kind(subject, "all ended", lambda done: bool(done.all()))


def _check_kind(subject: Subject, what: str, kind: Kind) -> None:
    """Check the vector steps of a kind, and those after them.

    Raises:
        NotApplicable: If there was none.
        Violation: If one breaks a rule.

    """
    seen = 0
    for trace in episodic(subject):
        for rows in trace.segments:
            seen += sum(kind(row.done) for row in rows)
            _check_rows(rows, kind, trace)
    if not seen:
        sizes = " or ".join(map(str, subject.num_envs_choices))
        raise NotApplicable(
            f"in {subject.num_steps} vector steps of {sizes} environments there was none in which "
            f"{what}; raise `num_steps` (`--vector-steps`), or choose actions that end episodes "
            "(`choose_action`)"
        )


def _check_expectation(subject: Subject) -> None:
    """Check that episodes end or do not end, if the suite declares which."""
    every = [row for trace in traces(subject) for rows in trace.segments for row in rows]
    ended = any(bool(row.done.any()) for row in every)
    if subject.episodes_end is None or subject.episodes_end is ended:
        return
    raise Violation(
        "`episodes_end`",
        f"The suite declares that episodes {'' if subject.episodes_end else 'do not '}end.",
        f"{'ends' if ended else 'none'} in {subject.num_steps} vector steps",
        "Raise `num_steps` (`--steps`), choose actions that end episodes (`choose_action`), or fix "
        "the flags.",
    )


def episodic(subject: Subject) -> list[Trace]:
    """Traces of episodic environments.

    Raises:
        NotApplicable: If there are none.

    """
    episodic_traces = [trace for trace in traces(subject) if trace.episode_keys]
    if not episodic_traces:
        raise NotApplicable("the environment declares no `episode_keys`: its episodes never end")
    return episodic_traces


def _check_rows(rows: list[Row], kind: Kind, trace: Trace) -> None:
    """Check those rows since a reset which, or whose previous rows, are of a kind."""
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
        pending: Whether an episode had ended before and none had begun, bool `[N]`.
        when: Description of the vector step for errors.

    """
    ends = "`terminated` or `truncated`"
    rules = [
        (
            row.first & ~row.done & ~pending & row.valid,
            "`first`",
            f"A row that is `first` either sets {ends}, or is not valid.",
            f"Set {ends} when an episode ends, and `first` only if `obs` opens another.",
        ),
        (
            pending & row.valid,
            "`valid`",
            "After an end without `first`, rows are not valid up to the one that is `first`: "
            "their actions are ignored.",
            "If the `obs` of the ending row opens the next episode, set `first` in that row (and "
            "return `final_obs`); else declare `valid`, False in the row of the reset.",
        ),
        (
            ~row.valid & row.done,
            "`terminated`, `truncated`",
            "A row that is not valid ends nothing.",
            "Clear both if `valid` is False.",
        ),
        (
            ~row.valid & (row.rewards != 0),
            "`rewards`",
            "A row that is not valid has the reward 0.",
            "Set rewards to 0 if `valid` is False.",
        ),
    ]
    for broken, what, rule, fix in rules:
        if broken.any():
            env = int(broken.nonzero()[0])
            raise Violation(
                what, rule, f"{described(row, env)} in environment {env} at {when}", fix
            )


def described(row: Row, env: int) -> str:
    """Reward and flags of one environment as text."""
    flags = [name for name in FLAGS if getattr(row, name)[env]]
    return f"reward {row.rewards[env].item():g} and {' and '.join(flags) or 'no flag'}"
