"""Collectives of the processes that `torch.distributed` has connected, counted."""

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from . import _failures

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
        self._failures = cast(_failures.Failures, _failures.current())
        self._has_gloo = "cpu:gloo" in backends
        if self._has_gloo:
            _keep_gloo_from_interrupting()

    def choose_waiting(self) -> None:
        """Let processes with a core of their own ask for the end of collectives; all call it.

        Where processes share a core, those that ask would keep it from those that compute.
        """
        own = [socket.gethostname(), sorted(_cores())]
        ranks = [json.loads(x) for x in self.of_all(json.dumps(own).encode())]
        cores = [each for host, each in ranks if host == own[0]]
        self.polling = _POLLING if len(cores) <= len(set().union(*cores)) else 0.0

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor `[D]` of all ranks, equal on each of them; `x` may be overwritten."""
        if self._is_of_gloo(x) and (self.size == 2 or x.nbytes <= _DIRECT_BYTES):
            first, *others = self.gather(x)
            for other in others:
                first += other
            return first
        self.count += 1
        self.bytes += x.nbytes
        self._finish(lambda: dist.all_reduce(x, async_op=self._is_of_gloo(x)))
        return x

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """A tensor `[D]` of each rank."""
        self.count += 1
        self.bytes += x.nbytes
        return self._gather(x)

    # ---- of what is sent when a training begins, evaluates or saves; not counted ----

    def copy_first(self, x: torch.Tensor) -> None:
        """Make a tensor that of rank 0, in place."""
        self._finish(lambda: dist.broadcast(x, src=0, async_op=self._is_of_gloo(x)))

    def of_first(self, data: bytes) -> bytes:
        """The bytes of rank 0."""
        size = torch.tensor([len(data)], device=self.device)
        self.copy_first(size)
        sent = self._tensor(data, int(size))
        self.copy_first(sent)
        return _bytes(sent)

    def of_all(self, data: bytes) -> list[bytes]:
        """The bytes of each rank."""
        sizes = self._sizes(data)
        parts = self._gather(self._tensor(data, max(sizes)))
        return [_bytes(x[:size]) for x, size in zip(parts, sizes, strict=True)]

    def of_all_on_first(self, data: bytes) -> list[bytes]:
        """The bytes of each rank, on rank 0; an empty list on the others."""
        sizes = self._sizes(data)
        sent = self._tensor(data, max(sizes))
        parts = [torch.empty_like(sent) for _ in sizes] if dist.get_rank() == 0 else None
        self._finish(lambda: dist.gather(sent, parts, dst=0, async_op=self._is_of_gloo(sent)))
        return [_bytes(x[:size]) for x, size in zip(parts or (), sizes, strict=False)]

    def _sizes(self, data: bytes) -> list[int]:
        return [int(x) for x in self._gather(torch.tensor([len(data)], device=self.device))]

    def _tensor(self, data: bytes, size: int) -> torch.Tensor:
        """Bytes as a tensor of a size."""
        filled = torch.frombuffer(bytearray(data.ljust(size)[:size]), dtype=torch.uint8)
        return filled.to(self.device)

    def _gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        parts = x.new_empty(self.size, *x.shape)
        if self._is_of_gloo(x):
            copies = x.expand_as(parts).contiguous()
            self._finish(lambda: dist.all_to_all_single(parts, copies, async_op=True))
        else:
            self._finish(lambda: dist.all_gather_into_tensor(parts, x))
        return list(parts.unbind())

    def _is_of_gloo(self, x: torch.Tensor) -> bool:
        return self._has_gloo and x.device.type == "cpu"

    def _finish(self, start: Callable[[], Any]) -> None:
        """Start a collective, and wait until it has ended."""
        self._failures.finish(start, self.polling, _let_others_run)


def _keep_gloo_from_interrupting() -> None:
    """Keep gloo's threads from preempting others when they wake up (Linux).

    Gloo's receiving thread spins for a lock that another of its threads holds. If it preempts that
    thread, both lose the milliseconds until the scheduler's next tick. Threads are found by their
    names, which PyTorch 2.13 sets; with PyTorch 2.9, which does not, nothing changes.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return
    for comm in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended, or a container forbids it
            thread = int(comm.parent.name)
            if b"gloo" in comm.read_bytes() and os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _bytes(x: torch.Tensor) -> bytes:
    return x.cpu().numpy().tobytes()


def _cores() -> set[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))
