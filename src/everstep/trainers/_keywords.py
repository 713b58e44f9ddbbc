"""Keyword arguments of trainers and of `TrainConfig`, as type checkers see them.

Constructors take `**arguments`. `with_keywords` gives them the signature of a dataclass that
inherits the fields of hyperparameters, so a hyperparameter is declared once. `TrainerArguments` has
the parameters of `GenericTrainerBase` again; a test compares the two.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ..errors import ConfigError
from ..loggers import Logger

if TYPE_CHECKING:  # they import TorchRL and TensorDict, which takes two seconds
    from ..core.hyperparameters import Hyperparameters, RecurrentHyperparameters
    from ..env import Env

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
    loggers: Sequence[Logger | str | Mapping[str, Any]] = ()
    eval_env: "None | Env" = None
    eval_episodes: None | int = None
    record: None | Mapping[str, Any] = None
    run_arguments: None | Mapping[str, Any] = None
    resume: bool = False
    checkpoint_every: int | str = "1m"
    keep_last: int = 2
    best: None | str = None
    callbacks: Sequence[Any] = ()
    progress: bool = True


@dataclass(kw_only=True)
class _EnvArguments:
    """Keyword arguments of trainers that make their environment."""

    env_kwargs: None | dict[str, Any] = None


if TYPE_CHECKING:

    @dataclass
    class TrainerKeywords(Hyperparameters, TrainerArguments, _EnvArguments):
        """Keyword arguments of `Trainer`."""

    @dataclass
    class RecurrentTrainerKeywords(RecurrentHyperparameters, TrainerArguments, _EnvArguments):
        """Keyword arguments of `RecurrentTrainer`."""

else:
    TrainerKeywords = RecurrentTrainerKeywords = TrainerArguments


def with_keywords(
    keywords: Callable[_Keywords, object], /
) -> """Callable[
    [Callable[Concatenate[_Self, _Source, ...], None]],
    Callable[Concatenate[_Self, _Source, _Keywords], None],
]""":
    """A decorator of constructors, which take the fields of the dataclass `keywords` by name.

    One positional argument, the environment, is required: none, or more, is a `ConfigError`.
    """

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        @wraps(init)
        def construct(self: object, *values: Any, **arguments: Any) -> None:
            if len(values) != 1:
                raise ConfigError(_one_environment(type(self).__name__, values))
            init(self, *values, **arguments)

        return construct

    return decorate


def _one_environment(name: str, values: tuple[Any, ...]) -> str:
    """Message for a trainer that is given no environment, or other values beside it."""
    if not values:
        rule = "needs an environment, which is given without a name"
        return f"`{name}` {rule}: `{name}('CartPole-v1')`, or `{name}(env)`."
    got = ", ".join(repr(x) if isinstance(x, str) else type(x).__name__ for x in values)
    return (
        f"`{name}` takes one value without a name, the environment; got {len(values)}: {got}. "
        f"Write `{name}(env, …)`, with keywords for the rest; `model_cls`, `model_config` or "
        "`model` choose the model, and their defaults fit the environment."
    )


def with_fields(
    keywords: Callable[_Keywords, object], /
) -> """Callable[
    [Callable[Concatenate[_Self, ...], None]], Callable[Concatenate[_Self, _Keywords], None]
]""":
    """A decorator of constructors, which take the fields of the dataclass `keywords`."""
    return lambda init: init
