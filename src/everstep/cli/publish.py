"""`everstep publish`: a folder for the Hugging Face hub."""

import argparse
import shlex

READS = True
HELP = "write a folder that can be shared"
DESCRIPTION = (
    "Write a folder for the Hugging Face hub: policy, configuration, curves, video and a model "
    "card with the results. Nothing is sent anywhere."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run")
    parser.add_argument("out", metavar="OUT", help="folder to create")


def run(arguments: argparse.Namespace) -> int:
    """Write the folder and print how to upload it; the exit code is 0.

    Raises:
        ConfigError: If this is not the directory of a run with a policy, or the folder exists.
        EverstepError: If the run has no records.

    """
    from ..visualization.publishing import publish_run

    card = publish_run(arguments.run_dir, arguments.out)
    print(f"Card    {card}")
    print(f"Upload  hf upload NAME/MODEL {shlex.quote(arguments.out)}")
    return 0
