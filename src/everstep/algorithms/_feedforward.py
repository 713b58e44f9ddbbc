"""PPO with a feedforward policy."""

from ..data import AlgorithmHparams, AlgorithmState
from ..policies import Policy
from ._operations import WorkerOperations


class Algorithm(WorkerOperations[AlgorithmHparams, AlgorithmState, Policy]):
    """PPO with a feedforward policy, of the present observation or of windows that end in it.

    Args:
        env_cls: Environment class, factory, or an environment already made.
        config: Hyperparameters; defaults where None.

    Raises:
        ConfigError: Lists every hyperparameter that breaks a rule.
        EnvError: Where the environment's specs are not usable.

    """

    hparams_cls = AlgorithmHparams
    policy_cls = Policy
    state_cls = AlgorithmState
