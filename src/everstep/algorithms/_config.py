"""Configs that build algorithms."""

from dataclasses import dataclass

from ..env import Env, EnvFactory
from ..hyperparameters import Hyperparameters
from ._algorithm import Algorithm
from ._building import closed_on_error


@dataclass
class AlgorithmConfig(Hyperparameters):
    """Config of PPO with a feedforward policy.

    Fields that say `"auto"` are resolved when the algorithm is built, from the environment;
    `Algorithm.hparams` shows the result. Nothing is checked before `validate` or `build`.
    """

    def build(self, env_cls: EnvFactory | Env) -> "Algorithm":
        """A validated algorithm.

        Args:
            env_cls: Environment class, factory, or an environment already made.

        Raises:
            ConfigError: Lists every hyperparameter that breaks a rule.
            EnvError: Where the environment's specs are not usable.

        """
        algorithm = Algorithm(env_cls, config=self)
        with closed_on_error(algorithm.env, unless=env_cls):
            algorithm.validate()
        return algorithm
