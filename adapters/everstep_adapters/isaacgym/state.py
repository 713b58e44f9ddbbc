"""States of tasks that offer them, by methods `state_dict` and `load_state_dict`."""

from functools import partial
from typing import Any

from everstep.errors import CheckpointError

from ..common.changes import Changes, fitting
from .endings import Endings


def has_state(task: Any) -> bool:
    """Whether a task offers its state: simulators on a GPU do not."""
    return hasattr(task, "state_dict") and hasattr(task, "load_state_dict")


def load_state(task: Any, name: str, endings: Endings, state: dict[str, Any]) -> None:
    """Set a state of `IsaacGymEnv.state_dict`.

    Raises:
        CheckpointError: If it does not fit; nothing is changed then.

    """
    changes = Changes()
    with fitting(name):
        changes.load(task, state["task"])
        own, given = endings.pending, state["pending"]
        if (own is None) != (given is None):
            raise CheckpointError("it is of another `reset_style`")
        if own is not None:
            if given.shape != own.shape or given.dtype != own.dtype:
                raise CheckpointError(f"`pending` must be bool {list(own.shape)}")
            moved = given.to(own.device, copy=True)
            changes.assign(partial(setattr, endings, "pending", moved))
    changes.make()
