"""Configs that build algorithms."""

from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ..core.hyperparameters import Hyperparameters, RecurrentHyperparameters
from ..env.registry import EnvSource
from .algorithm import Algorithm, OnPolicyAlgorithm, RecurrentAlgorithm
from .groups import GroupedAlgorithm, is_shared
from .resolve import closed_on_error

A = TypeVar("A", bound=OnPolicyAlgorithm[Any, Any, Any])


@dataclass(repr=False)
class AlgorithmConfig(Hyperparameters):
    """Config of PPO with a feedforward policy.

    Fields that say `"auto"` are resolved when the algorithm is built, from the environment;
    `Algorithm.hparams` shows the result. Nothing is checked before `validate` or `build`.
    """

    def build(self, env_cls: EnvSource) -> Algorithm:
        """A validated algorithm.

        Args:
            env_cls: Environment: a spec, a class, a function that makes one, or an instance.

        Raises:
            ConfigError: Lists every hyperparameter that breaks a rule.
            EnvError: If the environment's specs cannot be used.

        """
        return _build(Algorithm, env_cls, self)


@dataclass(repr=False)
class RecurrentAlgorithmConfig(RecurrentHyperparameters):
    """Config of PPO with a recurrent policy; see `AlgorithmConfig`."""

    def build(self, env_cls: EnvSource) -> RecurrentAlgorithm:
        """A validated algorithm; see `AlgorithmConfig.build`."""
        return _build(RecurrentAlgorithm, env_cls, self)


def _build(cls: type[A], env_cls: EnvSource, config: Hyperparameters) -> A:
    algorithm: Any = (
        cls(env_cls, config) if is_shared(config) else GroupedAlgorithm(cls, env_cls, config)
    )
    with closed_on_error(algorithm.env, env_cls):
        algorithm.validate()
    return cast(A, algorithm)
