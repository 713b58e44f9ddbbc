"""MLflow's active run and tracking URI in the caller's thread.

MLflow keeps a stack of active runs per thread and one tracking URI per process. `enter` does what
`mlflow.start_run` would do, which contacts the store from the caller's thread and refuses a second
run. No function here contacts a store.
"""

import logging
import os
import threading
from typing import Any, NamedTuple, cast

_log = logging.getLogger(__name__)


class _Entered(NamedTuple):
    run_id: str
    uri: str
    stack: list[Any]


_lock = threading.Lock()
_entered: list[_Entered] = []
#: The tracking URI set here, and the one that was set before.
_our_uri: None | str = None
_callers_uri: None | str = None


def callers_run(mlflow: Any) -> None | Any:
    """The active run of this thread, unless a logger of ours opened it."""
    run = mlflow.active_run()
    ours = {entered.run_id for entered in _entered}
    return None if run is None or run.info.run_id in ours else run


def callers_uri(mlflow: Any) -> None | str:
    """The tracking URI that the caller chose, or None if everything is at its default.

    Choosing an experiment chooses its store: `mlflow.set_experiment` sets MLFLOW_EXPERIMENT_ID.
    """
    with _lock:
        if _our_uri is not None and mlflow.get_tracking_uri() == _our_uri:
            return _callers_uri
        if mlflow.is_tracking_uri_set() or os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return str(mlflow.get_tracking_uri())
    return None


def enter(mlflow: Any, run: Any, uri: str) -> None:
    """Make `run`, which lives in the store `uri`, the active run of this thread."""
    stack = _active_runs()
    if stack is None:
        return
    with _lock:
        stack.append(mlflow.ActiveRun(run))
        _entered.append(_Entered(run.info.run_id, uri, stack))
        _point_at(mlflow, uri)


def leave(mlflow: Any, run_id: str) -> bool:
    """Undo `enter`, from any thread. False if the caller has already ended the run."""
    with _lock:
        mine = next((entered for entered in _entered if entered.run_id == run_id), None)
        if mine is None:
            return True
        _entered.remove(mine)
        runs = [run for run in mine.stack if run.info.run_id == run_id]
        for run in runs:
            mine.stack.remove(run)
        _point_at(mlflow, _entered[-1].uri if _entered else None)
        return bool(runs)


def _active_runs() -> None | list[Any]:
    from mlflow.tracking import fluent

    try:
        return cast(list[Any], fluent._active_run_stack.get())
    except AttributeError:  # not public: a future MLflow may keep its runs elsewhere
        _log.debug("This MLflow keeps its active runs elsewhere.", exc_info=True)
        return None


def _point_at(mlflow: Any, uri: None | str) -> None:
    """Set the tracking URI to `uri`, or with None back to the caller's."""
    global _our_uri, _callers_uri
    current = mlflow.get_tracking_uri()
    if _our_uri is not None and current != _our_uri:
        _our_uri = None  # the caller has chosen another one meanwhile
    if uri is None:
        if _our_uri is not None:
            mlflow.set_tracking_uri(_callers_uri)
        _our_uri = None
    elif current != uri:
        if _our_uri is None:
            _callers_uri = current if mlflow.is_tracking_uri_set() else None
        mlflow.set_tracking_uri(uri)
        _our_uri = uri
