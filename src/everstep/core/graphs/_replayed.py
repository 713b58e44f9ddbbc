"""Work that is done eagerly first, then recorded, then replayed."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ..restoring import Snapshot
from ._base import CaptureError, Graph, static_shapes

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

#: Calls in a row that find what they work on changed, before nothing is recorded any more.
PATIENCE = 4

#: Dependencies of recorded work by name: addresses, and numbers read while recording.
Key = Mapping[str, Any]


class Same:
    """Equal to another `Same` of the identical object."""

    def __init__(self, it: object) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it

    __hash__ = object.__hash__


class Replayed:
    """Work that is done eagerly once, then recorded, then replayed while its key stays the same.

    When the key changes it starts over. If the work cannot be recorded, the reason is logged once
    and stored in `refused`, and the work stays eager.

    Args:
        name: Name of the work in logs.
        graph_cls: Kind of graph.
        pool: See `Graph`.

    """

    #: How often recorded work was done again.
    replays: int = 0

    #: Whether recording has failed; for the owner of several to know, and to clear.
    has_failed: bool = False

    #: Why nothing is recorded.
    refused: None | str = None

    def __init__(self, name: str, graph_cls: type[Graph], pool: Any = None) -> None:
        self.name, self.graph_cls, self.pool = name, graph_cls, pool
        #: See `Graph`.
        self.watched = True
        self._misses = 0
        self._changed: list[str] = []
        self.forget()

    def forget(self) -> None:
        """Record anew, after doing the work eagerly once more."""
        self._graph: None | Graph = None
        self._result: Any = None
        self._key: None | Key = None
        self._version: None | int = None

    def refuse(self, reason: str) -> None:
        """Record nothing from now on."""
        self.forget()
        self.refused = reason
        _log.warning("No graph of the %s, which continues eagerly: %s", self.name, reason)

    def refuse_for(self, reasons: list[str]) -> None:
        """Record nothing where there is a reason not to."""
        if reasons:
            self.refuse("; ".join(reasons))

    def __call__(
        self,
        function: Callable[[], _T],
        *,
        version: None | int = None,
        key: Callable[[], Key],
        snapshots: Callable[[], Sequence[Snapshot]],
        generators: Callable[[], Sequence[torch.Generator]] = tuple,
    ) -> _T:
        """Do the work; once it is recorded, the result is the same tensors each time.

        Args:
            function: The work.
            version: Number that changes where the key may have changed; None looks each time.
            key: The work's dependencies now.
            snapshots: Makes snapshots of what the work changes, before it is recorded.
            generators: Its own random generators.

        """
        is_known = self._graph is not None and version is not None and version == self._version
        if is_known or self._is_same(key):
            self._version = version
            if self._graph is None:
                return self._capture(function, key, snapshots, generators())
            self._misses, self.replays = 0, self.replays + 1
            self._graph.replay()
            return self._result  # type: ignore[no-any-return]
        return self._warm_up(function, key)

    def _is_same(self, key: Callable[[], Key]) -> bool:
        """Whether the work was done with this key, and may be recorded."""
        return self.refused is None and self._key is not None and not changes(self._key, key())

    def _warm_up(self, function: Callable[[], _T], key: Callable[[], Key]) -> _T:
        if self.refused is not None:
            with static_shapes():
                return function()
        self._changed = changes(self._key, key()) if self._key is not None else self._changed
        self.forget()
        result, waiting = self.graph_cls.warm_up(function, watched=self.watched)
        self._misses += 1
        if waiting:
            self.refuse(f"{', '.join(dict.fromkeys(waiting))} would wait for the device")
        elif self._misses > PATIENCE:
            self.refuse(f"{', '.join(self._changed)} changed before every one of some calls")
        else:
            self._key = key()
        return result

    def _capture(
        self,
        function: Callable[[], _T],
        key: Callable[[], Key],
        snapshots: Callable[[], Sequence[Snapshot]],
        generators: Sequence[torch.Generator],
    ) -> _T:
        assert self._key is not None
        before = snapshots()
        graph = self.graph_cls(self.pool, generators, watched=self.watched)
        try:
            self._result = graph.capture(function)
            changed = changes(self._key, key())
            if changed:
                raise CaptureError(f"it changes {', '.join(changed)} other than in place")
        except Exception as error:  # a fault of the work shows again when it is done eagerly
            for snapshot in before:
                snapshot.restore()
            self.has_failed = True
            self.refuse(f"{type(error).__name__}: {error}")
            return self._warm_up(function, key)
        self._graph = graph
        return self._result  # type: ignore[no-any-return]


def changes(before: Key, after: Key) -> list[str]:
    """Names under which two keys differ."""
    try:
        if before == after:
            return []
    except Exception:  # of an array, or of what a user's class does: one by one
        pass
    gone = Same(None)
    names = dict.fromkeys([*before, *after])
    return [name for name in names if not _is_same(before.get(name, gone), after.get(name, gone))]


def _is_same(one: Any, other: Any) -> bool:
    """Whether a recording with one value is one with the other, also where `==` does not tell."""
    if one is other:
        return True
    try:
        return bool(one == other) or bool(one != one and other != other)  # NaN
    except Exception:
        return False
