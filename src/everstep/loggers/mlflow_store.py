"""The store and experiment of an MLflow run, and names that a store accepts."""

import contextlib
import functools
import getpass
import importlib.metadata
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ..core.installation import install_command
from . import mlflow_ambient as ambient

_log = logging.getLogger(__name__)

#: Limits of the oldest servers in use; a batch above the first two is refused as a whole.
MAX_METRICS = 1000
MAX_PARAMS = 100
_MAX_NAME = 250
_MAX_PARAM = 500

DEFAULT_EXPERIMENT = "everstep"

_FORBIDDEN = re.compile(r"[^\w/.\- ]" if os.name == "nt" else r"[^\w/.\- :]")


class Target(NamedTuple):
    """Store and experiment of a run; chosen without contacting the store."""

    #: URI of the store.
    uri: str

    #: Run of the caller to join, or run to continue; None opens a run.
    run_id: None | str = None

    #: Whether `run_id` is a run of an earlier logger, which is continued.
    is_continued: bool = False

    #: Experiment of a new run; the name is used if the id is None.
    experiment_id: None | str = None
    experiment_name: str = DEFAULT_EXPERIMENT

    #: Artifact location of a new experiment; None leaves it to the store.
    artifacts: None | str = None

    @property
    def is_ours(self) -> bool:
        """Whether the run is ended by the logger; that of the caller is left open."""
        return self.run_id is None or self.is_continued

    @property
    def is_remote(self) -> bool:
        """Whether the store is behind a server."""
        return urlsplit(self.uri).scheme in ("http", "https") or self.uri.startswith("databricks")


def choose_target(
    mlflow: Any,
    root: Path,
    *,
    experiment_name: None | str,
    tracking_uri: None | str,
    default_experiment: str = DEFAULT_EXPERIMENT,
    continued: None | str = None,
) -> Target:
    """The caller's active run, else a store and an experiment.

    The store is `tracking_uri`, else what the caller configured, else `root/mlflow.db`. The
    experiment is `experiment_name`, else what the caller configured, else `default_experiment`.
    """
    run = ambient.callers_run(mlflow)
    same_store = tracking_uri in (None, mlflow.get_tracking_uri())
    if run is not None and same_store:
        experiment_id = run.info.experiment_id
        return Target(mlflow.get_tracking_uri(), run.info.run_id, experiment_id=experiment_id)
    uri = tracking_uri or ambient.callers_uri(mlflow)
    name = experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    use_id = experiment_name is None and same_store  # an id means nothing in another store
    return Target(
        uri or default_uri(root),
        continued,
        continued is not None,
        experiment_id=os.environ.get("MLFLOW_EXPERIMENT_ID") if use_id else None,
        experiment_name=name or default_experiment,
        artifacts=None if uri else (root.resolve() / "mlflow-artifacts").as_uri(),
    )


def default_uri(root: Path) -> str:
    """URI of the SQLite store in the directory of runs."""
    path = (root.resolve() / "mlflow.db").as_posix()
    return "sqlite:///" + path.replace("%", "%25").replace("?", "%3F")


def open_run(client: Any, target: Target, run_name: None | str) -> Any:
    """The caller's run, or a new one. Contacts the store."""
    if target.run_id is not None and not target.is_continued:
        return client.get_run(target.run_id)
    if target.run_id is not None and (run := _continue_run(client, target.run_id)) is not None:
        return run
    experiment_id = target.experiment_id or _find_experiment(client, target)
    return client.create_run(experiment_id, run_name=run_name, tags=_run_tags())


def _continue_run(client: Any, run_id: str) -> Any:
    """The run of an earlier logger, open again; None, with a warning, if it is not there."""
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        run = None
    if run is None or run.info.lifecycle_stage != "active":
        _log.warning(
            "The MLflow run %s was deleted, or is in another store. A new MLflow run is opened.",
            run_id,
        )
        return None
    client.update_run(run_id, status="RUNNING")
    return client.get_run(run_id)


def last_step(client: Any, run: Any) -> int:
    """Step of the newest points of a run; -1 if it has none."""
    names = sorted(run.data.metrics, key=lambda name: name.startswith("eval/"))
    history = client.get_metric_history(run.info.run_id, names[0]) if names else []
    return max((metric.step for metric in history), default=-1)


def _find_experiment(client: Any, target: Target) -> str:
    """Id of the experiment, created if missing. A deleted experiment's name cannot be reused."""
    name = target.experiment_name
    for number in range(2, 1000):
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            return str(client.create_experiment(name, artifact_location=target.artifacts))
        if experiment.lifecycle_stage == "active":
            return str(experiment.experiment_id)
        deleted, name = name, f"{target.experiment_name}-{number}"
        _log.warning(
            "The MLflow experiment `%s` was deleted, so the run goes to `%s`. "
            "To use the name again: mlflow experiments restore --experiment-id %s",
            deleted,
            name,
            experiment.experiment_id,
        )
    raise RuntimeError(f"All experiments named `{target.experiment_name}` were deleted.")


def _run_tags() -> dict[str, str]:
    """Source and user of a run, as MLflow's pages show them."""
    tags = {"mlflow.source.name": sys.argv[0] or "python", "mlflow.source.type": "LOCAL"}
    with contextlib.suppress(Exception):  # a container's user may have no name
        tags["mlflow.user"] = getpass.getuser()
    return tags


@contextlib.contextmanager
def first_use_lock(uri: str) -> Iterator[None]:
    """Let one process at a time open a sqlite store.

    Two processes that create its tables at once fail with `duplicate column name`.
    """
    path = database(uri)
    if path is None:
        yield
        return
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        yield


def database(uri: str) -> None | Path:
    """File of a sqlite store; None for other stores."""
    match = re.match(r"sqlite(?:\+\w+)?:///(?:file:)?([^?]+)", uri)
    return None if match is None or match[1] == ":memory:" else Path(unquote(match[1]))


def file_id(path: None | Path) -> None | tuple[int, int]:
    """Device and number of a file, which another one under its name has not; None if missing."""
    with contextlib.suppress(OSError):
        if path is not None:
            status = path.stat()
            return status.st_dev, status.st_ino
    return None


def named_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags by the names that MLflow shows, or else under `everstep.`."""
    known = {"commit": "mlflow.source.git.commit"}
    return {known.get(name, f"everstep.{name}"): value for name, value in tags.items()}


def ui_command(target: Target, experiment_id: None | str, run_id: None | str) -> str:
    """The command that shows the store's runs, or the run's URL on a server.

    Begins with the command that installs the page where MLflow was installed without it: the
    package `mlflow-skinny` has none.
    """
    if not target.is_remote:
        command = f"mlflow ui --backend-store-uri {shlex.quote(target.uri)}"
        here = Path(sys.executable).parent
        if Path(shutil.which("mlflow") or "").parent != here:  # not on the path, or another one
            command = f"{shlex.quote(sys.executable)} -m {command}"
        has_page = any(importlib.metadata.distributions(name="mlflow"))
        return command if has_page else f"{install_command('ui')} && {command}"
    page = f"{target.uri.rstrip('/')}/#/experiments"
    return f"{page}/{experiment_id}/runs/{run_id}" if run_id else page


@functools.lru_cache(maxsize=10_000)  # a run logs the same names over and over
def accepted_name(name: str) -> str:
    """The nearest name that every store accepts for a metric or parameter."""
    parts = (part for part in _FORBIDDEN.sub("_", name).split("/") if part.strip("."))
    joined = re.sub(r"^\.\.", "__", "/".join(parts))  # a name may not look like a path upwards
    return joined[:_MAX_NAME].rstrip("/") or "_"


def flat_params(params: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as text, nested mappings joined with dots: `{"a": {"b": 1}}` is `{"a.b": "1"}`."""
    flat: dict[str, str] = {}
    for name, value in params.items():
        if isinstance(value, Mapping) and value:
            flat |= flat_params({f"{name}.{key}": item for key, item in value.items()})
        else:
            flat[accepted_name(str(name))] = _param_text(value)
    return flat


def _param_text(value: Any) -> str:
    text = f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else str(value)
    return text if len(text) <= _MAX_PARAM else text[: _MAX_PARAM - 1] + "…"
