"""Graphs: what CUDA lets be captured, and replays that read nothing but what they may."""

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .machine import Block, Machine, Memory, Place, library_frames, place
from .tensors import Generator, cost, drawn, leaves, mapped


class Call(NamedTuple):
    """One kernel of a graph."""

    func: Any
    args: Any
    kwargs: dict[str, Any]
    results: list[torch.Tensor]
    #: See `tensors.cost`.
    cost: tuple[int, int]

    def again(self, machine: Machine) -> None:
        """Do it again, and put what is new where the results are."""
        found = drawn(machine, self.func, self.args, self.kwargs)
        new = [x for x in leaves(found) if isinstance(x, torch.Tensor)]
        for old, x in zip(self.results, new, strict=True):
            if old.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
                old.copy_(x)


class Held(NamedTuple):
    """Memory that a graph has the address of."""

    memory: "weakref.ref[Memory]"
    pooled: bool
    allocated: Place
    #: The line that uses it, and those that call it, up to where the capture began.
    used: list[Place]


class Capture:
    """Kernels that are being captured, and what they use."""

    def __init__(self, machine: Machine, generators: Sequence[Generator]) -> None:
        self.machine, self.generators = machine, generators
        self.calls: list[Call] = []
        self.reads: dict[int, Held] = {}
        self.writes: dict[int, Held] = {}
        #: What was allocated.
        self.blocks: list[Block] = []
        self.invalid = ""
        #: Identity of the frame that began it.
        self._began = next(map(id, library_frames()), None)
        self._before: dict[int, tuple[Memory, torch.Tensor]] = {}
        self._states = [(x, x.peek()) for x in generators]

    def invalidate(self, reason: str) -> None:
        """Something was done that ends a capture."""
        self.invalid = self.invalid or reason

    def keep(self, written: list[Any]) -> None:
        """Remember the content of memory that a kernel would write to, if it was run."""
        for x in written:
            memory = getattr(x, "memory", None)
            if memory is not None and not memory.pooled and memory.number not in self._before:
                self._before[memory.number] = memory, memory.bytes.clone()

    def check_generators(self, given: list[int]) -> None:
        """Refuse random generators, by identity, that were not registered."""
        if not {x._cdata for x in self.generators}.issuperset(given):
            self.invalidate("a generator that is not registered")
            raise RuntimeError(
                "Attempt to increase offset for a CUDA generator not in capture mode: call "
                f"`register_generator_state` before the capture. ({place()})"
            )

    def add(
        self,
        func: Any,
        call: Any,
        kwargs: Any = None,
        found: Any = None,
        reads: list[Memory] = [],  # noqa: B006  never changed
        writes: list[Memory] = [],  # noqa: B006
    ) -> None:
        """Put a kernel into the graph."""
        args, kwargs, found = mapped(_alias, (call, kwargs or {}, found))
        tensors = [x for x in leaves(found) if isinstance(x, torch.Tensor)]
        self.calls.append(Call(func, args, kwargs, tensors, cost(func, args, kwargs, found)))
        where = self._places()
        for memories, held in ((reads, self.reads), (writes, self.writes)):
            for memory in memories:
                entry = Held(weakref.ref(memory), memory.pooled, memory.place, where)
                held.setdefault(memory.number, entry)

    def _places(self) -> list[Place]:
        within = itertools.takewhile(lambda frame: id(frame) != self._began, library_frames())
        return list(map(Place.of, within)) or [place()]

    def undo(self) -> None:
        """Nothing has happened: capturing runs nothing."""
        for memory, before in self._before.values():
            memory.bytes.copy_(before)
        for generator, state in self._states:
            generator.poke(state)


class Pool:
    """Memory of graphs, which is that of the next graph where no tensor is left."""

    def __init__(self) -> None:
        self.graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
        self.was_used = False
        #: Blocks of each capture, in the order of the captures.
        self.captures: list[list[Block]] = []

    def poison(self, graph: int, replay: Place) -> None:
        """Make wrong what the replay of a graph at a line may overwrite.

        Memory that no tensor is left of may be any graph's. What was captured later may lie where
        this graph's own scratch memory is, even while a tensor of it lives.
        """
        for order, blocks in enumerate(self.captures):
            for block in blocks:
                if order > graph or block.memory() is None:
                    block.poison(
                        f"the replay of an earlier graph at {replay} may have overwritten: copy it "
                        "before"
                    )


class Graph:
    """As `torch.cuda.CUDAGraph`."""

    machine: Machine

    def __init__(self, *_: Any, **__: Any) -> None:
        self._registered: list[Generator] = []
        self._calls: list[Call] = []
        self._held: tuple[list[Held], list[Held]] = [], []
        self._pool = Pool()
        self._capture: None | Capture = None

    def register_generator_state(self, generator: Generator) -> None:
        self._registered.append(generator)

    def capture_begin(self, pool: None | Pool = None, capture_error_mode: str = "global") -> None:
        machine = self.machine
        if machine.capture is not None or machine.current is machine.default:
            raise RuntimeError(
                f"CUDA graphs must be captured on a non-default stream, one at a time. ({place()})"
            )
        self._pool = pool or self._pool
        if self._pool.was_used and not self._pool.graphs:
            machine.fault(f"a pool that has lost its last graph is used again at {place()}")
        self._capture = Capture(machine, [machine.generator, *self._registered])
        machine.capture = self._capture

    def capture_end(self) -> None:
        capture, self.machine.capture = self._capture, None
        assert capture is not None
        self._capture = None
        with _disable_current_modes():
            capture.undo()
            for block in capture.blocks:
                block.poison("has not been replayed since its capture")
        if capture.invalid:
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture: "
                f"{capture.invalid}"
            )
        self._pool.graphs.add(self)
        self._pool.was_used = True
        self._calls = capture.calls
        self._held = _external(capture.reads), _external(capture.writes)
        self._order = len(self._pool.captures)
        self._pool.captures.append(capture.blocks)

    def replay(self) -> None:
        machine, where = self.machine, place()
        if machine.capture is not None:
            raise RuntimeError(f"a graph cannot be replayed while one is captured, at {where}")
        reads, writes = ([self._living(held) for held in each] for each in self._held)
        machine.counts.launches += 1
        machine.counts.kernels.update(call.func.overloadpacket.__name__ for call in self._calls)
        machine.counts.flops += sum(call.cost[0] for call in self._calls)
        machine.counts.traffic += sum(call.cost[1] for call in self._calls)
        machine.launch("a graph", [x for x in reads if x not in writes], writes)
        # Where it was captured, and not seen by the mode.
        with _disable_current_modes(), torch._C._AutoDispatchBelowAutograd():
            self._pool.poison(self._order, where)
            for call in self._calls:
                call.again(machine)
            self._pool.poison(self._order, where)
        for block in self._pool.captures[self._order]:
            block.explain("")

    def _living(self, held: Held) -> Memory:
        memory = held.memory()
        if memory is None:
            used, *callers = held.used
            called = f", called at {', '.join(map(str, callers))}," if callers else ""
            self.machine.fault(
                f"a graph that is replayed at {place()} uses memory of {used}{called} that was "
                f"allocated at {held.allocated} and is freed by now: keep what graphs refer to"
            )
        assert memory is not None
        return memory

    def reset(self) -> None:
        self._calls, self._held = [], ([], [])

    def pool(self) -> Pool:
        return self._pool


def _external(held: dict[int, Held]) -> list[Held]:
    """Memory that is not the pool's."""
    return [x for x in held.values() if not x.pooled]


def _alias(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else x
