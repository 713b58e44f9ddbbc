"""A study: trainings with suggested hyperparameters, kept in a database that processes share."""

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from everstep.callbacks import Callback
from everstep.config import apply_overrides, load
from everstep.core.installation import install_command
from everstep.core.interrupts import closing
from everstep.core.plain_files import open_plain, printable
from everstep.errors import ConfigError, EverstepError

from ._space import KEY, Space, read_space

#: The statistic that trials report while they train.
RETURN = "episodes/return_mean_100"

#: Reports of a trial, at equal shares of its budget, so that trials are compared at the same step.
REPORTS = 20

#: Episodes of an evaluation.
EPISODES = 20

#: Seconds between signs of life of a trial; one without them for two minutes has failed.
_HEARTBEAT_S = 60

Score = Literal["training", "evaluation"]


class Reports(Callback):
    """Reports the return of training to a trial, and ends it if the pruner says so.

    Args:
        trial: The Optuna trial.
        env_steps: Budget of the training.

    """

    def __init__(self, trial: Any, env_steps: int) -> None:
        self.trial, self.env_steps, self.number = trial, env_steps, 0
        self.last = float("nan")

    def on_train_step(self, stats: dict[str, Any]) -> None:
        """Report whenever another share of the budget is used.

        Raises:
            optuna.TrialPruned: If the trial is not worth its remaining budget.

        """
        self.last = float(stats.get(RETURN, stats["returns/mean"]))
        number = int(REPORTS * stats["env/steps"] / self.env_steps)
        if number <= self.number or self.trial is None:
            return
        self.number = number
        self.trial.report(self.last, number)
        if self.trial.should_prune():
            raise require_optuna().TrialPruned


def open_study(path: Path, name: str, *, sampler: str, pruner: str, seed: None | int) -> Any:
    """The study in a database, which is made if there is none.

    Args:
        path: SQLite database.
        name: Name of the study in it.
        sampler: `tpe`, `random` or `gp`.
        pruner: `median`, `hyperband` or `none`.
        seed: Seed of the sampler.

    Raises:
        EverstepError: If the database cannot be read or written, or holds no such study.
        OSError: If it is no plain file.

    """
    optuna = require_optuna()
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # failures are shown by the command
    samplers = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed),
    }
    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=4),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(max_resource=REPORTS),
        "none": optuna.pruners.NopPruner,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        open_plain(path, within=path.parent).close()
    with without_experimental_warnings(), _naming(path, Exception):
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{quote(str(path))}",
            engine_kwargs={"connect_args": {"timeout": 60}},
            heartbeat_interval=_HEARTBEAT_S,
        )
        study = optuna.create_study(
            storage=storage,
            study_name=name,
            sampler=samplers[sampler](),
            pruner=pruners[pruner](),
            direction="maximize",
            load_if_exists=True,
        )
        if any(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials):
            format(study.best_value, ".5g")  # an error where it is no number
        return study


@contextmanager
def _naming(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Context in which errors of these kinds become one that names the database.

    Raises:
        EverstepError: In place of an error of a kind.

    """
    try:
        yield
    except EverstepError:
        raise
    except kinds as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error  # of SQLAlchemy, Optuna
        text = printable(" ".join(f"{type(cause).__name__}: {cause}".split()))[:300].rstrip(".")
        raise EverstepError(
            f"{path}: it cannot be used as the database of a study ({text}). Name another file "
            "with --study, or remove it to begin anew."
        ) from error


@contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Context without Optuna's warnings that an interface may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", require_optuna().exceptions.ExperimentalWarning)
        yield


def optimize(
    study: Any,
    database: Path,
    file: str,
    overrides: Sequence[str],
    *,
    trials: int,
    seeds: int,
    score: Score,
    show: Any,
) -> Space:
    """Run trials until the study has so many, and return the search space.

    The first trial has the file's own values, if they are in the space.

    Args:
        study: The study.
        database: Its database, for errors.
        file: The training file with a search space, or a recipe.
        overrides: Assignments such as `total_env_steps=50_000`.
        trials: Trials that the study has in the end, those of other processes included.
        seeds: Trainings of a trial, whose mean is its value.
        score: Return that is maximised: of the last 100 episodes of training, or of an evaluation.
        show: Called with each finished trial.

    Raises:
        ConfigError: If the file has no search space, or no trial could be trained.

    """
    from sqlalchemy.exc import SQLAlchemyError

    optuna = require_optuna()
    document = apply_overrides(load(file), overrides)
    space = read_space(document)
    if any(override.split("=")[0] == "seed" for override in overrides):
        raise ConfigError(
            "command line: seed: has no effect: a trial trains with the seeds 0, 1, … Set how many "
            "with --seeds."
        )
    if (earlier := study.user_attrs.get("score", score)) != score:
        raise ConfigError(
            f"{KEY}: {database} has scores of {earlier}, and --score {score} has others. Name "
            "another database with --study."
        )
    study.set_user_attr("score", score)
    first = space.first(document.values)
    if first and not study.trials:
        study.enqueue_trial(first, skip_if_exists=True)
    states = optuna.trial.TrialState

    def objective(trial: Any) -> float:
        try:
            values = _suggested(space, trial, database)
            assignments = [*overrides, *(f"{k}={json.dumps(v)}" for k, v in values.items())]
            scores = [_train(file, assignments, seed, trial, score) for seed in range(seeds)]
        except EverstepError as error:
            trial.set_user_attr("error", str(error))
            raise
        return sum(scores) / len(scores)

    ended = (states.COMPLETE, states.PRUNED, states.FAIL)
    broken = (optuna.exceptions.StorageInternalError, SQLAlchemyError)
    if len([t for t in study.trials if t.state in ended]) < trials:
        with _naming(database, *broken):
            study.optimize(
                objective,
                callbacks=[
                    optuna.study.MaxTrialsCallback(trials, states=ended),
                    lambda _, trial: show(trial),
                ],
                catch=(EverstepError,),
            )
    if not any(trial.state == states.COMPLETE for trial in study.trials):
        errors = [trial.user_attrs.get("error", "") for trial in study.trials]
        raise ConfigError(f"{file}: no trial could be trained: {next(filter(None, errors), '')}")
    return space


def _suggested(space: Space, trial: Any, database: Path) -> dict[str, Any]:
    """Values of a trial.

    Raises:
        ConfigError: If the study was begun with another search space.

    """
    try:
        return space.suggest(trial)
    except ValueError as error:
        # Optuna keeps the choices of the first trial.
        text = printable(" ".join(str(error).split())).rstrip(".")
        raise ConfigError(
            f"{KEY}: {database} has trials of another search space ({text}). Name another database "
            "with --study."
        ) from None


def _train(file: str, assignments: Sequence[str], seed: int, trial: Any, score: Score) -> float:
    """The score of one training; the first seed's may be pruned."""
    from everstep.trainers import TrainConfig

    config = TrainConfig.from_file(file, [*assignments, f"seed={seed}"])
    if config.total_env_steps is None:
        raise ConfigError(f"{file}: {KEY}: no budget. Set total_env_steps, or add --steps N.")
    reports = Reports(trial if seed == 0 else None, config.total_env_steps)
    trainer = config.build(run_dir=None, track=False, progress=False, callbacks=[reports])
    with closing(*trainer.envs), trainer:
        trainer.run()
        if score == "training":
            return reports.last
        return _evaluation(config, trainer, seed)


def _evaluation(config: Any, trainer: Any, seed: int) -> float:
    """Mean return of complete episodes with the most likely actions."""
    from everstep.evaluation import run_episodes
    from everstep.trainers.config import EVAL_NUM_ENVS, eval_seed

    algorithm = trainer.algorithm
    config.env_kwargs = {**(config.env_kwargs or {}), **(config.eval_env_kwargs or {})} or None
    source: Any = config.make_env_source()
    env = source(min(EPISODES, EVAL_NUM_ENVS), algorithm.hparams.horizon, device="cpu")
    if hasattr(env, "seed"):
        env.seed(eval_seed(seed))
    with closing(env):
        returns, _ = run_episodes(algorithm.policy, env, episodes=EPISODES)
    return float(returns.mean())


def require_optuna() -> Any:
    """Optuna.

    Raises:
        EverstepError: If it is not installed.

    """
    try:
        import optuna
    except ImportError:
        raise EverstepError(
            f"The search is made with Optuna, which is not installed: {install_command('tune')}"
        ) from None
    return optuna
