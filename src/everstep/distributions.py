"""Action distributions: from a model's features to actions and their log-probabilities.

The defaults compute their own samples and log-probabilities; they draw the same numbers from the
same seed as `torch.distributions`, in a fraction of its time.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, TensorSpec, Unbounded
from torchrl.data import Categorical as Discrete
from torchrl.data import MultiCategorical as MultiDiscrete

from .data import DataKeys

_FeatureSpec = TypeVar("_FeatureSpec", bound=TensorSpec)
_TorchDistribution = TypeVar("_TorchDistribution", bound=torch.distributions.Distribution)
_ActionSpec = TypeVar("_ActionSpec", bound=TensorSpec)

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_LOG_TWO = math.log(2)


class Distribution(ABC):
    """A distribution over actions.

    Args:
        features: What the model returned, batch `[B]`.
        model: The model, for distributions with parameters of their own.

    """

    #: What the model returned, batch `[B]`.
    features: Mapping[str, torch.Tensor] | TensorDict

    #: The model that returned it.
    model: Any

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        self.features = features
        self.model = model

    @staticmethod
    def default_dist_cls(action_spec: TensorSpec, /) -> type["Distribution"]:
        """Distribution that fits an action spec.

        Raises:
            TypeError: Where none does.

        """
        if isinstance(action_spec, MultiDiscrete):
            return MultiCategorical
        if isinstance(action_spec, Binary):
            return Bernoulli
        if isinstance(action_spec, Discrete):
            return Categorical
        if isinstance(action_spec, Unbounded | Bounded) and action_spec.dtype.is_floating_point:
            return Normal
        raise TypeError(
            f"There is no default distribution for actions of {type(action_spec).__name__} "
            f"{list(action_spec.shape)} ({action_spec.dtype}): set `distribution_cls`."
        )

    @abstractmethod
    def deterministic_sample(self) -> torch.Tensor | TensorDict:
        """The mode, `[B, …]`."""

    @abstractmethod
    def entropy(self) -> torch.Tensor:
        """Entropy in nats, `[B, 1]`."""

    @abstractmethod
    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of actions `[B, …]`, `[B, 1]`."""

    @abstractmethod
    def sample(self) -> torch.Tensor | TensorDict:
        """Random actions `[B, …]`."""

    def latents(self, *, deterministic: bool) -> torch.Tensor | TensorDict:
        """Actions `[B, …]` as they are stored and learned from."""
        return self.deterministic_sample() if deterministic else self.sample()

    def actions(self, latents: torch.Tensor | TensorDict) -> torch.Tensor | TensorDict:
        """Actions `[B, …]` as the environment executes them."""
        return latents

    def latents_logp(self, latents: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of the actions made of `latents`, `[B, 1]`."""
        return self.logp(latents)


class TorchDistributionWrapper(
    Distribution, Generic[_FeatureSpec, _TorchDistribution, _ActionSpec]
):
    """A distribution made of one of `torch.distributions`, over the last dimension's elements.

    A subclass sets `dist` in its constructor.
    """

    #: The distribution.
    dist: _TorchDistribution

    def deterministic_sample(self) -> torch.Tensor:
        """The mode, `[B, …]`."""
        return self.dist.mode

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, summed over the last dimension, `[B, 1]`."""
        entropy: torch.Tensor = self.dist.entropy()
        return entropy.sum(-1, keepdim=True)

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of actions `[B, …]`, summed over the last dimension, `[B, 1]`."""
        logp: torch.Tensor = self.dist.log_prob(samples)
        return logp.sum(-1, keepdim=True)

    def sample(self) -> torch.Tensor:
        """Random actions `[B, …]`."""
        sample: torch.Tensor = self.dist.sample()
        return sample


class Categorical(Distribution):
    """Independent choices among `n` options each: `features["logits"]` is `[B, D, n]`.

    An optional `features["action_mask"]`, bool of as many elements, excludes the options that are
    False. Where it leaves none, all are allowed: what such a row says must be ignored anyway.
    """

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        super().__init__(features, model)
        #: Normalised log-probabilities `[B, D, n]`.
        self.log_probs = _masked(features).log_softmax(-1)

    @property
    def dist(self) -> torch.distributions.Categorical:
        """The same distribution, as one of PyTorch's; made anew each time."""
        return torch.distributions.Categorical(logits=self.log_probs)

    def deterministic_sample(self) -> torch.Tensor:
        """The likeliest options, `[B, D]`."""
        return self.log_probs.argmax(-1)

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, summed over choices, `[B, 1]`."""
        # An excluded option has probability 0 and log-probability -inf; its term is 0.
        log_probs = self.log_probs.clamp(min=torch.finfo(self.log_probs.dtype).min)
        return -(log_probs.exp() * log_probs).sum((-2, -1)).unsqueeze(-1)

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of choices `[B, D]`, summed over them, `[B, 1]`."""
        assert isinstance(samples, torch.Tensor)
        return self.log_probs.gather(-1, samples.unsqueeze(-1)).sum(-2)

    def sample(self) -> torch.Tensor:
        """Random options, `[B, D]`."""
        # The exponential race: argmax of p/E, E ~ Exp(1), is distributed as p.
        noise = torch.empty_like(self.log_probs).exponential_()
        return (self.log_probs.exp() / noise).argmax(-1)


class MultiCategorical(Categorical):
    """Independent choices among different numbers of options: logits are `[B, Σ nvec]`.

    Choices are padded to the widest with options of probability 0.
    """

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        nvec: list[int] = model.action_spec.nvec.tolist()
        pieces = _masked(features).split(nvec, -1)
        padded = [
            torch.nn.functional.pad(piece, (0, max(nvec) - piece.shape[-1]), value=-torch.inf)
            for piece in pieces
        ]
        super().__init__({"logits": torch.stack(padded, -2)}, model)


class Bernoulli(Distribution):
    """Independent choices, each made or not: `features["logits"]` is `[B, …]`.

    An optional `features["action_mask"]`, bool of as many elements, forbids to make those that are
    False.
    """

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        super().__init__(features, model)
        #: Logarithms of the odds of 1, `[B, …]`.
        self.logits = _masked(features)
        self._dtype = getattr(getattr(model, "action_spec", None), "dtype", self.logits.dtype)

    def deterministic_sample(self) -> torch.Tensor:
        """What is likelier, `[B, …]`."""
        return (self.logits > 0).to(self._dtype)

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, summed over choices, `[B, 1]`."""
        p = self.logits.sigmoid()
        return _sum_rows(p * F.softplus(-self.logits) + (1 - p) * F.softplus(self.logits))

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of choices `[B, …]`, summed over them, `[B, 1]`."""
        assert isinstance(samples, torch.Tensor)
        return _sum_rows(-F.softplus(torch.where(samples > 0, -self.logits, self.logits)))

    def sample(self) -> torch.Tensor:
        """Random choices, `[B, …]`."""
        return self.logits.sigmoid().bernoulli().to(self._dtype)


class Normal(Distribution):
    """Independent normals: `features["mean"]` and `features["log_std"]` are `[B, …]`.

    Samples of bounded actions may lie outside their bounds: the environment clips what it
    executes, while the action as it was drawn is what is learned from.
    """

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        super().__init__(features, model)
        #: Means `[B, …]`.
        self.mean = features["mean"]
        #: Natural logarithm of the standard deviations `[B, …]`.
        self.log_std = features["log_std"]
        #: Standard deviations `[B, …]`.
        self.std = self.log_std.exp()

    @property
    def dist(self) -> torch.distributions.Normal:
        """The same distribution, as one of PyTorch's; made anew each time."""
        return torch.distributions.Normal(self.mean, self.std)

    def deterministic_sample(self) -> torch.Tensor:
        """The means, `[B, …]`."""
        return self.mean

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, summed over dimensions, `[B, 1]`."""
        return _sum_rows(self.log_std + (0.5 + _HALF_LOG_TWO_PI))

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-density of actions `[B, …]`, summed over dimensions, `[B, 1]`."""
        assert isinstance(samples, torch.Tensor)
        scaled = (samples - self.mean) / self.std
        return _sum_rows(-0.5 * scaled.square() - self.log_std - _HALF_LOG_TWO_PI)

    def sample(self) -> torch.Tensor:
        """Random actions, `[B, …]`."""
        return self.mean + self.std * torch.randn_like(self.mean)


class SquashedNormal(Normal):
    """Normals squashed by tanh and rescaled to the bounds of the action spec, else to [-1, 1].

    What is stored and learned from is the number u before the squashing, so that its probability
    is exact however close to a bound the action is.

    log p(a) = log N(u) − Σ [2·(log 2 − u − softplus(−2u)) + log((high − low) / 2)]
    """

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        super().__init__(features, model)
        spec = getattr(model, "action_spec", None)
        self._centre: torch.Tensor | float = 0.0
        self._half: torch.Tensor | float = 1.0
        if isinstance(spec, Bounded):
            low, high = spec.space.low.to(self.mean), spec.space.high.to(self.mean)
            self._centre, self._half = (high + low) / 2, (high - low) / 2

    def latents(self, *, deterministic: bool) -> torch.Tensor:
        """Numbers before the squashing, `[B, …]`."""
        return super().deterministic_sample() if deterministic else super().sample()

    def actions(self, latents: torch.Tensor | TensorDict) -> torch.Tensor:
        """Actions within the bounds, `[B, …]`."""
        assert isinstance(latents, torch.Tensor)
        return self._centre + self._half * latents.tanh()

    def latents_logp(self, latents: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-density of the actions made of `latents`, `[B, 1]`."""
        assert isinstance(latents, torch.Tensor)
        return super().logp(latents) - self._log_slope(latents)

    def deterministic_sample(self) -> torch.Tensor:
        """The squashed means, `[B, …]`."""
        return self.actions(self.latents(deterministic=True))

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, estimated with one sample that gradients flow through, `[B, 1]`."""
        return super().entropy() + self._log_slope(super().sample())

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-density of actions within the bounds, `[B, 1]`.

        At the bounds themselves that of the nearest numbers that are not; `latents_logp` is exact.
        """
        assert isinstance(samples, torch.Tensor)
        end = 1 - torch.finfo(samples.dtype).eps
        return self.latents_logp(((samples - self._centre) / self._half).clamp(-end, end).atanh())

    def sample(self) -> torch.Tensor:
        """Random actions within the bounds, `[B, …]`."""
        return self.actions(self.latents(deterministic=False))

    def _log_slope(self, latents: torch.Tensor) -> torch.Tensor:
        """Logarithm of how much actions spread where latents do, summed, `[B, 1]`."""
        slope = 2 * (_LOG_TWO - latents - F.softplus(-2 * latents))
        half = self._half
        return _sum_rows(slope + (half.log() if isinstance(half, torch.Tensor) else 0.0))


def _masked(features: Mapping[str, torch.Tensor] | TensorDict) -> torch.Tensor:
    """Logits, as low as can be where the mask is False: not −∞, which a row of them makes NaN."""
    logits: torch.Tensor = features["logits"]
    mask = features.get(DataKeys.ACTION_MASK)
    if mask is None:
        return logits
    allowed = mask.reshape(logits.shape).bool()
    return logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)


def _sum_rows(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1).sum(-1, keepdim=True)
