"""`everstep train`: train a policy, in an environment or from a file, and record the run."""

import argparse
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..core.files import replacing, write_file
from ..core.interrupts import closing
from ..errors import ConfigError, RankError
from ._arguments import (
    DEFAULT_ENV_STEPS,
    add_additional_steps,
    add_env_steps,
    add_number,
    add_overrides,
    add_trust,
    check_env_named,
    env_document,
    flag_overrides,
    take_env,
)
from ._processes import connected, is_started, start
from ._watch import watched

if TYPE_CHECKING:
    from ..policies import GenericPolicyBase
    from ..trainers import GenericTrainerBase, TrainConfig

HELP = "train a policy"
USAGE = "everstep train (ENV | -f FILE) [--steps N] [key=value ...] [options]"
DESCRIPTION = (
    "Train a policy in an environment, such as CartPole-v1 or envpool:HalfCheetah-v4, or from a "
    "configuration file. Modules are also looked for in the current directory, and beside the file."
)

#: Keys of a file that flags set.
_KEYS = {
    **{name: name for name in ("experiment_name", "steps_per_eval", "seed", "run_dir")},
    "steps": "total_env_steps",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.usage = USAGE
    add_overrides(parser, "gamma=0.99 env_kwargs.max_episode_steps=200", env=True)
    parser.add_argument("-f", "--file", metavar="FILE", help="YAML or JSON file")
    add_env_steps(parser)
    add_additional_steps(parser)
    add_max_steps(parser)
    parser.add_argument(
        "--experiment-name", metavar="NAME", help="MLflow experiment (default: the environment)"
    )
    add_number(parser, "--steps-per-eval", "evaluate every N train steps")
    add_number(parser, "--seed", "seed of policy and environment", least=0)
    parser.add_argument(
        "--run-dir", metavar="DIR", help="directory of the run (default: a new one)"
    )
    parser.add_argument(
        "--resume",
        choices=["auto"],
        help="continue the run in --run-dir if there is one, else begin it",
    )
    add_processes(parser)
    add_trust(parser)
    add_outputs(parser)


def add_max_steps(parser: argparse.ArgumentParser) -> None:
    """Declare `--max-steps`."""
    add_number(
        parser,
        "--max-steps",
        "stop after N train steps of num_envs x horizon env steps, from the run's beginning",
    )


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Declare `--processes`."""
    add_number(
        parser,
        "--processes",
        "train in N processes of this machine, each with its share of the environments (torchrun)",
    )
    add_number(
        parser,
        "--max-restarts",
        "with --processes: start them again up to N times after one has failed",
        least=0,
    )


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of what a training writes beside the run's directory."""
    parser.add_argument(
        "--save", metavar="DIR", help="also save the policy, and an MLflow model of it, in DIR"
    )
    parser.add_argument("--no-mlflow", action="store_true", help="do not track the run with MLflow")


def run(arguments: argparse.Namespace) -> int:
    """Train, and return the exit code.

    Raises:
        ConfigError: If the configuration is invalid; nothing has been written then.
        KeyboardInterrupt: If training was interrupted, after it has been saved.

    """
    if arguments.max_restarts and arguments.resume is None:
        raise ConfigError(
            "--max-restarts: processes that are started again continue a run from its newest "
            "checkpoint. Add --run-dir DIR --resume auto."
        )
    check_env_named(arguments)  # before PyTorch is imported, or processes are started
    return in_processes(arguments, lambda: _train_or_resume(arguments))


def in_processes(arguments: argparse.Namespace, train: Callable[[], int]) -> int:
    """Train in this process, in `--processes` of them, or as one of those; the exit code.

    Args:
        arguments: The command line.
        train: Trains in one process, which may be connected to others.

    """
    processes, restarts = arguments.processes or 1, arguments.max_restarts or 0
    if restarts and processes == 1 and not is_started():
        raise ConfigError(
            "--max-restarts: restarts several processes, and this is one. Add --processes N."
        )
    if arguments.processes and is_started():
        size = int(os.environ["WORLD_SIZE"])
        if size != processes:
            raise ConfigError(
                f"--processes {processes}: a launcher has started {size} already. Drop one of them."
            )
    if processes > 1 and not is_started():
        return start(processes, arguments.words, max_restarts=restarts)
    from ..core.memory import keep_freed_memory  # which imports PyTorch

    keep_freed_memory()  # the process is ours
    with connected():
        return train()


def _train_or_resume(arguments: argparse.Namespace) -> int:
    if arguments.resume is not None and (run_dir := _run_to_continue(arguments)) is not None:
        return resume_run(arguments, run_dir, _assignments(arguments), finished=0)
    config, budget_note = _read_config(arguments)
    _check_save(arguments.save)
    run_arguments = _with_limits(config.run_arguments(), arguments)
    return _build_and_train(
        lambda: config.build(track=not arguments.no_mlflow), run_arguments, arguments, budget_note
    )


def _with_limits(run_arguments: Mapping[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `Trainer.run` with the limits of the command line."""
    from ..conditions import HitsUpperBound

    limited = dict(run_arguments)
    if arguments.max_steps is not None:
        limit = HitsUpperBound("algorithm/steps", arguments.max_steps)
        limited["stop_conditions"] = [*limited.get("stop_conditions", ()), limit]
    if arguments.additional_steps is not None:
        if arguments.steps is not None:
            raise ConfigError(
                "--additional-steps: counts from now and --steps from the run's "
                "beginning. Drop one."
            )
        limited.pop("total_env_steps", None)
        limited["additional_env_steps"] = arguments.additional_steps
    return limited


def resume_run(
    arguments: argparse.Namespace, run_dir: Path, assignments: Sequence[str], *, finished: int
) -> int:
    """Continue a run, and return the exit code.

    Args:
        arguments: The command line.
        run_dir: Directory of the run.
        assignments: Keys to change, as `key=value`.
        finished: Exit code if the run has reached its budget already.

    """
    from ..trainers._resuming import resume

    _check_save(arguments.save)

    def build() -> "GenericTrainerBase[Any]":
        trainer = resume(run_dir, assignments, trust=arguments.trust, track=not arguments.no_mlflow)
        given = _with_limits(trainer.run_arguments, arguments)
        run_arguments.update({k: x for k, x in given.items() if x is not None})
        if "additional_env_steps" not in given and (end := trainer._reach(given)):
            trainer.close()
            raise _FinishedError(
                f"{run_dir}: the run is finished, at {trainer.state['env/steps']:,} env steps "
                f"({end}). To go on: everstep resume {run_dir} --steps N"
                + " stop=null" * end.startswith("stop")
                + ", or --additional-steps N for N more"
            )
        return trainer

    run_arguments: dict[str, Any] = {}
    try:
        return _build_and_train(build, run_arguments, arguments)
    except _FinishedError as error:
        if finished:
            raise
        print(error)
        return finished


class _FinishedError(ConfigError):
    """A run has reached its budget."""


def _build_and_train(
    build: "Callable[[], GenericTrainerBase[Any]]",
    run_arguments: dict[str, Any],
    arguments: argparse.Namespace,
    note: str = "",
) -> int:
    from ..trainers._signals import interrupting

    with interrupting():
        trainer = build()
        with watched(trainer.envs):
            if note:
                print(note)
            return _train(trainer, run_arguments, arguments.save)


def _check_save(save: None | str) -> None:
    if save is not None and (model := Path(save) / "model").exists():
        message = f"{model} exists already: name another directory, or remove it"
        raise ConfigError(f"--save {model.parent}: {message}")  # MLflow would, after the training


def _run_to_continue(arguments: argparse.Namespace) -> None | Path:
    """The run in `--run-dir`; None if there is none, or none that can go on."""
    from ..core.ranks import current_reducer
    from ..loggers import JsonlLogger
    from ..trainers._checkpointing import checkpoints_of

    if arguments.run_dir is None:
        raise ConfigError(
            "--resume auto: names no run. Add --run-dir DIR: the run begins there, and the same "
            "command continues it."
        )
    run_dir = Path(arguments.run_dir)

    def find() -> None | Path:
        if checkpoints_of(run_dir):
            return run_dir
        metrics = run_dir / "metrics.jsonl"
        if metrics.exists():  # it ended before its first checkpoint, and begins anew
            JsonlLogger(metrics).close()  # unless another process is training there
            metrics.unlink()
        return None

    return current_reducer().from_first("everstep train", find)


def _assignments(arguments: argparse.Namespace) -> list[str]:
    """The command line's keys; the environment is among them, to be compared with the run's."""
    env = take_env(arguments)
    arguments.run_dir = None
    named = [] if env is None else [f"env_cls={json.dumps(env)}"]
    return [*named, *flag_overrides(arguments, _KEYS)]


def _read_config(arguments: argparse.Namespace) -> "tuple[TrainConfig, str]":
    """The config of the command line, and a line about the budget if it is the default."""
    from ..trainers import TrainConfig

    env = take_env(arguments)
    overrides = flag_overrides(arguments, _KEYS)
    if env is None:
        config = TrainConfig.from_file(arguments.file, overrides)
    else:
        config = TrainConfig.from_document(env_document(env, overrides))
    limits = arguments.max_steps, arguments.additional_steps
    if any(x is not None for x in limits) or config.total_env_steps or config.stop:
        return config, ""
    config.total_env_steps = DEFAULT_ENV_STEPS
    return (
        config,
        f"Budget  {DEFAULT_ENV_STEPS:,} env steps, the default; change it with --steps 1M",
    )


def _train(
    trainer: "GenericTrainerBase[Any]",
    run_arguments: dict[str, Any],
    save: str | None,
) -> int:
    from ..trainers.progress import ConsoleProgress, summary

    ui_command = None if trainer.mlflow is None else trainer.mlflow.ui_command()
    print(f"Run     {trainer.run_dir}")
    if ui_command is not None:
        print(f"Curves  {ui_command}")
    sys.stdout.flush()
    started = time.monotonic()

    def print_summary() -> None:
        seconds = time.monotonic() - started
        progress = trainer.view.progress or ConsoleProgress()
        facts = {x: getattr(progress, x) for x in ("episodic", "first_env_steps")}
        print(summary(progress.metrics, trainer.run_dir, ui_command, seconds, **facts), flush=True)

    try:
        with closing(*trainer.envs), trainer:
            trainer.run(**run_arguments)
            if save is not None and not trainer.algorithm.reducer.rank:
                _save(trainer.algorithm.policy, Path(save))
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be gone
            place = shlex.quote(str(trainer.run_dir))
            print_summary()
            print(f"Interrupted. Go on with: everstep resume {place}", file=sys.stderr)
        raise
    except Exception as error:
        _report_failure(error, trainer.run_dir)
        return 1
    print_summary()
    if save is not None:
        print(f"  {'policy':<16}{Path(save) / 'policy'}")
        print(f"  {'MLflow model':<16}{Path(save) / 'model'}")
    return 0


def _save(policy: "GenericPolicyBase[Any]", directory: Path) -> None:
    """Save the policy as a file, and beside it as an MLflow model that needs Everstep."""
    import mlflow
    import torch
    from packaging.version import Version

    directory.mkdir(parents=True, exist_ok=True)
    python_model = policy.save(directory / "policy")
    run = mlflow.active_run()
    metadata = {} if run is None else {"run_id": run.info.run_id, "run_name": run.info.run_name}
    with replacing(directory / "model") as place:
        mlflow.pyfunc.save_model(
            str(place),
            python_model=python_model,
            artifacts={"policy": str(directory / "policy")},
            pip_requirements=[
                f"everstep=={__version__}",
                f"torch=={Version(torch.__version__).public}",
                f"mlflow=={mlflow.__version__}",
            ],
            metadata=metadata,
        )


def _report_failure(error: Exception, run_dir: Path | None) -> None:
    """Print one line; the traceback goes to the run's directory."""
    rank = os.environ.get("RANK", "0") if is_started() else "0"
    if isinstance(error, RankError):
        print(f"everstep: rank {rank} cannot go on: {error.reason}", file=sys.stderr)
        return
    if isinstance(error, OSError) and error.filename and run_dir is not None:
        print(f"everstep: {error.filename}: {error.strerror}. {_kept(run_dir)}", file=sys.stderr)
    else:
        print(f"everstep: training failed: {type(error).__name__}: {error}", file=sys.stderr)
    if run_dir is None:
        traceback.print_exception(error)
        return
    place = run_dir / ("traceback.txt" if rank == "0" else f"traceback-{rank}.txt")
    try:
        write_file(place, "".join(traceback.format_exception(error)))
    except OSError:
        return  # of a full disk, which the line above names
    print(f"The traceback is in {place}.", file=sys.stderr)


def _kept(run_dir: Path) -> str:
    """The newest checkpoint of a run that could not be saved, and how to go on from it."""
    from ..trainers._checkpointing import checkpoints_of

    found = checkpoints_of(run_dir)
    if not found:
        return f"There is no checkpoint in {run_dir}. Free space there, and train again."
    place = shlex.quote(str(run_dir))
    return (
        f"The newest checkpoint is {found[0]}. Free space there, or make it writable, and go on "
        f"from it with: everstep resume {place}"
    )
