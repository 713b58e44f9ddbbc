"""CUDA graphs."""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from typing import Any, TypeVar
from weakref import WeakSet

import torch

from ._base import Graph, refuse, static_shapes, watching

_T = TypeVar("_T")


class _Pool:
    """Memory that is shared by the graphs that are alive."""

    def __init__(self) -> None:
        self._graphs: WeakSet[CUDAGraph] = WeakSet()
        self._handle: Any = None

    def handle(self) -> Any:
        """The pool of the graphs that are alive; a new one where none is.

        A pool that has lost its last graph cannot be used again.
        """
        if not self._graphs:
            self._handle = torch.cuda.graph_pool_handle()
        return self._handle

    def add(self, graph: "CUDAGraph") -> None:
        """Count a graph among those that use it."""
        self._graphs.add(graph)


class CUDAGraph(Graph):
    """A CUDA graph."""

    device_type = "cuda"

    def capture(self, function: Callable[[], _T]) -> _T:
        """See `Graph.capture`."""
        graph: Any = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        # The device's own generator is registered by the capture.
        drawing: list[Any] = [*self.generators, _default_generator()]
        before = [generator.clone_state() for generator in drawing]
        gc.collect()  # what is collected while recording may be a graph, which cannot go then
        torch.cuda.synchronize()
        try:
            with _beside(torch.cuda.Stream()), static_shapes():
                result = self._record(graph, function)
        except BaseException:
            # A capture that fails leaves generators waiting for its end.
            for generator, state in zip(drawing, before, strict=True):
                generator.graphsafe_set_state(state)
            raise
        self._graph = graph
        self.pool.add(self)
        graph.replay()  # recording alone does nothing
        return result

    def _record(self, graph: Any, function: Callable[[], _T]) -> _T:
        # Other threads, such as a logger's, may go on with the device.
        graph.capture_begin(pool=self.pool.handle(), capture_error_mode="thread_local")
        try:
            # Refused before CUDA sees it: a capture that CUDA ends itself leaves the allocator of
            # PyTorch 2.12 and older in its middle.
            with watching("cuda", refuse) if self.watched else nullcontext():
                result = function()
        except BaseException:
            # That it failed, or is empty, need not be said once more.
            with suppress(RuntimeError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph.capture_end()
            raise
        graph.capture_end()
        return result

    def replay(self) -> None:
        """See `Graph.replay`."""
        self._graph.replay()

    @classmethod
    def shared_pool(cls) -> Any:
        """See `Graph.shared_pool`."""
        return _Pool()

    @classmethod
    def warm_up(cls, function: Callable[[], _T], *, watched: bool = True) -> tuple[_T, list[str]]:
        """See `Graph.warm_up`; on another stream, as capturing is, and always the same one."""
        with _beside(_warming(torch.cuda.current_device())):
            return super().warm_up(function, watched=watched)


def _default_generator() -> torch.Generator:
    return torch.cuda.default_generators[torch.cuda.current_device()]


@cache
def _warming(device: int) -> torch.cuda.Stream:
    """The stream that work is done on before it is recorded: memory belongs to a stream."""
    return torch.cuda.Stream(device)


@contextmanager
def _beside(stream: torch.cuda.Stream) -> Iterator[None]:
    """Work on another stream, after what was begun before and ahead of what comes after."""
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            yield
    except BaseException:
        with suppress(RuntimeError):  # a capture that has failed may still be under way
            current.wait_stream(stream)
        raise
    current.wait_stream(stream)
