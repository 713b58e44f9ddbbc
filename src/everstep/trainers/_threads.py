"""Threads of PyTorch while a trainer runs."""

import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

if TYPE_CHECKING:
    from ..algorithms import GenericAlgorithmBase

#: Multiply-adds of one minibatch, per layer pass, below which a second thread does not pay.
_SMALL = 20_000_000

#: Variables from which PyTorch takes its number of threads.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

#: Whether this module has called `torch.set_num_threads`.
_has_set = False


@contextmanager
def chosen_threads(algorithm: "GenericAlgorithmBase[Any, Any, Any]") -> Iterator[None]:
    """Context with PyTorch's threads for a training on a CPU, unless the program has chosen.

    One for small networks, else as many as PyTorch has, but not more than there are processors.
    """
    global _has_set
    weights = sum(p.numel() for p in algorithm.policy.model.parameters())
    small = weights * algorithm.minibatch_size < _SMALL
    before = torch.get_num_threads()
    threads = 1 if small else min(before, usable_processors())
    if threads == before or algorithm.hparams.device_type != "cpu" or _are_chosen(before):
        yield
        return
    _has_set = True
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        if torch.get_num_threads() == threads:  # nobody has chosen another number meanwhile
            torch.set_num_threads(before)


def usable_processors(root: Path = Path("/")) -> int:
    """Processors that the process may use: those of its affinity, within its container's quota.

    Args:
        root: Directory of `proc` and `sys`.

    """
    has_affinity = hasattr(os, "sched_getaffinity")
    there = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(there, math.floor(min(_quotas(root), default=there))))


def _quotas(root: Path) -> Iterator[float]:
    """Processors' time that each control group of the process may use in a second.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst, `cpu.max`, and scheduler/sched-bwc.rst.
    """
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            # Of a container's own group the path is that of the host, where it is not mounted.
            mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
            group = mount / path.lstrip("/")
            for place in (group, *group.parents):
                yield from _quota(place)
                if place == mount:
                    break


def _quota(group: Path) -> Iterator[float]:
    """The quota of one control group, of either version; nothing if it has none."""
    with suppress(OSError, ValueError):  # "max"
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        yield int(quota) / int(period)
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    with suppress(OSError, ValueError):
        quota_us, period_us = (int((group / x).read_text(encoding="ascii")) for x in names)
        if quota_us > 0:  # -1: none
            yield quota_us / period_us


def _are_chosen(threads: int) -> bool:
    """Whether the program, or who started it, has chosen PyTorch's number of threads."""
    usual = {os.cpu_count(), psutil.cpu_count(logical=False)}
    if hasattr(os, "sched_getaffinity"):
        usual.add(len(os.sched_getaffinity(0)))
    if threads not in usual or any(name in os.environ for name in _VARIABLES):
        return True
    # `torch.set_num_threads` with the usual number leaves a trace in MKL alone, where there is one.
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    loaded = ctypes.CDLL(str(library)) if library.exists() else None
    is_dynamic = getattr(loaded, "mkl_serv_get_dynamic", None)
    return is_dynamic is not None and not is_dynamic() and not _has_set
