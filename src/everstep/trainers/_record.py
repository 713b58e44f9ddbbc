"""The record of a run: what repeats it, and what it was made with."""

import contextlib
import importlib.metadata
import os
import platform
import reprlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._version import __version__
from ..conditions import condition_from_config
from ..config import MAX_DEPTH, dotted_name, dump, holds, load, plain
from ..core.plain_files import check_directory
from ..core.ranks import current_reducer
from ..data import REFLECTED
from ..errors import ConfigError
from ..loggers.base import impossible_path, writing_problem
from ..schedulers import FUNCTIONS, functions_described
from ._checkpointing import checkpoints_of

if TYPE_CHECKING:  # they import TorchRL and TensorDict, which takes two seconds
    from ..algorithms import GenericAlgorithmBase
    from ..env import Env

#: Directory of runs, if none is given.
RUNS = Path("runs")

#: Libraries of adapters whose packages have other names.
_PACKAGES = {"ale": "ale-py"}

#: Keys of a configuration file, by argument of `Trainer.run`.
RUN_KEYS = {
    "env_config": "env_config",
    "total_env_steps": "total_env_steps",
    "stop_conditions": "stop",
    "steps_per_eval": "steps_per_eval",
    "eval_env_config": "eval_env_config",
}


def check_run_dir(run_dir: Any, *, resume: bool) -> None:
    """Check that a directory can be written, and has no run of another trainer, or one to continue.

    Of several processes, the first one looks.

    Raises:
        ConfigError: If it has one, and `resume` is False; or has none, and it is True; or it is
            read-only.

    """
    reducer = current_reducer()
    reducer.check_alike("Trainer", {"run_dir": str(run_dir), "resume": str(resume)})
    reducer.from_first("Trainer", lambda: _check_run_dir(run_dir, resume=resume))


def _check_run_dir(run_dir: Any, *, resume: bool) -> None:
    path = None if run_dir in (None, "auto") else Path(run_dir)
    if path is not None and (problem := impossible_path(path)):
        raise ConfigError(
            f"`run_dir`: {str(path)[:99]!r} cannot be a directory: {problem}. Name another path."
        )
    if resume and (path is None or not checkpoints_of(path)):
        raise ConfigError(
            "`resume` continues the run in `run_dir`, from the newest checkpoint in it; "
            f"{run_dir!r} has none. Drop `resume`, or name the run's directory."
        )
    if resume and path is not None:
        try:
            check_directory(path)
        except OSError as error:
            raise ConfigError(f"`run_dir`: {error.filename} {error.strerror}.") from None
    if path is not None and path.exists() and not path.is_dir():
        raise ConfigError(f"`run_dir`: {path} is not a directory. Name another path.")
    if path is not None and not resume and (path / "metrics.jsonl").exists():
        raise ConfigError(
            f"`run_dir`: {path} holds a run already. Name another directory, leave `run_dir` out "
            "for a new one under runs/, or continue that run with `resume=True`."
        )
    if run_dir is not None and (problem := writing_problem(path or RUNS)):
        raise _unwritable(path or RUNS, problem)


def _unwritable(path: str | Path, problem: str) -> ConfigError:
    return ConfigError(
        f"`run_dir`: {path} cannot be written: {problem}. Name another directory, or change its "
        "permissions; in Python, `run_dir=None` writes nothing."
    )


@contextmanager
def making_run_dir(path: str | Path) -> Iterator[None]:
    """A context in which a run's directory is made: what only the system knows is refused, too.

    Raises:
        ConfigError: If the system refuses it, as in `/proc`.

    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.strerror != os.strerror(error.errno):
            raise  # of ours, with a way out of its own
        raise _unwritable(path, f"{error.strerror}: {error.filename or path}") from error


def choose_seed(seed: None | int, run_dir: Any, *, resume: bool) -> None | int:
    """Seed of a training, which all processes were given alike, also none.

    One that is recorded and was given none has a seed that is drawn from PyTorch's generator:
    another one each time, unless the program has seeded it. One that continues has its own.

    Raises:
        ConfigError: If processes were given different ones.

    """

    def choose() -> None | int:
        if resume and (config := Path(run_dir) / "config.yaml").exists():
            seed = load(config, within=run_dir).values.get("seed")
            return seed if isinstance(seed, int) else None
        return int(torch.randint(2**31, ()))

    current_reducer().check_alike("Trainer", {"seed": str(seed)})
    if run_dir is None or seed is not None:
        return seed
    return current_reducer().from_first("Trainer(seed=None)", choose)


def env_name(env: "Env") -> str:
    """The id of a Gymnasium environment that was wrapped, else the name of the class."""
    gymnasium, wrapped = sys.modules.get("gymnasium"), getattr(env, "env", None)
    if gymnasium is not None and isinstance(wrapped, gymnasium.vector.VectorEnv) and wrapped.spec:
        return str(wrapped.spec.id)
    return type(env).__name__


def run_keys(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a configuration file for those arguments of `Trainer.run` that were given."""
    given = {key: arguments.get(name) for name, key in RUN_KEYS.items()}
    if given["total_env_steps"] == float("inf"):
        del given["total_env_steps"]
    return {key: value for key, value in given.items() if value}


def saving_keys(
    checkpoint_every: int | str,
    keep_last: int,
    best: None | str,
    callbacks: Sequence[Any],
    loggers: Sequence[Any],
) -> dict[str, Any]:
    """Keys of a configuration file for those arguments of a trainer that are not the default.

    Callbacks and loggers that are objects of the program are left out: a file cannot make them.
    """
    given = {"checkpoint_every": checkpoint_every, "keep_last": keep_last, "best": best}
    default = {"checkpoint_every": "1m", "keep_last": 2, "best": None}
    lists = {"callbacks": callbacks, "loggers": loggers}
    named = {k: [x for x in v if isinstance(x, str | Mapping)] for k, v in lists.items()}
    keys = {key: value for key, value in given.items() if value != default[key]}
    return keys | {key: entries for key, entries in named.items() if entries}


def config_values(
    algorithm: "GenericAlgorithmBase[Any, Any, Any]", record: Mapping[str, Any]
) -> dict[str, Any]:
    """The keys of the run's `config.yaml`: every hyperparameter, and `record`."""
    resolved = dict(algorithm.hparams)
    if resolved.pop("model") is not None:
        resolved["model"] = dotted_name(type(algorithm.policy.model))
    return {**resolved, **record}


def check_depth(values: Mapping[str, Any]) -> None:
    """Check that keys of `config.yaml` are not nested deeper than a file can be.

    Raises:
        ConfigError: If one is, or contains itself.

    """
    problems = [
        f"`{key}`: nested more than {MAX_DEPTH} deep, which the run's config.yaml cannot hold; got "
        f"{reprlib.repr(value)}. Give it as text, or make it where it is used; `run_dir=None` "
        "writes no file."
        for key, value in values.items()
        if _is_too_deep(value)
    ]
    if problems:
        raise ConfigError(problems)


def _is_too_deep(value: Any) -> bool:
    """Whether a value under a key of a file is nested deeper than its reader allows."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inside = [
            item
            for x in level
            if isinstance(x, Mapping | list | tuple | set | frozenset)
            for item in (x.values() if isinstance(x, Mapping) else x)
        ]
        level = [*{id(item): item for item in inside}.values()]  # lists may share theirs
    return bool(level)


def config_text(
    algorithm: "GenericAlgorithmBase[Any, Any, Any]", record: Mapping[str, Any], stretches: int
) -> str:
    """The run's `config.yaml`: its keys, and comments."""
    values = config_values(algorithm, record)
    reason = algorithm.general_way
    native = "yes" if reason is None else f"no: {' '.join(reason.split())}"
    facts = ", ".join(f"{name} {value}" for name, value in made_with(algorithm).items())
    lines = [f"# native training on a CPU: {native}", f"# {facts}"]
    unreadable = [] if holds(values) else [k for k, x in values.items() if not holds({k: x})]
    lost = sorted({*unreadable, *(name for name, x in values.items() if not _holds(name, x))})
    values |= {name: _shown(values[name]) for name in unreadable}
    if lost:
        lines.append(f"# exists in the program only, so this file cannot repeat: {', '.join(lost)}")
    if not values.get("env_cls"):
        lines.append("# the program made the environment: name it in env_cls to repeat the run")
    if stretches > 1:
        lines.append(
            f"# trained in {stretches} stretches with settings of their own, which history.jsonl "
            "has: this file alone cannot repeat it"
        )
    if values.get("seed") is None:
        lines.append("# without a seed, another run differs")
    return "\n".join([*lines, dump(functions_described(values))])


def _shown(value: Any) -> Any:
    """A value that a file cannot hold, with text for what it cannot: 2**64, infinity."""
    if isinstance(value, Mapping):
        return {str(key): _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return value if holds({"value": value}) else ascii(value)


def _holds(key: str, value: Any) -> bool:
    """Whether a file can hold a value under a key, so that loading it gives an equal one."""
    if key == "model":
        return value is None
    if key == "env_cls" and isinstance(value, str):
        return not value.startswith("__main__.")
    if key == "stop":
        try:
            return all(condition_from_config(plain(condition)) for condition in value)
        except ConfigError:
            return False
    if hasattr(value, "as_config") and not isinstance(value, type):
        return _holds(key, value.as_config())
    if isinstance(value, Mapping):
        return all(_holds(str(name), item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return all(_holds("", item) for item in value)
    if hasattr(value, "__qualname__"):  # dotted names are read under these keys
        is_name = key.endswith("_cls") or key in ("objective", *FUNCTIONS, *REFLECTED)
        return is_name and "<" not in value.__qualname__ and value.__module__ != "__main__"
    return value is None or isinstance(value, str | Number | torch.device)


def params_of(algorithm: "GenericAlgorithmBase[Any, Any, Any]", env_cls: str) -> dict[str, Any]:
    """Parameters for loggers: hyperparameters, with the default learning rate, and classes."""
    params = {**algorithm.params, "env_cls": env_cls}
    if params["lr"] is None and not callable(params["lr_schedule"]):
        options, _ = algorithm.config.optimizer_options()
        params["lr"] = options.get("lr", algorithm.optimizer.defaults["lr"])
    return params


def made_with(algorithm: "GenericAlgorithmBase[Any, Any, Any]") -> dict[str, str]:
    """Versions, device, threads, and the commit of the current directory, by name."""
    facts = {"everstep": __version__, "python": platform.python_version()}
    facts["torch"] = str(torch.__version__)
    package, _, rest = type(algorithm.env).__module__.partition(".")
    if package == "everstep_adapters":
        library = rest.partition(".")[0]
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts[library] = importlib.metadata.version(_PACKAGES.get(library, library))
    facts |= {"device": str(algorithm.hparams.device), "threads": str(torch.get_num_threads())}
    if commit := _commit():
        facts["commit"] = commit
    return facts


def _commit() -> str:
    """Git's commit of the current directory, with `+` if files differ; empty if there is none."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return found.stdout.strip()
    return ""
