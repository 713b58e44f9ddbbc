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
    """A copy of the episodes' counters, of the running spread of returns, and of what observations
    are normalised by.
    """
    normalizer = algorithm.policy.normalizer
    kept = {
        "episodes": algorithm.episodes.state_dict(),
        "returns": algorithm.discounted_returns.state_dict(),
        "normalizer": {} if normalizer is None else normalizer.state_dict(),
        **{bonus.name: dict(bonus.named_buffers()) for bonus in algorithm.bonuses},
    }
    return {owner: {n: x.clone() for n, x in found.items()} for owner, found in kept.items()}


def put_back(algorithm: "OnPolicyAlgorithm[Any, Any, Any]", kept: Kept) -> None:
    """Make them what they were."""
    algorithm.episodes.load_state_dict(kept["episodes"])
    algorithm.discounted_returns.load_state_dict(kept["returns"])
    for bonus in algorithm.bonuses:
        bonus.load_state_dict(kept[bonus.name], strict=False)
    if algorithm.policy.normalizer is not None:
        algorithm.policy.normalizer.load_state_dict(kept["normalizer"])


@contextmanager
def matmul_precision(precision: None | str) -> Iterator[None]:
    """Multiply float32 matrices with this precision in here; None changes nothing."""
    before = torch.get_float32_matmul_precision()
    if precision is not None:
        torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        if precision is not None:
            torch.set_float32_matmul_precision(before)


@contextmanager
def undone_on_error(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> Iterator[None]:
    """What is added in here is taken back where it ends in an exception."""
    kept = copy_of(algorithm)
    try:
        yield
    except BaseException:
        put_back(algorithm, kept)
        raise


@contextmanager
def evaluating(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> Iterator[None]:
    """Rollouts in here leave no trace; see `OnPolicyAlgorithm.evaluating`."""
    kept = copy_of(algorithm)
    filtered = algorithm.rollout.reversed_returns[-1].clone()
    reward_scale = algorithm.state.reward_scale
    algorithm.episodes.finished.zero_()
    algorithm.is_evaluating = True
    try:
        yield
    finally:
        algorithm.is_evaluating = False
        kept["episodes"]["open"] = algorithm.episodes.open.clone()
        put_back(algorithm, kept)
        algorithm.rollout.reversed_returns[-1].copy_(filtered)
        algorithm.state.reward_scale = reward_scale
        algorithm.state.buffered = False
