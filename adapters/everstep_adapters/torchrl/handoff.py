"""Transfer of a TorchRL environment's tensors to the device of its rows."""

from collections.abc import Sequence

import torch

from ..common.handoff import TransferBuffer, indexed


class Handoff:
    """Transfer of the tensors of a vector step.

    On the environment's own device they are returned as they are. From the CPU to an accelerator
    they go through pinned memory that is allocated once, all in one copy. From an accelerator to
    another device each is copied, and the host waits for it.

    Args:
        source: The environment's device.
        device: Device of the rows.
        staged: Whether the tensors go through memory of their own; by default from the CPU to an
            accelerator.

    """

    #: Its line in `describe`.
    description: str

    def __init__(
        self, source: torch.device, device: torch.device, *, staged: None | bool = None
    ) -> None:
        self._is_same = indexed(source) == indexed(device)
        self._is_staged = source.type == "cpu" and not self._is_same if staged is None else staged
        self._device = device
        self._buffer: None | TransferBuffer = None
        if self._is_staged:
            copies = f"{source} to {device} through pinned memory, one copy; actions back"
        elif self._is_same:
            copies = "same device, observations are the environment's own tensors (0 copies)"
        else:
            copies = f"{source} to {device}, one copy a tensor; actions back"
        self.description = copies

    def send(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The tensors on the device of the rows, unchanged until the next call.

        Args:
            tensors: As many as in every call, of the same shapes and dtypes.

        """
        if not self._is_staged:
            return tensors if self._is_same else [tensor.to(self._device) for tensor in tensors]
        if self._buffer is None:
            layout = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
            self._buffer = TransferBuffer(layout, self._device, staged=True)
        buffer = self._buffer
        buffer.wait()
        for entry, tensor in zip(buffer.entries, tensors, strict=True):
            entry.write(buffer.side, tensor)
        buffer.publish()
        return [entry.tensor for entry in buffer.entries]
