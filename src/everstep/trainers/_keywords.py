"""Keyword arguments of trainers and of `TrainConfig`, as type checkers see them.

Constructors take `**arguments`. `with_keywords` gives them the signature of a dataclass that
inherits the fields of hyperparameters, so a hyperparameter is declared once. `TrainerArguments` has
the parameters of `GenericTrainerBase` again; a test compares the two.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ..loggers import Logger

if TYPE_CHECKING:  # they import TorchRL and TensorDict, which takes two seconds
    from ..env import Env
    from ..hyperparameters import Hyperparameters, RecurrentHyperparameters

_Self = TypeVar("_Self")
_Source = TypeVar("_Source")
_Keywords = ParamSpec("_Keywords")


@dataclass(kw_only=True)
class TrainerArguments:
    """Keyword arguments of `GenericTrainerBase`."""

    run_dir: None | str | os.PathLike[str] = "auto"
    run_name: None | str = None
    experiment_name: None | str = None
    track: bool = True
    loggers: Sequence[Logger] = ()
    eval_env: "None | Env" = None
    eval_episodes: int = 100
    record: None | Mapping[str, Any] = None
    run_arguments: None | Mapping[str, Any] = None
    resume: bool = False
    progress: bool = True


if TYPE_CHECKING:

    @dataclass
    class TrainerKeywords(Hyperparameters, TrainerArguments):
        """Keyword arguments of `Trainer`."""

    @dataclass
    class RecurrentTrainerKeywords(RecurrentHyperparameters, TrainerArguments):
        """Keyword arguments of `RecurrentTrainer`."""

else:
    TrainerKeywords = RecurrentTrainerKeywords = TrainerArguments


def with_keywords(
    keywords: Callable[_Keywords, object], /
) -> """Callable[
    [Callable[Concatenate[_Self, _Source, ...], None]],
    Callable[Concatenate[_Self, _Source, _Keywords], None],
]""":
    """A decorator of constructors, which take the fields of the dataclass `keywords` by name."""
    return lambda init: init


def with_fields(
    keywords: Callable[_Keywords, object], /
) -> """Callable[
    [Callable[Concatenate[_Self, ...], None]], Callable[Concatenate[_Self, _Keywords], None]
]""":
    """A decorator of constructors, which take the fields of the dataclass `keywords`."""
    return lambda init: init
