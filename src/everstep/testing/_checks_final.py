"""Checks of final observations, and of rows that no action caused."""

from dataclasses import dataclass

import torch
from tensordict import TensorDict

from ..data import DataKeys
from ..env.specs import Leaves, Structure
from ._causes import follows_seed
from ._checks_episodes import described, episodic
from ._player import Player, Row, compare, traces
from ._results import NotApplicable, Violation
from ._subject import Subject

#: Fewest rows whose coincidence counts as a violation.
_ENOUGH = 3


def check_final_obs(subject: Subject) -> None:
    """An episode's last observation (`final_obs`, or `obs` before a reset row) is its own."""
    segments = [rows for trace in episodic(subject) for rows in trace.segments]
    for rows in segments:
        for row in rows:
            _check_finite(row)
    ends = _ends(segments)
    if len(ends.final) < _ENOUGH:
        raise NotApplicable(
            f"{len(ends.final)} episodes ended with an observation of their own and were followed "
            "by another, too few to compare; raise `num_steps` (`--vector-steps`), or choose "
            "actions that end episodes. If neither `final_obs` nor `valid` is declared, "
            "`on_missing_final` decides what truncated rows are bootstrapped from"
        )
    _check_not_next(ends)
    _check_not_last(ends, segments)


def _check_finite(row: Row) -> None:
    wanted = row.truncated & row.first & ~row.terminated
    for leaf in row.final_obs:
        flat = leaf.flatten(1).double()
        bad = flat.isinf().any(-1) | (flat.isnan().any(-1) & ~wanted)
        if bad.any():
            env = int(bad.nonzero()[0])
            raise Violation(
                "`final_obs`",
                "It is finite, or NaN in a truncated row that has lost it.",
                f"{leaf[env].flatten()[:8].tolist()} in environment {env}, {described(row, env)}",
                "Return `obs` if nothing ended.",
            )


@dataclass(frozen=True)
class _Ends:
    """Observations around the ends of episodes, `[ends, numbers]`."""

    #: The last one of the episode that ended.
    final: torch.Tensor

    #: The first one of the next episode.
    new: torch.Tensor

    #: The one that the last action was chosen from.
    last: torch.Tensor

    #: Whether a clock alone ended the episode, bool `[ends]`.
    expired: torch.Tensor


def _ends(segments: list[list[Row]]) -> _Ends:
    """The ends of episodes that are followed by another episode."""
    found: list[tuple[torch.Tensor, ...]] = []
    for rows in segments:
        # The last row is followed by itself, which cannot be `first` and not `first`.
        for row, following in zip(rows, [*rows[1:], rows[-1]], strict=True):
            expired = row.truncated & ~row.terminated
            last, obs, new = map(_numbers, (row.obs, row.next_obs, following.next_obs))
            if row.final_obs:
                final = _numbers(row.final_obs)
                here = row.done & row.first & final.isfinite().all(-1)
                found.append((final[here], obs[here], last[here], expired[here]))
            later = row.done & ~row.first & following.first
            found.append((obs[later], new[later], last[later], expired[later]))
    return _Ends(*(torch.cat(column) for column in zip(*found, strict=True)))


def _numbers(leaves: Leaves) -> torch.Tensor:
    return torch.cat([leaf.flatten(1).double() for leaf in leaves], -1)


def _check_not_next(ends: _Ends) -> None:
    """Raise if final observations are those of the next episodes."""
    if torch.equal(ends.final, ends.new) and len(ends.new.unique(dim=0)) > 1:
        raise Violation(
            "the final observation",
            "It is the one before the reset.",
            f"the first one of the next episode at all {len(ends.final)} ends",
            "Copy the observation before environments are reset in place. If the final observation "
            "is lost, declare no `final_obs`.",
        )


def _check_not_last(ends: _Ends, segments: list[list[Row]]) -> None:
    """Raise if final observations are those that the last actions were chosen from."""
    final, last = ends.final[ends.expired], ends.last[ends.expired]
    going_on = [
        (_numbers(row.obs) != _numbers(row.next_obs)).any(-1)[~row.done & ~row.first & row.valid]
        for rows in segments
        for row in rows
    ]
    moved = torch.cat(going_on)
    always_moves = len(moved) >= _ENOUGH and bool(moved.all())
    if always_moves and len(final) >= _ENOUGH and torch.equal(final, last):
        raise Violation(
            "the final observation",
            "It is the result of the last action.",
            f"the one that action was chosen from, at all {len(final)} truncations",
            "Step first, then copy the observation, then reset.",
        )


# ---- rows that no action caused ------------------------------------------------------------------


def check_invalid_rows(subject: Subject) -> None:
    """The action of a row that is not valid has no effect."""
    declaring = [trace for trace in traces(subject) if DataKeys.VALID in trace.episode_keys]
    if not declaring:
        raise NotApplicable("the environment does not declare `valid`: an action caused every row")
    rows = declaring[-1].segments[0]
    if all(bool(row.valid.all()) for row in rows):
        raise NotApplicable(f"every row of {subject.num_steps} vector steps was valid")
    with Player(subject, subject.num_envs_choices[-1], seed=subject.seed) as player:
        if not follows_seed(player):
            raise NotApplicable("the environment is not deterministic by seed")
        player.reset()
        compare(
            rows,
            (player.step(_other_if_invalid(player, row)) for row in rows),
            "`valid`",
            "The action of a row that is not valid has no effect.",
            "Ignore the action in the row of a reset.",
            "at env step {t} after another action in such rows",
        )


def _other_if_invalid(player: Player, row: Row) -> torch.Tensor | TensorDict:
    """The actions of the next vector step, with others in rows that are not valid."""
    structure = Structure.of(player.env.action_spec)
    chosen, others = (structure.flatten(player.choose(salt)) for salt in (0, 1))
    invalid = ~row.valid.to(chosen[0].device)
    mixed = tuple(
        torch.where(invalid.view(-1, *[1] * (x.ndim - 1)), y, x)
        for x, y in zip(chosen, others, strict=True)
    )
    return structure.unflatten(mixed, [player.env.num_envs])
