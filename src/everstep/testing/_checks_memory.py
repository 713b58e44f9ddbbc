"""Checks of memory: who may write to observations, results and actions."""

from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Bounded

from ..env.specs import Structure, is_bound, leaf_specs
from ._causes import follows_seed
from ._player import Player, Row, compare, copies, difference, same
from ._results import Unplayable, Violation
from ._subject import Subject

#: Vector steps in which memory is watched.
_STEPS = 8


def check_memory(subject: Subject) -> None:
    """Results of `reset` and `step` stay unchanged until the next call."""
    with ExitStack() as stack:
        player = stack.enter_context(Player(subject))
        others = [] if subject.exclusive else [stack.enter_context(Player(subject))]
        first = player.reset()
        for other in others:
            other.reset()
        _disturb(player, others)
        after = copies(player.observation.flatten(player.acted_on))
        for i, (x, y) in enumerate(zip(first, after, strict=True)):
            if not same(x, y):
                raise _changed("`reset`", f"observations, leaf {i}")
        for _ in range(_STEPS):
            obs, action = copies(player.observation.flatten(player.acted_on)), player.choose()
            outcome = player.step_as_is(action)
            before = player.copy_row(obs, outcome)
            _overwrite(action)
            _disturb(player, others, outcome)
            changed = difference(before, player.copy_row(obs, outcome))
            if changed is not None:
                raise _changed("`step`", changed)


def _disturb(player: Player, others: list[Player], outcome: Any = None) -> None:
    """Do what a caller may do between two vector steps."""
    for other in others:
        other.step()
    player.env.observation_spec.rand()
    player.env.action_spec.rand()
    if hasattr(outcome, "clone"):
        outcome.clone()


def _overwrite(action: torch.Tensor | TensorDict) -> None:
    """Overwrite an action, which a caller may do once `step` has returned."""
    for leaf in [action] if isinstance(action, torch.Tensor) else action.values(True, True):
        leaf.copy_(leaf == 0)


def _changed(what: str, changed: str) -> Violation:
    return Violation(
        what,
        "Its result stays unchanged until the next `step` or `reset`, whatever happens to the "
        "action, to other environments of the class, and to copies.",
        f"a change of {changed}",
        "Copy tensors that share memory with the action, with class attributes or with a buffer "
        "that something else writes to.",
    )


def check_actions_unwritten(subject: Subject) -> None:
    """`step` does not write to its action."""
    with Player(subject) as player:
        structure = Structure.of(player.env.action_spec)
        player.reset()
        for _ in range(_STEPS):
            action = player.choose()
            before = copies(structure.flatten(action))
            player.step_as_is(action)
            after = copies(structure.flatten(action))
            for x, y in zip(before, after, strict=True):
                if not same(x, y):
                    raise Violation(
                        "`action`",
                        "`step` only reads it.",
                        f"{x.flatten()[:8].tolist()} became {y.flatten()[:8].tolist()}",
                        "Work on a copy: `action.clamp(…)` rather than `action.clamp_(…)`.",
                    )


# ---- the forms of actions ------------------------------------------------------------------------


def check_action_forms(subject: Subject) -> None:
    """Actions may have any strides, require gradients, and exceed their bounds."""
    repeats, plain = _play(subject, _as_it_is)
    for name, form in {"with strides": _strided, "that require gradients": _with_gradients}.items():
        what = f"actions {name}"
        try:
            with torch.no_grad() if form is _with_gradients else nullcontext():
                _, rows = _play(subject, form, what)
        except Violation:
            if form is not _with_gradients:
                raise
            _, rows = _play(subject, form, what, _Detached)  # it may differentiate in `step`
        if repeats:
            compare(
                plain,
                rows,
                "`action`",
                f"Actions {name} have the effect of the same contiguous actions.",
                "Read the action with PyTorch, or call `action.contiguous()` first.",
            )
    _play(subject, _far_out, "actions outside of their bounds")


def _play(
    subject: Subject, form: Any, what: str = "actions", player_cls: type[Player] = Player
) -> tuple[bool, list[Row]]:
    """Whether a seed determines the rows, and the rows of actions in some form."""
    with player_cls(subject, seed=subject.seed) as player:
        structure = Structure.of(player.env.action_spec)
        specs = leaf_specs(player.env.action_spec).values()
        player.reset()
        rows = []
        for _ in range(_STEPS):
            leaves = structure.flatten(player.choose())
            given = tuple(form(x, spec) for x, spec in zip(leaves, specs, strict=True))
            try:
                rows.append(player.step(structure.unflatten(given, [player.env.num_envs])))
            except Unplayable as error:
                if form is _as_it_is:
                    raise
                rule = f"It accepts {what}."
                fix = "Read it with `action.detach()`, and clip it to its bounds."
                raise Violation("`step`", rule, error.received, fix) from error
        return follows_seed(player), rows


class _Detached(Player):
    """Results may require gradients, as the actions do that they depend on."""

    def _call_step(self, action: torch.Tensor | TensorDict) -> Any:
        outcome = super()._call_step(action)
        return outcome.detach() if hasattr(outcome, "detach") else outcome


def _as_it_is(leaf: torch.Tensor, spec: Any) -> torch.Tensor:
    return leaf


def _strided(leaf: torch.Tensor, spec: Any) -> torch.Tensor:
    """The same values in every other element of a larger block, with the batch last in memory."""
    block = torch.empty(*reversed(leaf.shape), 2, dtype=leaf.dtype, device=leaf.device)
    view = block[..., 0].permute(*reversed(range(leaf.ndim)))
    return view.copy_(leaf)


def _with_gradients(leaf: torch.Tensor, spec: Any) -> torch.Tensor:
    return leaf.requires_grad_() if leaf.is_floating_point() else leaf


def _far_out(leaf: torch.Tensor, spec: Any) -> torch.Tensor:
    """Real-valued actions at ten times their bounds: those of a Gaussian policy are unbounded."""
    if not (isinstance(spec, Bounded) and leaf.is_floating_point()):
        return leaf
    ends = torch.where(leaf > 0, spec.space.high, spec.space.low).to(leaf.device)
    return torch.where(is_bound(ends), ends, leaf) * 10
