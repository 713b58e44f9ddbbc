"""Streams, events, memory and copies of a pretended device, and what is wrong with their order.

Work is done at once, in the order of the program. What a device might do in another order is told
from *clocks*: each stream counts its work, and knows how much of the other streams' work is done
before its own. Two uses of memory, one of which writes, that neither clock orders are a fault,
whether or not they would meet this time.
"""

import contextlib
import itertools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]

#: Files of the stand-in, which are nobody's fault.
OWN = str(Path(__file__).parent)
_STAND_IN = tuple(f"{OWN}/{name}.py" for name in ("machine", "tensors", "graphs", "installed"))
_PASSING = (*_STAND_IN, contextlib.__file__)

#: Functions of PyTorch's modes, which look at each operation.
_LOOKING = ("__torch_dispatch__", "__torch_function__")

#: Bytes of what is not there yet: NaN, or -1.
POISON = 0xFF

#: The allocator serves pieces up to this many bytes from other blocks than larger ones.
SMALL = 2**20

_NUMBERS = itertools.count()


class DeviceFault(AssertionError):
    """An error that a device would not raise: its numbers would be wrong, now and then."""


class Place(NamedTuple):
    """A line of a program."""

    file: str
    line: int
    function: str

    @classmethod
    def of(cls, frame: FrameType) -> "Place":
        """The line that a frame is in."""
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)

    def __str__(self) -> str:
        file = self.file
        for root in ("/src/everstep", "/adapters/everstep_adapters", "/tests/"):
            if root in file:
                file = file[file.index(root) + 1 :]
                break
        return f"{file}:{self.line} ({self.function})"


def place() -> Place:
    """The innermost line of the library that runs now; of who calls it if there is none."""
    return Place.of(next(library_frames(), None) or next(_frames()))


def library_frames() -> Iterator[FrameType]:
    """Frames of the library that runs now, the innermost first."""
    for frame in _frames():
        file = frame.f_code.co_filename
        if "/everstep" in file and OWN not in file:
            yield frame


def _frames() -> Iterator[FrameType]:
    """Frames of the library and of tests; not those in which operations only pass."""
    frame: None | FrameType = sys._getframe(1)
    if threading.current_thread() is not threading.main_thread():
        # A backward pass: the main thread waits in the line that began it.
        frame = sys._current_frames().get(threading.main_thread().ident or 0, frame)
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if "site-packages" not in file and file not in _PASSING and name not in _LOOKING:
            yield frame
        frame = frame.f_back


class Use(NamedTuple):
    """Work that used memory."""

    stream: int
    #: Its number among the stream's work.
    tick: int
    what: str
    place: Place

    def __str__(self) -> str:
        return f"{self.what} on stream {self.stream} at {self.place}"


class Block(NamedTuple):
    """A block of a graph's pool."""

    #: Its owner, for as long as a tensor is left.
    memory: "weakref.ref[Memory]"
    content: torch.Tensor
    is_bool: bool

    def poison(self, reason: str) -> None:
        """Make the content wrong, for a reason that reading it is told with."""
        self.content.fill_(1 if self.is_bool else POISON)
        self.explain(reason)

    def explain(self, reason: str) -> None:
        """Say why the content is wrong; an empty text if it is right."""
        memory = self.memory()
        if memory is not None:
            memory.spoiled = reason


class Memory:
    """Memory of the device: one tensor's, and its views'."""

    def __init__(self, machine: "Machine", inner: torch.Tensor) -> None:
        self.machine, self.stream, self.place = machine, machine.current, place()
        self.number = next(_NUMBERS)
        storage = inner.untyped_storage()
        self.address, self.size = storage.data_ptr(), storage.nbytes()
        self.is_bool = inner.dtype is torch.bool
        self.bytes = torch.empty(0, dtype=torch.uint8).set_(storage)
        self.write: None | Use = None
        self.reads: dict[int, Use] = {}
        #: Streams that the allocator was told of.
        self.recorded: set[int] = set()
        #: Another library's array, whose memory this is.
        self.owner: Any = None
        #: Of a graph's results: why they are not there, as what follows "which".
        self.spoiled = ""
        self.pooled = machine.capture is not None
        if self.pooled:
            machine.capture.blocks.append(Block(weakref.ref(self), self.bytes, self.is_bool))
        machine.allocated(self)

    def __del__(self) -> None:
        self.machine.freed(self)

    def uses(self) -> list[Use]:
        """The last uses of each stream."""
        return [*([] if self.write is None else [self.write]), *self.reads.values()]


class Freed(NamedTuple):
    """A block that its stream may use again, while other streams might still."""

    stream: int
    size: int
    allocated: Place
    uses: list[Use]
    place: Place


class HostCopy(NamedTuple):
    """A copy between pinned memory and the device that the host has not waited for."""

    #: Whether the host's memory is what it goes to.
    to_host: bool
    stream: int
    tick: int
    #: Bytes of the host's memory, what they have to be until then, and what they are afterwards.
    host: Bytes
    before: Bytes
    after: Bytes
    place: Place


class Event:
    """As `torch.cuda.Event`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.clock: dict[int, int] = {}
        self.captured: Any = None
        self._asked = False

    def record(self, stream: "None | Stream" = None) -> None:
        stream = stream or Stream.machine.current
        self.clock, self._asked = dict(stream.now()), False
        self.captured = Stream.machine.capture

    def wait(self, stream: "None | Stream" = None) -> None:
        (stream or Stream.machine.current).wait_event(self)

    def synchronize(self) -> None:
        if self.clock:
            Stream.machine.wait("Event.synchronize", self.clock)

    def query(self) -> bool:
        if self._asked:
            Stream.machine.done = merged(Stream.machine.done, self.clock)
        self._asked = True
        return all(Stream.machine.done.get(s, 0) >= tick for s, tick in self.clock.items())

    def elapsed_time(self, _: "Event") -> float:
        return 1.0


class Stream:
    """As `torch.cuda.Stream`: a queue of work, and what of other streams is done before its own."""

    machine: "Machine"
    device = torch.device("cuda", 0)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = len(self.machine.streams)
        self.machine.streams.append(self)
        self.tick = 0
        self.clock: dict[int, int] = {}
        #: Where work was last put into it on purpose.
        self.entered: None | Place = None

    def now(self) -> dict[int, int]:
        """Work that is done once what is in the queue is."""
        return {**self.clock, self.cuda_stream: self.tick}

    def wait_event(self, event: Event) -> None:
        if event.captured is not self.machine.capture:
            raise RuntimeError(
                "CUDA error: dependency created on uncaptured work in another stream, or on "
                f"captured work outside of its capture, at {place()}"
            )
        self.clock = merged(self.clock, event.clock)

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())

    def record_event(self, event: None | Event = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.machine.wait("Stream.synchronize", self.now())

    def query(self) -> bool:
        return self.record_event().query()

    def is_capturing(self) -> bool:
        return self.machine.capture is not None


def merged(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    """The later of two clocks, stream by stream."""
    return {s: max(one.get(s, 0), other.get(s, 0)) for s in (*one, *other)}


class Counts:
    """Numbers of what was done, some by place."""

    def __init__(self) -> None:
        #: How often the host waited, by what for, and where.
        self.syncs: Counter[tuple[str, Place]] = Counter()
        #: Copies between host and device, and their bytes, by direction: `"to device"` or
        #: `"to host"`.
        self.copies: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        #: Kernels, by name; of graphs, those inside.
        self.kernels: Counter[str] = Counter()
        #: Calls that hand work to the device: kernels and graphs.
        self.launches = 0
        #: Floating-point operations of products, and bytes that the other kernels read and write.
        self.flops = self.traffic = 0

    def totals(self) -> dict[str, int]:
        """Numbers for a table."""
        return {
            "syncs": self.syncs.total(),
            **{key.replace(" ", "_"): self.copies[key] for key in ("to device", "to host")},
            "bytes": self.bytes.total(),
        }


class Machine:
    """One device and its host."""

    def __init__(self) -> None:
        Stream.machine = self
        self.streams: list[Stream] = []
        self.default = self.current = Stream()
        #: Work of each stream that the host knows to be done.
        self.done: dict[int, int] = {}
        #: What was wrong, in the order in which it was found.
        self.faults: list[str] = []
        self.counts = Counts()
        #: See `torch.cuda.set_sync_debug_mode`: 2 raises where a wait is not asked for.
        self.debug_mode = 0
        #: Pinned tensors, by address; kept, so that addresses are not used again.
        self.pinned: dict[int, torch.Tensor] = {}
        #: The device's own random generator, a `tensors.Generator`.
        self.generator: Any = None
        #: Told of each use of another library's memory: stream, address, bytes, whether it writes.
        self.foreign: None | Callable[[int, int, int, bool], None] = None
        #: The capture under way, of `graphs.Capture`.
        self.capture: Any = None
        self._copying: list[HostCopy] = []
        self._freed: list[Freed] = []
        self._checked: None | Place = None

    def fault(self, text: str) -> None:
        """Tell what is wrong, now and at the end: the program may catch the error."""
        self.faults.append(text)
        raise DeviceFault(text)

    # ---- work and its order -------------------------------------------------------------------

    def launch(self, what: str, reads: Iterable[Memory], writes: Iterable[Memory]) -> Use:
        """Put work into the current stream."""
        stream = self.current
        stream.tick += 1
        stream.clock = merged(stream.clock, self.done)
        use = Use(stream.cuda_stream, stream.tick, what, place())
        for memory in reads:
            if memory.spoiled:
                self.fault(
                    f"{use} reads what a graph computes at {memory.place}, which {memory.spoiled}"
                )
            self._follows(use, memory, [memory.write] if memory.write else [])
            memory.reads[use.stream] = use
        for memory in writes:
            self._follows(use, memory, memory.uses())
            memory.write, memory.reads, memory.spoiled = use, {}, ""
        return use

    def _knows(self, stream: int, use: Use) -> bool:
        """Whether work that comes into a stream now begins after `use`."""
        known = max(self.streams[stream].clock.get(use.stream, 0), self.done.get(use.stream, 0))
        return use.stream == stream or known >= use.tick

    def _follows(self, use: Use, memory: Memory, earlier: list[Use]) -> None:
        for before in earlier:
            if not self._knows(use.stream, before):
                entered = "".join(
                    f" (stream {i} was entered at {self.streams[i].entered})"
                    for i in (use.stream, before.stream)
                    if self.streams[i].entered is not None
                )
                self.fault(
                    f"{use} uses memory that {before} may not have finished with: let the stream "
                    f"wait{entered}"
                )

    def wait(self, what: str, clock: None | dict[int, int] = None) -> None:
        """The host waits: for the current stream, or for work that a clock says."""
        where = place()
        if self.capture is not None:
            self.capture.invalidate(f"{what} at {where}")
            raise RuntimeError(
                f"CUDA error: operation not permitted when stream is capturing: {what} at {where}"
            )
        if clock is None and self.debug_mode == 2:
            raise RuntimeError(f"called a synchronizing CUDA operation: {what} at {where}")
        known = clock is not None and all(self.done.get(s, 0) >= t for s, t in clock.items())
        if not known:  # else nothing is left to wait for
            self.counts.syncs[what, where] += 1
        self.done = merged(self.done, self.current.now() if clock is None else clock)
        self.check_host()
        waiting = []
        for copy in self._copying:
            if self.done.get(copy.stream, 0) >= copy.tick:
                copy.host[:] = copy.after
            else:
                waiting.append(copy)
        self._copying = waiting

    # ---- memory -------------------------------------------------------------------------------

    def allocated(self, memory: Memory) -> None:
        """Memory was allocated, maybe a block that was freed."""
        if memory.pooled or not self._freed:
            return
        stream, waiting = memory.stream.cuda_stream, []
        for block in self._freed:
            if block.stream != stream:
                waiting.append(block)
                continue
            uses = [use for use in block.uses if not self._knows(stream, use)]
            fits = memory.size <= block.size and (memory.size > SMALL) == (block.size > SMALL)
            if uses and fits:
                self._freed.remove(block)
                self.fault(
                    f"memory allocated on stream {stream} at {block.allocated} was freed at "
                    f"{block.place} and is used again at {memory.place}, and {uses[0]} may not "
                    "have finished with it: call `record_stream`, or wait before"
                )
            if uses:
                waiting.append(block)
        self._freed = waiting

    def freed(self, memory: Memory) -> None:
        """Nothing refers to memory any more."""
        own = memory.stream.cuda_stream
        uses = [
            use
            for use in memory.uses()
            if use.stream not in memory.recorded and not self._knows(own, use)
        ]
        if uses and memory.size and not memory.pooled:
            self._freed.append(Freed(own, memory.size, memory.place, uses, place()))

    # ---- copies that the host does not wait for -----------------------------------------------

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        """Make a tensor of the host one in pinned memory."""
        self.pinned[x.untyped_storage().data_ptr()] = x
        return x

    def is_pinned(self, x: torch.Tensor) -> bool:
        """Whether a tensor of the host is in pinned memory."""
        return x.untyped_storage().data_ptr() in self.pinned

    def transfer(self, direction: str, size: int) -> None:
        """Count a copy between host and device."""
        self.counts.copies[direction] += 1
        self.counts.bytes[direction] += size
        self.counts.launches += 1

    def copy_later(
        self, host: torch.Tensor, after: torch.Tensor, use: Use, *, to_host: bool
    ) -> None:
        """A copy to or from pinned memory that is done some time before the host waits for it."""
        self._meet(host, use.what, reads=not to_host)
        flat, later = (x.detach().view(-1).view(torch.uint8).numpy() for x in (host, after))
        if to_host:
            flat.fill(1 if host.dtype is torch.bool else POISON)
        self._copying.append(
            HostCopy(to_host, use.stream, use.tick, flat, flat.copy(), later, use.place)
        )
        self._checked = use.place

    def touch_host(
        self, tensors: Iterable[torch.Tensor], written: Iterable[Any], what: str
    ) -> None:
        """An operation of the host uses its tensors."""
        if not self._copying:
            return
        self.check_host()
        mutated = {x.untyped_storage().data_ptr() for x in written if isinstance(x, torch.Tensor)}
        for x in tensors:
            self._meet(x, what, reads=x.untyped_storage().data_ptr() not in mutated)

    def _meet(self, x: torch.Tensor, what: str, *, reads: bool = False) -> None:
        start = x.data_ptr()
        end = start + x.numel() * x.element_size()
        for copy in [*self._copying]:
            first = copy.host.ctypes.data
            if start < first + copy.host.nbytes and first < end and (copy.to_host or not reads):
                self._copying.remove(copy)
                self.fault(
                    f"{what} at {place()} uses pinned memory before its copy {copy_name(copy)} at "
                    f"{copy.place} is done: wait for an event that is recorded after the copy"
                )

    def check_host(self) -> None:
        """See whether anything has written into pinned memory that is being copied."""
        if not self._copying:
            return
        now = place()
        for copy in [*self._copying]:
            if not np.array_equal(copy.host, copy.before):
                self._copying.remove(copy)
                self.fault(
                    f"pinned memory was written to between {self._checked} and {now}, before its "
                    f"copy {copy_name(copy)} at {copy.place} is done: wait before"
                )
        self._checked = now


def copy_name(copy: HostCopy) -> str:
    """Direction of a copy."""
    return "to the host" if copy.to_host else "to the device"
