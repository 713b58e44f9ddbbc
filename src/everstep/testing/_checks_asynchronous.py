"""The check of `asynchronous`: `step_async` and `step_wait` equal `step`."""

from typing import Any

import torch
from tensordict import TensorDict

from ..env import is_asynchronous
from ._causes import follows_seed
from ._player import Player, compare
from ._results import NotApplicable, Violation
from ._structure import attempt
from ._subject import Subject

#: Vector steps that are compared.
_STEPS = 12


def check_asynchronous(subject: Subject) -> None:
    """If an environment is `asynchronous`, `step_async` and `step_wait` do what `step` does."""
    with _HalvesPlayer(subject, seed=subject.seed) as halves:
        _check_declared(halves.env)
        halves.reset()
        rows = halves.play(_STEPS)
        halves.reset()  # no vector step is pending
        if not follows_seed(halves):
            return
    with Player(subject, seed=subject.seed) as player:
        player.reset()
        compare(
            (player.step() for _ in rows),
            rows,
            "`step_wait`",
            "It returns what `step` returns for the action of `step_async`.",
            "Implement `step` as one after the other, or do not declare `asynchronous`.",
        )


class _HalvesPlayer(Player):
    """A player that steps by `step_async` and `step_wait`."""

    def _call_step(self, action: torch.Tensor | TensorDict) -> Any:
        env: Any = self.env
        attempt("`step_async`", lambda: env.step_async(action))
        return attempt("`step_wait`", env.step_wait)


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
