"""A bounded queue, and the thread that delivers what is in it to a tracker.

Trackers have queues of their own. After one error that passes, TensorBoard's loses everything and
raises in the training, and MLflow's loses what was on the way; this one tries again, and counts
what it had to drop.
"""

import contextlib
import logging
import math
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any, ClassVar, NamedTuple

import numpy.typing as npt

from .base import RunStatus
from .clock import Clock

_log = logging.getLogger(__name__)

#: Seconds between two deliveries, and the longest pause after a failed one.
_PERIOD = 1.0
_LONGEST_PAUSE = 30.0
#: Seconds between attempts while the logger is being closed, and attempts of texts and media.
_CLOSING_PAUSE = 0.2
_LAST_ATTEMPTS = 6
#: Characters of an error's message that are shown.
_LONGEST_MESSAGE = 300
#: Histograms and videos that wait at most; beyond it the oldest are dropped.
_MEDIA = 100

#: Statuses of requests that succeed later as they are: of a busy server, or a conflict of writers.
_TRANSIENT = (408, 409, 425, 429, 499)

#: Statuses that refuse what was sent, and not whoever sends it.
OF_CONTENT = (400, 413, 422)

#: What helps against an answer, by its status.
_WAYS_OUT = {
    401: "check its credentials",
    403: "check the rights of its user",
    404: "check its address, and that the experiment and the run exist",
    407: "check the credentials of the proxy",
    413: "raise the size of a request that the server and its proxies take",
}

#: Statistics whose charts would be straight lines, and the first that trackers show.
TOTALS = frozenset(("env/steps", "algorithm/collects", "algorithm/steps"))


class Point(NamedTuple):
    """One value of one metric."""

    name: str
    value: float
    milliseconds: int
    step: int


class Media(NamedTuple):
    """A histogram's values or a video's file."""

    name: str
    content: npt.NDArray[Any] | Path
    milliseconds: int
    step: int


class Delivery(ABC):
    """A bounded queue and the daemon thread that empties it; only this thread contacts the tracker.

    The tracker may be slow, absent or failing. What it does not accept waits in the queue; when
    the queue is full the oldest are dropped, since the end of a run matters most. However often the
    tracker fails, one warning is logged, and at the end what it lacks is counted. Texts and media
    that fail keep no points waiting: a run may lack the rights or libraries that they need. After
    an answer that stays as it is, such as 403, nothing more is sent.

    Args:
        place: Where the tracker is, for warnings.
        queue_size: Largest number of waiting points.
        record: Path of the complete record, to be named in warnings; empty if there is none.

    """

    #: Name of the tracker in warnings.
    tracker: ClassVar[str]

    #: Top-level loggers of its libraries whose messages are suppressed in the thread.
    libraries: ClassVar[tuple[str, ...]] = ()

    #: Set once the tracker has answered or has failed for the first time.
    settled: threading.Event

    #: Points that were dropped or refused.
    lost: int = 0

    #: Parameters, tags, histograms and videos that were dropped or refused.
    lost_others: int = 0

    #: Processor time of the thread so far.
    processor_seconds: float = 0.0

    def __init__(self, place: str, *, queue_size: int, record: str) -> None:
        self.settled = threading.Event()
        self._place = place
        self._record = record
        self._clock = Clock()
        self._lock = threading.Lock()
        self._points: deque[Point] = deque(maxlen=queue_size)
        self._queue_size = queue_size
        self._in_flight: list[Point] = []
        self._media: deque[Media] = deque(maxlen=_MEDIA)
        self._params: dict[str, Any] = {}
        self._tags: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._rest_pause, self._rest_next = _PERIOD, -math.inf  # and when to try them again
        self._rest_attempts = _LAST_ATTEMPTS
        self._rest_refusal = ""  # what helps where no text and no medium is taken
        self._is_open = False
        self._progress = 0  # requests that the tracker has answered
        self._warned = False
        self._outage = False
        self._status: None | RunStatus = None
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._finished = threading.Event()
        name = f"everstep-{self.tracker.lower()}"
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def place(self) -> str:
        """Where the tracker is, without passwords."""
        return redacted(self._place)

    @property
    def waiting(self) -> int:
        """Number of points that the tracker has not accepted yet."""
        return len(self._points) + len(self._in_flight)

    def put_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Queue statistics without waiting for the tracker; totals are left out."""
        now = self._milliseconds()
        points = [
            Point(name, float(value), now, int(step))
            for name, value in metrics.items()
            if name not in TOTALS
        ]
        with self._lock:
            self.lost += max(0, len(self._points) + len(points) - self._queue_size)
            self._points.extend(points)  # drops the oldest

    def put_params(self, params: Mapping[str, Any]) -> None:
        """Queue parameters without waiting for the tracker."""
        with self._lock:
            self._params.update(params)

    def put_tags(self, tags: Mapping[str, str]) -> None:
        """Queue tags without waiting for the tracker; the last value of each counts."""
        with self._lock:
            self._tags.update(tags)

    def put_text(self, name: str, text: str) -> None:
        """Queue a text without waiting for the tracker; the last one of each name counts."""
        with self._lock:
            self._texts[name] = text

    def put_media(self, name: str, content: npt.NDArray[Any] | Path, step: int) -> None:
        """Queue the values of a histogram, or the file of a video."""
        with self._lock:
            self.lost_others += len(self._media) == _MEDIA
            self._media.append(Media(name, content, self._milliseconds(), int(step)))

    def close(self, status: None | RunStatus, *, patience: float, limit: float) -> None:
        """Deliver what waits and end the run with `status`; None leaves the run open.

        Gives up after `patience` seconds without an answer of the tracker, and after `limit`
        seconds in any case.
        """
        self._status = status
        self._closing.set()
        reason = self._await_end(patience, limit)
        self._abandoned.set()
        if reason and (count := self.waiting):
            self.warn(reason, f"{count} points were not delivered")
        self._report_losses()

    def _await_end(self, patience: float, limit: float) -> str:
        """Wait until the thread has delivered everything; empty, or why not."""
        start = moved = time.monotonic()
        progress = self._progress
        while not self._finished.wait(0.02):
            now = time.monotonic()
            if self._progress != progress:
                progress, moved = self._progress, now
            if now - moved > patience:
                return f"has not answered for {patience:g} s at the end"
            if now - start > limit:
                return f"was too slow for {limit:g} s at the end"
            if not self._thread.is_alive():
                return "was left by its thread"
        return ""

    def warn(
        self, what: str, effect: str = "Training continues", *, is_outage: bool = True
    ) -> None:
        """Log a failure of the tracker as one line, the first time only.

        Not with `warnings.warn`: the caller's code is not the cause, it may come from a thread, and
        it must not stop training if warnings are errors.
        """
        with self._lock:
            self._outage |= is_outage
            first, self._warned = not self._warned, True
        if first:
            record = f" {self._record} has every statistic." if self._record else ""
            _log.warning(
                "%s at %s %s. %s.%s",
                self.tracker,
                self.place,
                redacted(what),
                effect,
                record,
            )

    def _milliseconds(self) -> int:
        """The time of a point, since the epoch."""
        return int(self._clock() * 1000)

    # ---- what a tracker does, in the thread --------------------------------------------------

    @abstractmethod
    def _connect(self) -> None:
        """Open the run, or continue it. If it raises, it is called again; one error is logged."""

    @abstractmethod
    def _send_head(self) -> None:
        """Send parameters and tags that are new."""

    @abstractmethod
    def _send_points(self, points: list[Point]) -> None:
        """Send points. If it raises, they are sent again."""

    @abstractmethod
    def _send_text(self, name: str, text: str) -> None:
        """Send a text."""

    @abstractmethod
    def _send_media(self, media: Media) -> None:
        """Send a histogram or a video; one that the tracker does not take is left out."""

    @abstractmethod
    def _flush(self) -> None:
        """Let what was sent arrive."""

    @abstractmethod
    def _end(self, status: RunStatus) -> None:
        """End the run."""

    #: Points that are sent at once.
    _batch: int = 1000

    # ---- the thread ---------------------------------------------------------------------------

    def _main(self) -> None:
        with _quiet_thread(self.libraries):
            pause = _PERIOD
            while not self._finished.is_set() and not self._abandoned.is_set():
                try:
                    self._deliver()
                    pause = _PERIOD
                except Exception as error:
                    if way_out := self._refusal(error):
                        self._give_up(way_out, error)
                    else:
                        self.warn(f"failed with {in_one_line(error)}")
                    pause = min(2 * pause, _LONGEST_PAUSE)
                self.processor_seconds = time.thread_time()
                self.settled.set()
                self._pause(pause)

    def _refusal(self, error: BaseException) -> str:
        """Advice on an error that comes again whenever it is tried; empty if it may pass."""
        status = status_of(error) or 0
        is_permanent = (400 <= status < 500 or status == 501) and status not in _TRANSIENT
        return _WAYS_OUT.get(status, "check its address and version") if is_permanent else ""

    def _give_up(self, way_out: str, error: BaseException) -> None:
        """Send nothing more; what waits, and what follows, is counted as lost."""
        self.warn(
            f"refuses this run: {described(error)}",
            f"Training continues, and nothing more is sent there: {way_out}",
            is_outage=False,
        )
        with self._lock:
            self.lost_others += len(self._params) + len(self._tags)
        self._finished.set()

    def _pause(self, seconds: float) -> None:
        if self._closing.is_set():
            self._abandoned.wait(0 if self._finished.is_set() else _CLOSING_PAUSE)
        else:
            self._closing.wait(seconds)

    def _deliver(self) -> None:
        """One round: open the run if there is none, send everything, end the run if closing."""
        closing = self._closing.is_set()  # before the queue is emptied: nothing is queued after it
        if not self._is_open:
            self._connect()
            self._is_open = True
            self._answered()
            self.settled.set()
        self._send_head()
        while self.waiting and not self._abandoned.is_set():
            self._send_next_points()
        self._send_rest()
        self._flush()
        if closing and not self._abandoned.is_set():
            self._rest_attempts -= 1
            if self._rest_attempts and (self._texts or self._media):
                return  # to be tried again
            if self._status is not None:
                self._end(self._status)
            self._finished.set()

    def _answered(self) -> None:
        self._progress += 1
        self._outage = False

    def _send_next_points(self) -> None:
        """Send the next points; those of a failed request are sent again."""
        if not self._in_flight:
            with self._lock:
                count = min(len(self._points), self._batch)
                self._in_flight = [self._points.popleft() for _ in range(count)]
        self._send_points(self._in_flight)
        self._in_flight = []

    def _send_rest(self) -> None:
        """Send texts and media, each until it is stored, at growing intervals if some fail."""
        if time.monotonic() < self._rest_next and not self._closing.is_set():
            return
        with self._lock:
            texts, media = dict(self._texts), list(self._media)
        has_failed = False
        for name, text in texts.items():
            if self._is_done(name, partial(self._send_text, name, text)):
                with self._lock:
                    if self._texts[name] is text:  # and not a later one
                        del self._texts[name]
            else:
                has_failed = True
        for each in media:
            if self._is_done(each.name, partial(self._send_media, each)):
                with self._lock:
                    left = (x for x in self._media if x is not each)  # arrays have no ==
                    self._media = deque(left, maxlen=_MEDIA)
            else:
                has_failed = True
        self._rest_next = time.monotonic() + self._rest_pause if has_failed else -math.inf
        self._rest_pause = min(2 * self._rest_pause, _LONGEST_PAUSE) if has_failed else _PERIOD

    def _is_done(self, name: str, send: Callable[[], None]) -> bool:
        """Send a text or medium; return whether it is stored, or refused for good."""
        if self._abandoned.is_set():
            return False
        refusal = self._rest_refusal
        try:
            if not refusal:
                send()
        except Exception as error:  # of any library that artifacts are stored with
            refusal = self._refusal(error)
            effect = f"Training continues: {refusal}" if refusal else "Training continues"
            self.warn(f"does not store {name}: {described(error)}", effect, is_outage=False)
            if not refusal:
                return False
            if status_of(error) not in OF_CONTENT:
                self._rest_refusal = refusal
        finally:
            self._progress += 1
        self.lost_others += bool(refusal)
        return True

    def _report_losses(self) -> None:
        others = self.lost_others + len(self._texts) + len(self._media)
        counts = {"points": self.lost + self.waiting, "parameters, texts or media": others}
        lost = " and ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        if lost:
            level = logging.INFO if self._outage else logging.WARNING
            record = f" {self._record} has every statistic." if self._record else ""
            _log.log(level, "%s were not delivered to %s.%s", lost, self.tracker, record)


def redacted(text: str) -> str:
    """The text without the user and password of any URI in it."""
    return re.sub(r"://[^/\s@]+@", "://***@", text)


def status_of(error: BaseException) -> None | int:
    """Status of the HTTP answer that an error is about; None if it is about none.

    Libraries give it to their errors, or read it in the function that raises.
    """
    link: None | BaseException = error
    while link is not None:
        held = (frame.f_locals.get("response") for frame, _ in walk_tb(link.__traceback__))
        for response in (getattr(link, "response", None), *held):
            status = getattr(response, "status_code", None)
            if isinstance(status, int) and status >= 400:
                return status
        link = link.__cause__ or link.__context__
    return None


def described(error: BaseException) -> str:
    """Status, kind and message of an error."""
    status = status_of(error)
    return f"{status}, {in_one_line(error)}" if status else in_one_line(error)


def in_one_line(error: BaseException) -> str:
    """Kind and message of an error; of one about a database, what the database said."""
    link: None | BaseException = error
    while link is not None:
        error = getattr(link, "orig", None) or error  # SQLAlchemy's name
        link = link.__cause__ or link.__context__
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_LONGEST_MESSAGE].rstrip('.')}"


@contextlib.contextmanager
def _quiet_thread(libraries: tuple[str, ...]) -> Iterator[None]:
    """Suppress log messages of libraries and of urllib3 from this thread.

    They report created tables and repeated requests; failures come back as exceptions.
    """
    thread = threading.get_ident()
    quiet = {*libraries, "urllib3"}

    def passes(record: logging.LogRecord) -> bool:
        library = record.name.partition(".")[0]  # a handler may be shared with other loggers
        return record.thread != thread or library not in quiet

    places: list[logging.Handler | logging.Logger] = [logging.getLogger("urllib3.connectionpool")]
    for name in libraries:
        places += logging.getLogger(name).handlers
    with contextlib.ExitStack() as stack:
        for place in places:
            place.addFilter(passes)
            stack.callback(place.removeFilter, passes)
        yield
