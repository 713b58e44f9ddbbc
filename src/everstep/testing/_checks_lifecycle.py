"""Checks of making, seeding, resetting and closing an environment."""

import copy as copying
from contextlib import ExitStack
from typing import Any

import torch

from ..env.specs import Leaves
from ._causes import RESETS, STEPS, cause, repeats, starts
from ._player import Player, all_same, compare
from ._results import NotApplicable, Violation
from ._structure import attempt
from ._subject import Subject


def check_seed(subject: Subject) -> None:
    """Equal seeds and actions give equal rows, and another seed gives different ones."""
    with Player(subject, seed=subject.seed) as player:
        _check_seedable(subject, player)
        opened = starts(player)
    if not repeats(subject):
        rule = "A new environment with the same seed repeats states and rewards."
        raise Violation("`seed`", rule, *cause(subject))
    other = subject.seed + 1_000
    with Player(subject, seed=other) as player:
        same_starts = all_same(opened, starts(player))
    if same_starts and not _are_fixed(opened):
        raise Violation(
            "`seed`",
            "Another seed gives different states.",
            f"the same states of {RESETS} resets for seeds {subject.seed} and {other}",
            "Pass the seed on to every generator that the environment draws from.",
        )


def check_reseed(subject: Subject) -> None:
    """After `seed` and `reset`, a used environment repeats the rows of a new one."""
    if not subject.reseedable:
        raise NotApplicable("`reseedable` is False")
    try:
        check_seed(subject)  # before the environment below is open: `check_close` mixes them
    except Violation:
        raise NotApplicable(
            "the environment does not follow its seed; see the check `seed`"
        ) from None
    with Player(subject, seed=subject.seed) as player:
        start, rows = player.reset(), player.play(STEPS)
        player.t = 0  # the same actions again
        player.seed(subject.seed)
        rule = "A used environment repeats states and rewards."
        fix = (
            "Draw random numbers from generators that `seed` seeds, and let `reset` restore "
            "everything that steps have changed."
        )
        if not all_same(start, player.reset()):
            raise Violation("`seed`", rule, "other observations at the reset", fix)
        compare(rows, (player.step() for _ in rows), "`seed`", rule, fix)


def _are_fixed(opened: Leaves) -> bool:
    """Whether every reset gave the same observations."""
    leaves = len(opened) // RESETS
    return all_same(opened[:-leaves], opened[leaves:])


def _check_seedable(subject: Subject, player: Player) -> None:
    if not hasattr(player.env, "seed"):
        raise NotApplicable("the environment has no `seed`")
    if not subject.deterministic_by_seed:
        raise NotApplicable("`deterministic_by_seed` is False")


def check_later_resets(subject: Subject) -> None:
    """Later resets draw new states: a seed determines one reset."""
    if not subject.resets_draw_new_states:
        raise NotApplicable("`resets_draw_new_states` is False")
    with Player(subject, seed=subject.seed) as player:
        opened = []
        for _ in range(3):
            opened.append(player.reset())
            player.play(2)
    if not all(all_same(opened[0], start) for start in opened):
        return
    if all(bool((leaf == leaf[:1]).all()) for leaf in opened[0]):
        raise NotApplicable("every reset gives every environment the same observation")
    raise Violation(
        "`reset`",
        "It draws new states each time.",
        "the same states from three resets",
        "Seed generators in `seed`, not in `reset`. If initial states are fixed, set "
        "`resets_draw_new_states` to False.",
    )


def check_reset(subject: Subject) -> None:
    """`reset` works at the horizon, twice in a row and in an episode, and takes a config."""
    for num_envs in subject.num_envs_choices:
        with Player(subject, num_envs) as player:
            for num_steps in (subject.horizon, 0, max(1, subject.horizon // 2), subject.horizon):
                player.reset()
                player.play(num_steps)
            player.reset(config=None)
            player.play(1)
            config = copying.deepcopy(subject.reset_config or {})
            given = copying.deepcopy(config)
            player.reset(config=given)
            player.play(1)
            if str(given) != str(config):
                rule = "The config is the caller's: `reset` reads it."
                raise Violation("`reset`", rule, given, "Copy it before taking keys out of it.")


def check_close(subject: Subject) -> None:
    """`close` may be called twice and before a reset, and does not affect other environments."""
    num_envs = min(subject.num_envs_choices)
    with ExitStack() as stack:
        player = stack.enter_context(Player(subject, num_envs))
        if not hasattr(player.env, "close"):
            raise NotApplicable("the environment has no `close`")
        if not subject.exclusive:
            other = stack.enter_context(Player(subject, num_envs))
            other.reset()
        _close(player, "before a reset")
        _close(player, "twice")
        if not subject.exclusive:
            other.play(2)
            _close(other, "after vector steps")
    with Player(subject, num_envs) as again:
        again.reset()
        again.play(2)


def _close(player: Player, when: str) -> None:
    fix = "Release only resources that exist and have not been released."
    attempt("`close`", player.close, Violation, rule=f"It may be called {when}.", fix=fix)


def check_process(subject: Subject) -> None:
    """Environments do not change PyTorch's global settings."""
    before = _settings()
    with Player(subject, min(subject.num_envs_choices), seed=subject.seed) as player:
        player.reset()
        player.play(2)
    after = _settings()
    changed = [f"{k} {before[k]} became {after[k]}" for k in before if before[k] != after[k]]
    if changed:
        raise Violation(
            "the process",
            "Its settings belong to the caller.",
            ", ".join(changed),
            "Use context managers, such as `torch.no_grad()`, inside the environment.",
        )


def _settings() -> dict[str, Any]:
    return {
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }
