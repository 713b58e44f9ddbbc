"""Policies: a model and an action distribution, and all that differs between kinds of policy."""

import os
from typing import Any

from ..data import Device
from . import _saving
from ._base import GenericPolicyBase, Sample, model_mode
from ._feedforward import Policy
from ._recurrent import RecurrentPolicy

__all__ = [
    "GenericPolicyBase",
    "Policy",
    "RecurrentPolicy",
    "Sample",
    "load_policy",
    "model_mode",
]


def load_policy(
    path: str | os.PathLike[str], /, *, device: Device = "cpu", **arguments: Any
) -> Policy | RecurrentPolicy:
    """The policy in a file, of whichever kind it is.

    Args:
        path: File that `save` wrote.
        device: Where the model lives.
        **arguments: See `Policy.load`.

    Raises:
        CheckpointError: Where the file is damaged, or its weights do not fit the model.

    """
    kinds: dict[str, type[Policy] | type[RecurrentPolicy]] = {
        "Policy": Policy,
        "RecurrentPolicy": RecurrentPolicy,
    }
    kind = kinds.get(_saving.kind_of(path), Policy)
    return kind.load(path, device=device, **arguments)
