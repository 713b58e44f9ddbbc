"""Trackers by their names in configuration files."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ConfigError
from ..validation import unknown_name
from .base import Logger
from .mlflow_logger import MlflowLogger
from .queued import QueuedLogger, TrackedRun
from .tensorboard_logger import TensorBoardLogger
from .wandb_logger import WandbLogger

#: Loggers by the names of their trackers.
TRACKERS: dict[str, type[MlflowLogger] | type[TensorBoardLogger] | type[WandbLogger]] = {
    "mlflow": MlflowLogger,
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
}


def tracker_of(entry: Any) -> tuple[str, dict[str, Any]]:
    """Name and options of an entry of a file: a name, or a mapping of one to its options.

    Raises:
        ConfigError: If there is no such tracker, or it does not take an option.

    """
    name: Any = entry
    options: Any = {}
    if isinstance(entry, Mapping) and len(entry) == 1:
        [(name, options)] = entry.items()
    if not isinstance(name, str) or not isinstance(options, Mapping | None):
        raise ConfigError(
            f"`loggers`: expected the name of a tracker ({', '.join(TRACKERS)}), or a mapping of "
            f"one to its options; got {entry!r}."
        )
    if name not in TRACKERS:
        raise ConfigError(f"`loggers`: {name}: {unknown_name('tracker', name, tuple(TRACKERS))}.")
    options = dict(options or {})
    parameters = inspect.signature(TRACKERS[name]).parameters
    for option in options if "options" not in parameters else ():
        if option not in parameters:
            known = unknown_name("option", option, tuple(parameters))
            raise ConfigError(f"`loggers`: {name}: {option}: {known}.")
    return name, options


def chosen(entries: Sequence[Any], *, track: bool) -> dict[str, dict[str, Any]]:
    """Options by tracker: those that are named, else MLflow.

    Args:
        entries: Loggers of a trainer: trackers by name, and objects.
        track: Whether MLflow may be one.

    Raises:
        ConfigError: If there is no such tracker.

    """
    named = dict(tracker_of(entry) for entry in entries if is_entry(entry))
    if not named:
        named = {"mlflow": {}}
    return {name: x for name, x in named.items() if track or name != "mlflow"}


def is_entry(logger: Logger | str | Mapping[str, Any]) -> bool:
    """Whether this names a tracker, rather than being a logger."""
    return isinstance(logger, str | Mapping)


def open_trackers(
    named: Mapping[str, dict[str, Any]],
    run: TrackedRun,
    continued: Mapping[str, Any],
) -> dict[str, QueuedLogger]:
    """Loggers of a run by tracker.

    Args:
        named: Options by tracker; see `chosen`.
        run: The run.
        continued: Ids of the trackers' runs, if it is continued.

    """
    return {
        name: TRACKERS[name].of_run(replace(run, continued=continued.get(name)), **options)
        for name, options in named.items()
    }
