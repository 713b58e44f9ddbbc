"""Samples of one env step after another, whose random numbers are drawn for many at once."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ._base import Distribution, action_dtype
from ._continuous import Normal
from ._discrete import Categorical

Array = npt.NDArray[Any]


class Draws(ABC):
    """Base: samples of `S` env steps of distributions whose features lie in one storage, on a CPU.

    They are drawn by NumPy, whose operations cost less than PyTorch's on a few rows.

    Args:
        features: Features `[S·N, …]`, filled env step by env step.
        steps: S.
        model: Model that the features are of.

    """

    #: What noise is added to.
    feature: str

    #: Dtype of the actions, where the model does not say; None for the feature's.
    default_dtype: None | torch.dtype = None

    def __init__(self, features: Mapping[str, torch.Tensor], steps: int, model: Any) -> None:
        centre = features[self.feature].detach().unflatten(0, (steps, -1))
        self._features, self._noise = features, torch.empty_like(centre)
        self._centres, self._noises = centre.numpy(), self._noise.numpy()
        self._drawn = np.empty_like(self._centres[0])
        dtype = action_dtype(model, self.default_dtype or centre.dtype)
        self._dtype = torch.empty(0, dtype=dtype).numpy().dtype

    @abstractmethod
    def refresh(self) -> None:
        """Draw the random numbers of the next `S` env steps."""

    @abstractmethod
    def chosen(self, x: Array) -> Array:
        """Actions `[N, …]` of what was added up, or of the centre alone."""

    def mode(self, step: int) -> Array:
        """The likeliest actions of an env step, `[N, …]`, in memory of their own."""
        return self.chosen(self._centres[step])

    def sample(self, step: int) -> Array:
        """Random actions of an env step, `[N, …]`, in memory of their own."""
        return self.chosen(np.add(self._centres[step], self._noises[step], self._drawn))


class CategoricalDraws(Draws):
    """Samples of `Categorical`: the largest of logits and Gumbel noise."""

    feature, default_dtype = "logits", torch.int64

    def refresh(self) -> None:
        """See `Draws.refresh`."""
        # The same race as in `Categorical.sample`: argmax p/E = argmax log p - log E.
        self._noise.exponential_().log_().neg_()

    def chosen(self, x: Array) -> Array:
        """The largest, `[N, …]`."""
        largest: Array = x.argmax(-1)
        return largest.astype(self._dtype, copy=False)


class NormalDraws(Draws):
    """Samples of `Normal`."""

    feature = "mean"

    def refresh(self) -> None:
        """See `Draws.refresh`; deviations must be those of all `S` env steps already."""
        torch.randn(self._noise.shape, out=self._noise)
        self._noise.mul_(self._features["log_std"].exp().view_as(self._noise))

    def chosen(self, x: Array) -> Array:
        """The numbers themselves, `[N, …]`."""
        return x.astype(self._dtype)


#: Distributions, of exactly these classes, whose samples may be drawn so.
_DRAWS: dict[type[Distribution], type[Draws]] = {
    Categorical: CategoricalDraws,
    Normal: NormalDraws,
}


def draws_of(kind: type[Distribution]) -> None | type[Draws]:
    """The class whose objects draw samples of a distribution; None where there is none."""
    return _DRAWS.get(kind)
