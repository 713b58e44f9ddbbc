"""Loggers: a file with every statistic of a run, and trackers that may fail without stopping it."""

from .base import Logger, LoggerGroup, RunStatus, create_run_dir
from .jsonl import JsonlLogger, read_metrics
from .mlflow_logger import MlflowLogger

__all__ = [
    "JsonlLogger",
    "Logger",
    "LoggerGroup",
    "MlflowLogger",
    "RunStatus",
    "create_run_dir",
    "read_metrics",
]
