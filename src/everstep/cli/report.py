"""`everstep report`: one HTML page about a run."""

import argparse
import sys

READS = True
HELP = "write a page about a run"
DESCRIPTION = (
    "Write one HTML page about a run that needs no other file: results, curves, evaluations, "
    "video, configuration, versions, and the command that repeats it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run")
    parser.add_argument(
        "--out", metavar="FILE", help="page (default: report.html in the run's directory)"
    )
    parser.add_argument(
        "--video", metavar="FILE", help=".mp4 or .gif (default: that of `everstep video`)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print where it is; the exit code is 0.

    Raises:
        ConfigError: If this is not the directory of a run, or the video cannot be embedded.
        EverstepError: If the run has no records, or matplotlib is not installed.

    """
    from ..visualization import read_run, write_report

    for note in read_run(arguments.run_dir).notes:
        print(f"everstep: {note}", file=sys.stderr)
    page = write_report(arguments.run_dir, arguments.out, video=arguments.video)
    print(f"Report  {page}")
    return 0
