"""The gradients of a minibatch, written out for the default perceptrons.

With few rows, recording what is differentiated costs more than the arithmetic; written out, it is
a third of the operations, in storage that is used again. The general way is `Algorithm._losses`
and `Updater.backward`; both give the same numbers up to rounding.
"""

from typing import Any

import torch

from ..distributions import Differentiated, differentiated
from ..models import DefaultModel
from ..models._chains import TrainedChain, is_own
from ..objectives import A2C, PPO, ActorCritic
from ..policies import GenericPolicyBase, Policy
from ..rollouts import Minibatch


class AnalyticGradients:
    """Losses of minibatches, whose gradients are added to those of the parameters.

    Args:
        policy: Policy of a default model, whose networks are chains.
        objective: What is minimised.
        distribution: The policy's distribution, with its derivatives.

    """

    def __init__(
        self,
        policy: GenericPolicyBase[Any],
        objective: ActorCritic,
        distribution: type[Differentiated],
    ) -> None:
        self._policy, self._objective, self._distribution = policy, objective, distribution
        self._model: DefaultModel = policy.model
        self._actor = TrainedChain(self._model.policy)
        self._critic = TrainedChain(self._model.vf_model)

    def fits(self, policy: GenericPolicyBase[Any], objective: Any) -> bool:
        """Whether these are the gradients of that policy by that objective."""
        return (
            policy is self._policy
            and objective is self._objective
            and policy.model is self._model
            and differentiated(policy.distribution_cls, policy.model) is self._distribution
            and self._actor.runs(policy.model.policy)
            and self._critic.runs(policy.model.vf_model)
        )

    def begin(self) -> None:
        """Begin an update: parameters and the places of their gradients stay what they are."""
        self._actor.begin()
        self._critic.begin()

    @torch.no_grad()
    def __call__(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Terms of the loss, 0-d each; see `Objective`."""
        assert isinstance(minibatch.actions, torch.Tensor)
        seen = tuple(leaf.flatten(0, 1) for leaf in minibatch.obs)
        (x,) = self._policy._normalized(seen)
        distribution = self._distribution(self._actor.forward(x), self._model)
        logp = distribution.logp(minibatch.actions)
        entropy = distribution.entropy() if self._objective.uses_entropy else None
        slopes = self._objective.slopes(minibatch, logp, self._critic.forward(x).mT, entropy)
        self._actor.backward(distribution.backward(slopes.logp, slopes.entropy))
        self._critic.backward(slopes.values.mT)
        return slopes.terms


def analytic_gradients(
    policy: GenericPolicyBase[Any], objective: Any, previous: None | AnalyticGradients
) -> None | AnalyticGradients:
    """The gradients of this policy by this objective; None where they are not written out.

    Args:
        policy: Policy.
        objective: What is minimised.
        previous: Those of the last update, whose storage is used again.

    """
    model = policy.model
    is_plain = not policy.memory.paths and policy.critic is None and not policy.is_autocast
    is_plain = is_plain and is_own(policy, "evaluate", Policy)
    if not is_plain or not isinstance(model, DefaultModel) or not model.are_chains():
        return None
    if type(objective) not in (A2C, PPO):
        return None
    if previous is None or not previous.fits(policy, objective):
        distribution = differentiated(policy.distribution_cls, model)
        if distribution is None:
            return None
        previous = AnalyticGradients(policy, objective, distribution)
    previous.begin()
    return previous
