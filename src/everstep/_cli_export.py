"""`everstep export`: the policy of a run, for servers that do not have Everstep."""

import argparse
from pathlib import Path

from .config import import_name, load
from .policies import load_policy

#: Keys of a run's configuration that name classes which the policy's file does not.
_CLASSES = ("model_cls", "distribution_cls")


def run(arguments: argparse.Namespace) -> int:
    """Write the model and print how to serve it; the exit code is 0.

    Raises:
        ConfigError: Where this is not the directory of a run, or names what cannot be imported.
        CheckpointError: Where the policy cannot be read.
        ExportError: Where it cannot be exported.
        FileExistsError: Where there is something in the model's place.

    """
    run_dir = Path(arguments.run_dir)
    values = load(run_dir / "config.yaml").values
    classes = {key: import_name(values[key]) for key in _CLASSES if values.get(key)}
    load_policy(run_dir / "policy", **classes).export(arguments.model_dir)
    print(f"Model   {arguments.model_dir}")
    print(f"Serve   mlflow models serve -m {arguments.model_dir} --env-manager local")
    return 0
