"""Distributions over discrete actions."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torchrl.data import Bounded

from ..data import DataKeys
from ..env.specs import options
from ._base import (
    Distribution,
    action_dtype,
    as_dtype,
    cached,
    sum_rows,
    without_subnormal_gradients,
)


class Categorical(Distribution):
    """Independent choices among `n` options each: `features["logits"]` is `[B, …, n]`.

    An optional `features["action_mask"]`, bool of as many elements, excludes the options that are
    False. If it excludes all options of a choice, all are allowed.
    """

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        super().__init__(features, model)
        #: Normalised log-probabilities `[B, …, n]`.
        self.log_probs = without_subnormal_gradients(_masked(features)).log_softmax(-1)
        self._dtype = action_dtype(model, torch.int64)

    @property
    def dist(self) -> torch.distributions.Categorical:
        """The same distribution in `torch.distributions`, a new object each time."""
        return torch.distributions.Categorical(logits=self.log_probs)

    def deterministic_sample(self) -> torch.Tensor:
        """The most likely options, `[B, …]`."""
        return as_dtype(self.log_probs.argmax(-1), self._dtype)

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, summed over choices, `[B, 1]`."""
        # The term of an excluded option, with log-probability -inf, is 0.
        log_probs = self.log_probs.clamp(min=torch.finfo(self.log_probs.dtype).min)
        return -sum_rows(log_probs.exp() * log_probs)

    def kl_divergence(self, other: "Categorical") -> torch.Tensor:
        """KL(self ‖ other), summed over choices, `[B, 1]`."""
        # The term of an option that is excluded here is 0.
        lowest = torch.finfo(self.log_probs.dtype).min
        own, others = (x.log_probs.clamp(min=lowest) for x in (self, other))
        return sum_rows(own.exp() * (own - others))

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of choices `[B, …]`, summed over them, `[B, 1]`."""
        assert isinstance(samples, torch.Tensor)
        chosen = as_dtype(samples, torch.int64).unsqueeze(-1)
        return sum_rows(self.log_probs.gather(-1, chosen))

    def sample(self) -> torch.Tensor:
        """Random options, `[B, …]`."""
        # Exponential race: argmax of p/E with E ~ Exp(1) is distributed as p.
        noise = torch.empty_like(self.log_probs).exponential_()
        return as_dtype((self.log_probs.exp() / noise).argmax(-1), self._dtype)


class MultiCategorical(Categorical):
    """Independent choices among different numbers of options: logits are `[B, Σ nvec]`.

    Choices are padded to the same number of options with options of probability 0.
    """

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        spec = model.action_spec
        padded = _padded(_masked(features), cached(model, options))
        logits = padded if spec.ndim == 1 else padded.unflatten(-2, spec.shape)
        super().__init__({"logits": logits}, model)
        self.features = features


class _WrittenChoices(Distribution):
    """Base class of choices `[B, D]` in another encoding: logits are `[B, Σ n]`.

    They may be masked as those of `Categorical`.
    """

    #: Distribution of the choices.
    choices: Categorical

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        super().__init__(features, model)
        self._counts = cached(model, options)
        self.choices = Categorical({"logits": _padded(_masked(features), self._counts)}, None)
        self._dtype = action_dtype(model, torch.int64)

    @abstractmethod
    def _write(self, choices: torch.Tensor) -> torch.Tensor:
        """Actions `[B, …]` of choices `[B, D]`."""

    @abstractmethod
    def _read(self, actions: torch.Tensor) -> torch.Tensor:
        """Choices `[B, D]` of actions `[B, …]`."""

    def _shaped(self, actions: torch.Tensor) -> torch.Tensor:
        """Flat actions in the shape and dtype of the action spec, `[B, …]`."""
        shape: torch.Size = self.model.action_spec.shape
        return as_dtype(actions.unflatten(-1, shape), self._dtype)

    def deterministic_sample(self) -> torch.Tensor:
        """The most likely actions, `[B, …]`."""
        return self._write(self.choices.deterministic_sample())

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, summed over choices, `[B, 1]`."""
        return self.choices.entropy()

    def kl_divergence(self, other: "_WrittenChoices") -> torch.Tensor:
        """KL(self ‖ other), summed over choices, `[B, 1]`."""
        return self.choices.kl_divergence(other.choices)

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of actions `[B, …]`, `[B, 1]`."""
        assert isinstance(samples, torch.Tensor)
        return self.choices.logp(self._read(samples))

    def sample(self) -> torch.Tensor:
        """Random actions, `[B, …]`."""
        return self._write(self.choices.sample())


class OneHotCategorical(_WrittenChoices):
    """One-hot choices: `features["logits"]` is `[B, Σ n]`."""

    def _write(self, choices: torch.Tensor) -> torch.Tensor:
        ones = [
            choices[:, i, None] == torch.arange(count, device=choices.device)
            for i, count in enumerate(self._counts)
        ]
        return self._shaped(torch.cat(ones, -1))

    def _read(self, actions: torch.Tensor) -> torch.Tensor:
        pieces = actions.flatten(1).int().split(self._counts, -1)
        return torch.stack([piece.argmax(-1) for piece in pieces], -1)


class BoundedCategorical(_WrittenChoices):
    """Bounded integers, each a choice: `features["logits"]` is `[B, Σ (high - low + 1)]`."""

    def _write(self, choices: torch.Tensor) -> torch.Tensor:
        return self._shaped(choices + cached(self.model, _lowest, choices.device))

    def _read(self, actions: torch.Tensor) -> torch.Tensor:
        return actions.flatten(1).long() - cached(self.model, _lowest, actions.device)


class Bernoulli(Distribution):
    """Independent binary choices: `features["logits"]` is `[B, …]`.

    An optional `features["action_mask"]`, bool of as many elements, is False for choices that must
    be 0.
    """

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        super().__init__(features, model)
        #: Logarithms of the odds of 1, `[B, …]`.
        self.logits = without_subnormal_gradients(_masked(features))
        self._dtype = action_dtype(model, self.logits.dtype)

    def deterministic_sample(self) -> torch.Tensor:
        """The more likely values, `[B, …]`."""
        return (self.logits > 0).to(self._dtype)

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, summed over choices, `[B, 1]`."""
        p = self.logits.sigmoid()
        return sum_rows(p * F.softplus(-self.logits) + (1 - p) * F.softplus(self.logits))

    def kl_divergence(self, other: "Bernoulli") -> torch.Tensor:
        """KL(self ‖ other), summed over choices, `[B, 1]`."""
        p = self.logits.sigmoid()
        of_one = F.softplus(-other.logits) - F.softplus(-self.logits)
        of_zero = F.softplus(other.logits) - F.softplus(self.logits)
        return sum_rows(p * of_one + (1 - p) * of_zero)

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of choices `[B, …]`, summed over them, `[B, 1]`."""
        assert isinstance(samples, torch.Tensor)
        return sum_rows(-F.softplus(torch.where(samples > 0, -self.logits, self.logits)))

    def sample(self) -> torch.Tensor:
        """Random choices, `[B, …]`."""
        return self.logits.sigmoid().bernoulli().to(self._dtype)


def _masked(features: Mapping[str, torch.Tensor] | TensorDict) -> torch.Tensor:
    """Logits, the lowest finite number where the mask is False: a row of −∞ would become NaN."""
    logits: torch.Tensor = features["logits"]
    mask = features.get(DataKeys.ACTION_MASK)
    if mask is None:
        return logits
    allowed = mask.reshape(logits.shape).bool()
    return logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)


def _padded(logits: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Logits `[B, D, max n]` of choices that are concatenated in `[B, Σ n]`."""
    widest = max(counts)
    pieces = [
        F.pad(piece, (0, widest - piece.shape[-1]), value=-torch.inf)
        for piece in logits.flatten(1).split(counts, -1)
    ]
    return torch.stack(pieces, -2)


def _lowest(spec: Bounded, device: torch.device) -> torch.Tensor:
    """Lower bounds `[D]` of an action's integers."""
    return cast(torch.Tensor, spec.space.low.flatten().to(device, torch.int64))
