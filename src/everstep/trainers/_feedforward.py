"""The trainer of feedforward policies."""

from dataclasses import fields
from typing import Any, TypeVar

from ..algorithms import Algorithm, AlgorithmConfig, GenericAlgorithmBase
from ..config import dotted_name
from ..env import Env, EnvFactory
from ..errors import ConfigError
from ..hyperparameters import Hyperparameters, RecurrentHyperparameters
from ..policies import RecurrentPolicy
from ..validation import unknown_name
from ._base import GenericTrainerBase

C = TypeVar("C", bound=Hyperparameters)

#: Arguments of trainers, which are not the algorithm's.
TRAINER_ARGUMENTS = (
    "run_dir",
    "run_name",
    "experiment_name",
    "track",
    "loggers",
    "eval_env",
    "eval_episodes",
    "record",
    "run_arguments",
)


class Trainer(GenericTrainerBase[Algorithm]):
    """Trains a feedforward policy and records how it went.

    Args:
        env_cls: Environment class, factory, an environment already made, or an algorithm.
        **arguments: Fields of `AlgorithmConfig` (none with an algorithm) and arguments of
            `GenericTrainerBase`.

    Raises:
        ConfigError: Lists every argument that is unknown or breaks a rule.

    """

    def __init__(self, env_cls: EnvFactory | Env | Algorithm, /, **arguments: Any) -> None:
        algorithm, own = build_algorithm(AlgorithmConfig, env_cls, arguments)
        super().__init__(algorithm, **own)


def build_algorithm(
    config_cls: Any, source: Any, arguments: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The algorithm that a trainer was given or described, and the trainer's own arguments.

    Args:
        config_cls: Class of the algorithm's config.
        source: Environment class, factory, an environment already made, or an algorithm.
        arguments: Fields of the config, and arguments of the trainer.

    Raises:
        ConfigError: Lists every argument that is unknown or breaks a rule.

    """
    own = {k: v for k, v in arguments.items() if k in TRAINER_ARGUMENTS}
    fields_given = {k: v for k, v in arguments.items() if k not in TRAINER_ARGUMENTS}
    if not isinstance(source, GenericAlgorithmBase):
        config = make_config(config_cls, fields_given)
        own["record"] = {**describe_source(source), **(own.get("record") or {})}
        return config.build(source), own
    if fields_given:
        raise ConfigError(
            f"The algorithm has its config already: drop {', '.join(sorted(fields_given))}."
        )
    _check_kind(source, recurrent=issubclass(config_cls, RecurrentHyperparameters))
    return source, own


def _check_kind(algorithm: GenericAlgorithmBase[Any, Any, Any], *, recurrent: bool) -> None:
    """Raise where the trainer is for recurrent policies and the algorithm is not, or reversed."""
    if isinstance(algorithm.policy, RecurrentPolicy) is not recurrent:
        name, other = type(algorithm).__name__, "Trainer" if recurrent else "RecurrentTrainer"
        raise ConfigError(
            f"{name} trains a {type(algorithm.policy).__name__}: pass it to {other}, or give this "
            f"trainer {'a RecurrentAlgorithm' if recurrent else 'an Algorithm'}."
        )


def describe_source(source: EnvFactory | Env) -> dict[str, Any]:
    """Keys of a configuration file that make the same environment; none where no file can."""
    spec = getattr(source, "spec", None)
    if isinstance(spec, str):  # a factory of the registry
        return {"env_cls": spec, "env_kwargs": getattr(source, "kwargs", None) or None}
    return {"env_cls": dotted_name(source)} if isinstance(source, type) else {}


def make_config(cls: type[C], arguments: dict[str, Any]) -> C:
    """A config made of keyword arguments.

    Raises:
        ConfigError: Lists the unknown ones, each with the nearest that is known.

    """
    known = [field.name for field in fields(cls)]
    unknown = [name for name in arguments if name not in known]
    if unknown:
        names = [*known, *TRAINER_ARGUMENTS]
        raise ConfigError([f"`{x}`: {unknown_name('argument', x, names)}" for x in unknown])
    return cls(**arguments)
