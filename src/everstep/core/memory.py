"""Memory that is needed, beside what there is; and memory that is freed and kept."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from ..errors import ConfigError

#: Limits of a container's memory, of both versions of Linux's control groups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

#: Parameters of glibc's `mallopt`: free memory at the top that is given back, and the size from
#: which a block is mapped by itself, and given back when it is freed.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

#: Variables by which a user has set them; `GLIBC_TUNABLES` also has other things.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory, for the rest of the process, and return whether it does.

    Otherwise glibc returns a minibatch's tensors to the system, and gets them again page by page
    for the next one: a fifth of the processor's time with convolutions, two fifths with an LSTM.
    Call it only where Everstep owns the process, as it changes a setting of the whole process.
    Returns False without glibc, and if the user has set the thresholds.

    Source: `man 3 mallopt`.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    is_set = any(name in os.environ for name in _VARIABLES)
    if set_option is None or is_set or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    # Before glibc 2.35 at most 32 MiB. Without it, the other one would switch off what adapts both.
    if not (set_option(_MMAP_THRESHOLD, 2**30) or set_option(_MMAP_THRESHOLD, 2**25)):
        return False
    return bool(set_option(_TRIM_THRESHOLD, 2**31 - 1))


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
