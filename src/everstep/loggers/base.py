"""The logger protocol, a group of loggers that cannot fail, and the directory of a run."""

import contextlib
import errno
import logging
import math
import os
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..core.files import foreign_path
from ..core.interrupts import call_all, text_of, uninterrupted
from ..errors import ConfigError

#: How a run ended: normally, with an error, or interrupted.
RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

_log = logging.getLogger(__name__)

#: Calls that wait for a logger that fails; beyond it the oldest are dropped.
_WAITING = 10_000

#: Pause after a failed call, in times of what it took, so that failing takes at most 5 % of a run;
#: and its longest, in seconds.
_PAUSES, _LONGEST_PAUSE = 20.0, 30.0

#: Attempts after which the call may be at fault, and not the logger: the one after it is tried.
#: More, if the error is one of files and networks.
_ATTEMPTS, _SYSTEM_ATTEMPTS = 3, 30

#: Attempts while a logger is being closed, and seconds between them.
_LAST_ATTEMPTS, _LAST_PAUSE = 6, 0.15


_GOES_ON = (
    " Training continues. Failed calls are repeated in order; a warning at the end says if any "
    "were lost."
)


class Logger(Protocol):
    """Receives the parameters and statistics of one run, in order.

    A call that raises is repeated later, so it must not have recorded anything.
    """

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters of the run; may be called again with more."""

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record statistics after `step` env steps."""

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Flush, and release all resources; calling it again does nothing."""


class LoggerGroup:
    """Forwards calls to several loggers, none of which can stop the training.

    Each logger gets all calls once and in order. A call that raises waits and is repeated before
    the logger's next one, or later where failing takes long. Calls are lost if the logger still
    fails in `close`, or if more than 10,000 wait, of which the oldest go. A call that was
    interrupted, as by Ctrl-C, counts as lost, too: it may have been recorded already, so it is not
    repeated. A warning says how many calls a logger lacks.

    Loggers that never wait for anything (`never_waits`) are not interrupted.

    Args:
        loggers: Members, called in this order.

    """

    #: Members.
    loggers: tuple[Logger, ...]

    def __init__(self, loggers: Sequence[Logger], /) -> None:
        self.loggers = tuple(loggers)
        self._members = [_Member(logger) for logger in loggers]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.loggers)!r})"

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters of the run."""
        self._call("log_params", dict(params))

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record statistics after `step` env steps."""
        self.put_metrics(metrics, step=step)
        self.deliver()

    def put_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record statistics in loggers that never wait; the others get them in `deliver`."""
        self._put("log_metrics", dict(metrics), step=step)

    def deliver(self) -> None:
        """Make the calls that loggers have not had yet."""
        for member in self._members:
            if not member.never_waits:
                member.deliver()

    def log_histogram(self, name: str, values: Any, *, step: int) -> None:
        """Record the distribution of values, where a member shows histograms."""
        self._call("log_histogram", name, array_of(values), step=step)

    def log_video(self, name: str, path: Path, *, step: int) -> None:
        """Record a video's file, where a member takes videos."""
        self._call("log_video", name, path, step=step)

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Make the calls that are left, warn of those that are lost, and close every member."""
        call_all(*(partial(member.close, status) for member in self._members))

    def _call(self, method: str, *arguments: Any, **options: Any) -> None:
        self._put(method, *arguments, **options)
        self.deliver()

    def _put(self, method: str, *arguments: Any, **options: Any) -> None:
        with uninterrupted():
            for member in self._members:
                member.put(_Call(method, arguments, options))
            for member in self._members:
                if member.never_waits:
                    member.deliver()


class _Call(NamedTuple):
    """A call of a logger's method."""

    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class _Member:
    """A logger, and the calls that it has not taken yet."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._name = type(logger).__name__
        self.never_waits: bool = getattr(logger, "never_waits", False)
        self._waiting: deque[_Call] = deque()
        self._calls = self._missing = self._failures = self._attempts = 0
        self._next = -math.inf  # when to try again
        self._error: None | Exception = None  # the last one

    def put(self, call: _Call) -> None:
        """Add a call, if the logger has the method."""
        if not hasattr(self._logger, call.method):
            return
        self._calls += 1
        self._waiting.append(call)
        if len(self._waiting) > _WAITING:
            self._waiting.popleft()
            self._missing += 1

    def deliver(self) -> None:
        """Make the calls that wait, unless it is too early to try again."""
        while self._waiting and time.monotonic() >= self._next:
            if self._made(0):
                self._attempts = 0
                continue
            self._attempts += 1
            # Perhaps the logger works, and cannot take this call: then it takes the one after it.
            patience = _SYSTEM_ATTEMPTS if isinstance(self._error, OSError) else _ATTEMPTS
            if self._attempts % patience == 0 and len(self._waiting) > 1 and self._made(1):
                self._waiting.popleft()
                self._missing += 1
                continue
            break

    def _made(self, place: int) -> bool:
        """Whether a call could be made; if not, it is back in its place."""
        call = self._waiting[place]
        del self._waiting[place]
        # The logger may change a dict; the next attempt needs it as it was.
        arguments = [dict(x) if isinstance(x, dict) else x for x in call.arguments]
        start = time.monotonic()
        self._missing += 1  # if an interrupt ends it
        made = True
        try:
            getattr(self._logger, call.method)(*arguments, **call.options)
        except Exception as error:
            now = time.monotonic()
            self._next = now + min(_LONGEST_PAUSE, _PAUSES * (now - start))
            self._waiting.insert(place, call)
            self._warn(error)
            made = False
        self._missing -= 1
        return made

    def close(self, status: RunStatus) -> None:
        """Deliver what waits, report what is missing, and close the logger."""
        try:
            attempts = _LAST_ATTEMPTS
            while self._waiting and attempts:
                before, self._next = len(self._waiting), -math.inf
                self.deliver()
                attempts = _LAST_ATTEMPTS if len(self._waiting) < before else attempts - 1
                time.sleep(_LAST_PAUSE * bool(self._waiting))
            self._report()
        finally:
            try:
                self._logger.close(status)
            except Exception as error:
                self._warn(error, rest="")

    def _warn(self, error: Exception, rest: str = _GOES_ON) -> None:
        """Log the first failure; others are counted."""
        is_first, self._error = self._error is None, error
        self._failures += 1
        if is_first:
            _log.warning("%s failed: %s.%s", self._name, text_of(error), rest)

    def _report(self) -> None:
        missing = self._missing + len(self._waiting)
        if missing:
            _log.warning(
                "%s lacks %d of %d calls%s.",
                self._name,
                missing,
                self._calls,
                f"; the last error was {text_of(self._error)}" if self._error else ": interrupted",
            )
        elif self._failures:
            _log.warning(
                "%s failed %d times; all %d calls were delivered in the end.",
                self._name,
                self._failures,
                self._calls,
            )
        self._waiting.clear()
        self._failures = self._missing = self._calls = 0


def array_of(values: Any) -> npt.NDArray[Any]:
    """A copy of the values of a histogram, float32 `[n]`."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.array(values, np.float32).ravel()


def impossible_path(directory: str | os.PathLike[str]) -> str:
    """Why no file system has such a directory, such as a name that is too long; else empty."""
    try:
        os.lstat(Path(directory, ".metrics.jsonl.lock"))  # the longest name in it
    except ValueError as error:  # of a zero byte
        return str(error)
    except OSError as error:
        return os.strerror(error.errno) if error.errno == errno.ENAMETOOLONG else ""
    return ""


def writing_problem(directory: str | os.PathLike[str]) -> str:
    """Why files cannot be written to a directory, which may not exist yet; empty if they can."""
    if problem := foreign_path(directory):
        return problem
    path = Path(directory).absolute()
    nearest = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if not nearest.exists():
        return f"{nearest} is a link that leads nowhere"
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    places = (
        nearest,
        *(path / name for name in ("metrics.jsonl", ".metrics.jsonl.lock", "config.yaml")),
    )
    for place in places:
        if place.exists() and not os.access(place, os.W_OK):
            return f"{place} is read-only for this user"
    return ""


def create_run_dir(root: str | Path, name: str) -> Path:
    """A new directory `root/name-0001`, or the next free number; no two callers get the same.

    Args:
        root: Directory of all runs, created if missing.
        name: Start of the directory's name. Characters other than letters, digits, `.`, `_` and `-`
            become `-`, so a spec such as `gymnasium:CartPole-v1` is valid.

    Raises:
        ConfigError: If `name` has no valid character.
        OSError: If the directory cannot be created.

    """
    stem = re.sub(r"[^\w.\-]+", "-", name).strip("-.")
    if not stem:
        raise ConfigError(f"`name` of a run must hold a letter or a digit; got {name!r}.")
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    pattern = re.compile(re.escape(stem) + r"-(\d{4,})")
    while True:
        matches = (pattern.fullmatch(path.name) for path in root.iterdir())
        last = max((int(match[1]) for match in matches if match), default=0)
        run_dir = root / f"{stem}-{last + 1:04d}"
        with contextlib.suppress(FileExistsError):  # another process was faster
            run_dir.mkdir()
            return run_dir
