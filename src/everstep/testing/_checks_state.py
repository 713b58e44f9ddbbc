"""The check of `state_dict` and `load_state_dict`: training continues where it was saved."""

import copy
import tempfile
from contextlib import ExitStack
from typing import Any

from ..core.checkpoints import load_file, save_file
from ..errors import CheckpointError
from ._causes import follows_seed
from ._player import Player, Row, compare, forked_generators
from ._results import NotApplicable, Violation
from ._structure import attempt
from ._subject import Subject

#: Vector steps that are compared.
_STEPS = 12


def check_state(subject: Subject) -> None:
    """After `load_state_dict(state_dict())`, the same and a new environment repeat the rows."""
    with Player(subject, seed=subject.seed) as player:
        if not (hasattr(player.env, "state_dict") and hasattr(player.env, "load_state_dict")):
            raise NotApplicable("the environment has no `state_dict` and `load_state_dict`")
        player.reset()
        _play_to_an_end(player, subject.num_steps)
        env: Any = player.env
        state = attempt("`state_dict`", lambda: env.state_dict())
        if state is None:
            raise NotApplicable("`state_dict` is None: the environment's state cannot be read")
        if hasattr(env, "seed") and subject.deterministic_by_seed and not follows_seed(player):
            raise NotApplicable("the environment does not follow its seed; see the check `seed`")
        stored, t, acted_on = _stored(state), player.t, player.acted_on.clone()
        # Checkpoints restore PyTorch's generators separately: all rows start from the same ones.
        with forked_generators(subject.device):
            rows = player.play(_STEPS)
        _check_continues(player, state, t, acted_on, rows)
    with ExitStack() as stack:
        with forked_generators(subject.device):
            player = stack.enter_context(Player(subject, seed=subject.seed + 1))
            player.reset()
        _check_continues(player, stored, t, acted_on, rows)


def _play_to_an_end(player: Player, num_steps: int) -> None:
    """Play until an episode has just ended: a state must include pending resets."""
    for _ in range(num_steps):
        if player.step().done.any():
            return


def _stored(state: Any) -> Any:
    """The state, saved and loaded as part of a checkpoint."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            save_file(f"{directory}/state", state)
        except CheckpointError as error:
            raise Violation(
                "`state_dict`",
                "It can be saved in a checkpoint.",
                str(error),
                "Make it of dicts, lists, tuples, tensors, numbers, strings and None.",
            ) from error
        return load_file(f"{directory}/state")


def _check_continues(player: Player, state: Any, t: int, acted_on: Any, rows: list[Row]) -> None:
    """Check that an environment with that state repeats the rows.

    Args:
        player: The environment.
        state: A state.
        t: Vector steps before it.
        acted_on: Observations that the next action was chosen from.
        rows: The rows that followed.

    """
    env: Any = player.env
    with forked_generators(env.device):
        attempt("`load_state_dict`", lambda: env.load_state_dict(copy.deepcopy(state)))
    player.t, player.acted_on = t, acted_on
    with forked_generators(env.device):
        compare(
            rows,
            (player.step() for _ in rows),
            "`load_state_dict`",
            "It restores everything that determines the following rows.",
            "Copy everything that steps change into the state: clocks, generators, and pending "
            "resets.",
            "{t} env steps after it",
        )
