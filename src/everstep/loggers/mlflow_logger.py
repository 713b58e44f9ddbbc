"""The MLflow logger: sends statistics from a thread, to the caller's active run or a new one."""

from pathlib import Path
from typing import Any, cast

from typing_extensions import Self

from . import mlflow_ambient as ambient
from . import mlflow_store as store
from .mlflow_delivery import MlflowDelivery
from .queued import QUEUE_SIZE, QueuedLogger, TrackedRun, warn_of_import

#: Seconds that the constructor waits for a local store, and for a remote one.
_LOCAL_WAIT = 30.0
_REMOTE_WAIT = 2.0


class MlflowLogger(QueuedLogger):
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
        queue_size: int = QUEUE_SIZE,
        record: str | Path = "",
        continued: None | str = None,
        wait: None | float = None,
        patience: float = 5.0,
        limit: float = 60.0,
    ) -> None:
        try:
            import mlflow
        except Exception as error:  # a broken dependency of MLflow raises anything
            warn_of_import("MLflow", error, record)
            super().__init__(None)
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
        self._store = MlflowDelivery(
            mlflow, self._target, run_name=run_name, queue_size=queue_size, record=str(record)
        )
        if self._target.is_ours:
            self._await_run(wait)
        super().__init__(self._store, patience=patience, limit=limit)

    @classmethod
    def of_run(cls, run: TrackedRun, **options: Any) -> Self:
        """The logger of a run, whose store is beside its directory unless MLflow has another."""
        named = {
            "experiment_name": run.experiment_name,
            "default_experiment": run.subject,
            "run_name": run.name,
            "record": run.record,
            "continued": run.continued,
        }
        return cls(run.run_dir.parent, **named | options)

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
        run = self._store.run
        return cast(None | str, getattr(self._target if run is None else run.info, name))

    def ui_command(self) -> None | str:
        """The command that shows the run, or its URL on a server.

        None if MLflow cannot be imported.
        """
        if self._delivery is None:
            return None
        return store.ui_command(self._target, self.experiment_id, self.run_id)

    def _ends_run(self) -> bool:
        """Whether the run is ours: one that the caller has ended keeps its status."""
        ours = self._target.is_ours
        return ambient.leave(self._mlflow, self.run_id) if ours and self.run_id else ours

    def _await_run(self, wait: None | float) -> None:
        default = _REMOTE_WAIT if self._target.is_remote else _LOCAL_WAIT
        seconds = default if wait is None else wait
        if not self._store.settled.wait(seconds):
            self._store.warn(f"has not answered within {seconds:g} s")
        if self._store.run is not None:
            ambient.enter(self._mlflow, self._store.run, self._target.uri)
