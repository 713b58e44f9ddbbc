"""The trainers of feedforward and of recurrent policies."""

import inspect
import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Self

from ..conditions import best_problem
from ..core.ranks import reported
from ..core.validation import (
    FilePath,
    InvalidError,
    check_fields,
    explained,
    synonym_of,
    unknown_name,
)
from ..errors import ConfigError
from ._base import GenericTrainerBase
from ._checkpointing import Interval
from ._idle import idle_arguments
from ._keywords import RecurrentTrainerKeywords, TrainerKeywords, with_keywords
from ._options import RULED, TrainerRules
from ._record import check_run_dir, choose_seed

if TYPE_CHECKING:  # they import TorchRL and TensorDict, which takes two seconds
    from ..algorithms import Algorithm, RecurrentAlgorithm
    from ..core.hyperparameters import Hyperparameters
    from ..env.registry import EnvSource

_Trainer = TypeVar("_Trainer")

#: Arguments of trainers that are keys of files too.
_KEYS = ("experiment_name", "eval_episodes", "checkpoint_every", "keep_last", "best", "callbacks")

#: Keyword arguments of trainers; all others are the algorithm's.
TRAINER_ARGUMENTS = tuple(
    name
    for name, parameter in inspect.signature(GenericTrainerBase.__init__).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)


class Trainer(GenericTrainerBase["Algorithm"]):
    """Trains a feedforward policy and records the run.

    Args:
        env_cls: Environment: a spec such as `"gymnasium:CartPole-v1"`, the id of a registered
            Gymnasium environment, a class, a function that makes one, or an instance. Or an
            algorithm.
        **arguments: Fields of `AlgorithmConfig` (none with an algorithm), arguments of
            `GenericTrainerBase`, and `env_kwargs`, arguments of the environment.

    Raises:
        ConfigError: Lists every argument that is unknown or breaks a rule.

    """

    @reported()
    @with_keywords(TrainerKeywords)
    def __init__(self, env_cls: "EnvSource | Algorithm", /, **arguments: Any) -> None:
        from ..algorithms.resolve import closed_on_error

        algorithm, own = _build_algorithm(env_cls, arguments, recurrent=False)
        with closed_on_error(algorithm.env, env_cls):
            super().__init__(algorithm, **own)

    @classmethod
    @explained("Write `load('runs/my_run')`.", run_dir=FilePath, trust=bool)
    def load(
        cls, run_dir: str | os.PathLike[str], /, *, trust: bool = False, **arguments: Any
    ) -> Self:
        """A trainer that continues a run from its newest checkpoint.

        It is built as the run's `config.yaml` says; `run` then goes on to the run's budget.

        Args:
            run_dir: Directory of the run.
            trust: Whether to import and call the code that a run from elsewhere names.
            **arguments: Keys to change, such as `total_env_steps`, and arguments of
                `GenericTrainerBase`, such as `loggers`.

        Raises:
            ConfigError: If the directory has no run, the policy is recurrent, or a key cannot
                change in a run that is resumed.
            CheckpointError: If no checkpoint can be read.

        """
        return _load(cls, run_dir, arguments, trust=trust)


class RecurrentTrainer(GenericTrainerBase["RecurrentAlgorithm"]):
    """Trains a recurrent policy and records the run.

    Args:
        env_cls: Environment: a spec such as `"gymnasium:CartPole-v1"`, the id of a registered
            Gymnasium environment, a class, a function that makes one, or an instance. Or an
            algorithm.
        **arguments: Fields of `RecurrentAlgorithmConfig` (none with an algorithm), arguments of
            `GenericTrainerBase`, and `env_kwargs`, arguments of the environment.

    Raises:
        ConfigError: Lists every argument that is unknown or breaks a rule.

    """

    @reported()
    @with_keywords(RecurrentTrainerKeywords)
    def __init__(self, env_cls: "EnvSource | RecurrentAlgorithm", /, **arguments: Any) -> None:
        from ..algorithms.resolve import closed_on_error

        algorithm, own = _build_algorithm(env_cls, arguments, recurrent=True)
        with closed_on_error(algorithm.env, env_cls):
            super().__init__(algorithm, **own)

    @classmethod
    @explained("Write `load('runs/my_run')`.", run_dir=FilePath, trust=bool)
    def load(
        cls, run_dir: str | os.PathLike[str], /, *, trust: bool = False, **arguments: Any
    ) -> Self:
        """A trainer that continues a run from its newest checkpoint; see `Trainer.load`."""
        return _load(cls, run_dir, arguments, trust=trust)


def _load(cls: type[_Trainer], run_dir: Any, arguments: dict[str, Any], *, trust: bool) -> _Trainer:
    from ._resuming import resume  # imports this module: configurations build trainers

    own = {k: v for k, v in arguments.items() if k in TRAINER_ARGUMENTS and k not in _KEYS}
    changes = {k: v for k, v in arguments.items() if k not in own}
    trainer = resume(run_dir, changes=changes, trust=trust, **own)
    if not isinstance(trainer, cls):
        kind = type(trainer).__name__
        trainer.close("FAILED")
        raise ConfigError(f"{run_dir}: this is the run of a {kind}: use `{kind}.load`.")
    return trainer


def _build_algorithm(
    source: Any, arguments: dict[str, Any], *, recurrent: bool
) -> tuple[Any, dict[str, Any]]:
    """The algorithm that a trainer was given or described, and the trainer's own arguments."""
    from ..algorithms import (
        AlgorithmConfig,
        GenericAlgorithmBase,
        GroupedAlgorithm,
        RecurrentAlgorithmConfig,
    )
    from ..env.registry import describe_env, is_made, resolve

    config_cls: Any = RecurrentAlgorithmConfig if recurrent else AlgorithmConfig
    arguments, wrong = _checked(arguments)
    env_kwargs = arguments.pop("env_kwargs", None)
    own = {k: v for k, v in arguments.items() if k in TRAINER_ARGUMENTS}
    given = {k: v for k, v in arguments.items() if k not in TRAINER_ARGUMENTS}
    if not isinstance(source, GenericAlgorithmBase | GroupedAlgorithm):
        known = [field.name for field in fields(config_cls)]
        names = [*known, *TRAINER_ARGUMENTS, "env_kwargs"]
        unknown = [_unknown_argument(x, names) for x in given if x not in known]
        if "recurrent" in given:
            unknown = [_NOT_AN_ARGUMENT if x.startswith("`recurrent`") else x for x in unknown]
        config = config_cls(**{name: x for name, x in given.items() if name in known})
        best = None if own.get("resume") else own.get("best")  # of callbacks that are not here
        if problem := best_problem(best, {**given, "callbacks": own.get("callbacks")}):
            wrong.append(f"`best`: {problem}.")
        if unknown or wrong:
            raise ConfigError([*unknown, *wrong, *_problems(config)])
        if env_kwargs and is_made(source):
            raise ConfigError(
                f"`env_kwargs`: the environment exists already; got {env_kwargs!r}. Give them to "
                "its constructor instead."
            )
        if isinstance(source, str):
            source, env_kwargs = resolve(source, env_kwargs), None
        if (described := describe_env(source)) and env_kwargs:
            described["env_kwargs"] = env_kwargs
        own["record"] = {**described, **(own.get("record") or {})}
        run_dir, resume = own.get("run_dir", "auto"), own.get("resume", False)
        check_run_dir(run_dir, resume=resume)  # before an environment is made
        config.seed = choose_seed(config.seed, run_dir, resume=resume)
        return config.build(resolve(source, env_kwargs) if env_kwargs else source), own
    if wrong:
        raise ConfigError(wrong)
    given |= {} if env_kwargs is None else {"env_kwargs": env_kwargs}
    if given:
        raise ConfigError(f"The algorithm has a config already: drop {', '.join(sorted(given))}.")
    if source.policy.is_recurrent is not recurrent:
        name, other = type(source).__name__, "Trainer" if recurrent else "RecurrentTrainer"
        raise ConfigError(
            f"{name} trains a {type(source.policy).__name__}: pass it to {other}, or give this "
            f"trainer {'a RecurrentAlgorithm' if recurrent else 'an Algorithm'}."
        )
    return source, own


def _checked(arguments: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Arguments with those of trainers converted, and a message for each that breaks a rule."""
    given = {k: v for k, v in arguments.items() if k in RULED}
    try:
        given, wrong = check_fields(TrainerRules, given), []
    except InvalidError as error:
        wrong = [f"`{problem.path[0]}`: {problem.message}." for problem in error.problems]
    try:
        Interval(given.get("checkpoint_every", "1m"))
    except ConfigError as error:
        wrong = [x for x in wrong if not x.startswith("`checkpoint_every`")] + [*error.problems]
    if not wrong:
        wrong = [*idle_arguments(arguments).values()]
    return {**arguments, **given}, wrong


def _unknown_argument(name: str, known: list[str]) -> str:
    """Message for an argument that trainers do not have; it may be one of `run`."""
    of_run = list(inspect.signature(GenericTrainerBase.run).parameters)
    ours = name if name in of_run else synonym_of(name, of_run)
    if ours is not None and synonym_of(name, known) is None:
        return f"`{name}`: an argument of `run`: `trainer.run({ours.partition(':')[0]}=…)`."
    return f"`{name}`: {unknown_name('argument', name, known)}."


def _problems(config: "Hyperparameters") -> tuple[str, ...]:
    try:
        config.validate()
    except ConfigError as error:
        return error.problems
    return ()


_NOT_AN_ARGUMENT = (
    "`recurrent`: a key of files; in Python `RecurrentTrainer` trains a recurrent policy and "
    "`Trainer` a feedforward one. Drop it."
)
