"""Results of a compiled env step as rows of tensors."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from tensordict import TensorDict

from everstep.data import DataKeys

from ..common.handoff import Slab
from .observations import Observations, tensor_of
from .packing import Packing

_FLAGS = (DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST)


class Rows:
    """Reader of the results of env steps.

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
            ((len(_FLAGS), num_envs, 1), torch.bool),
        ]
        self._slab: None | Slab = None
        if own.type == "cpu" and all(dtype is not torch.bfloat16 for _, dtype in self._layout):
            self._slab = Slab(self._layout, device)
            self._row = self._assemble([slot.tensor for slot in self._slab.slots], lock=True)

    def read(self, arrays: Sequence[jax.Array]) -> TensorDict:
        """The row of an env step, valid until the next one."""
        if self._slab is None:
            leaves = self._leaves([tensor_of(x) for x in arrays])
            columns = zip(leaves, self._layout, strict=True)
            return self._assemble(
                [x.to(self._device, dt).view(shape) for x, (shape, dt) in columns]
            )
        leaves = self._leaves([np.asarray(x) for x in arrays])
        self._slab.wait()
        for leaf, slot in zip(leaves, self._slab.slots, strict=True):
            target = slot.arrays[self._slab.side]
            np.copyto(target, leaf.reshape(target.shape), casting="unsafe")
        self._slab.publish()
        return self._row

    def _leaves(self, arrays: Sequence[Any]) -> list[Any]:
        """Leaves in the order of the layout."""
        *obs, rewards, flags = self._packing.split(arrays)
        half, ordered = len(obs) // 2, self._observations.ordered
        return [*ordered(obs[:half]), *ordered(obs[half:]), rewards, flags]

    def _assemble(self, tensors: Sequence[torch.Tensor], *, lock: bool = False) -> TensorDict:
        *obs, rewards, flags = tensors
        half, unflatten = len(obs) // 2, self._observations.unflatten
        row: dict[str, Any] = dict(zip(_FLAGS, flags.unbind(), strict=True))
        row[DataKeys.OBS], row[DataKeys.FINAL_OBS] = unflatten(obs[:half]), unflatten(obs[half:])
        row[DataKeys.REWARDS] = rewards
        return TensorDict(row, batch_size=[self._num_envs], lock=lock)
