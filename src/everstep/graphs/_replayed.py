"""When work is done eagerly, when it is recorded, and when it is replayed."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ._base import CaptureError, Graph, static_shapes

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

#: Calls in a row that find what they work on changed, before nothing is recorded any more.
PATIENCE = 4

#: What work depends on, by name: addresses, and numbers that are looked at while it is recorded.
Key = Mapping[str, Any]


class Same:
    """Equal to what holds the very same object."""

    def __init__(self, it: object) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it

    __hash__ = object.__hash__


class Replayed:
    """Work that is done eagerly once, recorded then, and replayed for as long as it can be.

    Where anything it depends on has changed, it begins anew. Where it cannot be recorded, that is
    logged once, in `refused`, and it is left to the caller.

    Args:
        name: What the work is called in logs.
        graph_cls: What records it.
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

    def refuse(self, reason: str) -> None:
        """Record nothing from now on."""
        self.forget()
        self.refused = reason
        _log.warning("No graph of the %s, which goes on eagerly: %s", self.name, reason)

    def refuse_for(self, reasons: list[str]) -> None:
        """Record nothing where there is a reason not to."""
        if reasons:
            self.refuse("; ".join(reasons))

    def __call__(
        self,
        function: Callable[[], _T],
        *,
        key: Callable[[], Key],
        keep: Callable[[], Callable[[], None]],
        generators: Callable[[], Sequence[torch.Generator]] = tuple,
    ) -> _T:
        """Do the work; what comes back is the same tensors each time, once it is recorded.

        Args:
            function: The work.
            key: What it depends on now.
            keep: Keeps what the work changes, and returns what puts that back.
            generators: Its own generators of random numbers.

        """
        if self.refused is None and self._key is not None and self._key == key():
            if self._graph is None:
                return self._capture(function, key, keep, generators())
            self._misses, self.replays = 0, self.replays + 1
            self._graph.replay()
            return self._result  # type: ignore[no-any-return]
        return self._warm_up(function, key)

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
        keep: Callable[[], Callable[[], None]],
        generators: Sequence[torch.Generator],
    ) -> _T:
        assert self._key is not None
        put_back = keep()
        graph = self.graph_cls(self.pool, generators, watched=self.watched)
        try:
            self._result = graph.capture(function)
            changed = changes(self._key, key())
            if changed:
                raise CaptureError(f"it changes {', '.join(changed)} other than in place")
        except Exception as error:  # whatever it is: done eagerly it shows again, if it is a fault
            put_back()
            self.has_failed = True
            self.refuse(f"{type(error).__name__}: {error}")
            return self._warm_up(function, key)
        self._graph = graph
        return self._result  # type: ignore[no-any-return]


def changes(before: Key, after: Key) -> list[str]:
    """Names under which two keys differ."""
    gone = Same(None)
    names = dict.fromkeys([*before, *after])
    return [name for name in names if before.get(name, gone) != after.get(name, gone)]


def random_state(device: torch.device) -> Callable[[], None]:
    """What puts the random numbers of the host and of a device back to where they are now."""
    on_host = torch.get_rng_state()
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def put_back() -> None:
        torch.set_rng_state(on_host)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)

    return put_back
