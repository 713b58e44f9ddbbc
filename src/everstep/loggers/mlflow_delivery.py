"""Delivery of parameters and metrics to an MLflow store."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import mlflow_store as store
from .base import RunStatus
from .delivery import Delivery, Media, Point, _log


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
            if not self._ask(self._client.log_batch, self._run_id, params=params):
                self.lost_others += len(params)
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
        if tags and not self._ask(self._client.log_batch, self._run_id, tags=tags):
            self.lost_others += len(tags)
        with self._lock:
            self._tags = {n: v for n, v in self._tags.items() if waiting.get(n) != v}

    def _send_text(self, name: str, text: str) -> None:
        self._client.log_text(self._run_id, text, name)

    def _send_media(self, media: Media) -> None:
        """Store videos as artifacts; MLflow has no histograms."""
        if isinstance(media.content, Path):
            self._client.log_artifact(self._run_id, str(media.content), "videos")

    def _send_points(self, points: list[Point]) -> None:
        new = [point for point in points if point.step > self._last_step]
        metrics = [
            self._mlflow.entities.Metric(store.accepted_name(point.name), *point[1:])
            for point in new
        ]
        if metrics and not self._ask(self._client.log_batch, self._run_id, metrics=metrics):
            self.lost += len(points)

    def _flush(self) -> None:
        """Every request was answered already."""

    def _end(self, status: RunStatus) -> None:
        self._ask(self._client.set_terminated, self._run_id, status)

    def _ask(self, request: Callable[..., Any], *arguments: Any, **batch: list[Any]) -> bool:
        """Whether the store accepted the request; a refused one (status 400) is not repeated.

        Any other failure is raised, and the request is made again.
        """
        if store.file_id(self._file) != self._file_id:  # what is open has no name any more
            raise FileNotFoundError("the database was moved, deleted or replaced")
        try:
            request(*arguments, **batch)
        except self._mlflow.MlflowException as error:
            if error.get_http_status_code() != 400:
                raise
            self._progress += 1
            self.warn(f"refuses a request: {error}")
            return False
        self._answered()
        return True
