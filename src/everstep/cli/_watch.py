"""A watch over environments: a process whose environment hangs ends, and says where.

The other processes of the training would wait for it without end.
"""

import functools
import math
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import ConfigError
from ._processes import claim_failure, is_started

#: Environment variable with the seconds that an env step, or a reset, may take.
TIMEOUT = "EVERSTEP_TIMEOUT"

#: Its default: longer than any env step should be.
_SECONDS = 30.0

#: How much longer the first call may take, which may compile, or load a simulator.
_FIRST = 10

_MESSAGE = (
    "everstep: rank {rank}: the environment hangs: its `{call}` has not returned for {seconds:g} "
    "seconds. If it may take that long, set the environment variable {variable} to more seconds."
)


class Watch(threading.Thread):
    """A thread that ends the process if a call takes longer than it may.

    Args:
        seconds: How long a call may take.

    """

    def __init__(self, seconds: float) -> None:
        super().__init__(name="everstep-watch", daemon=True)
        self.seconds = seconds
        self._call, self._limit = "", math.inf
        self._main = threading.get_ident()
        self._has_ended = threading.Event()

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that is watched."""
        factor = _FIRST

        @functools.wraps(call)
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal factor
            self._call, self._limit = name, time.monotonic() + self.seconds * factor
            try:
                return call(*arguments, **options)
            finally:
                self._limit, factor = math.inf, 1

        return run

    def run(self) -> None:
        """Look at the clock until `end`."""
        while not self._has_ended.wait(min(1.0, self.seconds / 4)):
            if time.monotonic() > self._limit:
                self._give_up()

    def end(self) -> None:
        """End the thread."""
        self._has_ended.set()
        self.join()

    def _give_up(self) -> None:
        """End this process, and those that its environment has started, with a message."""
        place = "".join(traceback.format_stack(sys._current_frames()[self._main]))
        message = _MESSAGE.format(
            rank=claim_failure(), call=self._call, seconds=self.seconds, variable=TIMEOUT
        )
        print(f"{place}{message}", file=sys.stderr, flush=True)
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(1)


@contextmanager
def watched(envs: Sequence[Any]) -> Iterator[None]:
    """Context in which env steps and resets are watched, if this is one of several processes.

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
