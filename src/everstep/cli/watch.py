"""`everstep watch`: the progress of a run that trains elsewhere, from its files."""

import argparse
import shlex
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ..trainers.progress import ConsoleProgress
    from ..visualization import RunRecord

READS = True
HELP = "show the progress of a run that trains elsewhere"
DESCRIPTION = (
    "Show the progress of a run from its files, as `everstep train` shows its own, until Ctrl-C or "
    "until the run has ended."
)

#: Seconds between two looks at the files.
_INTERVAL = 1.0

#: Seconds after which a run that no process trains has ended, rather than is going on.
_QUIET = 3.0

#: Records of the past that are shown: the course of a long run is thinned out.
_HISTORY = 100

#: Records that are shown as they are, so that the rate is that of now.
_RECENT = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run")
    parser.add_argument("--once", action="store_true", help="show the run as it is now, and end")


def run(arguments: argparse.Namespace) -> int:
    """Show the run until it has ended; the exit code is 0.

    Raises:
        ConfigError: If this is not the directory of a run.
        EverstepError: If the run has no records.
        KeyboardInterrupt: On Ctrl-C, which ends watching and not the run.

    """
    from ..loggers import writer_of
    from ..trainers.progress import duration
    from ..visualization import find_runs

    [run_dir, *_] = find_runs([arguments.run_dir])
    if not arguments.once:
        _wait_for_records(run_dir / "metrics.jsonl")
    record, pause = _read(run_dir)
    metrics = run_dir / "metrics.jsonl"
    watched = _Watched(record, writer_of(metrics))
    has_ended = False
    try:
        while not (arguments.once or watched.is_over or has_ended):
            time.sleep(pause)
            has_ended = _has_ended(metrics)  # first: its last records are read then
            record, pause = _read(run_dir)
            watched.update(record)
    finally:
        watched.progress.close()
    if has_ended and not watched.is_over:
        ago = duration(max(0.0, time.time() - record.records[-1]["time"]))
        print(
            f"No process trains in {run_dir}: it ended {ago} ago, after {record.env_steps:,} env "
            f"steps. To go on: everstep resume {shlex.quote(str(run_dir))}"
        )
    return 0


def _has_ended(metrics: "Path") -> bool:
    """Whether no process has the file open to write, and none has written for some seconds."""
    from ..loggers import writer_of

    quiet = abs(time.time() - metrics.stat().st_mtime)  # the clock may have been set back since
    return writer_of(metrics) == 0 and quiet > _QUIET


def _wait_for_records(path: "Path") -> None:
    """Wait until the run has completed its first train step."""
    if not path.exists() or not path.stat().st_size:
        print(f"{path.parent}: waiting for the first train step", flush=True)
    while not path.exists() or not path.stat().st_size:
        time.sleep(_INTERVAL)


def _read(run_dir: "Path") -> "tuple[RunRecord, float]":
    """The run's record, and seconds to wait, so that reading takes at most 5 % of a CPU."""
    from ..visualization import read_run

    started = time.monotonic()
    record = read_run(run_dir)
    return record, max(_INTERVAL, 20 * (time.monotonic() - started))


class _Watched:
    """A run's records, shown as they appear."""

    #: The view.
    progress: "ConsoleProgress"

    def __init__(self, record: "RunRecord", pid: None | int) -> None:
        from ..trainers.progress import ConsoleProgress

        self._now = record.records[0]["time"]
        budget = record.config.get("total_env_steps")
        self._budget = budget if isinstance(budget, int) else None
        self.progress = ConsoleProgress(self._budget, clock=lambda: self._now, pid=pid or None)
        is_episodic = any(key.startswith("episodes/") for key in record.keys)
        self.progress.log_params({"episodic": is_episodic or None})
        self._shown = 0
        past = record.records[:-_RECENT]
        every = max(1, len(past) // _HISTORY)
        for each in (*past[::every], *record.records[-_RECENT:]):
            self._show(each)
        self._shown = len(record.records)

    def update(self, record: "RunRecord") -> None:
        """Show the records that are new. A run that was resumed may have fewer than before."""
        for each in record.records[min(self._shown, len(record.records)) :]:
            self._show(each)
        self._shown = len(record.records)

    def _show(self, record: Mapping[str, float]) -> None:
        self._now = max(self._now, record["time"])  # of a file by an older version, or two clocks
        stats = {name: x for name, x in record.items() if name not in ("step", "time")}
        self.progress.log_metrics(stats, step=int(record["step"]))

    @property
    def is_over(self) -> bool:
        """Whether the run has had its budget."""
        return self._budget is not None and self.progress.env_steps >= self._budget
