"""A watch over environments and processes: one that hangs ends, and the reason is printed.

The other processes of the training would wait for it without end. A thread of each process counts
the seconds of a vector step; it also gives signs of life, and looks at those of the next rank: a
process that is stopped, or in code that holds Python's lock, cannot count.
"""

import functools
import math
import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import ConfigError
from ._processes import is_started
from ._pulse import NextRank, Pulse

#: Environment variable with the seconds that a vector step, or a reset, may take.
TIMEOUT = "EVERSTEP_TIMEOUT"

#: Its default: longer than any vector step should be.
_SECONDS = 30.0

#: How much longer the first call may take, which may compile, or load a simulator.
_FIRST = 10

_HANGS = (
    "the environment hangs: its `{call}` has not returned for {seconds:g} seconds. If it may take "
    "that long, set the environment variable {variable} to more seconds."
)

_LOST = (
    "has given no sign of life for {seconds:g} seconds: it is stopped, or in code that holds "
    "Python's lock. If that may take so long, set the environment variable {variable} to more "
    "seconds."
)


class Watch(threading.Thread):
    """A thread that ends the process if a call takes longer than it may.

    Args:
        seconds: How long a call may take.

    """

    def __init__(self, seconds: float) -> None:
        super().__init__(name="everstep-watch", daemon=True)
        self.seconds = seconds
        self._interval = min(1.0, seconds / 4)
        self._call, self._limit, self._now = "", math.inf, 0.0
        self._main = threading.get_ident()
        self._has_ended = threading.Event()
        self._pulse, self._next = Pulse(seconds), NextRank()

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that is watched."""
        factor = _FIRST

        @functools.wraps(call)
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal factor
            self._call, self._limit = name, self._now + self.seconds * factor
            is_first, factor = factor > 1, 1
            if is_first:  # it may hold Python's lock
                self._pulse.give(self.seconds * _FIRST)
            try:
                return call(*arguments, **options)
            finally:
                self._limit = math.inf
                if is_first:
                    self._pulse.give(self.seconds)

        return run

    def run(self) -> None:
        """Look at the call, and at the next process, until `end`.

        Seconds are counted from look to look: a clock would also count those in which this process
        was stopped, or the machine was busy with others.
        """
        while not self._has_ended.wait(self._interval):
            self._now += self._interval
            if self._now > self._limit:
                self._give_up()
            self._pulse.give()
            if self._next.is_lost(self._interval):
                self._end_next()
                return

    def end(self) -> None:
        """End the thread."""
        self._has_ended.set()
        self.join()
        self._pulse.give(math.inf)

    def _end_next(self) -> None:
        """End the next process, or, if that is on another machine, this one."""
        lost = self._next
        reason = _LOST.format(seconds=lost.patience, variable=TIMEOUT)
        print(f"everstep: rank {lost.rank} {reason}", file=sys.stderr, flush=True)
        _tell(reason, rank=lost.rank)
        if not lost.end():
            _end()

    def _give_up(self) -> None:
        """End this process, and those that its environment has started, with a message."""
        place = "".join(traceback.format_stack(sys._current_frames()[self._main]))
        reason = _HANGS.format(call=self._call, seconds=self.seconds, variable=TIMEOUT)
        _tell(reason, place)
        message = f"everstep: rank {os.environ['RANK']}: {reason}"
        print(f"{place}{message}", file=sys.stderr, flush=True)
        _end()


def _tell(reason: str, trace: str = "", rank: None | int = None) -> None:
    from ..core.ranks import tell_failure  # imports PyTorch, as the training has

    tell_failure(reason, trace, rank)


def _end() -> None:
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(1)


@contextmanager
def watched(envs: Sequence[Any]) -> Iterator[None]:
    """Context in which vector steps and resets are watched, if this is one of several processes.

    Raises:
        ConfigError: If the environment variable is not a positive number.

    """
    if not is_started():
        yield
        return
    watch = Watch(_seconds())
    for env in envs:
        for name in ("reset", "step"):
            setattr(env, name, watch.timed(name, getattr(env, name)))
    watch.start()
    try:
        yield
    finally:
        watch.end()


def _seconds() -> float:
    text = os.environ.get(TIMEOUT, str(_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ConfigError(f"{TIMEOUT}: must be a positive number of seconds; got {text!r}.")
    return seconds
