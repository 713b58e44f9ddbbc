"""Loading of states into objects, all of it or nothing."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from .errors import CheckpointError, EverstepError

#: Objects that `restored_on_error` is restoring, by `id`.
_RESTORED: set[int] = set()


@contextlib.contextmanager
def restored_on_error(owner: Any, check: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Context of loading a state into an object; if anything is raised, it gets its own back.

    Args:
        owner: Has `state_dict` and `load_state_dict`.
        check: Called first; refuses a state without changing anything.

    Raises:
        CheckpointError: If anything is raised that is no error of Everstep's.

    """
    if id(owner) in _RESTORED:  # its own state is being put back
        yield
        return

    def load(before: Any) -> None:
        _RESTORED.add(id(owner))
        try:
            owner.load_state_dict(before)
        finally:
            _RESTORED.remove(id(owner))

    with _refusing():
        check()
    with put_back_on_error(owner.state_dict, load):
        yield


@contextlib.contextmanager
def put_back_on_error(save: Callable[[], Any], load: Callable[[Any], object]) -> Iterator[None]:
    """Context of loading a state; if anything is raised, the one before is loaded.

    Args:
        save: Returns the state.
        load: Loads it.

    Raises:
        CheckpointError: If anything is raised that is no error of Everstep's.

    """
    with _refusing():
        before = None
        with contextlib.suppress(Exception):  # one that has not begun may have none
            before = copied(save())
        try:
            yield
        except BaseException:
            if before is not None:
                load(before)
            raise


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except EverstepError:
        raise
    except Exception as error:  # a file may hold anything
        reason = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError(f"The checkpoint does not fit ({reason}).") from error


def copied(value: Any) -> Any:
    """A copy of a state, with its tensors on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, np.ndarray | np.void | bytearray):  # a `void` may be part of an array
        return value.copy()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [copied(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value
