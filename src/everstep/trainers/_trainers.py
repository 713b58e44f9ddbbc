"""The trainers of feedforward and of recurrent policies."""

import inspect
from dataclasses import fields
from typing import Any

from ..algorithms import (
    Algorithm,
    AlgorithmConfig,
    GenericAlgorithmBase,
    RecurrentAlgorithm,
    RecurrentAlgorithmConfig,
)
from ..config import dotted_name
from ..env import Env, EnvFactory
from ..errors import ConfigError
from ..policies import RecurrentPolicy
from ..validation import unknown_name
from ._base import GenericTrainerBase

#: Keyword arguments of trainers; all others are the algorithm's.
TRAINER_ARGUMENTS = tuple(
    name
    for name, parameter in inspect.signature(GenericTrainerBase.__init__).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)


class Trainer(GenericTrainerBase[Algorithm]):
    """Trains a feedforward policy and records the run.

    Args:
        env_cls: Environment class, factory or instance, or an algorithm.
        **arguments: Fields of `AlgorithmConfig` (none with an algorithm) and arguments of
            `GenericTrainerBase`.

    Raises:
        ConfigError: Lists every argument that is unknown or breaks a rule.

    """

    def __init__(self, env_cls: EnvFactory | Env | Algorithm, /, **arguments: Any) -> None:
        algorithm, own = _build_algorithm(AlgorithmConfig, env_cls, arguments)
        super().__init__(algorithm, **own)


class RecurrentTrainer(GenericTrainerBase[RecurrentAlgorithm]):
    """Trains a recurrent policy and records the run.

    Args:
        env_cls: Environment class, factory or instance, or an algorithm.
        **arguments: Fields of `RecurrentAlgorithmConfig` (none with an algorithm) and arguments of
            `GenericTrainerBase`.

    Raises:
        ConfigError: Lists every argument that is unknown or breaks a rule.

    """

    def __init__(self, env_cls: EnvFactory | Env | RecurrentAlgorithm, /, **arguments: Any) -> None:
        algorithm, own = _build_algorithm(RecurrentAlgorithmConfig, env_cls, arguments)
        super().__init__(algorithm, **own)


def _build_algorithm(
    config_cls: Any, source: Any, arguments: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The algorithm that a trainer was given or described, and the trainer's own arguments."""
    own = {k: v for k, v in arguments.items() if k in TRAINER_ARGUMENTS}
    given = {k: v for k, v in arguments.items() if k not in TRAINER_ARGUMENTS}
    if not isinstance(source, GenericAlgorithmBase):
        known = [field.name for field in fields(config_cls)]
        names = [*known, *TRAINER_ARGUMENTS]
        unknown = [f"`{x}`: {unknown_name('argument', x, names)}" for x in given if x not in known]
        if unknown:
            raise ConfigError(unknown)
        own["record"] = {**_describe_source(source), **(own.get("record") or {})}
        return config_cls(**given).build(source), own
    if given:
        raise ConfigError(f"The algorithm has a config already: drop {', '.join(sorted(given))}.")
    recurrent = config_cls is RecurrentAlgorithmConfig
    if isinstance(source.policy, RecurrentPolicy) is not recurrent:
        name, other = type(source).__name__, "Trainer" if recurrent else "RecurrentTrainer"
        raise ConfigError(
            f"{name} trains a {type(source.policy).__name__}: pass it to {other}, or give this "
            f"trainer {'a RecurrentAlgorithm' if recurrent else 'an Algorithm'}."
        )
    return source, own


def _describe_source(source: EnvFactory | Env) -> dict[str, Any]:
    """Keys of a configuration file that make the same environment, if a file can."""
    spec = getattr(source, "spec", None)
    if isinstance(spec, str):  # a factory of the registry
        return {"env_cls": spec, "env_kwargs": getattr(source, "kwargs", None) or None}
    return {"env_cls": dotted_name(source)} if isinstance(source, type) else {}
