"""Memory that is needed, beside what there is, before anything is allocated."""

from contextlib import suppress
from pathlib import Path

import psutil
import torch

from .errors import ConfigError

#: Limits of a container's memory, of both versions of Linux's control groups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_room(needed: int, device: torch.device, subject: str, advice: str) -> None:
    """Raise if a device has less memory than is needed.

    Args:
        needed: Bytes that are needed at least.
        device: Where they are needed.
        subject: What needs them, for the message.
        advice: The way out.

    Raises:
        ConfigError: Names both numbers.

    """
    if needed > (there := _memory_of(device)):
        where = "this machine" if device.type == "cpu" else str(device)
        raise ConfigError(
            f"{subject} needs at least {needed / 2**30:,.1f} GiB of memory, and {where} has "
            f"{there / 2**30:,.1f}. {advice}"
        )


def _memory_of(device: torch.device) -> float:
    """Bytes of a device's memory; unlimited if that is unknown."""
    if device.type == "cuda":
        with suppress(AssertionError, RuntimeError):  # PyTorch's, where there is no such device
            return torch.cuda.get_device_properties(device).total_memory
    if device.type != "cpu":
        return float("inf")
    there = psutil.virtual_memory().total
    for path in _LIMITS:
        with suppress(OSError, ValueError):  # "max"
            there = min(there, int(Path(path).read_text(encoding="ascii")))
    return there
