"""The check of `resets_rows`: `reset_rows` resets the rows that it is given, and no others."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ._causes import STEPS, follows_seed
from ._player import Player, Row, all_same, copies
from ._results import NotApplicable, Violation
from ._subject import Subject

#: Vector steps of each `_PERIOD` before which rows are reset. They are not equally far apart, so
#: that there is one in the middle of an episode, whatever its length.
_TURNS, _PERIOD = (2, 6), 7

#: A row, and the environments that were reset before it, bool `[N]`.
_Played = tuple[Row, torch.Tensor]


def check_reset_rows(subject: Subject) -> None:
    """If an environment `resets_rows`, `reset_rows` begins episodes in the rows it is given."""
    with Player(subject, seed=subject.seed) as player:
        if not getattr(player.env, "resets_rows", False):
            raise NotApplicable("the environment does not declare `resets_rows`")
        size = getattr(player.env, "rows_per_env", 1)
        chosen = torch.arange(player.env.num_envs) // size % 2 == 0
        nothing = torch.zeros_like(chosen)
        player.reset()
        limits = _limits([(row, nothing) for row in player.play(subject.num_steps)])
        is_seeded = follows_seed(player)
    with Player(subject, seed=subject.seed) as player:
        player.reset()
        played = _play(player, chosen)
    for env, length, is_cut in _lengths(played):
        if (limit := limits.get(env)) and (length > limit or (is_cut and length < limit)):
            raise _violation(
                f"an episode of {length} env steps in environment {env}, whose clock ends all of "
                f"them after {limit}",
                "Reset the clock of these rows, and write to no other row: `torch.where(rows, …)`.",
            )
    if is_seeded and not chosen.all():
        _check_others(subject, chosen)


def _play(player: Player, chosen: torch.Tensor) -> list[_Played]:
    """Rows of an environment whose `chosen` rows, bool `[N]`, are reset every few vector steps."""
    played, has_moved, stayed = [], False, []
    for t in range(player.subject.num_steps):
        rows = chosen if t % _PERIOD in _TURNS else torch.zeros_like(chosen)
        if rows.any():
            before = copies(player.observation.flatten(player.acted_on))
            stayed.append(all_same(before, player.reset_rows(rows)))
        row = player.step()
        if bool((rows & (~row.valid | (row.first & ~row.done))).any()):
            fix = "Let `reset_rows` forget that a reset of these rows is due."
            raise _violation("rows that the next vector step resets again", fix)
        has_moved |= not all_same(row.obs, row.next_obs)
        played.append((row, rows))
    if has_moved and len(stayed) > 2 and all(stayed):
        fix = "Reset the rows, and return the observations that their episodes begin with."
        raise _violation("the observations that were there before", fix)
    return played


def _lengths(played: Iterable[_Played]) -> Iterator[tuple[int, int, bool]]:
    """Of each env step: environment, env steps of its episode so far, whether a clock ended it."""
    lengths: Any = 0
    for row, rows in played:
        lengths = torch.where(rows, 0, lengths) + row.valid.long()
        is_cut = row.truncated & ~row.terminated
        for env in row.valid.nonzero().flatten().tolist():
            yield env, int(lengths[env]), bool(is_cut[env])
        lengths = torch.where(row.done, 0, lengths)


def _limits(played: Iterable[_Played]) -> dict[int, int]:
    """Length of the episodes that a clock ends, by environment, where they are equally long."""
    seen: dict[int, list[int]] = {}
    for env, length, is_cut in _lengths(played):
        if is_cut:
            seen.setdefault(env, []).append(length)
    return {env: x[0] for env, x in seen.items() if len(x) > 1 and len({*x}) == 1}


def _check_others(subject: Subject, chosen: torch.Tensor) -> None:
    """Check that rows which are not reset go on, unless all draw from one generator."""
    never, once, twice = (_others(subject, chosen, times) for times in range(3))
    if all_same(once, twice) and not all_same(never, once):
        fix = "Write to the rows that it is given only: `torch.where(rows, …)`."
        raise _violation("rows that it was not given, and that go on otherwise", fix)


def _others(subject: Subject, chosen: torch.Tensor, times: int) -> tuple[torch.Tensor, ...]:
    """Results of the rows that are not `chosen`, after `chosen` ones were reset `times` times."""
    with Player(subject, seed=subject.seed) as player:
        player.reset()
        player.play(_TURNS[0])
        for _ in range(times):
            player.reset_rows(chosen)
        return tuple(x[~chosen] for row in player.play(STEPS) for x in row.tensors().values())


def _violation(found: str, fix: str) -> Violation:
    rule = "It begins a new episode in each row that it is given, and changes no other row."
    return Violation("`reset_rows`", rule, found, fix)
