"""Snapshots: what something was before, to be restored where what follows fails."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from typing_extensions import Self

from ..errors import CheckpointError, EverstepError


class Snapshot:
    """A copy of a state, and how to load it again.

    Args:
        save: Returns the state: nested mappings and sequences of tensors, arrays and numbers.
        load: Loads such a state.
        device: Device of the copies of tensors; None for the tensor's own.

    """

    def __init__(
        self,
        save: Callable[[], Any],
        load: Callable[[Any], object],
        *,
        device: None | str = None,
    ) -> None:
        self._state, self._load = copied(save(), device), load

    @classmethod
    def of_tensors(cls, tensors: Iterable[torch.Tensor]) -> Self:
        """A snapshot of tensors, which are written in place."""
        own = [x.detach() for x in tensors]

        def write(saved: list[torch.Tensor]) -> None:
            with torch.no_grad():
                for x, before in zip(own, saved, strict=True):
                    x.copy_(before)

        return cls(lambda: own, write)

    @classmethod
    def of_random_states(cls, device: torch.device) -> Self:
        """A snapshot of the random states of the host and of a device."""

        def save() -> tuple[torch.Tensor, None | torch.Tensor]:
            on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
            return torch.get_rng_state(), on_gpu

        def load(states: tuple[torch.Tensor, None | torch.Tensor]) -> None:
            torch.set_rng_state(states[0])
            if states[1] is not None:
                torch.cuda.set_rng_state(states[1], device)

        return cls(save, load)

    def restore(self) -> None:
        """Load the state that was copied."""
        self._load(self._state)

    @contextlib.contextmanager
    def on_error(self) -> Iterator[None]:
        """Context that restores if anything is raised in it."""
        try:
            yield
        except BaseException:
            self.restore()
            raise


@contextlib.contextmanager
def loading(
    save: Callable[[], Any],
    load: Callable[[Any], object],
    check: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Context of loading a state with any content; an error restores the state before.

    Args:
        save: Returns the state to restore. If it raises, as before a first reset, nothing is
            restored.
        load: Loads what `save` returned.
        check: Called first; raises if the new state does not fit, before anything is written.

    Raises:
        CheckpointError: In place of any error that is not an `EverstepError`.

    """
    try:
        check()
        before: Any = contextlib.nullcontext()
        with contextlib.suppress(Exception):
            before = Snapshot(save, load, device="cpu").on_error()
        with before:
            yield
    except EverstepError:
        raise
    except Exception as error:  # a file may hold anything
        reason = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError(f"The checkpoint does not fit ({reason}).") from error


def copied(value: Any, device: None | str = "cpu") -> Any:
    """A copy of a state, with its tensors on a device; None for where they are."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device or value.device, copy=True)
    if isinstance(value, np.ndarray | np.void | bytearray):  # a `void` may be part of an array
        return value.copy()
    if isinstance(value, dict):
        return {key: copied(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [copied(item, device) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value
