"""The trainer of recurrent policies."""

from typing import Any

from ..algorithms import RecurrentAlgorithm, RecurrentAlgorithmConfig
from ..env import Env, EnvFactory
from ._base import GenericTrainerBase
from ._feedforward import build_algorithm


class RecurrentTrainer(GenericTrainerBase[RecurrentAlgorithm]):
    """Trains a recurrent policy and records how it went.

    Args:
        env_cls: Environment class, factory, an environment already made, or an algorithm.
        **arguments: Fields of `RecurrentAlgorithmConfig` (none with an algorithm) and arguments of
            `GenericTrainerBase`.

    Raises:
        ConfigError: Lists every argument that is unknown or breaks a rule.

    """

    def __init__(self, env_cls: EnvFactory | Env | RecurrentAlgorithm, /, **arguments: Any) -> None:
        algorithm, own = build_algorithm(RecurrentAlgorithmConfig, env_cls, arguments)
        super().__init__(algorithm, **own)
