"""Threads of PyTorch while a trainer runs."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Context in which small networks on a CPU use one thread, unless the program has chosen."""
    global _has_set
    weights = sum(p.numel() for p in algorithm.policy.model.parameters())
    small = weights * algorithm.minibatch_size < _SMALL
    before = torch.get_num_threads()
    if before == 1 or not small or algorithm.hparams.device_type != "cpu" or _are_chosen(before):
        yield
        return
    _has_set = True
    torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() == 1:  # nobody has chosen another number meanwhile
            torch.set_num_threads(before)


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
