"""Checkpoints of several processes: the state of rank 0, and of the others what is their own."""

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import CheckpointError

#: Parts of an algorithm's state that each process has its own of.
_OWN = (
    *("continues", "env", "episodes", "last_done", "last_obs", "memory", "reversed_returns"),
    *("rng", "cuda_rng", "bonuses"),
)


def own_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of an algorithm's state that are of this process only."""
    return {key: state[key] for key in _OWN if key in state}


def for_rank(state: Mapping[str, Any], algorithm: Any) -> dict[str, Any]:
    """The states of algorithm and callbacks in this process, from a trainer's state.

    If another number of processes saved it, environments, episodes and noise start anew, and
    callbacks go on from those of rank 0.

    Args:
        state: State of a trainer, of one or several processes.
        algorithm: The algorithm that is to continue.

    Raises:
        CheckpointError: If the state has no mapping of the algorithm.

    """
    saved: dict[str, Any] = state["algorithm"]
    if not isinstance(saved, Mapping):  # a tensor would be indexed by names, with a warning
        raise CheckpointError(f"`algorithm` of a state is a mapping; got {type(saved).__name__}.")
    reducer, ranks = algorithm.reducer, [own_part(saved), *state.get("ranks", ())]
    callbacks = state.get("callbacks", ())
    if len(ranks) == reducer.size:
        its = dict(ranks[reducer.rank])
        return {"callbacks": its.pop("callbacks", callbacks), "algorithm": {**saved, **its}}
    own = own_part(algorithm.state_dict())
    bonuses = {
        name: {key: _fitting(x, own["bonuses"][name].get(key)) for key, x in each.items()}
        for name, each in saved["bonuses"].items()
        if name in own["bonuses"]
    }
    anew = {"bonuses": bonuses, "env": None, "continues": False, "memory": None}
    return {"callbacks": callbacks, "algorithm": {**saved, **own, **anew}}


def _fitting(saved: torch.Tensor, own: None | torch.Tensor) -> torch.Tensor:
    """A saved tensor; the algorithm's own, if that has another shape: it is of its environments."""
    return saved if own is None or own.shape == saved.shape else own
