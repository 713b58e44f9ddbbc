"""`everstep export`: the policy of a run as a model for servers without Everstep."""

import argparse
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ._arguments import add_overrides, check_run_dir

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
    add_overrides(parser, "model_cls=my_module.MyModel")


def run(arguments: argparse.Namespace) -> int:
    """Write the model and print how to serve it; the exit code is 0.

    Raises:
        ConfigError: If this is not the directory of a run, or a class cannot be imported.
        CheckpointError: If the policy cannot be read.
        ExportError: If it cannot be exported.
        FileExistsError: If the model's directory exists already.

    """
    from ..policies import load_policy

    run_dir = Path(arguments.run_dir)
    check_run_dir(run_dir)
    classes = _classes(run_dir, arguments.overrides)
    load_policy(run_dir / "policy", **classes).export(arguments.model_dir)
    print(f"Model   {arguments.model_dir}")
    print(f"Serve   mlflow models serve -m {arguments.model_dir} --env-manager local")
    return 0


def _classes(run_dir: Path, overrides: list[str]) -> dict[str, Any]:
    """Classes of the policy that are named in the run's configuration, or on the command line."""
    from ..config import apply_overrides, import_name, load
    from ..validation import Problem, unknown_name

    document = apply_overrides(load(run_dir / "config.yaml"), overrides)
    names = [override.split("=")[0] for override in overrides]
    problems = [
        Problem(
            (name,), f"{unknown_name('key', name, _CLASSES)}; export takes {', '.join(_CLASSES)}"
        )
        for name in names
        if name not in _CLASSES
    ]
    classes: dict[str, Any] = {}
    for key in _CLASSES:
        name = document.values.get(key)
        try:
            classes |= {key: import_name(name)} if name else {}
        except ConfigError as error:
            problems.append(Problem((key,), str(error)))
    document.check(problems)
    return classes
