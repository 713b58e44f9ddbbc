"""`everstep export`: the policy of a run as a model for servers without Everstep."""

import argparse
from pathlib import Path

HELP = "write the policy of a run as a model that needs only PyTorch and MLflow"
DESCRIPTION = (
    "Write the policy of a run as an MLflow model that can be served where Everstep is not "
    "installed."
)

#: Keys of a run's configuration that name classes the policy's file does not hold.
_CLASSES = ("model_cls", "distribution_cls")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run")
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="directory to write")


def run(arguments: argparse.Namespace) -> int:
    """Write the model and print how to serve it; the exit code is 0.

    Raises:
        ConfigError: If this is not the directory of a run, or a class cannot be imported.
        CheckpointError: If the policy cannot be read.
        ExportError: If it cannot be exported.
        FileExistsError: If the model's directory exists already.

    """
    from ..config import import_name, load
    from ..policies import load_policy

    run_dir = Path(arguments.run_dir)
    values = load(run_dir / "config.yaml").values
    classes = {key: import_name(values[key]) for key in _CLASSES if values.get(key)}
    load_policy(run_dir / "policy", **classes).export(arguments.model_dir)
    print(f"Model   {arguments.model_dir}")
    print(f"Serve   mlflow models serve -m {arguments.model_dir} --env-manager local")
    return 0
