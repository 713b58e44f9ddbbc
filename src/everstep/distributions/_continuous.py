"""Distributions over real numbers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torchrl.data import Bounded

from ._base import Distribution, action_dtype, as_dtype, known, sum_rows

#: ½·log 2π.
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_LOG_TWO = math.log(2)


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
        # Samples are rounded to what is stored, so that they have the same probability later.
        self._dtype = action_dtype(model, self.mean.dtype)

    @property
    def dist(self) -> torch.distributions.Normal:
        """The same distribution, as one of PyTorch's; made anew each time."""
        return torch.distributions.Normal(self.mean, self.std)

    def deterministic_sample(self) -> torch.Tensor:
        """The means, `[B, …]`."""
        return as_dtype(self.mean, self._dtype)

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, summed over dimensions, `[B, 1]`."""
        return sum_rows(self.log_std + (0.5 + HALF_LOG_TWO_PI))

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-density of actions `[B, …]`, summed over dimensions, `[B, 1]`."""
        assert isinstance(samples, torch.Tensor)
        scaled = (as_dtype(samples, self.mean.dtype) - self.mean) / self.std
        return sum_rows(-0.5 * scaled.square() - self.log_std - HALF_LOG_TWO_PI)

    def sample(self) -> torch.Tensor:
        """Random actions, `[B, …]`."""
        return as_dtype(self.mean + self.std * torch.randn_like(self.mean), self._dtype)


class SquashedNormal(Normal):
    """Normals squashed into the bounds of the action spec: a = squash(u).

    Between two bounds a = centre + half·tanh(u); above a lowest, a = low + softplus(u); below a
    highest, a = high - softplus(-u); and tanh(u) where there is no bound at all. What is stored
    and learned from is u, so that its probability is exact however close to a bound the action is.

    log p(a) = log N(u) - Σ log squash'(u)
    """

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        super().__init__(features, model)
        self._bounds: None | tuple[torch.Tensor, torch.Tensor] = None
        self._squash: _Squash = _TANH
        if isinstance(getattr(model, "action_spec", None), Bounded):
            mean = self.mean
            self._bounds = known(model, _bounds, mean.device)
            self._squash = known(model, _squash, mean.device, mean.dtype)

    def latents(self, *, deterministic: bool) -> torch.Tensor:
        """Numbers before the squashing, `[B, …]`."""
        return super().deterministic_sample() if deterministic else super().sample()

    def actions(self, latents: torch.Tensor | TensorDict) -> torch.Tensor:
        """Actions within the bounds, `[B, …]`."""
        assert isinstance(latents, torch.Tensor)
        actions = as_dtype(self._squash.actions(as_dtype(latents, self.mean.dtype)), self._dtype)
        # Sums are rounded, and may lie past a bound by their last bit.
        return actions if self._bounds is None else actions.clamp(*self._bounds)

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
        return self.latents_logp(self._squash.latents(as_dtype(samples, self.mean.dtype)))

    def sample(self) -> torch.Tensor:
        """Random actions within the bounds, `[B, …]`."""
        return self.actions(self.latents(deterministic=False))

    def _log_slope(self, latents: torch.Tensor) -> torch.Tensor:
        """Logarithm of how much actions spread where latents do, summed, `[B, 1]`."""
        return sum_rows(self._squash.log_slope(as_dtype(latents, self.mean.dtype)))


class _Squash(ABC):
    """A monotone function from numbers u to actions, element by element."""

    @abstractmethod
    def actions(self, u: torch.Tensor) -> torch.Tensor:
        """Actions of numbers, `[B, …]`."""

    @abstractmethod
    def latents(self, actions: torch.Tensor) -> torch.Tensor:
        """Numbers of actions, `[B, …]`; at a bound, those of the nearest action that is not."""

    @abstractmethod
    def log_slope(self, u: torch.Tensor) -> torch.Tensor:
        """Logarithms of da/du, `[B, …]`."""


class _Tanh(_Squash):
    """Actions between two bounds: a = centre + half·tanh(u).

    Args:
        low: Lowest actions `[…]`; -1 is meant where there is no such bound, or no highest one.
        high: Highest actions `[…]`; 1 is meant there.

    """

    def __init__(self, low: torch.Tensor, high: torch.Tensor) -> None:
        width = high - low
        endless = ~(width < torch.inf)
        # Never 0: the logarithm must be finite where both bounds are the same.
        self._half = (width.masked_fill(endless, 2.0) / 2).clamp(min=torch.finfo(low.dtype).tiny)
        self._log_half = self._half.log()
        self._centre = (low + self._half).masked_fill(endless, 0.0)

    def actions(self, u: torch.Tensor) -> torch.Tensor:
        return self._centre + self._half * u.tanh()

    def latents(self, actions: torch.Tensor) -> torch.Tensor:
        end = 1 - torch.finfo(actions.dtype).eps
        return ((actions - self._centre) / self._half).clamp(-end, end).atanh()

    def log_slope(self, u: torch.Tensor) -> torch.Tensor:
        # log(1 - tanh²u), which stays exact where tanh(u) is rounded to 1.
        return 2 * (_LOG_TWO - u - F.softplus(-2 * u)) + self._log_half


class _Softplus(_Squash):
    """Actions of which some have one bound only: those are end + side·softplus(side·u).

    Args:
        low: Lowest actions `[…]`.
        high: Highest actions `[…]`.

    """

    def __init__(self, low: torch.Tensor, high: torch.Tensor) -> None:
        has_low = _is_bound(low)
        self._one_bound = has_low ^ _is_bound(high)
        self._side = torch.where(has_low, 1.0, -1.0).to(low.dtype)
        self._end = torch.where(has_low, low, high).where(self._one_bound, 0.0)
        self._others = _Tanh(low, high)

    def actions(self, u: torch.Tensor) -> torch.Tensor:
        actions = self._end + self._side * F.softplus(self._side * u)
        return torch.where(self._one_bound, actions, self._others.actions(u))

    def latents(self, actions: torch.Tensor) -> torch.Tensor:
        away = (self._side * (actions - self._end)).clamp(min=torch.finfo(actions.dtype).tiny)
        u = self._side * (away + (-torch.expm1(-away)).log())
        return torch.where(self._one_bound, u, self._others.latents(actions))

    def log_slope(self, u: torch.Tensor) -> torch.Tensor:
        slope = F.logsigmoid(self._side * u)
        return torch.where(self._one_bound, slope, self._others.log_slope(u))


#: Squashes where an action has no bounds.
_TANH = _Tanh(torch.tensor(-1.0, device="cpu"), torch.tensor(1.0, device="cpu"))


def _bounds(spec: Bounded, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Lowest and highest actions `[…]`."""
    return spec.space.low.to(device), spec.space.high.to(device)


def _squash(spec: Bounded, device: torch.device, dtype: torch.dtype) -> _Squash:
    """What squashes numbers of that dtype into the bounds of actions."""
    low, high = _bounds(spec, device)
    some_have_one = bool((_is_bound(low) ^ _is_bound(high)).any())
    squash = _Softplus if some_have_one else _Tanh
    return squash(as_dtype(low, dtype), as_dtype(high, dtype))


def _is_bound(end: torch.Tensor) -> torch.Tensor:
    """Whether an end is a bound; the largest number that a dtype has means that there is none."""
    return end.abs() < torch.finfo(end.dtype).max
