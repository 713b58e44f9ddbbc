"""PPO with a recurrent policy."""

from typing import cast

from ..data import RecurrentAlgorithmHparams, RecurrentAlgorithmState
from ..hyperparameters import RecurrentHyperparameters
from ..policies import RecurrentPolicy
from ._operations import WorkerOperations


class RecurrentAlgorithm(
    WorkerOperations[RecurrentAlgorithmHparams, RecurrentAlgorithmState, RecurrentPolicy]
):
    """PPO with a recurrent policy.

    Gradients flow back through the `seq_len` env steps of a sequence, to the states that were
    there when it was collected. States start anew with every episode, with every reset of the
    environments, and after `seqs_per_state_reset` sequences.

    Args:
        env_cls: Environment class, factory, or an environment already made.
        config: Hyperparameters, a `RecurrentAlgorithmConfig`; its defaults where None.

    Raises:
        ConfigError: Lists every hyperparameter that breaks a rule.
        EnvError: Where the environment's specs are not usable.

    """

    hparams_cls = RecurrentAlgorithmHparams
    policy_cls = RecurrentPolicy
    state_cls = RecurrentAlgorithmState
    config_cls = RecurrentHyperparameters

    def _open_sequence(self, sequence: int) -> None:
        """Keep what is remembered where a sequence begins; nothing, where that is due."""
        if sequence == 0:  # a rollout that failed half-way leaves no trace in the count
            self.state.seqs = self.state.horizons * (self.rollout.horizon // self.rollout.seq_len)
        every = cast(int, self.hparams.seqs_per_state_reset)
        if every > 0 and self.state.seqs % every == 0:
            self.states = None
        self.state.seqs += 1
        super()._open_sequence(sequence)
