"""Results of a compiled vector step as rows of tensors."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from tensordict import TensorDict

from everstep.data import DataKeys

from ..common.handoff import TransferBuffer
from .packing import Packing
from .specs import Observations, tensor_of

_FLAG_ORDER = (DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST)


class Rows:
    """Reader of the results of vector steps.

    On the host NumPy copies them into memory of their own: operations of PyTorch on views take
    longer, except for `bfloat16`, which NumPy has not. On a GPU they are the program's own.

    Args:
        packing: How the program joins its results: observations, observations before any reset,
            rewards, and the three flags.
        observations: Reader of the observations.
        num_envs: Number of rows.
        own: JAX's device.
        device: Device of the tensors.

    """

    def __init__(
        self,
        packing: Packing,
        observations: Observations,
        num_envs: int,
        own: torch.device,
        device: torch.device,
    ) -> None:
        self._packing, self._observations = packing, observations
        self._num_envs, self._device = num_envs, device
        self._layout = [
            *observations.layout,
            *observations.layout,
            ((num_envs, 1), torch.get_default_dtype()),
            ((len(_FLAG_ORDER), num_envs, 1), torch.bool),
        ]
        self._buffer: None | TransferBuffer = None
        if own.type == "cpu" and all(dtype is not torch.bfloat16 for _, dtype in self._layout):
            self._set_slab()

    def _set_slab(self) -> None:
        """Memory for what the program returns: of an array of one dtype as it is, or a leaf's."""
        dtypes = [dtype for _, dtype in self._layout]
        entries: list[tuple[tuple[int, ...], torch.dtype]] = []
        places: dict[int, tuple[int, int]] = {}  # of a leaf: entry, and first element there
        self._copied: list[tuple[int, slice]] = []
        for array, group in enumerate(self._packing.groups):
            pieces = [self._packing.pieces[i] for i in group]
            is_same = all(str(dtypes[i]) == f"torch.{self._packing.dtypes[i].name}" for i in group)
            for i, piece in zip(group, pieces, strict=True):
                places[i] = (len(entries), piece.start if is_same else 0)
                if not is_same or piece is pieces[-1]:
                    part = slice(0 if is_same else piece.start, piece.end)
                    entries.append(((part.stop - part.start,), dtypes[i]))
                    self._copied.append((array, part))
        self._buffer = TransferBuffer(entries, self._device)
        tensors = []
        for i, (shape, _) in enumerate(self._layout):
            entry, start = places[i]
            memory = self._buffer.entries[entry].tensor
            tensors.append(memory[start : start + math.prod(shape)].view(shape))
        self._row = self._assemble(tensors, lock=True)

    def read(self, arrays: Sequence[jax.Array]) -> TensorDict:
        """The row of a vector step, valid until the next one."""
        if self._buffer is None:
            leaves = self._packing.split([tensor_of(x) for x in arrays])
            self._observations.look(leaves)
            columns = zip(leaves, self._layout, strict=True)
            return self._assemble(
                [x.to(self._device, dt).view(shape) for x, (shape, dt) in columns]
            )
        found = [np.asarray(x) for x in arrays]
        if self._observations.watches:
            self._observations.look(self._packing.split(found))
        self._buffer.wait()
        for (array, part), entry in zip(self._copied, self._buffer.entries, strict=True):
            np.copyto(entry.arrays[self._buffer.side], found[array][part], casting="unsafe")
        self._buffer.publish()
        return self._row

    def _assemble(self, tensors: Sequence[torch.Tensor], *, lock: bool = False) -> TensorDict:
        *obs, rewards, flags = tensors
        half, unflatten = len(obs) // 2, self._observations.unflatten
        row: dict[str, Any] = dict(zip(_FLAG_ORDER, flags.unbind(), strict=True))
        row[DataKeys.OBS], row[DataKeys.FINAL_OBS] = unflatten(obs[:half]), unflatten(obs[half:])
        row[DataKeys.REWARDS] = rewards
        return TensorDict(row, batch_size=[self._num_envs], lock=lock)
