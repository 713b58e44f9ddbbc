"""Host arrays and the tensors that show them on a device, allocated once and reused."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import torch

# Typed views and vector loads want their start aligned; 64 bytes is a cache line.
_ALIGNMENT = 64


class Slot(NamedTuple):
    """One tensor of a `Slab`: where the host writes it, and where the device shows it."""

    #: Host memory. Write here.
    array: npt.NDArray[Any]

    #: The same values on the device after `Slab.publish`.
    tensor: torch.Tensor


class Slab:
    """Tensors that reach their device together, in one copy.

    On the CPU the tensors *are* the host arrays and nothing is copied. Elsewhere the host side is
    one block (pinned for CUDA) and so is the device side. One host block is enough: a batch of
    environments that steps on the host has to wait for its actions, and they are computed after
    the previous copy; `wait` covers the callers for which that is not so.

    Args:
        layout: Shape and dtype of each slot.
        device: Device of the tensors.

    """

    #: One slot for each entry of the layout, in its order.
    slots: tuple[Slot, ...]

    def __init__(
        self, layout: Sequence[tuple[tuple[int, ...], torch.dtype]], device: torch.device
    ) -> None:
        offsets, size = _offsets(layout)
        on_cuda = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=on_cuda)
        self._device = self._host if device.type == "cpu" else self._host.to(device)
        self._copied = torch.cuda.Event() if on_cuda else None
        self.slots = tuple(
            Slot(_view(self._host, offset, *entry).numpy(), _view(self._device, offset, *entry))
            for offset, entry in zip(offsets, layout, strict=True)
        )

    def wait(self) -> None:
        """Return when the host arrays may be written to again. Call it before writing."""
        if self._copied is not None:
            self._copied.synchronize()

    def publish(self) -> None:
        """Make what was written to the host arrays visible in the tensors, in stream order."""
        if self._device is self._host:
            return
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def _offsets(
    layout: Sequence[tuple[tuple[int, ...], torch.dtype]],
) -> tuple[list[int], int]:
    """Byte offset of each slot, and the number of bytes in all."""
    offsets, size = [], 0
    for shape, dtype in layout:
        offsets.append(size)
        size += math.ceil(math.prod(shape) * dtype.itemsize / _ALIGNMENT) * _ALIGNMENT
    return offsets, size


def _view(
    block: torch.Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A typed view of bytes of `block`, contiguous."""
    return block[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
