"""Progress of a suite: a live table on a terminal, lines elsewhere."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from ._jobs import Job

#: Lines of jobs that have ended, in the table.
_ENDED = 8

#: Bytes at the end of `metrics.jsonl` that hold the last record.
_TAIL = 8192


class Lines:
    """Prints a line when a job starts, and one when it ends.

    Args:
        total: Number of jobs.

    """

    def __init__(self, total: int) -> None:
        self.total, self.count = total, 0
        self.begun: dict[tuple[Any, ...], float] = {}

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def started(self, job: Job, directory: Path) -> None:
        """Print the job."""
        self.begun[job.key] = time.monotonic()
        print(f"{named(job)}: started", flush=True)

    def ended(self, job: Job, line: dict[str, Any]) -> None:
        """Print the result."""
        self.count += 1
        seconds = time.monotonic() - self.begun[job.key]
        print(f"{self.count}/{self.total} {named(job)}: {outcome(line)}, {clock(seconds)}")
        sys.stdout.flush()

    def tick(self) -> None:
        """Print nothing."""


class Table(Lines):
    """A table of running jobs and those that ended last, redrawn in place."""

    def __init__(self, total: int) -> None:
        from rich.live import Live

        super().__init__(total)
        self.running: dict[tuple[Any, ...], tuple[Job, Path]] = {}
        self.finished: list[tuple[Job, dict[str, Any], float]] = []
        self._live = Live(auto_refresh=False)
        self._drawn = 0.0

    def __enter__(self) -> "Table":
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._draw()
        self._live.__exit__(*error)

    def started(self, job: Job, directory: Path) -> None:
        """Show the job."""
        self.begun[job.key] = time.monotonic()
        self.running[job.key] = (job, directory)
        self._draw()

    def ended(self, job: Job, line: dict[str, Any]) -> None:
        """Show the result."""
        self.count += 1
        self.finished.append((job, line, time.monotonic() - self.begun[job.key]))
        del self.running[job.key]
        self._draw()

    def tick(self) -> None:
        """Draw again, at most once a second."""
        if time.monotonic() - self._drawn > 1.0:
            self._draw()

    def _draw(self) -> None:
        from rich.table import Table as RichTable

        self._drawn = time.monotonic()
        table = RichTable(title=f"{self.count} of {self.total}", title_justify="left")
        for name in ("training", "env steps", "return", "time"):
            table.add_column(name, justify="left" if name == "training" else "right")
        for job, line, seconds in self.finished[-_ENDED:]:
            table.add_row(named(job), _steps(line), outcome(line), clock(seconds))
        for job, directory in self.running.values():
            record = last_record(directory / "run" / "metrics.jsonl")
            share = record.get("step", 0) / max(1, job.recipe.env_steps)
            value = record.get("episodes/return_mean_100", record.get("returns/mean"))
            text = "" if value is None else f"{float(value):,.1f}"
            seconds = time.monotonic() - self.begun[job.key]
            table.add_row(f"[bold]{named(job)}", f"{share:.0%}", text, clock(seconds))
        self._live.update(table, refresh=True)


def view_of(total: int) -> Lines:
    """The table on a terminal, and lines elsewhere."""
    return Table(total) if sys.stdout.isatty() else Lines(total)


def named(job: Job) -> str:
    """Recipe, seed and side as text."""
    side = "" if job.side == "everstep" else f", {job.side}"
    return f"{job.recipe.name} seed {job.seed}{side}"


def outcome(line: dict[str, Any]) -> str:
    """The result as text."""
    if "error" in line:
        return f"failed: {line['error']}"
    return f"training {line['training']:,.1f}, evaluation {line['evaluation']['mean']:,.1f}"


def clock(seconds: float) -> str:
    """Minutes and seconds, such as 12:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _steps(line: dict[str, Any]) -> str:
    return f"{line['env_steps']:,}" if "env_steps" in line else ""


def last_record(path: Path) -> dict[str, Any]:
    """The last whole line of a `metrics.jsonl`; empty if there is none."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        lines = file.read().decode("utf-8", "replace").split("\n")[:-1]
    try:
        found = json.loads(lines[-1])
    except (ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}
