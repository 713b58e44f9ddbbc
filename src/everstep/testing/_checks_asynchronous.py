"""The check of `asynchronous`: an env step in two halves is an env step."""

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
    """`step_async` and `step_wait` of an environment that is `asynchronous` are its `step`."""
    num_envs = max(subject.num_envs_choices)
    with Player(subject, num_envs, seed=subject.seed) as player:
        _check_declared(player.env)
        player.reset()
        rows = [_in_halves(player) for _ in range(_STEPS)]
        player.reset()  # no env step is left under way
        is_known = hasattr(player.env, "seed") and subject.deterministic_by_seed
    if not is_known:
        return
    with Player(subject, num_envs, seed=subject.seed) as player:
        player.reset()
        for t, row in enumerate(rows):
            changed = difference(player.step(), row)
            if changed is not None:
                raise Violation(
                    "`step_wait`",
                    "It returns what `step` would have returned after the action of `step_async`.",
                    f"{changed}, at env step {t}",
                    "Let `step` be the two, one after the other; or do not declare `asynchronous`.",
                )


def _check_declared(env: Any) -> None:
    """Raise where there are no halves to be compared."""
    if not getattr(env, "asynchronous", False):
        raise NotApplicable("the environment does not say that it is `asynchronous`")
    for name in ("step_async", "step_wait"):
        if not hasattr(env, name):
            raise Violation(
                "`asynchronous`",
                "Where it is True, `step_async` and `step_wait` are an env step.",
                f"no `{name}`",
                "Add it, or do not declare `asynchronous`.",
            )
    if not is_asynchronous(env):
        raise NotApplicable("`step` is overridden and `step_async` is not, so `step` is called")


def _in_halves(player: Player) -> Row:
    """Copies of what an env step in two halves returned."""
    env: Any = player.env
    action, obs = player.choose(), copies(player.observation.flatten(player.acted_on))
    with torch.no_grad():
        attempt("`step_async`", lambda: env.step_async(action))
        outcome = attempt("`step_wait`", env.step_wait)
    check_outcome(env, player.observation, outcome)
    player.acted_on = outcome["obs"]
    player.t += 1
    return player.copy_row(obs, outcome)
