"""Loggers of trackers: they put everything into a queue, which a thread delivers."""

import atexit
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.installation import install_command
from .base import RunStatus, array_of
from .delivery import Delivery

_log = logging.getLogger(__name__)

#: Largest number of points that wait for a tracker.
QUEUE_SIZE = 200_000


@dataclass(frozen=True)
class TrackedRun:
    """A run, for the tracker that is to show it."""

    #: Its directory.
    run_dir: Path

    #: Its name.
    name: str

    #: What it trains on; the project or experiment if none is named.
    subject: str

    #: Project or experiment, if one was named.
    experiment_name: None | str = None

    #: Id of the tracker's run, if the run is continued and the tracker has ids.
    continued: None | str = None

    #: Env steps from which the run is continued; None for a new one.
    step: None | int = None

    @property
    def record(self) -> str:
        """Path of the complete record."""
        return str(self.run_dir / "metrics.jsonl")


class QueuedLogger:
    """A logger that puts everything into a tracker's queue, and never waits before `close`.

    Args:
        delivery: The queue and its thread; None if there is no tracker, and nothing is logged.
        patience: Seconds without an answer after which `close` gives up.
        limit: Seconds after which `close` gives up in any case.

    """

    #: See `LoggerGroup`.
    never_waits = True

    def __init__(
        self, delivery: None | Delivery, *, patience: float = 5.0, limit: float = 60.0
    ) -> None:
        self._delivery = delivery
        self._closed = delivery is None
        self._patience, self._limit = patience, limit
        if delivery is not None:
            atexit.register(self._close_at_exit)  # after the tracker's own, so it runs before that

    def __repr__(self) -> str:
        place = "not tracked" if self._delivery is None else self._delivery.place
        return f"{type(self).__name__}({place}, undelivered={self.undelivered})"

    @property
    def run_id(self) -> None | str:
        """Id of the tracker's run; None if it has none, or not yet."""
        return None

    @property
    def processor_seconds(self) -> float:
        """Processor time of the thread so far."""
        return 0.0 if self._delivery is None else self._delivery.processor_seconds

    @property
    def undelivered(self) -> int:
        """Metric points that the tracker has not taken: waiting, dropped or refused."""
        return 0 if self._delivery is None else self._delivery.lost + self._delivery.waiting

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Queue parameters; a parameter that the run already has keeps its value."""
        if self._delivery is not None and not self._closed:
            self._delivery.put_params(params)

    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Queue tags of the run, such as versions and the commit."""
        if self._delivery is not None and not self._closed:
            self._delivery.put_tags(tags)

    def log_text(self, name: str, text: str) -> None:
        """Queue a text, such as the configuration; a later one of the same name replaces it."""
        if self._delivery is not None and not self._closed:
            self._delivery.put_text(name, text)

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Queue statistics after `step` env steps; after `close` nothing is queued.

        Totals that grow with the step are left out: their charts are straight lines.
        """
        if self._delivery is not None and not self._closed:
            self._delivery.put_metrics(metrics, step)

    def log_histogram(self, name: str, values: Any, *, step: int) -> None:
        """Queue a copy of values, whose histogram the tracker shows if it can."""
        if self._delivery is not None and not self._closed:
            self._delivery.put_media(name, array_of(values), step)

    def log_video(self, name: str, path: Path, *, step: int) -> None:
        """Queue a video's file, which the tracker shows or stores."""
        if self._delivery is not None and not self._closed:
            self._delivery.put_media(name, Path(path), step)

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Deliver waiting points, within the time allowed, and end the run if it is ours.

        Logs the number of points that were not delivered, as a warning unless there has been one.
        """
        if self._delivery is None or self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        ended = status if self._ends_run() else None
        self._delivery.close(ended, patience=self._patience, limit=self._limit)

    def _ends_run(self) -> bool:
        """Whether `close` ends the tracker's run."""
        return True

    def _close_at_exit(self) -> None:
        failed = getattr(sys, "last_value", None) is not None  # set for an uncaught exception
        self.close("FAILED" if failed else "FINISHED")


def warn_of_import(tracker: str, error: Exception, record: object, extra: str = "") -> None:
    """Log that a tracker's library cannot be imported."""
    advice = f" To install it: {install_command(extra)}" if extra else ""
    _log.warning(
        "%s cannot be imported (%s: %s), so the run is not tracked. Training continues.%s%s",
        tracker,
        type(error).__name__,
        error,
        f" {record} has every statistic." if record else "",
        advice,
    )
