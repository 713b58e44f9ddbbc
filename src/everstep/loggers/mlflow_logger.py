"""The MLflow logger: sends statistics from a thread, to the caller's active run or a new one."""

import atexit
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from . import mlflow_ambient as ambient
from . import mlflow_store as store
from .base import RunStatus
from .mlflow_delivery import Delivery, Point

_log = logging.getLogger(__name__)

#: Seconds that the constructor waits for a local store, and for a remote one.
_LOCAL_WAIT = 30.0
_REMOTE_WAIT = 2.0


class MlflowLogger:
    """Sends parameters and metrics to MLflow from a thread, without blocking training.

    If a run is active in this thread, it is joined and left open. Otherwise a new run is opened,
    which `mlflow.active_run()` returns in this thread until `close`. A second logger opens a second
    run; the newest open one is the active one.

    The store is `tracking_uri`, else the one MLflow is configured to use, else an SQLite file
    `mlflow.db` in `root`. If it does not answer in time (30 s if local, 2 s if remote), the
    constructor logs a warning and returns without an active run; the thread keeps trying, and
    points wait in a queue. A logger logs at most one such warning.

    Args:
        root: Directory of the runs, which contains the default store.
        experiment_name: Experiment, created if missing. None: the one that MLflow is configured to
            use, else `default_experiment`.
        default_experiment: Experiment if none is named or configured.
        run_name: Name of a new run; None: MLflow generates one.
        tracking_uri: Store, as `mlflow.set_tracking_uri` takes it.
        queue_size: Largest number of waiting points; beyond it the oldest are dropped.
        record: Path of the complete record, to be named in warnings.
        continued: Id of a run of an earlier logger, to continue in place of a new one. Points up to
            the last step that it has are not sent again.
        wait: Seconds that the constructor waits for the store.
        patience: Seconds without an answer after which `close` gives up.
        limit: Seconds after which `close` gives up in any case.

    """

    def __init__(
        self,
        root: str | Path = "runs",
        *,
        experiment_name: None | str = None,
        default_experiment: str = store.DEFAULT_EXPERIMENT,
        run_name: None | str = None,
        tracking_uri: None | str = None,
        queue_size: int = 200_000,
        record: str | Path = "",
        continued: None | str = None,
        wait: None | float = None,
        patience: float = 5.0,
        limit: float = 60.0,
    ) -> None:
        self._delivery: None | Delivery = None
        self._closed = False
        self._patience, self._limit = patience, limit
        try:
            import mlflow
        except Exception as error:  # a broken dependency of MLflow raises anything
            _log.warning(
                "MLflow cannot be imported (%s: %s), so the run is not tracked. Training "
                "continues.%s",
                type(error).__name__,
                error,
                f" {record} has every statistic." if record else "",
            )
            return
        self._mlflow = mlflow
        self._target = store.choose_target(
            mlflow,
            Path(root),
            experiment_name=experiment_name,
            tracking_uri=tracking_uri,
            default_experiment=default_experiment,
            continued=continued,
        )
        self._delivery = Delivery(
            mlflow, self._target, run_name=run_name, queue_size=queue_size, record=str(record)
        )
        if self._target.is_ours:
            self._await_run(wait)
        atexit.register(self._close_at_exit)  # after MLflow's own, so it runs before that

    @property
    def tracking_uri(self) -> None | str:
        """URI of the store; None if MLflow cannot be imported."""
        return None if self._delivery is None else self._target.uri

    @property
    def run_id(self) -> None | str:
        """Id of the run; None until the store has answered."""
        return self._info("run_id")

    @property
    def experiment_id(self) -> None | str:
        """Id of the experiment; None until the store has answered."""
        return self._info("experiment_id")

    def _info(self, name: str) -> None | str:
        """Attribute of the run, else of the target."""
        if self._delivery is None:
            return None
        run = self._delivery.run
        return cast(None | str, getattr(self._target if run is None else run.info, name))

    @property
    def undelivered(self) -> int:
        """Metric points that the store has not taken: waiting, dropped or refused."""
        return 0 if self._delivery is None else self._delivery.lost + self._delivery.waiting

    def ui_command(self) -> None | str:
        """The command that shows the run, or its URL on a server.

        None if MLflow cannot be imported.
        """
        if self._delivery is None:
            return None
        return store.ui_command(self._target, self.experiment_id, self.run_id)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Queue parameters as text; a parameter that the run already has keeps its value."""
        if self._delivery is not None and not self._closed:
            self._delivery.put_params(store.flat_params(params))

    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Queue tags of the run: `commit` as MLflow names it, others under `everstep.`."""
        if self._delivery is not None and not self._closed:
            self._delivery.put_tags(store.named_tags(tags))

    def log_text(self, name: str, text: str) -> None:
        """Queue a text as the run's artifact `name`; a later one replaces it."""
        if self._delivery is not None and not self._closed:
            self._delivery.put_text(name, text)

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Queue statistics after `step` env steps; after `close` nothing is queued.

        Totals that grow with the step are left out: their charts are straight lines.
        """
        if self._delivery is None or self._closed:
            return
        now = int(time.time() * 1000)
        named = (
            (store.accepted_name(name), float(value))
            for name, value in metrics.items()
            if name not in store.TOTALS
        )
        self._delivery.put_points([Point(name, value, now, int(step)) for name, value in named])

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Deliver waiting points, within the time allowed, and end the run if it is ours.

        Logs the number of points that were not delivered, as a warning unless there has been one.
        """
        if self._delivery is None or self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        ours = self._target.is_ours
        if ours and self.run_id is not None:  # a run that the caller has ended keeps its status
            ours = ambient.leave(self._mlflow, self.run_id)
        self._delivery.close(status if ours else None, patience=self._patience, limit=self._limit)

    def _await_run(self, wait: None | float) -> None:
        assert self._delivery is not None
        default = _REMOTE_WAIT if self._target.is_remote else _LOCAL_WAIT
        seconds = default if wait is None else wait
        if not self._delivery.settled.wait(seconds):
            self._delivery.warn(f"has not answered within {seconds:g} s")
        if self._delivery.run is not None:
            ambient.enter(self._mlflow, self._delivery.run, self._target.uri)

    def _close_at_exit(self) -> None:
        failed = getattr(sys, "last_value", None) is not None  # set for an uncaught exception
        self.close("FAILED" if failed else "FINISHED")
