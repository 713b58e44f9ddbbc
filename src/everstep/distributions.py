"""Action distributions: from a model's features to actions and their log-probabilities.

The defaults compute their own samples and log-probabilities; they draw the same numbers from the
same seed as `torch.distributions`, in a fraction of its time.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, TensorSpec, Unbounded
from torchrl.data import Categorical as Discrete
from torchrl.data import MultiCategorical as MultiDiscrete

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


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
        if isinstance(action_spec, Discrete) and not isinstance(action_spec, Binary):
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


class Categorical(Distribution):
    """Independent choices among `n` options each: `features["logits"]` is `[B, D, n]`."""

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        super().__init__(features, model)
        #: Normalised log-probabilities `[B, D, n]`.
        self.log_probs = features["logits"].log_softmax(-1)

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
        pieces = features["logits"].split(nvec, -1)
        padded = [
            torch.nn.functional.pad(piece, (0, max(nvec) - piece.shape[-1]), value=-torch.inf)
            for piece in pieces
        ]
        super().__init__({"logits": torch.stack(padded, -2)}, model)


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


def _sum_rows(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1).sum(-1, keepdim=True)
