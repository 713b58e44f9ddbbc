"""CUDA graphs."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakSet

import torch

from ._base import Graph, static_shapes

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
            with _beside(), static_shapes():
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
            result = function()
        except BaseException:
            with suppress(RuntimeError):  # it says once more that the capture has failed
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
    def warm_up(cls, function: Callable[[], _T]) -> tuple[_T, list[str]]:
        """See `Graph.warm_up`; on a stream of its own, as capturing is."""
        with _beside():
            return super().warm_up(function)


def _default_generator() -> torch.Generator:
    return torch.cuda.default_generators[torch.cuda.current_device()]


@contextmanager
def _beside() -> Iterator[None]:
    """Work on another stream, after what was begun before and ahead of what comes after."""
    stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)
