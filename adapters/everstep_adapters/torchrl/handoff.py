"""The way of a TorchRL environment's tensors to the device of its rows."""

from collections.abc import Sequence

import torch

from ..common.handoff import Slab


class Handoff:
    """Hands over the tensors of an env step.

    On the environment's own device they stay what they are. From the CPU to an accelerator they go
    through pinned memory that is allocated once, all in one copy. From an accelerator to another
    device each is copied, and the host waits for it.

    Args:
        source: The environment's device.
        device: Device of the rows.
        staged: Whether the tensors go through memory of their own; by default from the CPU to an
            accelerator.

    """

    #: What it does, in words.
    told: str

    def __init__(
        self, source: torch.device, device: torch.device, *, staged: None | bool = None
    ) -> None:
        # An index may be missing in one of them.
        self._is_same = torch.empty(0, device=source).device == torch.empty(0, device=device).device
        self._is_staged = staged
        if staged is None:
            self._is_staged = source.type == "cpu" and not self._is_same
        self._device = device
        self._slab: None | Slab = None
        self._sides: list[list[torch.Tensor]] = []
        self.told = f"{source} to {device}, one copy a tensor; actions back"
        if self._is_staged:
            self.told = f"{source} to {device} through pinned memory, one copy; actions back"
        elif self._is_same:
            self.told = "same device, observations are the environment's own tensors (0 copies)"

    def send(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The tensors on the device of the rows, unchanged until the next call.

        Args:
            tensors: As many as in every call, of the same shapes and dtypes.

        """
        if self._is_staged:
            return self._send_staged(tensors)
        return tensors if self._is_same else [tensor.to(self._device) for tensor in tensors]

    def _send_staged(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self._slab is None:
            layout = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
            slab = self._slab = Slab(layout, self._device, staged=True)
            self._sides = [
                [torch.from_numpy(array) for array in arrays]
                for arrays in zip(*(slot.arrays for slot in slab.slots), strict=True)
            ]
        slab = self._slab
        slab.wait()
        for row, tensor in zip(self._sides[slab.side], tensors, strict=True):
            row.copy_(tensor)
        slab.publish()
        return [slot.tensor for slot in slab.slots]
