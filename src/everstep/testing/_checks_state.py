"""The check of `state_dict` and `load_state_dict`: training continues where it was saved."""

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ..checkpoints import load_file, save_file
from ..errors import CheckpointError
from ._player import Player, Row, difference, forked_generators
from ._results import NotApplicable, Violation
from ._structure import attempt, with_index
from ._subject import Subject

#: Env steps that are compared.
_STEPS = 12


def check_state(subject: Subject) -> None:
    """After `load_state_dict(state_dict())`, the same and a new environment repeat the rows."""
    num_envs = max(subject.num_envs_choices)
    with Player(subject, num_envs, seed=subject.seed) as player:
        if not (hasattr(player.env, "state_dict") and hasattr(player.env, "load_state_dict")):
            raise NotApplicable("the environment has no `state_dict` and `load_state_dict`")
        player.reset()
        _play_to_an_end(player, subject.num_steps)
        env: Any = player.env
        state = attempt("`state_dict`", lambda: env.state_dict())
        stored, generators = _stored(state), _generators(player)
        moment = _Moment(player.t, player.acted_on.clone(), player.play(_STEPS), generators)
        _check_continues(player, state, moment)
    with Player(subject, num_envs, seed=subject.seed + 1) as player:
        player.reset()
        _check_continues(player, stored, moment)


class _Moment(NamedTuple):
    """The circumstances of a state, and the rows that followed."""

    t: int

    #: Observations that the next action was chosen from.
    acted_on: Any

    #: Rows that followed.
    rows: list[Row]

    #: PyTorch's generators, which checkpoints restore separately.
    generators: dict[torch.device, torch.Tensor]


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


def _check_continues(player: Player, state: Any, moment: _Moment) -> None:
    """Raise if an environment with that state does not repeat the rows."""
    env: Any = player.env
    attempt("`load_state_dict`", lambda: env.load_state_dict(copy.deepcopy(state)))
    player.t, player.acted_on = moment.t, moment.acted_on
    with _generators_set(player, moment.generators):
        for i, row in enumerate(moment.rows):
            changed = difference(row, player.step())
            if changed is not None:
                raise Violation(
                    "`load_state_dict`",
                    "It restores everything that determines the following rows.",
                    f"{changed}, {i} env steps after it",
                    "Copy everything that steps change into the state: clocks, generators, and "
                    "pending resets.",
                )


def _generators(player: Player) -> dict[torch.device, torch.Tensor]:
    """States of PyTorch's generators that an environment may draw from, by device."""
    device = with_index(player.env.device)
    states = {torch.device("cpu"): torch.get_rng_state()}
    if device.type == "cuda":
        states[device] = torch.cuda.get_rng_state(device)
    return states


@contextmanager
def _generators_set(player: Player, states: dict[torch.device, torch.Tensor]) -> Iterator[None]:
    """Set PyTorch's generators within the block."""
    with forked_generators(player.env.device):
        for device, state in states.items():
            if device.type == "cuda":
                torch.cuda.set_rng_state(state, device)
            else:
                torch.set_rng_state(state)
        yield
