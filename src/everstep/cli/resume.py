"""`everstep resume`: continue a run from its newest checkpoint."""

import argparse
from pathlib import Path

from ._arguments import (
    add_additional_steps,
    add_env_steps,
    add_overrides,
    add_trust,
    flag_overrides,
)
from .train import add_max_steps, add_outputs, add_processes, in_processes, resume_run

HELP = "continue a run"
DESCRIPTION = (
    "Continue the training of a run from its newest checkpoint, in the same directory and the same "
    "MLflow run."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run")
    add_overrides(parser, "lr=1e-4; those that may change are in the documentation")
    add_env_steps(parser, default="the run's budget")
    add_additional_steps(parser)
    add_max_steps(parser)
    add_processes(parser)
    add_trust(parser)
    add_outputs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train, and return the exit code.

    Raises:
        ConfigError: If there is no such run, it is finished, or a key cannot be changed.
        KeyboardInterrupt: If training was interrupted, after it has been saved.

    """
    assignments = flag_overrides(arguments, {"steps": "total_env_steps"})
    run_dir = Path(arguments.run_dir)
    return in_processes(arguments, lambda: resume_run(arguments, run_dir, assignments, finished=2))
