"""Log-probabilities and entropies with derivatives written out, for what networks return."""

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F

from ._base import Distribution
from ._continuous import HALF_LOG_TWO_PI, Normal
from ._discrete import Categorical
from ._vanishing import vanishing


class Differentiated(ABC):
    """Base: a distribution whose derivatives by its network's outputs are written out."""

    @staticmethod
    @abstractmethod
    def fits(model: Any) -> bool:
        """Whether the outputs of a default model can be differentiated so."""

    @abstractmethod
    def __init__(self, outputs: torch.Tensor, model: Any) -> None:
        """The distribution of outputs `[width, B]` of a default model's network."""

    @abstractmethod
    def logp(self, actions: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of actions `[B, …]`, `[B, 1]`."""

    @abstractmethod
    def entropy(self) -> torch.Tensor:
        """Entropies in nats, `[B, 1]`."""

    @abstractmethod
    def backward(self, by_logp: torch.Tensor, by_entropy: None | torch.Tensor) -> torch.Tensor:
        """Derivatives by the outputs, `[width, B]`; those by parameters are added to theirs.

        Args:
            by_logp: Derivatives by the log-probabilities that `logp` returned, `[B, 1]`.
            by_entropy: Derivatives by the entropies, `[B, 1]`; None for none.

        """


class DifferentiatedCategorical(Differentiated):
    """`Categorical` with one choice an action: outputs are logits `[n, B]`."""

    @staticmethod
    def fits(model: Any) -> bool:
        """Whether there is one choice."""
        return bool(model.outputs.logits[-1] == model.outputs.width)

    def __init__(self, outputs: torch.Tensor, model: Any) -> None:
        self._log_probs = outputs.log_softmax(0)
        self._probs = F.threshold(self._log_probs.exp(), vanishing(outputs.dtype), 0.0)
        self._chosen = self._entropy = outputs

    def logp(self, actions: torch.Tensor) -> torch.Tensor:
        """See `Differentiated.logp`."""
        self._chosen = actions.long().view(1, -1)
        return self._log_probs.gather(0, self._chosen).mT

    def entropy(self) -> torch.Tensor:
        """See `Differentiated.entropy`."""
        self._entropy = -(self._probs * self._log_probs).sum(0, keepdim=True)
        return self._entropy.mT

    def backward(self, by_logp: torch.Tensor, by_entropy: None | torch.Tensor) -> torch.Tensor:
        """See `Differentiated.backward`: (1[chosen] − p)·by_logp − p·(log p + H)·by_entropy."""
        by_logp = by_logp.mT
        if by_entropy is None:
            found = self._probs * -by_logp
        else:
            found = self._probs * -(by_logp + (self._log_probs + self._entropy) * by_entropy.mT)
        return found.scatter_add_(0, self._chosen, by_logp)


class DifferentiatedNormal(Differentiated):
    """`Normal` whose deviations are parameters: outputs are means."""

    @staticmethod
    def fits(model: Any) -> bool:
        """Whether deviations do not depend on the observation."""
        return model.outputs.log_std is not None

    def __init__(self, outputs: torch.Tensor, model: Any) -> None:
        self._mean = outputs
        self._parameter = model.outputs.log_std
        self._log_std = self._parameter.detach().view(-1, 1)
        self._inverse = (-self._log_std).exp()
        self._scaled = outputs

    def logp(self, actions: torch.Tensor) -> torch.Tensor:
        """See `Differentiated.logp`."""
        actions = actions.flatten(1).to(self._mean.dtype)
        self._scaled = (actions.mT - self._mean) * self._inverse
        constant = self._log_std.sum() + HALF_LOG_TWO_PI * self._mean.shape[0]
        squares: torch.Tensor = self._scaled.square().sum(0, keepdim=True)
        return squares.mul_(-0.5).sub_(constant).mT

    def entropy(self) -> torch.Tensor:
        """See `Differentiated.entropy`."""
        entropy: torch.Tensor = self._log_std.sum() + (0.5 + HALF_LOG_TWO_PI) * self._mean.shape[0]
        return entropy.expand(self._mean.shape[1], 1)

    def backward(self, by_logp: torch.Tensor, by_entropy: None | torch.Tensor) -> torch.Tensor:
        """See `Differentiated.backward`: by the mean x/σ, by log σ x² − 1, where x = (a − μ)/σ."""
        by_logp = by_logp.mT
        if self._parameter.grad is not None:
            by_log_std = ((self._scaled.square() - 1) * by_logp).sum(1)
            if by_entropy is not None:
                by_log_std = by_log_std + by_entropy.sum()
            self._parameter.grad += by_log_std.view_as(self._parameter)
        by_mean: torch.Tensor = self._scaled * (by_logp * self._inverse)
        return by_mean


#: Distributions, of exactly these classes, with derivatives.
_DIFFERENTIATED: dict[type[Distribution], type[Differentiated]] = {
    Categorical: DifferentiatedCategorical,
    Normal: DifferentiatedNormal,
}


def differentiated(kind: type[Distribution], model: Any) -> None | type[Differentiated]:
    """The distribution with its derivatives, for a default model; None where there is none."""
    found = _DIFFERENTIATED.get(kind)
    return found if found is not None and found.fits(model) else None
