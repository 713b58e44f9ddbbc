"""Policies: a model and an action distribution, feedforward, windowed or recurrent."""

import os
from typing import TYPE_CHECKING, Any

from ..data import Device
from . import _saving
from ._base import GenericPolicyBase
from ._build import check_history, check_means, check_policy, make_policy, trying
from ._core import Actor, PolicyCore, Sample, autocast_of, model_mode
from ._feedforward import Policy
from ._following import Follower
from ._groups import GroupedPolicy
from ._preserving import preserving
from ._recurrent import RecurrentPolicy
from ._saving import env_of
from ._saving import save as save_policy
from ._saving import state_of as policy_state

if TYPE_CHECKING:
    from ._mlflow import MLflowPolicyModel, MLflowRecurrentPolicyModel

__all__ = [
    "Actor",
    "Follower",
    "GenericPolicyBase",
    "GroupedPolicy",
    "MLflowPolicyModel",
    "MLflowRecurrentPolicyModel",
    "Policy",
    "PolicyCore",
    "RecurrentPolicy",
    "Sample",
    "autocast_of",
    "check_history",
    "check_means",
    "check_policy",
    "env_of",
    "load_policy",
    "make_policy",
    "model_mode",
    "policy_state",
    "preserving",
    "save_policy",
    "trying",
]


if not TYPE_CHECKING:  # checkers would take every name for an export

    def __getattr__(name: str) -> Any:
        if name in ("MLflowPolicyModel", "MLflowRecurrentPolicyModel"):
            from . import _mlflow  # imports MLflow, which takes a second

            return getattr(_mlflow, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_policy(
    path: str | os.PathLike[str], /, *, device: Device = "cpu", **arguments: Any
) -> Policy | RecurrentPolicy:
    """The policy in a file, of whichever kind it is.

    Args:
        path: File that `save` wrote, or the directory of a run.
        device: Where the model lives.
        **arguments: See `Policy.load`.

    Raises:
        CheckpointError: If the file is damaged, or its weights do not fit the model.

    """
    kind: type[Policy] | type[RecurrentPolicy] = _saving.KINDS.get(_saving.kind_of(path), Policy)
    return kind.load(path, device=device, **arguments)
