"""Objectives: losses that an update minimises.

An objective is called with a minibatch, the policy's distribution over its actions and its values,
and returns its terms as scalars; `"total"` is minimised, the rest is reported.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, cast

import torch

from .core.hyperparameters import Resolved
from .core.losses import (
    approximate_kl,
    check_terms,
    clipped_surrogate,
    value_errors,
    weighted_sum,
    with_term,
)
from .core.rollouts import Minibatch
from .distributions import Distribution, Normal
from .errors import ConfigError

#: Optimizer steps an entropy that has no weight is measured once in.
ENTROPY_EVERY = 8

#: What only a probability ratio uses, and why other objectives do not.
CLIPPING = dict.fromkeys(
    ("clip_param", "clip_param_schedule", "dual_clip_param"),
    "the objective does not clip probability ratios",
)

#: Terms that are monitors, of the policy that collected.
MONITORS = ("kl_div", "clip_fraction")


class Objective(Protocol):
    """Loss of an update.

    It may have `setup(policy, previous)`, called once, also with the objective whose place it takes
    (None for the first one), and `follow(rollout, was_reset=…, resets=…)`, called with each
    rollout. Its attribute `labels`, `[T, N, …]` each, is then in `minibatch.labels`.
    """

    #: Weight of the entropy bonus, 0-d; filled by the entropy schedule.
    entropy_coeff: torch.Tensor

    #: Whether every term is a sum over rows, each by its weight, so that a minibatch may be split
    #: into chunks; False if it is missing.
    sums_rows: bool

    def __call__(
        self, minibatch: Minibatch, distribution: Distribution, values: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Terms of the loss, 0-d each: `policy`, `vf`, `entropy`, `total`, and monitors.

        Args:
            minibatch: Transitions.
            distribution: The policy's distribution now, over the minibatch's rows.
            values: The policy's values now, `[B, K]`.

        """
        ...


class ActorCritic(ABC):
    """Base of objectives of the form total = vf_coeff·vf − policy − entropy_coeff·entropy.

    A subclass defines the gain of each row, whose weighted sum is `policy`.

    Args:
        config: Hyperparameters.
        entropy_coeff: Weight of the entropy bonus, 0-d.

    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    #: Epochs of an update, if the config says "auto".
    default_num_sgd_iters: int

    #: The same for environments whose episodes end.
    episodic_num_sgd_iters: int

    #: See `Objective`.
    sums_rows = True

    #: Hyperparameters that change nothing with this objective, and why.
    ignores: ClassVar[Mapping[str, str]] = {}

    #: Whether to compute an entropy that has no weight. It is left out of most optimizer steps: on
    #: small networks it takes 2 % of their time.
    measures_entropy = True

    def __init__(self, config: Resolved, *, entropy_coeff: torch.Tensor) -> None:
        self.config = config
        self.entropy_coeff = entropy_coeff
        #: ε of the clipped surrogate: a number, or 0-d and filled by its schedule.
        self.clip_param: float | torch.Tensor = config.clip_param
        if config.clip_param_schedule is not None:
            self.clip_param = torch.full_like(entropy_coeff, config.clip_param)
        schedule = config.entropy_coeff_schedule
        #: Whether the entropy has a weight, now or later.
        self.uses_entropy = config.entropy_coeff > 0 if schedule is None else bool(schedule)

    @property
    def needs_entropy(self) -> bool:
        """Whether to compute the entropy."""
        return self.uses_entropy or self.measures_entropy

    @abstractmethod
    def gain(self, logp: torch.Tensor, minibatch: Minibatch) -> torch.Tensor:
        """Gain of each row, which the policy maximises, `[B, 1]`.

        Args:
            logp: Log-probabilities of the minibatch's actions now, `[B, 1]`.
            minibatch: Transitions.

        """

    def gain_of(
        self, distribution: Distribution, logp: torch.Tensor, minibatch: Minibatch
    ) -> torch.Tensor:
        """`gain`, for objectives that depend on the whole distribution, `[B, 1]`."""
        return self.gain(logp, minibatch)

    def __call__(
        self, minibatch: Minibatch, distribution: Distribution, values: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Terms of the loss; see `Objective`."""
        config, weight = self.config, minibatch.weight
        # The action of an invalid row may be impossible, and infinity times a weight of 0 is NaN.
        excluded = weight == 0
        logp = distribution.latents_logp(minibatch.actions).masked_fill(excluded, 0.0)
        minibatch = replace(minibatch, logp=minibatch.logp.masked_fill(excluded, 0.0))
        errors = value_errors(
            values,
            minibatch.returns,
            minibatch.values,
            kind=config.vf_loss,
            vf_clip_param=config.vf_clip_param,
        )
        terms = self.total(
            weighted_sum(self.gain_of(distribution, logp, minibatch), weight),
            weighted_sum(errors, weight),
            self._entropy(distribution, weight),
        )
        if config.bounds_loss_coeff:
            assert isinstance(distribution, Normal)  # checked when the policy was made
            bounds = weighted_sum(distribution.beyond_bounds(), weight)
            terms["bounds"] = bounds.detach()
            terms["total"] = terms["total"] + config.bounds_loss_coeff * bounds
        return terms | self._monitors(logp, minibatch)

    def _entropy(self, distribution: Distribution, weight: torch.Tensor) -> None | torch.Tensor:
        """Mean entropy, 0-d; None if it is not needed, or has no weight and cannot be computed."""
        if self.uses_entropy:
            return weighted_sum(distribution.entropy(), weight)
        if not self.measures_entropy:
            return None
        try:
            with torch.no_grad():
                return weighted_sum(distribution.entropy(), weight)
        except NotImplementedError:  # PyTorch's distributions that have no closed form
            return None

    def total(
        self, policy: torch.Tensor, vf: torch.Tensor, entropy: None | torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The terms, 0-d each, and their `total`, which is minimised; entropy None is unknown."""
        total = torch.add(policy.neg(), vf, alpha=self.config.vf_coeff)
        terms = {"policy": policy, "vf": vf}
        if entropy is None:
            return {**terms, "total": total}
        if self.uses_entropy:
            total = total - self.entropy_coeff * entropy
        return {**terms, "entropy": entropy, "total": total}

    @torch.no_grad()
    def _monitors(self, logp: torch.Tensor, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Divergence from the policy that collected, and share of clipped rows."""
        log_ratio = logp - minibatch.logp
        clipped = (log_ratio.exp() - 1).abs() > self.clip_param
        return {
            "kl_div": weighted_sum(approximate_kl(log_ratio), minibatch.weight),
            "clip_fraction": weighted_sum(clipped, minibatch.weight),
        }


class PPO(ActorCritic):
    """Proximal policy optimisation: the clipped surrogate.

    Source: arXiv 1707.06347, eq. 9.
    """

    default_num_sgd_iters = 4
    episodic_num_sgd_iters = 10

    def gain(self, logp: torch.Tensor, minibatch: Minibatch) -> torch.Tensor:
        """min(ρA, clip(ρ)A), `[B, 1]`."""
        return clipped_surrogate(
            (logp - minibatch.logp).exp(),
            minibatch.advantages,
            clip_param=self.clip_param,
            dual_clip_param=self.config.dual_clip_param,
        )


class A2C(ActorCritic):
    """Advantage actor-critic: the policy gradient, of one epoch.

    More epochs would learn from actions of another policy without correcting for it; `clip_param`
    is used by the monitors only.

    Source: arXiv 1602.01783, without its asynchrony.
    """

    default_num_sgd_iters = 1
    episodic_num_sgd_iters = 1
    ignores = CLIPPING

    def gain(self, logp: torch.Tensor, minibatch: Minibatch) -> torch.Tensor:
        """A·log π, `[B, 1]`."""
        return logp * minibatch.advantages


class LossAddOn(Protocol):
    """A term of one's own in the loss; it may have `setup(policy)`, called once before training.

    A function of the same signature with a `name` is one, too. `sums_rows = True` declares that the
    term is a sum over rows, each by its weight: then minibatches may be split into chunks, which is
    faster on a CPU.
    """

    #: Name in statistics: `losses/<name>`.
    name: str

    def __call__(
        self, minibatch: Minibatch, distribution: Distribution, values: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Term of the loss, 0-d; optionally with further statistics, 0-d each.

        Weigh rows by `minibatch.weight`, which is 0 for excluded ones.
        """
        ...


def add_ons(
    chosen: Sequence[LossAddOn],
    minibatch: Minibatch,
    distribution: Distribution,
    values: torch.Tensor,
    terms: dict[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """The terms of a loss with those of add-ons, each under its name and in `total`."""
    for add_on in chosen:
        found = add_on(minibatch, distribution, values)
        loss, reported = found if isinstance(found, tuple) else (found, {})
        check_terms({"total": loss, **reported}, f"`{add_on.name}` of `policy_loss_addons`")
        named = {f"{add_on.name}/{key}": value for key, value in reported.items()}
        terms = with_term({**terms, **named}, add_on.name, loss, "`policy_loss_addons`")
    return terms


#: Objectives by the names that files use.
OBJECTIVES: dict[str, Callable[..., Objective]] = {"a2c": A2C, "ppo": PPO}


def find_objective(chosen: Any) -> Callable[..., Objective]:
    """The objective of that name; anything else is one already.

    Raises:
        ConfigError: If the name is unknown.

    """
    if not isinstance(chosen, str):
        return cast(Callable[..., Objective], chosen)
    if chosen not in OBJECTIVES:
        raise ConfigError(
            f"`objective` must be one of {', '.join(OBJECTIVES)}, or a class; got {chosen!r}."
        )
    return OBJECTIVES[chosen]
