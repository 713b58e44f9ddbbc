"""Delivery of parameters and metrics to an MLflow store."""

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from . import mlflow_store as store
from .base import RunStatus
from .delivery import OF_CONTENT, Delivery, Media, Point, _log, described, status_of

#: Status of a request that is refused for its size alone.
_TOO_LARGE = 413


class MlflowDelivery(Delivery):
    """Delivery to an MLflow store; the run is joined, continued or created there.

    Args:
        mlflow: The imported package.
        target: Store and experiment, or the run to join.
        run_name: Name of a new run.
        queue_size: Largest number of waiting points.
        record: Path of the complete record, to be named in warnings; empty if there is none.

    """

    tracker = "MLflow"
    libraries = ("mlflow", "alembic")
    _batch = store.MAX_METRICS

    #: The run, once the store has answered.
    run: None | Any = None

    def __init__(
        self,
        mlflow: Any,
        target: store.Target,
        *,
        run_name: None | str,
        queue_size: int,
        record: str,
    ) -> None:
        super().__init__(target.uri, queue_size=queue_size, record=record)
        self._mlflow = mlflow
        self._client: Any = None
        self._run_id = ""
        self._last_step = -1  # of a run that is continued: it has points up to here
        self._target = target
        self._file = store.database(target.uri)
        self._file_id: None | tuple[int, int] = None
        self._run_name = run_name
        self._known_params: dict[str, str] = {}
        self._names: dict[str, str] = {}  # accepted names by those of statistics
        self._taken: set[str] = set()
        self._refused: set[str] = set()
        self._refuses_all = False
        self.start()

    def _connect(self) -> None:
        with store.first_use_lock(self._target.uri):
            client = self._mlflow.MlflowClient(tracking_uri=self._target.uri)
            run = store.open_run(client, self._target, self._run_name)
            if self._target.run_id == run.info.run_id and self._target.is_continued:
                self._last_step = store.last_step(client, run)
        self._file_id = store.file_id(self._file)
        self._known_params = dict(run.data.params)
        self.run, self._run_id = run, run.info.run_id
        self._client = client

    def _send_head(self) -> None:
        self._send_params()
        self._send_tags()

    def put_params(self, params: Mapping[str, Any]) -> None:
        """Queue parameters as text without waiting for the store."""
        super().put_params(store.flat_params(params))

    def _send_params(self) -> None:
        """Send new parameters; MLflow keeps the first value of each, and refuses another."""
        with self._lock:
            known = self._known_params
            new = [(name, value) for name, value in self._params.items() if name not in known]
            changed = [n for n, value in self._params.items() if known.get(n, value) != value]
        for start in range(0, len(new), store.MAX_PARAMS):
            chunk = new[start : start + store.MAX_PARAMS]
            params = [self._mlflow.entities.Param(name, value) for name, value in chunk]
            self.lost_others += self._refused_in("params", params)
            known.update(chunk)
        if changed:
            _log.info("MLflow keeps the first values of these parameters: %s.", ", ".join(changed))
        with self._lock:
            self._params = {n: v for n, v in self._params.items() if n not in known}

    def _send_tags(self) -> None:
        with self._lock:
            waiting = dict(self._tags)
        named = store.named_tags(waiting)
        tags = [self._mlflow.entities.RunTag(*tag) for tag in named.items()]
        self.lost_others += self._refused_in("tags", tags)
        with self._lock:
            self._tags = {n: v for n, v in self._tags.items() if waiting.get(n) != v}

    def _refused_in(self, kind: str, batch: list[Any]) -> int:
        """How many parameters or tags the store refuses; halves of what is too large are tried."""
        status = self._ask(self._client.log_batch, self._run_id, **{kind: batch}) if batch else 0
        if status != _TOO_LARGE or len(batch) == 1:
            return len(batch) if status else 0
        middle = len(batch) // 2
        return sum(self._refused_in(kind, half) for half in (batch[:middle], batch[middle:]))

    def _send_text(self, name: str, text: str) -> None:
        self._client.log_text(self._run_id, text, name)

    def _send_media(self, media: Media) -> None:
        """Store videos as artifacts; MLflow has no histograms."""
        if isinstance(media.content, Path):
            self._client.log_artifact(self._run_id, str(media.content), "videos")

    def _send_points(self, points: list[Point]) -> None:
        """Send new points; of statistics that the store refuses, these alone are lost."""
        new: dict[str, list[Any]] = {}
        for point in points:
            if point.step > self._last_step:
                metric = self._mlflow.entities.Metric(self._accepted(point.name), *point[1:])
                new.setdefault(metric.key, []).append(metric)
        names = [name for name in new if name not in self._refused]
        try:
            refused = self._refused_of(names, new)
        except _TooLargeError:
            self._batch = middle = len(points) // 2
            self._send_points(points[:middle])
            self._send_points(points[middle:])
            return
        self._refuses_all = len(refused) == len(names) > 0  # it is the run, not a statistic
        if not self._refuses_all:
            self._refused |= refused
        self.lost += sum(len(new[name]) for name in new if name in self._refused | refused)

    def _refused_of(self, names: list[str], metrics: Mapping[str, list[Any]]) -> set[str]:
        """Names that the store refuses, after it has all others: halves of a refused batch."""
        batch = [metric for name in names for metric in metrics[name]]
        status = self._ask(self._client.log_batch, self._run_id, metrics=batch) if batch else 0
        if not status:
            return set()
        if status == _TOO_LARGE and len(batch) > 1:
            raise _TooLargeError
        if len(names) == 1 or self._refuses_all or self._abandoned.is_set():
            return set(names)
        middle = len(names) // 2
        halves = names[:middle], names[middle:]
        return set().union(*(self._refused_of(half, metrics) for half in halves))

    def _accepted(self, name: str) -> str:
        """A name that the store accepts, and that no other statistic has."""
        if name not in self._names:
            accepted = first = store.accepted_name(name)
            for i in count(2):
                if accepted not in self._taken:
                    break
                accepted = f"{first[:240]}_{i}"
            self._names[name] = accepted
            self._taken.add(accepted)
        return self._names[name]

    def _flush(self) -> None:
        """Every request was answered already."""

    def _end(self, status: RunStatus) -> None:
        self._ask(self._client.set_terminated, self._run_id, status)

    def _refusal(self, error: BaseException) -> str:
        """See `Delivery`; a store without a server has MLflow's codes, of which it is 404."""
        is_gone = getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST"
        return super()._refusal(error) or ("check that the run exists" if is_gone else "")

    def _ask(self, request: Callable[..., Any], *arguments: Any, **batch: list[Any]) -> int:
        """Status of a refusal of what is sent, which is not repeated as it is; 0 if accepted.

        Any other failure is raised.
        """
        if store.file_id(self._file) != self._file_id:  # what is open has no name any more
            raise FileNotFoundError("the database was moved, deleted or replaced")
        try:
            request(*arguments, **batch)
        except self._mlflow.MlflowException as error:
            status = status_of(error) or int(error.get_http_status_code())
            if status not in OF_CONTENT:
                raise
            self._progress += 1
            if status != _TOO_LARGE or all(len(items) == 1 for items in batch.values()):
                self.warn(f"refuses a request: {described(error)}")
            return status
        self._answered()
        return 0


class _TooLargeError(Exception):
    """A batch of points is larger than a request may be; a part of it may pass."""
