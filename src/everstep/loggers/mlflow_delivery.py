"""The thread that delivers parameters and metrics to an MLflow store."""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import mlflow_store as store
from .base import RunStatus

_log = logging.getLogger(__name__)

#: Seconds between two deliveries, and the longest pause after a failed one.
_PERIOD = 1.0
_LONGEST_PAUSE = 30.0
#: Seconds between attempts while the logger is being closed.
_CLOSING_PAUSE = 0.2


class Point(NamedTuple):
    """One value of one metric."""

    name: str
    value: float
    milliseconds: int
    step: int


class Delivery:
    """A bounded queue and the daemon thread that empties it; only this thread contacts the store.

    The store may be slow, absent or failing. Points that it does not accept wait in the queue; when
    the queue is full the oldest are dropped, since the end of a run matters most. However often the
    store fails, one warning is logged.

    Args:
        mlflow: The imported package.
        target: Store and experiment, or the run to join.
        run_name: Name of a new run.
        queue_size: Largest number of waiting points.
        record: Path of the complete record, to be named in warnings; empty if there is none.

    """

    #: The run, once the store has answered.
    run: None | Any = None

    #: Set once the store has answered or has failed for the first time.
    settled: threading.Event

    #: Points that were dropped or refused.
    lost: int = 0

    def __init__(
        self,
        mlflow: Any,
        target: store.Target,
        *,
        run_name: None | str,
        queue_size: int,
        record: str,
    ) -> None:
        self.settled = threading.Event()
        self._mlflow = mlflow
        self._client: Any = None
        self._run_id = ""
        self._last_step = -1  # of a run that is continued: it has points up to here
        self._target = target
        self._run_name = run_name
        self._record = record
        self._lock = threading.Lock()
        self._points: deque[Point] = deque(maxlen=queue_size)
        self._queue_size = queue_size
        self._in_flight: list[Point] = []
        self._params: dict[str, str] = {}
        self._known_params: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._progress = 0  # requests that the store has answered
        self._warned = False
        self._outage = False
        self._status: None | RunStatus = None
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._main, name="everstep-mlflow", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of points that the store has not accepted yet."""
        return len(self._points) + len(self._in_flight)

    def put_points(self, points: list[Point]) -> None:
        """Queue points without waiting for the store."""
        with self._lock:
            self.lost += max(0, len(self._points) + len(points) - self._queue_size)
            self._points.extend(points)  # drops the oldest

    def put_params(self, params: dict[str, str]) -> None:
        """Queue parameters without waiting for the store."""
        with self._lock:
            self._params.update(params)

    def put_tags(self, tags: dict[str, str]) -> None:
        """Queue tags without waiting for the store; the last value of each counts."""
        with self._lock:
            self._tags.update(tags)

    def put_text(self, name: str, text: str) -> None:
        """Queue an artifact without waiting for the store; the last text of each counts."""
        with self._lock:
            self._texts[name] = text

    def close(self, status: None | RunStatus, *, patience: float, limit: float) -> None:
        """Deliver waiting points and end the run with `status`; None leaves the run open.

        Gives up after `patience` seconds without an answer of the store, and after `limit` seconds
        in any case.
        """
        self._status = status
        self._closing.set()
        start = moved = time.monotonic()
        progress = self._progress
        while not self._finished.wait(0.02) and self._thread.is_alive():
            now = time.monotonic()
            if self._progress != progress:
                progress, moved = self._progress, now
            if now - moved > patience or now - start > limit:
                break
        self._abandoned.set()
        self._report_losses()

    def warn(self, what: str) -> None:
        """Log a failure of the tracker, the first time only.

        Not with `warnings.warn`: the caller's code is not the cause, it may come from a thread, and
        it must not stop training if warnings are errors.
        """
        with self._lock:
            self._outage = True
            first, self._warned = not self._warned, True
        if first:
            record = f" {self._record} has every statistic." if self._record else ""
            _log.warning(
                "MLflow at %s %s. Training continues.%s",
                store.redacted(self._target.uri),
                store.redacted(what),
                record,
            )

    def _report_losses(self) -> None:
        lost = self.lost + self.waiting
        if lost:
            level = logging.INFO if self._outage else logging.WARNING
            record = f" {self._record} has them." if self._record else ""
            _log.log(level, "%d points were not delivered to MLflow.%s", lost, record)

    def _main(self) -> None:
        with _quiet_thread():
            pause = _PERIOD
            while not self._finished.is_set() and not self._abandoned.is_set():
                try:
                    self._deliver()
                    pause = _PERIOD
                except Exception as error:
                    self.warn(f"failed with {type(error).__name__}: {error}")
                    pause = min(2 * pause, _LONGEST_PAUSE)
                self.settled.set()
                self._pause(pause)

    def _pause(self, seconds: float) -> None:
        if self._closing.is_set():
            self._abandoned.wait(0 if self._finished.is_set() else _CLOSING_PAUSE)
        else:
            self._closing.wait(seconds)

    def _deliver(self) -> None:
        """One round: open the run if there is none, send everything, end the run if closing."""
        closing = self._closing.is_set()  # before the queue is emptied: nothing is queued after it
        if self._client is None:
            self._connect()
            self.settled.set()
        self._send_params()
        self._send_tags()
        while self.waiting and not self._abandoned.is_set():
            self._send_points()
        self._send_texts()
        if closing and not self._abandoned.is_set():
            if self._status is not None:
                self._ask(self._client.set_terminated, self._run_id, self._status)
            self._finished.set()

    def _connect(self) -> None:
        with store.first_use_lock(self._target.uri):
            client = self._mlflow.MlflowClient(tracking_uri=self._target.uri)
            run = store.open_run(client, self._target, self._run_name)
            if self._target.run_id == run.info.run_id and self._target.is_continued:
                self._last_step = store.last_step(client, run)
        self._known_params = dict(run.data.params)
        self.run, self._run_id = run, run.info.run_id
        self._client = client
        self._progress += 1
        self._outage = False

    def _send_params(self) -> None:
        """Send new parameters; MLflow keeps the first value of each, and refuses another."""
        with self._lock:
            known = self._known_params
            new = [(name, value) for name, value in self._params.items() if name not in known]
            changed = [n for n, value in self._params.items() if known.get(n, value) != value]
        for start in range(0, len(new), store.MAX_PARAMS):
            chunk = new[start : start + store.MAX_PARAMS]
            params = [self._mlflow.entities.Param(name, value) for name, value in chunk]
            self._ask(self._client.log_batch, self._run_id, params=params)
            known.update(chunk)
        if changed:
            _log.info("MLflow keeps the first value of: %s.", ", ".join(changed))
        with self._lock:
            self._params = {n: v for n, v in self._params.items() if n not in known}

    def _send_tags(self) -> None:
        with self._lock:
            waiting = dict(self._tags)
        tags = [self._mlflow.entities.RunTag(*tag) for tag in waiting.items()]
        if tags:
            self._ask(self._client.log_batch, self._run_id, tags=tags)
        with self._lock:
            self._tags = {n: v for n, v in self._tags.items() if waiting.get(n) != v}

    def _send_texts(self) -> None:
        """Send artifacts, once: a run may lack the rights or libraries that its place needs."""
        with self._lock:
            texts, self._texts = self._texts, {}
        for name, text in texts.items():
            try:
                self._client.log_text(self._run_id, text, name)
            except Exception as error:  # of any library that artifacts are stored with
                self.warn(f"does not store {name}: {type(error).__name__}: {error}")
            self._progress += 1

    def _send_points(self) -> None:
        """Send the next points; those of a failed request are sent again."""
        if not self._in_flight:
            with self._lock:
                count = min(len(self._points), store.MAX_METRICS)
                self._in_flight = [self._points.popleft() for _ in range(count)]
        new = [point for point in self._in_flight if point.step > self._last_step]
        metrics = [self._mlflow.entities.Metric(*point) for point in new]
        if metrics and not self._ask(self._client.log_batch, self._run_id, metrics=metrics):
            self.lost += len(self._in_flight)
        self._in_flight = []

    def _ask(self, request: Callable[..., Any], *arguments: Any, **batch: list[Any]) -> bool:
        """Whether the store accepted the request; a refused one (status 400) is not repeated.

        Any other failure is raised, and the request is made again.
        """
        try:
            request(*arguments, **batch)
        except self._mlflow.MlflowException as error:
            if error.get_http_status_code() != 400:
                raise
            self._progress += 1
            self.warn(f"refuses a request: {error}")
            return False
        self._progress += 1
        self._outage = False
        return True


@contextlib.contextmanager
def _quiet_thread() -> Iterator[None]:
    """Suppress log messages of MLflow, Alembic and urllib3 from this thread.

    They report created tables and repeated requests; failures come back as exceptions.
    """
    thread = threading.get_ident()

    def passes(record: logging.LogRecord) -> bool:
        library = record.name.partition(".")[0]  # a handler may be shared with other loggers
        return record.thread != thread or library not in ("mlflow", "alembic", "urllib3")

    places: list[logging.Handler | logging.Logger] = [logging.getLogger("urllib3.connectionpool")]
    for name in ("mlflow", "alembic"):
        places += logging.getLogger(name).handlers
    with contextlib.ExitStack() as stack:
        for place in places:
            place.addFilter(passes)
            stack.callback(place.removeFilter, passes)
        yield
