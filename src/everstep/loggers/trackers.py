"""Trackers by their names in configuration files."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.entries import Entries
from ..core.validation import unknown_name
from ..errors import ConfigError
from .base import Logger
from .mlflow_logger import MlflowLogger
from .queued import QueuedLogger, TrackedRun
from .tensorboard_logger import TensorBoardLogger
from .wandb_logger import WandbLogger

#: What may be in a list of loggers beside names of trackers.
ENTRIES = Entries(
    "loggers",
    ("log_params", "log_metrics", "close"),
    "a logger, the name of a tracker",
    "a class with the methods of `everstep.loggers.Logger`",
)

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
        raise ConfigError(
            f"`loggers`: {name}: {unknown_name('tracker', name, tuple(TRACKERS))}; known are "
            f"{', '.join(TRACKERS)}, and dotted names of classes such as my_package.MyLogger."
        )
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
        ConfigError: If there is no such tracker, or these are no list.

    """
    if not isinstance(entries, list | tuple):
        raise ConfigError(
            f"`loggers` must be a list of loggers and names of trackers; got {entries!r}. Write "
            f"`loggers=[{entries!r}]`, or leave it out."
        )
    named = dict(tracker_of(entry) for entry in entries if _names_tracker(entry))
    if not named:
        named = {"mlflow": {}}
    return {name: x for name, x in named.items() if track or name != "mlflow"}


def check_logger(entry: Any) -> None:
    """Check a tracker's name and options, or a logger or the class of one. Calls nothing.

    Raises:
        ConfigError: If it is none of these, or does not take the options.

    """
    if _names_tracker(entry):
        tracker_of(entry)
    else:
        ENTRIES.check(entry)


def own_loggers(entries: Sequence[Any]) -> list[Logger]:
    """Loggers of the program: the objects in a list, and one of each class that it names.

    Raises:
        ConfigError: If one is neither, or a class refuses its options.

    """
    return [ENTRIES.make(entry) for entry in entries if not _names_tracker(entry)]


def _names_tracker(entry: Any) -> bool:
    """Whether an entry is to be one of a tracker: names of classes have dots."""
    name = next(iter(entry)) if isinstance(entry, Mapping) and len(entry) == 1 else entry
    return isinstance(name, Mapping) or (isinstance(name, str) and "." not in name)


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
