"""Distributions over continuous actions."""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torchrl.data import Bounded, TensorSpec

from ..env.specs import is_bound
from ._base import Distribution, action_dtype, as_dtype, cached, sum_rows

#: ½·log 2π.
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_LOG_TWO = math.log(2)

#: Means beyond this part of their range are penalised.
SOFT_BOUND = 1.1


class Normal(Distribution):
    """Independent normals: `features["mean"]` and `features["log_std"]` are `[B, …]`.

    An optional `features["noise"]` of the same shape is added to the means in place of noise that
    is drawn for each sample. Samples of bounded actions may lie outside their bounds. The
    environment clips them, and training uses the unclipped samples.
    """

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        super().__init__(features, model)
        #: Means `[B, …]`.
        self.mean = features["mean"]
        #: Natural logarithm of the standard deviations `[B, …]`.
        self.log_std = features["log_std"]
        #: Standard deviations `[B, …]`.
        self.std = self.log_std.exp()
        # Rounded to the stored dtype, so that samples have the same probability in the update.
        self._dtype = action_dtype(model, self.mean.dtype)

    @property
    def dist(self) -> torch.distributions.Normal:
        """The same distribution in `torch.distributions`, a new object each time."""
        return torch.distributions.Normal(self.mean, self.std)

    @staticmethod
    def range_of(model: Any, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Lowest, highest and half width `[…]` of a model's actions, for `beyond_bounds`."""
        return cached(model, _range, like.device, like.dtype)

    def beyond_bounds(self) -> torch.Tensor:
        """Squared distances of the means from 1.1 times the actions' range, summed, `[B, 1]`.

        The range is scaled to ±1; without bounds it is ±1. With one bound, a mean may be beyond it
        by 0.1, and nothing is beyond the other end.

        Source: rl_games, `bound_loss` with its soft bound.
        """
        low, high, half = self.range_of(self.model, self.mean)
        beyond = torch.maximum(low - self.mean, self.mean - high) / half - (SOFT_BOUND - 1)
        return sum_rows(beyond.clamp(min=0).square())

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

    def kl_divergence(self, other: "Normal") -> torch.Tensor:
        """KL(self ‖ other), summed over dimensions, `[B, 1]`; that of squashed actions, too."""
        scaled = (self.std.square() + (self.mean - other.mean).square()) / other.std.square()
        return sum_rows(other.log_std - self.log_std + 0.5 * scaled - 0.5)

    def sample(self) -> torch.Tensor:
        """Random actions, `[B, …]`."""
        noise = self.features.get("noise", None)  # of state-dependent exploration
        noise = self.std * torch.randn_like(self.mean) if noise is None else noise
        return as_dtype(self.mean + noise, self._dtype)


class SquashedNormal(Normal):
    """Normals squashed into the bounds of the action spec: a = squash(u).

    a = centre + half·tanh(u) between two bounds, low + softplus(u) with a lower bound only,
    high - softplus(-u) with an upper bound only, and tanh(u) without bounds. The latent u is stored
    and learned from, so that probabilities are exact for actions near a bound.

    log p(a) = log N(u) - Σ log squash'(u)
    """

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        super().__init__(features, model)
        self._bounds: None | tuple[torch.Tensor, torch.Tensor] = None
        self._squash = self.squash_of(model, self.mean)
        if isinstance(getattr(model, "action_spec", None), Bounded):
            self._bounds = cached(model, _bounds, self.mean.device)

    @staticmethod
    def squash_of(model: Any, like: torch.Tensor) -> "_Squash":
        """The squash of a model's actions, for latents of that dtype."""
        if not isinstance(getattr(model, "action_spec", None), Bounded):
            return _TANH
        return cached(model, _squash, like.device, like.dtype)

    def latents(self, *, deterministic: bool) -> torch.Tensor:
        """Latents u before squashing, `[B, …]`."""
        return super().deterministic_sample() if deterministic else super().sample()

    def actions(self, latents: torch.Tensor | TensorDict) -> torch.Tensor:
        """Actions within the bounds, `[B, …]`."""
        assert isinstance(latents, torch.Tensor)
        actions = as_dtype(self._squash.actions(as_dtype(latents, self.mean.dtype)), self._dtype)
        # Rounding may put an action past a bound by one unit in the last place.
        return actions if self._bounds is None else actions.clamp(*self._bounds)

    def latents_logp(self, latents: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-density of the actions of `latents`, `[B, 1]`."""
        assert isinstance(latents, torch.Tensor)
        return super().logp(latents) - self._log_slope(latents)

    def deterministic_sample(self) -> torch.Tensor:
        """The squashed means, `[B, …]`."""
        return self.actions(self.latents(deterministic=True))

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, estimated with one sample that gradients flow through, `[B, 1]`."""
        return super().entropy() + self._log_slope(super().sample())

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-density of actions within the bounds, `[B, 1]`; `latents_logp` is more exact.

        An action at a bound has the density of the nearest number inside.
        """
        assert isinstance(samples, torch.Tensor)
        return self.latents_logp(self._squash.latents(as_dtype(samples, self.mean.dtype)))

    def sample(self) -> torch.Tensor:
        """Random actions within the bounds, `[B, …]`."""
        return self.actions(self.latents(deterministic=False))

    def _log_slope(self, latents: torch.Tensor) -> torch.Tensor:
        """Logarithm of |da/du|, summed over dimensions, `[B, 1]`."""
        return sum_rows(self._squash.log_slope(as_dtype(latents, self.mean.dtype)))


class _Tanh:
    """Actions between two bounds: a = centre + half·tanh(u).

    Args:
        low: Lower bounds `[…]`; both are -1 and 1 if one of the two is missing.
        high: Upper bounds `[…]`.

    """

    def __init__(self, low: torch.Tensor, high: torch.Tensor) -> None:
        width = high - low
        unbounded = ~(width < torch.inf)
        # Positive, so that the logarithm of equal bounds is finite.
        self._half = (width.masked_fill(unbounded, 2.0) / 2).clamp(min=torch.finfo(low.dtype).tiny)
        self._log_half = self._half.log()
        self._centre = (low + self._half).masked_fill(unbounded, 0.0)

    def actions(self, u: torch.Tensor) -> torch.Tensor:
        """Actions of latents, `[B, …]`."""
        return self._centre + self._half * u.tanh()

    def latents(self, actions: torch.Tensor) -> torch.Tensor:
        """Latents of actions, `[B, …]`; at a bound, those of the nearest action inside."""
        end = 1 - torch.finfo(actions.dtype).eps
        return ((actions - self._centre) / self._half).clamp(-end, end).atanh()

    def slopes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Constants of `log_slope`, `[…]` each: side of a single bound or 0, and log(half)."""
        return torch.zeros_like(self._log_half), self._log_half

    def log_slope(self, u: torch.Tensor) -> torch.Tensor:
        """Logarithms of da/du, `[B, …]`."""
        # log(1 - tanh²u), exact even if tanh(u) rounds to 1.
        return 2 * (_LOG_TWO - u - F.softplus(-2 * u)) + self._log_half


class _Softplus:
    """Actions of which some have one bound only: a = bound + side·softplus(side·u) for those.

    Args:
        low: Lower bounds `[…]`.
        high: Upper bounds `[…]`.

    """

    def __init__(self, low: torch.Tensor, high: torch.Tensor) -> None:
        has_low = is_bound(low)
        self._one_bound = has_low ^ is_bound(high)
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

    def slopes(self) -> tuple[torch.Tensor, torch.Tensor]:
        sides, log_half = self._others.slopes()
        return torch.where(self._one_bound, self._side, sides), log_half

    def log_slope(self, u: torch.Tensor) -> torch.Tensor:
        slope = F.logsigmoid(self._side * u)
        return torch.where(self._one_bound, slope, self._others.log_slope(u))


#: A monotone elementwise function from latents u to actions.
_Squash: TypeAlias = _Tanh | _Softplus

#: Squash of actions without bounds.
_TANH = _Tanh(torch.tensor(-1.0, device="cpu"), torch.tensor(1.0, device="cpu"))


def _bounds(spec: Bounded, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower and upper bounds `[…]`."""
    return spec.space.low.to(device), spec.space.high.to(device)


def _squash(spec: Bounded, device: torch.device, dtype: torch.dtype) -> _Squash:
    """The squash of latents of that dtype into the bounds of actions."""
    low, high = _bounds(spec, device)
    some_have_one = bool((is_bound(low) ^ is_bound(high)).any())
    squash = _Softplus if some_have_one else _Tanh
    return squash(as_dtype(low, dtype), as_dtype(high, dtype))


def _range(
    spec: TensorSpec, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lowest, highest and half width `[…]` of actions.

    -1, 1 and 1 where they have no bounds. With one bound the other is infinite, and with less than
    two, or equal ones, the half width is 1.
    """
    if not isinstance(spec, Bounded):
        one = torch.ones((), dtype=dtype, device=device)
        return -one, one, one
    low, high = _bounds(spec, device)
    has_low, has_high = is_bound(low), is_bound(high)
    low, high = as_dtype(low, dtype), as_dtype(high, dtype)
    half = ((high - low) / 2).where(has_low & has_high & (low < high), 1.0)
    low = low.where(has_low, torch.where(has_high, -torch.inf, -1.0).to(dtype))
    high = high.where(has_high, torch.where(has_low, torch.inf, 1.0).to(dtype))
    return low, high, half
