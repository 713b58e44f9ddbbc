"""Signals while a trainer runs: the train step ends, the run is saved, and then it is interrupted.

`SIGINT` (Ctrl-C), `SIGTERM` and `SIGHUP` ask for a stop, which the trainer makes between two train
steps; a train step that takes longer than `PATIENCE` is interrupted. A second Ctrl-C interrupts at
once. `SIGUSR1` asks for a checkpoint. Signals that the program handles or ignores itself are left
alone, so a run under `nohup` survives its terminal.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..core.interrupts import interrupt
from ..core.ranks import Reducer

#: Seconds that a train step may take to end after a stop was asked for.
PATIENCE = 10.0

#: Signals that end a run, as far as the system has them.
_STOPS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C, which ends training as Ctrl-C does.

    Args:
        signum: Number of the signal.

    """

    #: What a shell reports for a process that the signal ended.
    exit_code: int

    def __init__(self, signum: int = signal.SIGTERM) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


def raise_at_once(signum: int, frame: None | FrameType) -> None:
    """A handler that interrupts what is being done."""
    interrupt(_raise, signum)


def _raise(signum: int, frame: None | FrameType) -> None:
    raise KeyboardInterrupt if signum == signal.SIGINT else Terminated(signum)


@contextmanager
def interrupting() -> Iterator[None]:
    """Context in which `SIGTERM` and `SIGHUP` interrupt as Ctrl-C does."""
    with _handled(dict.fromkeys(_STOPS, raise_at_once)):
        yield


class Signals:
    """Signals that arrive in a `with` block, for the loop inside to ask about.

    Args:
        is_active: Whether to handle signals at all.

    """

    #: Signal that asked for a stop; None if there was none.
    stop: None | int = None

    #: Whether a second Ctrl-C asked to end at once.
    is_urgent: bool = False

    def __init__(self, is_active: bool = True) -> None:
        self._is_active = is_active
        self._wants_checkpoint = False
        self._timer: None | threading.Timer = None
        self._is_late = False

    def __enter__(self) -> "Signals":
        handlers: dict[int, Any] = dict.fromkeys(_STOPS, self._ask)
        if hasattr(signal, "SIGUSR1"):
            handlers[signal.SIGUSR1] = self._ask_for_checkpoint
        self._context = _handled(handlers if self._is_active else {})
        self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.settle()
        self._context.__exit__(None, None, None)

    def wants_stop(self) -> bool:
        """Whether a stop was asked for."""
        return self.stop is not None

    def agree(self, reducer: Reducer, stop: bool, due: bool) -> tuple[bool, bool]:
        """Whether to stop, and to write a checkpoint, as any process asks; see `Reducer.agree`.

        Args:
            reducer: The processes.
            stop: Whether this one asks for a stop, beside its signals.
            due: Whether it asks for a checkpoint.

        """
        flags = (stop, due, *(self.stop == x for x in _STOPS))
        stop, due, *signals = reducer.agree("Trainer.run", *flags)
        if any(signals):
            self.stop = _STOPS[signals.index(True)]
        return stop or any(signals), due

    def take_checkpoint_request(self) -> bool:
        """Whether a checkpoint was asked for since the last call."""
        wanted, self._wants_checkpoint = self._wants_checkpoint, False
        return wanted

    def settle(self) -> None:
        """Do not interrupt a slow train step any more: it has ended."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_late = False

    def raise_stop(self) -> None:
        """Raise the interruption that was asked for, if there was one."""
        if self.stop is not None:
            raise_at_once(self.stop, None)

    def _ask(self, signum: int, frame: None | FrameType) -> None:
        if self.stop is None:
            self.stop = signum
            self._timer = threading.Timer(PATIENCE, self._interrupt, [signum])
            self._timer.daemon = True
            self._timer.start()
        elif self._is_late or signum == signal.SIGINT:
            self.is_urgent, self._is_late = not self._is_late, False
            raise_at_once(signum, frame)

    def _interrupt(self, signum: int) -> None:
        """Interrupt a train step that takes too long; called in the timer's thread."""
        self._is_late = True
        _interrupt_main(signum)

    def _ask_for_checkpoint(self, signum: int, frame: None | FrameType) -> None:
        self._wants_checkpoint = True


def _interrupt_main(signum: int) -> None:
    """Send a signal to the main thread, which ends the system call that it waits in."""
    main = threading.main_thread().ident
    if sys.platform == "win32" or main is None:
        signal.raise_signal(signum)
    else:
        signal.pthread_kill(main, signum)


@contextmanager
def _handled(handlers: dict[int, Any]) -> Iterator[None]:
    """Context with handlers for those signals that have the default one, or one of ours."""
    if threading.current_thread() is not threading.main_thread():  # only it can set handlers
        yield
        return
    ours = (signal.SIG_DFL, signal.default_int_handler, raise_at_once)
    before = {number: signal.getsignal(number) for number in handlers}
    before = {number: handler for number, handler in before.items() if handler in ours}
    for number in before:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
