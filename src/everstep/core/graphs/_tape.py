"""Graphs for any device, for tests and for looking at what a graph holds."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ._base import AtTheHost, Graph, refuse, static_shapes, tensors_of, waits

_T = TypeVar("_T")

#: Operations whose results have no content yet.
_ALLOCATING = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})


class _Call(NamedTuple):
    """One recorded operation."""

    func: Any
    args: Any
    kwargs: dict[str, Any]
    results: list[torch.Tensor]

    def again(self) -> None:
        """Do it again, and put what is new where the results are."""
        found = self.func(*self.args, **self.kwargs)
        for old, new in zip(self.results, tensors_of(found), strict=True):
            if _memory(old) != _memory(new):
                old.copy_(new)


class Tape(Graph):
    """Recorded operations that are done again, one by one, on any device.

    As in a CUDA graph Python values, addresses and decisions are those of the recording, and random
    numbers are drawn anew. It is there for tests, and for looking at what a graph holds: replaying
    is no faster than not recording.
    """

    #: What was recorded, in its order.
    calls: list[Any]

    def capture(self, function: Callable[[], _T]) -> _T:
        """See `Graph.capture`."""
        recording = _Recording()
        with static_shapes(), AtTheHost(None, refuse), recording:
            result = function()
        self.calls = recording.calls
        return result

    def replay(self) -> None:
        """See `Graph.replay`."""
        with torch._C._AutoDispatchBelowAutograd():  # where it was recorded
            for call in self.calls:
                call.again()


class _Recording(TorchDispatchMode):
    """Keeps the operations that do something in `calls`, and refuses those that wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: None | dict[str, Any] = None
    ) -> Any:
        kwargs = kwargs or {}
        if waits(func, args, kwargs):
            refuse(func.overloadpacket.__name__)
        found = func(*args, **kwargs)
        known = {_memory(x) for x in tensors_of((args, kwargs))}
        is_view = not func._schema.is_mutable and known.issuperset(map(_memory, tensors_of(found)))
        if not is_view and func.overloadpacket.__name__ not in _ALLOCATING:
            # Aliases keep the addresses, whatever becomes of the tensors themselves.
            args, kwargs, results = tree_map(_alias, (args, kwargs, found))
            self.calls.append(_Call(func, args, kwargs, tensors_of(results)))
        return found


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _alias(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else x
