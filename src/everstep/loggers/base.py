"""The logger protocol, a group of loggers that cannot fail, and the directory of a run."""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from ..errors import ConfigError

#: How a run ended: normally, with an error, or interrupted.
RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

_log = logging.getLogger(__name__)


class Logger(Protocol):
    """Receives the parameters and statistics of one run, in order."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters of the run; may be called again with more."""

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record statistics after `step` env steps."""

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Flush, and release all resources; calling it again does nothing."""


class LoggerGroup:
    """Forwards calls to several loggers; one that raises is left out from then on.

    An exception of a member is logged once as a warning and does not reach the caller, since
    training must not stop. `KeyboardInterrupt` and others that are not an `Exception` do pass.

    Args:
        loggers: Members, called in this order.

    """

    #: Members, failed ones included.
    loggers: tuple[Logger, ...]

    def __init__(self, loggers: Sequence[Logger], /) -> None:
        self.loggers = tuple(loggers)
        self._working = list(loggers)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters of the run."""
        self._each(lambda logger: logger.log_params(params))

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record statistics after `step` env steps."""
        self._each(lambda logger: logger.log_metrics(metrics, step=step))

    def log_histogram(self, name: str, values: Any, *, step: int) -> None:
        """Record the distribution of values, where a member shows histograms."""
        self._each(lambda logger: _optional(logger, "log_histogram")(name, values, step=step))

    def log_video(self, name: str, path: Path, *, step: int) -> None:
        """Record a video's file, where a member takes videos."""
        self._each(lambda logger: _optional(logger, "log_video")(name, path, step=step))

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Close every member, also those that were left out: they may hold files and threads."""
        self._each(lambda logger: logger.close(status))
        for logger in self.loggers:
            if logger not in self._working:
                with contextlib.suppress(Exception):
                    logger.close("FAILED")

    def _each(self, call: Callable[[Logger], None]) -> None:
        for logger in list(self._working):
            try:
                call(logger)
            except Exception as error:
                self._working.remove(logger)
                _log.warning(
                    "%s failed and is left out from now on; training continues. %s: %s",
                    type(logger).__name__,
                    type(error).__name__,
                    error,
                )


def _optional(logger: Logger, name: str) -> Callable[..., Any]:
    """A method that a logger need not have; one that does nothing if it has not."""
    return getattr(logger, name, lambda *arguments, **options: None)


def writing_problem(directory: str | os.PathLike[str]) -> str:
    """Why files cannot be written to a directory, which may not exist yet; empty if they can."""
    text = os.fspath(directory)
    if os.name != "nt" and ("\\" in text or re.match("[A-Za-z]:/", text)):
        return "it is written as a path of Windows, and here would be one name; write it with /"
    path = Path(directory).absolute()
    nearest = next(place for place in (path, *path.parents) if os.path.exists(place))
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    places = (nearest, *(path / name for name in ("metrics.jsonl", "config.yaml")))
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
