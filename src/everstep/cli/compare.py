"""`everstep compare`: differences between runs, in configuration and result."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError

READS = True
HELP = "compare runs"
DESCRIPTION = "Print what differs between runs, in configuration and result."

#: Runs above which they are the rows of the table rather than its columns.
_COLUMNS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "run_dirs", metavar="RUN_DIR", nargs="+", help="directory of a run, or of several runs"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; the exit code is 0.

    Raises:
        ConfigError: If there is one run only, or a directory is not a run's.
        EverstepError: If a run has no records.

    """
    from ..visualization import compare_runs, comparison_rows, find_runs, read_run

    run_dirs = find_runs(arguments.run_dirs)
    if len(run_dirs) < 2:
        raise ConfigError(
            f"everstep compare takes two runs or more; got {run_dirs[0]}. Name another one, or a "
            "directory of runs."
        )
    runs = [read_run(run_dir) for run_dir in run_dirs]
    for note in (note for run in runs for note in run.notes):
        print(f"everstep: {note}", file=sys.stderr)
    compared = compare_runs(runs)
    if arguments.json:
        print(json.dumps(compared, indent=2, default=str))
        return 0
    rows = comparison_rows(compared)
    print(_text(rows if len(runs) <= _COLUMNS else [list(row) for row in zip(*rows, strict=True)]))
    for group in compared["groups"]:
        print(_group(group))
    return 0


def _text(rows: Sequence[Sequence[str]]) -> str:
    """Rows in aligned columns: the first one to the left, values to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def _group(group: dict[str, Any]) -> str:
    low, high = group["interval"]
    return (
        f"{group['label']}: {group['key']} {group['mean']:.1f}, mean of {group['seeds']} seeds; "
        f"95 % interval {low:.1f} to {high:.1f}"
    )
