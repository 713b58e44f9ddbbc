"""Interrupts that wait for short work, and work that is done whatever the rest raises."""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_log = logging.getLogger(__name__)

#: Handlers to call when `uninterrupted` ends, with their signals; None if none is active.
_waiting: None | list[tuple[Callable[..., Any], int]] = None


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Context that delays Ctrl-C, and signals handled by `interrupt`, until its end.

    For short work in the main thread that must be done whole, such as writing a line. Other threads
    are never interrupted by signals. Costs some microseconds.
    """
    global _waiting
    if threading.current_thread() is not threading.main_thread() or _waiting is not None:
        yield
        return
    handler: Any = signal.getsignal(signal.SIGINT)
    waiting: list[tuple[Callable[..., Any], int]] = []

    def wait(signum: int, frame: None | FrameType) -> None:
        waiting.append((handler, signum))

    try:
        _waiting = waiting
        if callable(handler):
            signal.signal(signal.SIGINT, wait)
        yield
    finally:
        _waiting = None
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
        for handle, signum in waiting:  # the first that raises ends it
            handle(signum, None)


def interrupt(handle: Callable[[int, None | FrameType], Any], signum: int) -> None:
    """Call a signal's handler now, or at the end of `uninterrupted` if that is active."""
    if _waiting is None:
        handle(signum, None)
    else:
        _waiting.append((handle, signum))


@contextlib.contextmanager
def closing(*owners: Any) -> Iterator[None]:
    """Context after which everything that has a `close` is closed, whatever raises; see `call_all`.

    Args:
        owners: What to close, in order; each once.

    """
    error = None
    try:
        yield
    except BaseException as raised:
        error = raised
    call_all(*(owner.close for owner in {id(x): x for x in owners}.values()), first=error)


def text_of(error: BaseException) -> str:
    """Kind and message of an error, also of one whose message cannot be had."""
    text = ""
    with contextlib.suppress(Exception):  # of a class whose own `__str__` fails
        text = str(error).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_same(error: BaseException, other: BaseException) -> bool:
    """Whether two errors have one cause, such as a full disk."""
    if isinstance(error, OSError) and isinstance(other, OSError) and error.errno is not None:
        return error.errno == other.errno
    return type(error) is type(other) and text_of(error) == text_of(other)


def call_all(*calls: Callable[[], object], first: None | BaseException = None) -> None:
    """Call each, whatever the others raise, and raise the first error at the end.

    Later errors of other causes are logged, so that none hides the one that began it all; those of
    files, and interrupts, say all in one line.

    Args:
        calls: What to call, in order.
        first: An error from before, which is the one to raise.

    """
    for call in calls:
        try:
            call()
        except BaseException as error:
            if first is None:
                first = error
            elif not _is_same(error, first):
                name = getattr(getattr(call, "func", call), "__qualname__", call)
                _log.error(
                    "%s failed after %s, which is raised. %s",
                    name,
                    type(first).__name__,
                    text_of(error),
                    exc_info=None if isinstance(error, OSError | KeyboardInterrupt) else error,
                )
    if first is not None:
        raise first
