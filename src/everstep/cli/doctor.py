"""`everstep doctor`: installed versions, devices, adapters and extras, and how to fix problems."""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import warnings
from pathlib import Path
from typing import Any

from .._version import __version__
from ..core.installation import install_command, requirements_of
from ..errors import AdapterError

READS = True
HELP = "check the installation"
DESCRIPTION = (
    "Print versions, devices, adapters, extras and problems, and whether a small default training "
    "on a CPU uses the native library, or why not."
)

#: Packages that training needs, in the order of their imports.
_PACKAGES = ("torch", "tensordict", "torchrl", "gymnasium", "mlflow", "numpy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="say whether the training of this file uses the native library",
    )
    parser.add_argument(
        "--python", metavar="PATH", help="say which environments that interpreter can host instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; the exit code is 1 if something that training needs is broken.

    Raises:
        ConfigError: If the file is invalid.
        AdapterError: If `--python` is no interpreter that can host environments.

    """
    if arguments.python is not None:
        found = _hostable(arguments.python)
        print(json.dumps(found, indent=2) if arguments.json else _lines(found))
        return 0
    report = examine(arguments.file)
    print(json.dumps(report, indent=2) if arguments.json else _text(report))
    return 1 if report["problems"] else 0


def examine(file: None | str = None) -> dict[str, Any]:
    """Versions, devices, adapters, extras, the directory of runs, and a list of problems.

    `"native_library"` is True, or the reason why there is none. `"native"` is True if the training
    of the configuration file uses it, by default a small one, or the reason why not.
    """
    problems: list[str] = []
    versions = {"python": platform.python_version(), "everstep": __version__}
    for name in _PACKAGES:
        versions[name] = _version(name, problems)
    return {
        "versions": versions,
        "devices": _devices(),
        "processes": _backends(),
        "adapters": {} if problems else _adapters(problems),  # else they fail the same way
        "extras": _extras(),
        "native_library": "packages are broken" if problems else _native_library(),
        "native": "packages are broken" if problems else _native(file),
        "runs": _runs(problems),
        "problems": problems,
    }


def _hostable(python: str) -> dict[str, str]:
    """Versions of another interpreter and of the libraries that it can host; why not of others."""
    from ..env.plugins import load

    adapter: Any = load("bridge")
    found: dict[str, str] = adapter.examine(python)
    return found


def _lines(found: dict[str, str]) -> str:
    return "\n".join(f"{name:<20}{version}" for name, version in found.items())


def _version(name: str, problems: list[str]) -> str:
    """The package's version. Importing it finds binaries that do not fit together."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            module = importlib.import_module(name)
        except Exception as error:  # a broken binary raises anything
            problems.append(f"{name} cannot be imported: {error}. {_advice(name)}")
            return "broken"
    complaints = [str(w.message) for w in caught if "binaries" in str(w.message)]
    problems += [f"{name}: {complaint}. {_advice(name)}" for complaint in complaints]
    return str(getattr(module, "__version__", "unknown"))


def _advice(name: str) -> str:
    if name in ("torchrl", "tensordict"):
        return (
            f"{name} is built for one version of PyTorch: install matching versions, "
            "pip install --upgrade torch torchrl tensordict"
        )
    return f"pip install --upgrade {'mlflow-skinny' if name == 'mlflow' else name}"


def _devices() -> list[str]:
    try:
        import torch

        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return ["cpu", *(f"cuda:{i} {name}" for i, name in enumerate(names))]
    except Exception:  # reported with the versions
        return []


def _backends() -> list[str]:
    """Backends of `torch.distributed` in this build of PyTorch; with none, there is one process."""
    try:
        import torch.distributed as dist

        if not dist.is_available():
            return []
        names = ("gloo", "nccl", "xccl", "ucc", "mpi")
        return [name for name in names if getattr(dist, f"is_{name}_available", bool)()]
    except Exception:  # reported with the versions
        return []


def _adapters(problems: list[str]) -> dict[str, str]:
    """`"ok"`, how to install the library, or an error message, by prefix of the adapter."""
    from ..env.plugins import prefixes
    from ..env.registry import factory

    found = {}
    for prefix in prefixes():
        try:
            module, advice = getattr(factory(f"{prefix}:any"), "library", ("", ""))
            is_missing = module and importlib.util.find_spec(module) is None
            found[prefix] = advice if is_missing else "ok"
        except AdapterError as error:
            found[prefix] = str(error)
    if not found:
        problems.append("No adapter is registered: install Everstep with pip, also from source.")
    return found


def _extras() -> dict[str, str]:
    """`"ok"` or the command that installs it, by optional extra."""
    try:
        distribution = importlib.metadata.distribution("everstep")
    except importlib.metadata.PackageNotFoundError:
        return {}
    names = distribution.metadata.get_all("Provides-Extra") or []
    return {name: install_command(name) if _lacks("everstep", name) else "ok" for name in names}


def _lacks(package: str, extra: str) -> bool:
    """Whether a package that `package[extra]` requires is missing."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, requirements_of(extra, package)):
        try:
            importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            return True
        if any(_lacks(requirement.name, inner) for inner in requirement.extras):
            return True
    return False


def _native_library() -> bool | str:
    """True if there is a native library, else the reason why not."""
    from ..core.fast import unavailable

    return unavailable() or True


def _native(file: None | str) -> bool | str:
    """True if training on a CPU uses the native library, else the reason why not."""
    from ..env import DiscreteDummyEnv
    from ..trainers import TrainConfig

    small = TrainConfig(DiscreteDummyEnv, num_envs=2, horizon=2, device="cpu")
    config = small if file is None else TrainConfig.from_file(file)
    algorithm = config.build_algorithm()
    algorithm.env.close()
    return algorithm.general_way or True


def _runs(problems: list[str]) -> str:
    """The directory of runs, and a problem if it cannot be written."""
    runs = Path("runs").absolute()
    existing = next(path for path in (runs, *runs.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        problems.append(
            f"{existing} is not a writable directory: train elsewhere, or use --run-dir."
        )
        return f"{runs} (not writable)"
    return str(runs)


def _text(report: dict[str, Any]) -> str:
    lines = [f"{name:<12}{version}" for name, version in report["versions"].items()]
    lines.append(f"{'devices':<12}{', '.join(report['devices']) or 'none'}")
    lines.append(f"{'processes':<12}{', '.join(report['processes']) or 'one only'}")
    lines += [f"adapter     {name}: {state}" for name, state in report["adapters"].items()]
    lines += [f"extra       {name}: {state}" for name, state in report["extras"].items()]
    lines.append(f"{'runs':<12}{report['runs']}")
    library, native = report["native_library"], report["native"]
    lines.append(f"{'native':<12}{'on' if library is True else f'off: {library}'}")
    lines.append(f"native training on a CPU: {'yes' if native is True else f'no: {native}'}")
    lines += [f"PROBLEM     {problem}" for problem in report["problems"]]
    unusable = [prefix for prefix, state in report["adapters"].items() if state != "ok"]
    lacking = f" These adapters cannot be used: {', '.join(unusable)}." if unusable else ""
    return "\n".join(lines if report["problems"] else [*lines, f"No problems found.{lacking}"])
