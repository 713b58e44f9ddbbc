"""`everstep plot`: curves of one or many runs, as a picture or a page."""

import argparse
import sys
from pathlib import Path

from ..core.plain_files import path_within

READS = True
HELP = "draw curves of runs"
DESCRIPTION = (
    "Draw statistics of runs over env steps or time. Runs that differ in nothing but the seed are "
    "one curve: their mean, with its 95 % interval."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "run_dirs", metavar="RUN_DIR", nargs="+", help="directory of a run, or of several runs"
    )
    parser.add_argument(
        "--x",
        choices=("env_steps", "time"),
        default="env_steps",
        help="horizontal axis (default: %(default)s)",
    )
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="NAME",
        help="statistic, or a pattern such as 'losses/*'; may be repeated",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="curves.png, curves.svg or curves.html (default: curves.png, of one run in its "
        "directory)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw the curves, print where they are, and return 0.

    Raises:
        ConfigError: If a directory is not a run's, or no run has a statistic.
        EverstepError: If a run has no records, or matplotlib is not installed.

    """
    from ..visualization import find_runs, plot_runs

    run_dirs = find_runs(arguments.run_dirs)
    place = run_dirs[0] if len(run_dirs) == 1 else Path()
    out = place / "curves.png" if arguments.out is None else Path(arguments.out)
    if arguments.out is None:
        path_within(out, place)
    runs = plot_runs(run_dirs, out, keys=arguments.key, x=arguments.x)
    for note in (note for run in runs for note in run.notes):
        print(f"everstep: {note}", file=sys.stderr)
    print(f"Curves  {out}")
    return 0
