"""The check of `asynchronous`: `step_async` and `step_wait` equal `step`."""

from typing import Any

import torch

from ..env import is_asynchronous
from ._player import Player, Row, copies, difference
from ._results import NotApplicable, Violation
from ._structure import attempt, check_outcome
from ._subject import Subject

#: Env steps that are compared.
_STEPS = 12


def check_asynchronous(subject: Subject) -> None:
    """If an environment is `asynchronous`, `step_async` and `step_wait` do what `step` does."""
    num_envs = max(subject.num_envs_choices)
    with Player(subject, num_envs, seed=subject.seed) as player:
        _check_declared(player.env)
        player.reset()
        rows = [_in_halves(player) for _ in range(_STEPS)]
        player.reset()  # no env step is pending
        repeats = hasattr(player.env, "seed") and subject.deterministic_by_seed
    if not repeats:
        return
    with Player(subject, num_envs, seed=subject.seed) as player:
        player.reset()
        for t, row in enumerate(rows):
            changed = difference(player.step(), row)
            if changed is not None:
                raise Violation(
                    "`step_wait`",
                    "It returns what `step` returns for the action of `step_async`.",
                    f"{changed}, at env step {t}",
                    "Implement `step` as one after the other, or do not declare `asynchronous`.",
                )


def _check_declared(env: Any) -> None:
    """Raise if there is nothing to compare."""
    if not getattr(env, "asynchronous", False):
        raise NotApplicable("the environment does not declare `asynchronous`")
    for name in ("step_async", "step_wait"):
        if not hasattr(env, name):
            raise Violation(
                "`asynchronous`",
                "If it is True, the environment has `step_async` and `step_wait`.",
                f"no `{name}`",
                "Add it, or do not declare `asynchronous`.",
            )
    if not is_asynchronous(env):
        raise NotApplicable("`step` is overridden and `step_async` is not, so `step` is called")


def _in_halves(player: Player) -> Row:
    """Copies of the result of `step_async` and `step_wait`."""
    env: Any = player.env
    action, obs = player.choose(), copies(player.observation.flatten(player.acted_on))
    with torch.no_grad():
        attempt("`step_async`", lambda: env.step_async(action))
        outcome = attempt("`step_wait`", env.step_wait)
    check_outcome(env, player.observation, outcome)
    player.acted_on = outcome["obs"]
    player.t += 1
    return player.copy_row(obs, outcome)
