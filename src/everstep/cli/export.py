"""`everstep export`: the policy of a run as a program that needs no Everstep."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.plain_files import path_within
from ._arguments import add_overrides, add_trust, check_run_dir
from ._runs import beside

HELP = "write the policy of a run as a program that needs no Everstep"
DESCRIPTION = (
    "Write the policy of a run as a program that runs where Everstep is not installed: an MLflow "
    "model, an ONNX file, or a file of torch.export. Program and policy are compared first."
)

#: Path in the run's directory, if none is named, and how to go on, by format.
_FORMATS = {
    "mlflow": ("model", "Serve   mlflow models serve -m {} --env-manager local"),
    "onnx": ("policy.onnx", "Run     onnxruntime.InferenceSession({!r})"),
    "torch-export": ("policy.pt2", "Run     torch.export.load({!r}).module()"),
}

#: Keys of a run's configuration that name classes the policy's file does not hold.
_CLASSES = ("model_cls", "distribution_cls")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run, or policy file")
    parser.add_argument(
        "out",
        metavar="OUT",
        nargs="?",
        help="path to write (default: model, policy.onnx or policy.pt2 in the run's directory)",
    )
    parser.add_argument(
        "--format",
        choices=list(_FORMATS),
        default="mlflow",
        help="kind of program (default: %(default)s)",
    )
    add_overrides(parser, "model_cls=my_module.MyModel")
    add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the program and print how to run it; the exit code is 0.

    Raises:
        ConfigError: If this is not the directory of a run, or a class cannot be imported.
        CheckpointError: If the policy cannot be read.
        EverstepError: If a library is missing that the format needs.
        ExportError: If it cannot be exported.
        FileExistsError: If the path exists already.

    """
    from ..policies import load_policy

    run_dir = Path(arguments.run_dir)
    if "=" in (arguments.out or ""):  # the path was left out
        arguments.overrides.insert(0, arguments.out)
        arguments.out = None
    is_file = run_dir.is_file()
    if not is_file:
        check_run_dir(run_dir)
    classes = _classes(run_dir, arguments)
    name, next_step = _FORMATS[arguments.format]
    ending = f".{name.removeprefix('policy.')}"
    own = beside(run_dir, ending) if is_file else run_dir / name
    if arguments.out is None and not is_file:
        path_within(own, run_dir)
    out = str(arguments.out or own)
    found = load_policy(run_dir, **classes).export(out, format=arguments.format)
    print(f"Model   {out}")
    print(
        f"Parity  largest difference {found.difference:.1e} on {found.observations:,} observations"
    )
    print(next_step.format(out))
    return 0


def _classes(run_dir: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Classes of the policy that are named in the run's configuration, or on the command line."""
    from ..config import Document, apply_overrides, load
    from ..core.validation import Problem, unknown_name
    from ..trainers._config_checks import resolve_names
    from ..trainers._trust import check_trust

    document = Document(str(run_dir), {})  # a policy's file alone names no classes to import
    if not run_dir.is_file():
        document = load(run_dir / "config.yaml", within=run_dir)
    document = apply_overrides(document, arguments.overrides)
    names = [override.split("=")[0] for override in arguments.overrides if "=" in override]
    problems = [
        Problem(
            (name,), f"{unknown_name('key', name, _CLASSES)}; export takes {', '.join(_CLASSES)}"
        )
        for name in names
        if name not in _CLASSES
    ]
    given = {key: document.values[key] for key in _CLASSES if document.values.get(key) is not None}
    check_trust(run_dir, replace(document, values=given), trust=arguments.trust)
    classes, more = resolve_names(given, _CLASSES)
    document.check(problems + more)
    return classes
