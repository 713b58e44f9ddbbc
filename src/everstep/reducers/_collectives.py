"""Collectives of the processes that `torch.distributed` has connected, counted."""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

#: `time.sleep(0)` sleeps for longer than a collective takes.
_let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))

#: Seconds for which a process with a core of its own asks whether a collective has ended before it
#: sleeps: to be woken up takes longer than most collectives, and an idle core of a virtual machine
#: is lent to others meanwhile.
_POLLING = 0.05

#: Bytes up to which each rank sends a tensor to every other rank itself, which is one message
#: between two ranks; a ring sends fewer bytes, in 2 (n - 1) messages that follow each other.
_DIRECT_BYTES = 2**18


class Collectives:
    """Sums and copies of tensors of all ranks.

    All-to-all of gloo ends sooner than its all-reduce, which passes small tensors around a ring.
    """

    def __init__(self) -> None:
        self.size = dist.get_world_size()
        backends = dist.get_backend_config().split(",")  # such as "cpu:gloo,cuda:nccl"
        #: Device of what is on the host otherwise.
        self.device = "cpu" if any(x.startswith("cpu:") for x in backends) else "cuda"
        #: Collectives that were started so far, and the bytes of this process in them; those of
        #: Python objects, which are sent when a training begins, evaluates or saves, not counted.
        self.count, self.bytes = 0, 0
        #: Seconds for which this process asks whether a collective has ended.
        self.polling = 0.0
        self._has_gloo = "cpu:gloo" in backends
        if self._has_gloo:
            _keep_gloo_from_interrupting()

    def choose_waiting(self) -> None:
        """Let processes with a core of their own ask for the end of collectives; all call it.

        Where processes share a core, those that ask would keep it from those that compute.
        """
        own = socket.gethostname(), sorted(_cores())
        ranks: list[Any] = [own] * self.size
        dist.all_gather_object(ranks, own)
        cores = [each for host, each in ranks if host == own[0]]
        self.polling = _POLLING if len(cores) <= len(set().union(*cores)) else 0.0

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor `[D]` of all ranks, equal on each of them; `x` may be overwritten."""
        if self._is_of_gloo(x) and (self.size == 2 or x.nbytes <= _DIRECT_BYTES):
            first, *others = self.gather(x)
            for other in others:
                first += other
            return first
        self._wait(x, dist.all_reduce(x, async_op=self._is_of_gloo(x)))
        return x

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """A tensor `[D]` of each rank."""
        parts = x.new_empty(self.size, *x.shape)
        if self._is_of_gloo(x):
            copies = x.expand_as(parts).contiguous()
            work = dist.all_to_all_single(parts, copies, async_op=True)
        else:
            work = dist.all_gather_into_tensor(parts, x)
        self._wait(x, work)
        return list(parts.unbind())

    def _is_of_gloo(self, x: torch.Tensor) -> bool:
        return self._has_gloo and x.device.type == "cpu"

    def _wait(self, sent: torch.Tensor, work: Any) -> None:
        """Count a collective, and wait until it has ended."""
        self.count += 1
        self.bytes += sent.nbytes
        if work is None:
            return
        limit = time.perf_counter() + self.polling
        while not work.is_completed() and time.perf_counter() < limit:
            _let_others_run()
        work.wait()


def _keep_gloo_from_interrupting() -> None:
    """Let a thread of gloo that wakes up wait until others leave their core (Linux).

    Its thread that receives tries to take a lock until another thread of gloo gives it back. If it
    interrupted that one to do so, both would lose the milliseconds until the scheduler's next tick.
    Threads are found by their names: PyTorch 2.13 has them, 2.9 does not, and stays as it is.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return
    for comm in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended, or a container forbids it
            thread = int(comm.parent.name)
            if b"gloo" in comm.read_bytes() and os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _cores() -> set[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))
