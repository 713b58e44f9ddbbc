"""Loggers: a file with every statistic of a run, and trackers that may fail without stopping it."""

from .base import Logger, LoggerGroup, RunStatus, create_run_dir
from .jsonl import JsonlLogger, read_metrics
from .lock import writer_of
from .mlflow_logger import MlflowLogger
from .queued import QueuedLogger, TrackedRun
from .tensorboard_logger import TensorBoardLogger
from .trackers import TRACKERS, check_logger, chosen, open_trackers, own_loggers, tracker_of
from .wandb_logger import WandbLogger

__all__ = [
    "TRACKERS",
    "JsonlLogger",
    "Logger",
    "LoggerGroup",
    "MlflowLogger",
    "QueuedLogger",
    "RunStatus",
    "TensorBoardLogger",
    "TrackedRun",
    "WandbLogger",
    "check_logger",
    "chosen",
    "create_run_dir",
    "open_trackers",
    "own_loggers",
    "read_metrics",
    "tracker_of",
    "writer_of",
]
