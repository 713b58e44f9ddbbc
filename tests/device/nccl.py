"""NCCL between pretended devices, one a process: gloo carries the numbers, on the host.

What NCCL demands is told: tensors of the device alone, the same collectives in the same order on
each rank, and that nothing uses a tensor before the collective is waited for, which runs in a
stream of its own.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from .installed import Patches
from .machine import Event, Machine, Stream, place
from .tensors import CudaTensor

#: Arguments of each collective: those that it writes, and those that it reads.
COLLECTIVES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "all_reduce": ((0,), (0,)),
    "all_gather_into_tensor": ((0,), (1,)),
    "broadcast": ((0,), (0,)),
}


class Work:
    """A collective under way, which keeps its tensors until it is waited for."""

    def __init__(self, event: Event, tensors: list[CudaTensor]) -> None:
        self.event, self.tensors = event, tensors

    def wait(self, timeout: Any = None) -> bool:
        """Let the current stream wait; the host does not."""
        self.event.wait()
        self.tensors = []
        return True

    def is_completed(self) -> bool:
        """Whether it has ended."""
        return self.event.query()


class Kernel:
    """A collective as an operation on inner tensors, also of a graph that is replayed."""

    tags = ()

    def __init__(self, name: str, run: Callable[..., Any]) -> None:
        self.__name__, self.overloadpacket, self._run = name, self, run

    def __call__(self, *tensors: torch.Tensor) -> None:
        with _disable_current_modes(), torch.no_grad():
            self._run(*tensors)


class Group:
    """The collectives of `torch.distributed` for tensors of the device."""

    def __init__(self, machine: Machine, backends: str) -> None:
        self.machine, self.backends = machine, backends
        self.stream, self.count = Stream(), 0

    def collective(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """A collective; those of tensors of the host are gloo's, where the group has it."""
        written, read = COLLECTIVES[name]

        def start(*arguments: Any, async_op: bool = False, **options: Any) -> Any:
            tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
            strange = [x for x in tensors if not isinstance(x, CudaTensor)]
            if strange:
                if len(strange) < len(tensors) or "cpu:gloo" not in self.backends:
                    raise RuntimeError(
                        f"No backend type associated with device type cpu ({name} at {place()})"
                    )
                with _disable_current_modes():
                    return original(*arguments, async_op=async_op, **options)
            if not all(x.is_contiguous() for x in tensors):
                raise ValueError(f"Tensors must be contiguous ({name} at {place()})")
            self._check_order(name, arguments[read[0]], options)
            move = _all_gather if name == "all_gather_into_tensor" else original
            kernel = Kernel(name, lambda *inner: move(*inner, **options))
            event = self._launch(kernel, tensors, written, read)
            work = Work(event, tensors)
            return work if async_op else work.wait() and None

        return start

    def _launch(
        self, kernel: Kernel, tensors: list[Any], written: tuple[int, ...], read: tuple[int, ...]
    ) -> Event:
        machine, caller, inner = self.machine, self.machine.current, [x.inner for x in tensors]
        name = kernel.overloadpacket.__name__
        reads, writes = ([tensors[i].memory for i in each] for each in (read, written))
        machine.counts.kernels[name] += 1
        event = Event()
        if machine.capture is not None:
            machine.capture.keep([tensors[i] for i in written])
            machine.capture.add(kernel, inner, reads=reads, writes=writes)
            event.captured = machine.capture
        else:
            self.stream.wait_stream(caller)
            machine.current = self.stream
            try:
                machine.launch(name, [x for x in reads if x not in writes], writes)
            finally:
                machine.current = caller
            machine.counts.launches += 1
            event.record(self.stream)
        kernel(*inner)
        return event

    def _check_order(self, name: str, x: torch.Tensor, options: dict[str, Any]) -> None:
        self.count += 1
        own = f"{name} of {tuple(x.shape)} {x.dtype}", options, str(place())
        found: list[Any] = [None] * dist.get_world_size()
        with _disable_current_modes():
            dist.all_gather_object(found, own)
        if any(x[:2] != own[:2] for x in found):
            each = ", ".join(f"rank {i}: {x[0]} at {x[2]}" for i, x in enumerate(found))
            self.machine.fault(f"collective {self.count} differs between ranks: {each}")


def _all_gather(parts: torch.Tensor, x: torch.Tensor) -> None:
    """Stacked parts `[size, …]`, which gloo takes as a list."""
    dist.all_gather(list(parts.view(dist.get_world_size(), *x.shape)), x)


@contextlib.contextmanager
def connected(machine: Machine, *, alone: bool = False) -> Iterator[Group]:
    """NCCL between the ranks that gloo connects, in this block.

    Args:
        machine: This rank's device.
        alone: Whether the group has no gloo for tensors of the host.

    """
    backends = "cuda:nccl" if alone else "cpu:gloo,cuda:nccl"
    group, uuid = Group(machine, backends), f"stand-in {dist.get_rank()}"
    properties = SimpleNamespace(**vars(torch.cuda.get_device_properties(0)), uuid=uuid)
    with Patches() as patches:
        for name in COLLECTIVES:
            patches.set(dist, **{name: group.collective(name, getattr(dist, name))})
        patches.set(dist, get_backend_config=lambda group=None: backends)
        patches.set(torch.cuda, get_device_properties=lambda device=None: properties)
        yield group
