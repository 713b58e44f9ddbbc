"""Devices of JAX and those of PyTorch."""

from typing import Any

import jax
import torch

from everstep.data import Device
from everstep.errors import AdapterError

#: PyTorch's names of JAX's platforms.
_NAMES = {"gpu": "cuda", "cpu": "cpu"}


def choose(device: None | Device) -> Any:
    """The device of JAX on which a batch is computed: that of its rows, if JAX uses such devices.

    Args:
        device: PyTorch's device of the rows; None for JAX's default.

    Raises:
        AdapterError: If JAX uses devices of this kind, but not this one.

    """
    default = next(iter(jax.numpy.zeros(()).devices()))
    wanted = None if device is None else torch.device(device)
    if wanted is None or _NAMES.get(default.platform) != wanted.type:
        return default
    index: None | int = wanted.index
    if index is None and wanted.type == "cuda":
        index = torch.cuda.current_device()
    if index is None:
        return default
    own = jax.local_devices(backend=default.platform)
    found = next((x for x in own if x.local_hardware_id == index), None)
    if found is None:
        raise AdapterError(
            f"`device` is {wanted}, and JAX sees the devices {', '.join(map(str, own))} only, so "
            "an env step would be computed on another one. Let both libraries see the same devices "
            "(`CUDA_VISIBLE_DEVICES`, `jax_cuda_visible_devices`), or choose one that both have."
        )
    return found


def to_torch(device: Any) -> torch.device:
    """PyTorch's device of a device of JAX; the host has no index."""
    if device.platform == "cpu":
        return torch.device("cpu")
    return torch.device(_NAMES.get(device.platform, "cpu"), device.local_hardware_id)
