"""What a rollout adds to besides itself, and how that is taken back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ._algorithm import OnPolicyAlgorithm

#: Tensors by what they belong to, and name.
Kept = dict[str, dict[str, torch.Tensor]]


def copy_of(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> Kept:
    """A copy of the episodes' counters and of the running spread of returns."""
    return {
        "episodes": {n: x.clone() for n, x in algorithm.episodes.state_dict().items()},
        "returns": {n: x.clone() for n, x in algorithm.discounted_returns.state_dict().items()},
        **{
            bonus.name: {name: x.clone() for name, x in bonus.named_buffers()}
            for bonus in algorithm.bonuses
        },
    }


def put_back(algorithm: "OnPolicyAlgorithm[Any, Any, Any]", kept: Kept) -> None:
    """Make them what they were."""
    algorithm.episodes.load_state_dict(kept["episodes"])
    algorithm.discounted_returns.load_state_dict(kept["returns"])
    for bonus in algorithm.bonuses:
        bonus.load_state_dict(kept[bonus.name], strict=False)


@contextmanager
def evaluating(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> Iterator[None]:
    """Rollouts in here leave no trace; see `OnPolicyAlgorithm.evaluating`."""
    kept = copy_of(algorithm)
    filtered = algorithm.rollout.reversed_returns[-1].clone()
    algorithm.episodes.finished.zero_()
    algorithm.is_evaluating = True
    try:
        yield
    finally:
        algorithm.is_evaluating = False
        kept["episodes"]["open"] = algorithm.episodes.open.clone()
        put_back(algorithm, kept)
        algorithm.rollout.reversed_returns[-1].copy_(filtered)
        algorithm.state.buffered = False
