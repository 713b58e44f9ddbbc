"""`everstep train`: from a configuration file to a trained policy and a record."""

import argparse
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from packaging.version import Version

from . import __version__
from .conditions import HitsUpperBound
from .errors import ConfigError
from .loggers import RunStatus
from .policies import GenericPolicyBase
from .progress import ConsoleProgress, summary
from .trainers import GenericTrainerBase, TrainConfig

#: Multiplications a layer pass over one minibatch below which a second thread only waits.
_SMALL = 20_000_000

#: Flags that stand for keys of the file.
_KEYS = ("experiment_name", "steps_per_eval", "seed", "run_dir")


class Latest:
    """A logger that keeps the last value of every statistic."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Keep nothing."""

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Keep statistics."""
        self.metrics.update(metrics)

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Release nothing."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends training like Ctrl-C does."""

    #: What a shell reports for a process that SIGTERM ended.
    exit_code = 143


def run(arguments: argparse.Namespace) -> int:
    """The exit code of a training.

    Raises:
        ConfigError: Where the configuration is wrong; nothing has been written then.
        KeyboardInterrupt: Where training was interrupted, after it has been saved.

    """
    config = TrainConfig.from_file(arguments.file, _overrides(arguments))
    if arguments.save is not None:
        _check_free(Path(arguments.save) / "model")
    run_arguments = config.run_arguments()
    max_steps = arguments.max_steps
    if max_steps is None and not (config.total_env_steps or config.stop):
        max_steps = arguments.default_max_steps
    if max_steps is not None:
        run_arguments["stop_conditions"].append(HitsUpperBound("algorithm/steps", max_steps))
    progress, latest = ConsoleProgress(), Latest()
    with _sigterm_interrupts(), ExitStack() as stack:
        trainer = config.build(loggers=[progress, latest], track=not arguments.no_mlflow)
        for env in (trainer.algorithm.env, trainer.eval_env):
            if env is not None:
                stack.callback(env.close)
        _choose_threads(trainer)
        progress.total_env_steps = _budget(trainer, config.total_env_steps, max_steps)
        return _train(trainer, latest, run_arguments, arguments.save)


def _choose_threads(trainer: GenericTrainerBase[Any]) -> None:
    """One thread for small networks on a CPU, unless the environment variable says otherwise."""
    algorithm = trainer.algorithm
    weights = sum(p.numel() for p in algorithm.policy.model.parameters())
    small = weights * algorithm.minibatch_size < _SMALL
    if small and algorithm.hparams.device_type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _overrides(arguments: argparse.Namespace) -> list[str]:
    """Assignments to the file's keys: the user's, and what the flags stand for."""
    flags = {key: getattr(arguments, key) for key in _KEYS}
    given = [f"{key}={json.dumps(flag)}" for key, flag in flags.items() if flag is not None]
    return [*arguments.overrides, *given]


def _budget(
    trainer: GenericTrainerBase[Any], total_env_steps: int | None, max_steps: int | None
) -> int | None:
    """Env steps at which training stops at the latest, if that is known."""
    hparams = trainer.algorithm.hparams
    budgets = [] if total_env_steps is None else [total_env_steps]
    if max_steps is not None:
        budgets.append(max_steps * hparams.num_envs * hparams.horizon)
    return min(budgets, default=None)


def _train(
    trainer: GenericTrainerBase[Any],
    latest: Latest,
    run_arguments: Mapping[str, Any],
    save: str | None,
) -> int:
    ui_command = None if trainer.mlflow is None else trainer.mlflow.ui_command()
    print(f"Run     {trainer.run_dir}")
    if ui_command is not None:
        print(f"Curves  {ui_command}")
    sys.stdout.flush()
    started = time.monotonic()
    try:
        with trainer:
            trainer.run(**run_arguments)
            if save is not None:
                _save(trainer.algorithm.policy, Path(save))
    except KeyboardInterrupt:
        print(
            f"Interrupted. The policy and a checkpoint are in {trainer.run_dir}.", file=sys.stderr
        )
        print(summary(latest.metrics, trainer.run_dir, ui_command, time.monotonic() - started))
        raise
    except Exception as error:
        _report_failure(error, trainer.run_dir)
        return 1
    print(summary(latest.metrics, trainer.run_dir, ui_command, time.monotonic() - started))
    if save is not None:
        print(f"  {'policy':<16}{Path(save) / 'policy'}")
        print(f"  {'MLflow model':<16}{Path(save) / 'model'}")
    return 0


def _check_free(model: Path) -> None:
    if model.exists():  # MLflow would refuse it, after the training
        raise ConfigError(
            f"--save {model.parent}: {model} exists already: name another directory, or remove it"
        )


def _save(policy: GenericPolicyBase[Any], directory: Path) -> None:
    """Leave the policy in a file, and beside it as a model that MLflow loads with Everstep."""
    directory.mkdir(parents=True, exist_ok=True)
    python_model = policy.save(directory / "policy")
    import mlflow  # late: whoever does not save need not wait for it

    run = mlflow.active_run()
    metadata = {} if run is None else {"run_id": run.info.run_id, "run_name": run.info.run_name}
    mlflow.pyfunc.save_model(
        str(directory / "model"),
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
    """One line for who watches; the traceback goes into the run's directory."""
    print(f"everstep: training failed: {type(error).__name__}: {error}", file=sys.stderr)
    if run_dir is None:
        traceback.print_exception(error)
        return
    place = run_dir / "traceback.txt"
    place.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    print(f"The traceback is in {place}.", file=sys.stderr)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM, which schedulers send, end training like Ctrl-C."""

    def terminate(signum: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
