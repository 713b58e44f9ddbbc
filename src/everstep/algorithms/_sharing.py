"""Numbers that go from one process to another: taken away as copies, and taken over in place."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ..errors import CheckpointError
from ..normalizers import RunningMoments

if TYPE_CHECKING:
    from ._algorithm import OnPolicyAlgorithm

#: Gradients, weights or moments as they come from elsewhere.
Numbers = torch.Tensor | np.ndarray[Any, Any]


def tensor(numbers: Numbers) -> torch.Tensor:
    """A tensor of these numbers; a copy of an array, which may be read-only."""
    return numbers if isinstance(numbers, torch.Tensor) else torch.tensor(numbers)


def copied(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the CPU, by name."""
    return {name: x.detach().cpu().clone() for name, x in named.items()}


@torch.no_grad()
def take_over(own: Mapping[str, torch.Tensor], given: Mapping[str, Numbers], what: str) -> None:
    """Put what is given in the place of one's own.

    Args:
        own: What is written to, by name.
        given: Numbers of the same names and shapes.
        what: What they are, and of what, as an error says it.

    Raises:
        CheckpointError: Where names or shapes are others; nothing is changed then.

    """
    apart = sorted(own.keys() ^ given.keys())
    wrong = apart or [name for name, x in own.items() if x.shape != given[name].shape]
    if wrong:
        how = "are in one of them only" if apart else "have another shape"
        raise CheckpointError(
            f"The {what}: {', '.join(wrong)} {how}. Build both algorithms with the same config."
        )
    for name, x in own.items():
        x.copy_(tensor(given[name]))


def moments_of(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> dict[str, RunningMoments]:
    """The running moments that an algorithm normalises by, by name."""
    keepers: dict[str, None | nn.Module] = {
        "observations": algorithm.policy.normalizer,
        "rewards": algorithm.discounted_returns,
        **{f"bonuses.{bonus.name}": bonus for bonus in algorithm.bonuses},
    }
    return {
        f"{prefix}.{name}".rstrip("."): module
        for prefix, keeper in keepers.items()
        if keeper is not None
        for name, module in keeper.named_modules()
        if isinstance(module, RunningMoments)
    }


def buffers_of(moments: Mapping[str, RunningMoments]) -> dict[str, torch.Tensor]:
    """What moments consist of, by name."""
    return {
        f"{prefix}.{name}": x
        for prefix, each in moments.items()
        for name, x in each.named_buffers()
    }


def merge(moments: Mapping[str, RunningMoments], found: Sequence[Mapping[str, Numbers]]) -> None:
    """Take in what workers have seen since they had these moments.

    Raises:
        CheckpointError: Where names or shapes are others, or a worker has seen less than was seen
            when it began; nothing is changed then.

    """
    workers = [copy.deepcopy(dict(moments)) for _ in found]
    for worker, given in zip(workers, found, strict=True):
        take_over(buffers_of(worker), given, "moments do not fit this algorithm's")
        for name, own in moments.items():
            before, after = int(own.count), int(worker[name].count)
            if after < before:
                raise CheckpointError(
                    f"The moments {name} are of {after} rows, fewer than the {before} that are to "
                    "be added to. Give workers `get_moments()` with `set_moments` before they "
                    "collect."
                )
    for name, own in moments.items():
        own.merge([worker[name] for worker in workers])
