"""`everstep tune`: search hyperparameters with Optuna."""

import argparse
from pathlib import Path
from typing import Any

from everstep.cli._arguments import add_env_steps, add_number, add_overrides, flag_overrides
from everstep.core.files import write_file

HELP = "search hyperparameters"
DESCRIPTION = (
    "Search the space under the key `tune` of a training file with Optuna. The study is in an "
    "SQLite database: the same command continues it, also in several processes at once."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="training file with a search space")
    add_overrides(parser, "num_envs=16")
    add_number(parser, "--trials", "trials of the study (default: %(default)s)", default=30)
    add_number(parser, "--seeds", "trainings of a trial (default: %(default)s)", default=1)
    add_env_steps(parser)
    parser.add_argument(
        "--study", metavar="FILE", help="database of the study (default: FILE with .db)"
    )
    parser.add_argument(
        "--sampler",
        choices=("tpe", "random", "gp"),
        default="tpe",
        help="sampler of Optuna (default: %(default)s)",
    )
    parser.add_argument(
        "--pruner",
        choices=("median", "hyperband", "none"),
        default="median",
        help="ends trials early, by their return of training (default: %(default)s)",
    )
    parser.add_argument(
        "--score",
        choices=("training", "evaluation"),
        default="training",
        help="return that is maximised: of the last 100 episodes of training, or of 20 episodes "
        "with the most likely actions (default: %(default)s)",
    )
    add_number(parser, "--sampler-seed", "seed of the sampler", least=0)
    parser.add_argument(
        "--out", metavar="FILE", help="the best values as a recipe (default: FILE-best.yaml)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Search, write the best file and a picture, and return 0.

    Raises:
        ConfigError: If the file has no search space, or no trial could be trained.
        EverstepError: If Optuna is not installed.

    """
    import torch

    from ..tuning import best_text, draw_importances, open_study, optimize

    torch.set_num_threads(1)
    path = Path(arguments.file.removeprefix("recipe:"))
    overrides = flag_overrides(arguments, {"steps": "total_env_steps"})
    database = Path(arguments.study) if arguments.study else path.with_suffix(".db")
    study = open_study(
        database,
        path.stem,
        sampler=arguments.sampler,
        pruner=arguments.pruner,
        seed=arguments.sampler_seed,
    )
    before = len(study.trials)
    space = optimize(
        study,
        database,
        arguments.file,
        overrides,
        trials=arguments.trials,
        seeds=arguments.seeds,
        score=arguments.score,
        show=_show,
    )
    if len(study.trials) == before:
        print(f"Study   {database} has {before} trials: none was trained, as --trials counts them.")
    best = Path(arguments.out) if arguments.out else path.with_name(f"{path.stem}-best.yaml")
    write_file(best, best_text(study, space, arguments.file, overrides, arguments.score))
    print(f"Best    {best}: {study.best_value:.5g}, trial {study.best_trial.number}")
    picture = best.with_name(f"{best.stem}-importance.svg")
    if draw_importances(study, picture):
        print(f"Picture {picture}")
    return 0


def _show(trial: Any) -> None:
    values = ", ".join(f"{k}={_text(v)}" for k, v in trial.params.items())
    state = trial.state.name.lower()
    value = "" if trial.value is None else f" {trial.value:.5g}"
    error = trial.user_attrs.get("error", "")
    print(f"trial {trial.number}: {state}{value}  {values}", flush=True)
    if error:
        print(f"  {error}", flush=True)


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
