"""Why a rank ended, in the store through which `torch.distributed` has connected the ranks.

A rank whose call raises writes the error down; one that waits for others looks there each second,
and raises `RankError` with that reason instead of waiting for the timeout of a collective.
(`torch.distributed.elastic.timer` kills a process that is late: no rank would say why.)
"""

import functools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...errors import RankError

#: Time between two looks at the store.
_LOOK = timedelta(seconds=1)

#: Seconds for which a rank that has lost another one waits for the reason, and for which the rank
#: with the store stays there for others to read its own.
_MOMENT = 3.0

#: Seconds between two looks within a moment.
_BETWEEN = 0.05


#: Those of the process group that was there last.
_current: "None | Failures" = None


class Failures:
    """Failures of the ranks of a process group, numbered in the order in which they are told."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        from torch.distributed.distributed_c10d import PrefixStore

        self.store = _store_of_group()
        self._store: Any = PrefixStore("everstep/failures", self.store)
        #: Collectives of this process so far: ranks that have started as many are at one place.
        self._started = 0
        #: Number of this rank's last failure, and collectives before it; 0 and -1 if there is none.
        self._told, self._told_at = 0, -1

    def finish(self, start: Callable[[], Any], polling: float, rest: Callable[[], object]) -> None:
        """Start a collective, and wait until it has ended.

        Args:
            start: Starts it; the result is None where it is not waited for here (NCCL).
            polling: Seconds for which to ask whether it has ended, before sleeping.
            rest: Called between two questions.

        Raises:
            RankError: If another rank failed or has ended.

        """
        self._go_on()
        try:
            work = start()
        except dist.DistError as error:
            raise self._lost(error) from error
        if work is None:
            return
        limit = time.perf_counter() + polling
        while not work.is_completed() and time.perf_counter() < limit:
            rest()
        while True:
            try:
                work.wait(_LOOK)
                return
            except RuntimeError as error:
                if work.is_completed():
                    raise self._lost(error) from error
            if found := self._found():
                raise found

    def tell(self, reason: str, trace: str = "", rank: None | int = None) -> None:
        """Write down why this rank fails, or `rank`, which will start no collective any more."""
        record = {
            "rank": self.rank if rank is None else rank,
            "at": self._started if rank is None else 0,  # before those that others wait in
            "reason": reason,
            "trace": trace,
        }
        with suppress(RuntimeError):  # the store may be gone
            number = self._store.add("count", 1)
            self._store.set(str(number), json.dumps(record))
            if rank is None:
                self._told, self._told_at = number, self._started
                self._store.add(f"heard/{self._started}", 1)

    def tell_error(self, error: BaseException) -> None:
        """Write down that this rank fails with an error, once."""
        if isinstance(error, RankError) or self._told_at == self._started:
            return
        kind, text = type(error).__name__, str(error)
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.tell(f"{kind}: {text}" if text else kind, trace)
        if self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            for _ in _looks():  # its process may hold the store
                if self._store.add(f"heard/{self._started}", 0) >= self.size:
                    return

    def _go_on(self) -> None:
        """Begin a collective, and withdraw a failure that this rank has reported but survived."""
        if self._told:
            with suppress(RuntimeError):
                self._store.set(str(self._told), "")
            self._told = 0
        self._started += 1

    def _found(self) -> None | RankError:
        """The error to raise while waiting, if another rank has failed; else None."""
        with suppress(RuntimeError):  # the store may be gone
            if failure := self._first():
                return self._answer(failure)
        return None

    def _first(self, *, also_alike: bool = False) -> dict[str, Any]:
        """The first failure of another rank before this collective; empty if there is none.

        A rank that failed at the same collective as this one is left out, unless `also_alike`:
        both may have made the same mistake, and go on together.
        """
        for number in range(1, self._store.add("count", 0) + 1):
            text = self._store.get(str(number)) if self._store.check([str(number)]) else b""
            record = json.loads(text or "{}")
            if not record or record["rank"] == self.rank or record["at"] >= self._started:
                continue
            if also_alike or record["at"] != self._told_at:
                return dict(record)
        return {}

    def _lost(self, error: Exception) -> RankError:
        """The error of a rank whose connection to another one has ended."""
        why, _, _ = str(error).partition("\n")
        with suppress(RuntimeError):
            self._store.set(f"lost/{self.rank}", "")
            others = [other for other in range(self.size) if other != self.rank]
            for _ in _looks():
                if found := self._first(also_alike=True):
                    return self._answer(found)
                silent = [x for x in others if not self._store.check([f"lost/{x}"])]
                if len(silent) == 1:
                    break
            names = " or ".join(map(str, silent or others))
            return RankError(f"Rank {names} has ended without a message, or hangs: {why}")
        return RankError(f"Rank 0, whose process holds the store of all, has ended: {why}")

    def _answer(self, failure: dict[str, Any]) -> RankError:
        self._store.add(f"heard/{failure['at']}", 1)
        reason = f"Rank {failure['rank']} failed first: {failure['reason']}"
        return RankError(reason, failure["trace"])


@contextmanager
def reported() -> Iterator[None]:
    """Context, and decorator, whose errors end the other ranks, too: they raise `RankError`."""
    try:
        yield
    except BaseException as error:
        report(error)
        raise


def report(error: BaseException) -> None:
    """Tell the other ranks the error with which this one fails; they raise `RankError`."""
    if failures := current():
        failures.tell_error(error)


def tell_failure(reason: str, trace: str = "", rank: None | int = None) -> None:
    """Tell the other ranks why this one fails, or `rank`, without an error that can be raised."""
    if failures := current():
        failures.tell(reason, trace, rank)


def current() -> None | Failures:
    """The failures of the process group; None if there is one process."""
    global _current
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    _tell_what_ends_python()
    if _current is None or _current.store is not _store_of_group():
        _current = Failures()
    return _current


def _store_of_group() -> Any:
    """The store through which the group was connected; it has no public name."""
    from torch.distributed import distributed_c10d  # not in each build of PyTorch

    return distributed_c10d._get_default_store()


@functools.cache
def _tell_what_ends_python() -> None:
    """Let an error that nothing catches be told, before what is done with it otherwise."""
    hook = sys.excepthook

    def tell(kind: Any, error: BaseException, trace: Any) -> None:
        report(error)
        hook(kind, error, trace)

    sys.excepthook = tell


def _looks() -> Iterator[None]:
    """Looks at the store, one after the other, for a moment."""
    limit = time.monotonic() + _MOMENT
    while time.monotonic() < limit:
        yield
        time.sleep(_BETWEEN)
