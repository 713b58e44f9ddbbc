"""Gradients of a minibatch's loss, written out for default perceptrons.

With few rows, autograd's recording costs more than the arithmetic; written out, the gradients take
a third of the operations, in storage that is reused. They equal autograd's up to rounding.
"""

from typing import Any

import torch
import torch.nn.functional as F

from ..distributions import Categorical, Distribution, Normal
from ..distributions._base import smallest_gradient
from ..distributions._continuous import HALF_LOG_TWO_PI
from ..losses import clipped_surrogate_and_derivative, value_errors_and_derivative
from ..objectives import PPO, ActorCritic
from ..policies import GenericPolicyBase
from ..rollouts import Minibatch
from .mlp import TrainingMLP


class MinibatchGradients:
    """Adds the gradients of a minibatch's loss to those of the parameters."""

    def __init__(self) -> None:
        self._actor, self._critic = TrainingMLP(), TrainingMLP()

    def begin(self, policy: GenericPolicyBase[Any], objective: ActorCritic) -> None:
        """Begin an update of an eligible policy; until its end, tensors must not be replaced."""
        self._policy, self._objective = policy, objective
        self._normalized = policy._normalization()
        self._distribution = _DISTRIBUTIONS[policy.distribution_cls]
        self._actor.begin(policy.model.policy)
        self._critic.begin(policy.model.vf_model)

    @torch.no_grad()
    def __call__(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Terms of the loss, 0-d each; see `Objective`."""
        assert isinstance(minibatch.actions, torch.Tensor)
        obs = tuple(leaf.flatten(0, 1) for leaf in minibatch.obs)
        (x,) = self._normalized(obs)
        excluded = minibatch.weight == 0 if minibatch.has_excluded else None
        distribution = self._distribution(self._actor.forward(x), self._policy.model)
        logp = distribution.logp(minibatch.actions, excluded)
        entropy = distribution.entropy() if self._objective.needs_entropy else None
        values = self._critic.forward(x).mT
        terms, by_logp, by_values, by_entropy = loss_and_derivatives(
            self._objective, minibatch, logp, values, entropy, excluded
        )
        self._actor.backward(distribution.backward(by_logp, by_entropy))
        self._critic.backward(by_values.mT)
        return terms


# ---- the loss ---------------------------------------------------------------------------------


def loss_and_derivatives(
    objective: ActorCritic,
    minibatch: Minibatch,
    logp: torch.Tensor,
    values: torch.Tensor,
    entropy: None | torch.Tensor,
    excluded: None | torch.Tensor,
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, None | torch.Tensor]:
    """`objective(minibatch, …)` for PPO and A2C, and the derivatives of its total.

    Takes log-probabilities and entropies `[B, 1]` and values `[B, K]` of now, and rows of weight 0,
    bool `[B, 1]`; None for no entropy, and for no such rows. Gives derivatives by the three; None
    by entropies without a weight.
    """
    config, weight = objective.config, minibatch.weight
    log_ratio = logp - minibatch.logp
    if excluded is not None:
        # The action of an invalid row may be impossible, and infinity times a weight of 0 is NaN.
        log_ratio.masked_fill_(excluded, 0.0)
    moved = log_ratio.expm1()
    if isinstance(objective, PPO):
        ratio = log_ratio.exp()
        gain, by_logp = clipped_surrogate_and_derivative(
            ratio, minibatch.advantages, objective.clip_param, config.dual_clip_param
        )
        by_logp.mul_(ratio)  # dρ/d log π = ρ
    else:
        logp = logp if excluded is None else logp.masked_fill(excluded, 0.0)
        gain, by_logp = logp * minibatch.advantages, minibatch.advantages.clone()
    errors, by_values = value_errors_and_derivative(
        values, minibatch.returns, minibatch.values, config.vf_loss, config.vf_clip_param
    )
    clipped = (moved.abs() > objective.clip_param).to(logp.dtype)
    rows = [gain, moved.sub_(log_ratio), clipped, errors.mT.reshape(-1, 1)]
    rows = rows if entropy is None else [*rows, entropy]
    # One product computes all weighted sums.
    sums = torch.cat(rows).view(-1, weight.shape[0]).mv(weight.view(-1))
    policy, kl_div, clip_fraction, vf, *others = sums.unbind()
    columns = errors.shape[-1]
    vf = vf if columns == 1 else sums[3 : 3 + columns].sum()
    terms = objective.total(policy, vf, None if entropy is None else others[-1])
    return (
        terms | {"kl_div": kl_div, "clip_fraction": clip_fraction},
        by_logp.mul_(weight).neg_(),
        (by_values * weight).mul_(config.vf_coeff),
        weight * -objective.entropy_coeff if objective.uses_entropy else None,
    )


# ---- distributions ----------------------------------------------------------------------------
# Made from outputs `[width, B]` of the policy's network; `logp` is called first, then `entropy`,
# then `backward`: from derivatives by their results, `[B, 1]`, to those by the outputs. Derivatives
# by parameters are added to `p.grad`.


class CategoricalGradients:
    """`Categorical` with one choice an action: outputs are logits."""

    def __init__(self, outputs: torch.Tensor, model: Any) -> None:
        self._log_probs = outputs.log_softmax(0)
        probs = F.threshold(self._log_probs.exp(), smallest_gradient(outputs.dtype), 0.0)
        self._negative_probs = probs.neg_()
        self._chosen = self._entropy = outputs

    def logp(self, actions: torch.Tensor, excluded: None | torch.Tensor) -> torch.Tensor:
        """Log-probabilities of actions `[B, …]`, `[B, 1]`; anything in excluded rows."""
        self._chosen = actions.long().view(1, -1)
        return self._log_probs.gather(0, self._chosen).mT

    def entropy(self) -> torch.Tensor:
        """Entropies in nats, `[B, 1]`."""
        self._entropy = (self._negative_probs * self._log_probs).sum(0, keepdim=True)
        return self._entropy.mT

    def backward(self, by_logp: torch.Tensor, by_entropy: None | torch.Tensor) -> torch.Tensor:
        """(1[chosen] − p)·by_logp − p·(log p + H)·by_entropy."""
        by_logp = factor = by_logp.mT
        if by_entropy is not None:
            factor = by_logp + (self._log_probs + self._entropy) * by_entropy.mT
        return (self._negative_probs * factor).scatter_add_(0, self._chosen, by_logp)


class NormalGradients:
    """`Normal` whose standard deviations are parameters: outputs are means."""

    def __init__(self, outputs: torch.Tensor, model: Any) -> None:
        self._mean = outputs
        self._parameter = model.outputs.log_std
        self._log_std = self._parameter.detach().view(-1, 1)
        self._inverse = (-self._log_std).exp()
        self._scaled = self._constant = outputs

    def logp(self, actions: torch.Tensor, excluded: None | torch.Tensor) -> torch.Tensor:
        """Log-probabilities of actions `[B, …]`, `[B, 1]`; anything in excluded rows."""
        actions = actions.flatten(1).to(self._mean.dtype)
        self._scaled = (actions.mT - self._mean) * self._inverse
        if excluded is not None:
            self._scaled.masked_fill_(excluded.mT, 0.0)
        self._constant = self._log_std.sum() + HALF_LOG_TWO_PI * self._mean.shape[0]
        squares: torch.Tensor = self._scaled.square().sum(0, keepdim=True)
        return squares.mul_(-0.5).sub_(self._constant).mT

    def entropy(self) -> torch.Tensor:
        """Entropies in nats, `[B, 1]`."""
        return (self._constant + 0.5 * self._mean.shape[0]).expand(self._mean.shape[1], 1)

    def backward(self, by_logp: torch.Tensor, by_entropy: None | torch.Tensor) -> torch.Tensor:
        """By the mean x/σ, by log σ x² − 1, where x = (a − μ)/σ."""
        by_logp = by_logp.mT
        if self._parameter.grad is not None:
            by_log_std = ((self._scaled.square() - 1) * by_logp).sum(1)
            if by_entropy is not None:
                by_log_std = by_log_std + by_entropy.sum()
            self._parameter.grad += by_log_std.view_as(self._parameter)
        by_mean: torch.Tensor = self._scaled * (by_logp * self._inverse)
        return by_mean


#: Written-out gradients of distributions of exactly these classes.
_DISTRIBUTIONS: dict[type[Distribution], Any] = {
    Categorical: CategoricalGradients,
    Normal: NormalGradients,
}
