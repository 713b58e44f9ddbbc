"""Running means and variances, and the normalisation of observations by them.

Moments are float64 and are updated with whole rollouts, so that they do not depend on how a rollout
is split. Masked rows have no influence.
"""

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from torchrl.data import TensorSpec
from typing_extensions import Self

from ..env.images import measured_leaves
from ..env.specs import Leaves
from .ranks import Moments, Reducer

#: Rows are summed in pieces: of at least so many elements, and in at most so many pieces.
PIECE, MAX_PIECES = 2**16, 32

#: Added to variances before the square root, but not more than a part of the mean square: numbers
#: of any size are scaled, and a constant's rounding errors are not.
EPSILON, MOST_OF_SIZE = 1e-8, 1e-2


def divisor_of(deviation: torch.Tensor) -> torch.Tensor:
    """Divisor of numbers with a standard deviation, which may be 0: the results are finite."""
    return deviation + (deviation * MOST_OF_SIZE).clamp(max=EPSILON)


class RunningMoments(nn.Module):
    """Running mean and variance of rows, for each element of `shape`.

    Source: parallel variance, Chan, Golub and LeVeque 1979.

    Args:
        shape: Shape of a row.

    """

    #: Number of rows so far, 0-d float64.
    count: torch.Tensor

    #: Mean of the rows, `shape`, float64; 0 before the first.
    mean: torch.Tensor

    #: Population variance of the rows, `shape`, float64; 1 before the first.
    var: torch.Tensor

    #: The processes whose rows are counted together.
    reducer: Reducer = Reducer()

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows: torch.Tensor, mask: torch.Tensor) -> None:
        """Update the moments with rows, in place and without synchronising.

        Args:
            rows: `[R, *shape]`.
            mask: True where a row counts, bool `[R]`.

        """
        self.reducer.count([(self, self.moments_of(rows, mask))])

    @torch.no_grad()
    def moments_of(self, rows: torch.Tensor, mask: torch.Tensor) -> Moments:
        """Count, mean and sum of squared distances from it; see `update`."""
        out = ~mask.view(-1, *(1,) * self.mean.ndim)
        # A copy of all rows in float64 would be twice a rollout: two passes, piece by piece.
        size = -(-len(rows) // max(1, min(MAX_PIECES, rows.numel() // PIECE)))
        pieces = list(zip(rows.split(size), out.split(size), strict=True))
        n = mask.sum().double()
        mean = _sum(_doubled(x).masked_fill_(o, 0.0).sum(0) for x, o in pieces) / n.clamp(min=1)
        centred = (_doubled(x).sub_(mean).masked_fill_(o, 0.0) for x, o in pieces)
        return n, mean, _sum(x.square_().sum(0) for x in centred)

    @torch.no_grad()
    def merge(self, copies: Sequence[Self]) -> None:
        """Add the rows that each copy of these moments has seen since it was copied, in place.

        The result is the moments of all rows, up to rounding, in any order.

        Args:
            copies: Moments that began as copies of these.

        """
        start = copy.deepcopy(self)
        for other in copies:
            n = other.count - start.count
            shift = other.mean - start.mean
            mean = other.mean + shift * (start.count / n.clamp(min=1))
            squares = other.var * other.count - start.var * start.count
            squares = squares - (mean - start.mean) * shift * start.count
            self.add(n, torch.where(n > 0, mean, 0.0), squares.clamp(min=0))

    @torch.no_grad()
    def add(self, n: torch.Tensor, mean: torch.Tensor, squares: torch.Tensor) -> None:
        """Add `n` rows with this mean and sum of squared distances from it."""
        x: list[Any] = [self.count, self.mean, self.var, n, mean, squares]
        if all(each.device.type == "cpu" and each.dtype is torch.float64 for each in x):
            x = [each.numpy() for each in x]  # views: its operations take a fifth of the time
        count, own_mean, var, n, mean, squares = x
        with np.errstate(all="ignore"):  # as in PyTorch
            total = count + n
            is_empty = total == 0
            rows, distance = total + is_empty, mean - own_mean
            between = distance * distance * (count * n / rows)
            var[...] = (var * count + squares + between + is_empty) / rows  # 1 before the first row
            own_mean += distance * (n / rows)
            count[...] = total

    @property
    def std(self) -> torch.Tensor:
        """Population standard deviation, `shape`, float64; small where elements do not vary."""
        var = self.var
        size = torch.addcmul(var, self.mean, self.mean) * MOST_OF_SIZE
        return (var + torch.where(var > 0, size.clamp(max=EPSILON), EPSILON)).sqrt()


#: A function that computes what `RunningMoments.moments_of` does.
MomentsOf = Callable[[RunningMoments, torch.Tensor, torch.Tensor], Moments]


def update_moments(
    each: nn.ModuleDict,
    leaves: Leaves,
    mask: torch.Tensor,
    moments_of: MomentsOf = RunningMoments.moments_of,
) -> None:
    """Update the moments of leaves `[R, …]`, by their indices, where `mask` `[R]`."""
    every = [(cast(RunningMoments, moments), leaves[int(place)]) for place, moments in each.items()]
    if every:
        every[0][0].reducer.count([(x, moments_of(x, leaf, mask)) for x, leaf in every])


class ValueNormalizer(RunningMoments):
    """Running moments of returns, `[K]`: the model's values are in units of them."""

    #: Added to variances before the square root: constant returns are not scaled up without bound.
    epsilon = 1e-5

    @property
    def scale(self) -> torch.Tensor:
        """Standard deviations `[K]`, float64."""
        return (self.var + self.epsilon).sqrt()

    def denormalize(self, values: torch.Tensor) -> torch.Tensor:
        """Values `[B, K]` in units of rewards; of the first streams if there are fewer columns."""
        columns = values.shape[-1]
        scale, mean = self.scale[:columns].to(values), self.mean[:columns].to(values)
        return torch.addcmul(mean, values, scale)

    def in_deviations(self, x: torch.Tensor) -> torch.Tensor:
        """Values or returns `[B, K]` divided by their standard deviations.

        Losses depend on differences, in which the mean cancels.
        """
        return x / self.scale.to(x)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    """A copy of `x` in float64."""
    return x.to(torch.float64, copy=True)


def _sum(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Sum of the parts, of which only one is in memory at a time."""
    return functools.reduce(torch.add, parts)


class _Constants(NamedTuple):
    """Mean and standard deviation of an element, and the bounds of the result."""

    mean: torch.Tensor
    std: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    @classmethod
    def of(cls, moments: RunningMoments, clip: None | float, dtype: torch.dtype) -> Self:
        """Constants that change nothing where nothing has been counted."""
        is_empty = moments.count == 0  # no `if`: it would synchronise
        bound = torch.full_like(moments.mean, math.inf if clip is None else clip)
        bound.masked_fill_(is_empty, math.inf)
        mean = moments.mean.masked_fill(is_empty, 0.0)
        std = moments.std.masked_fill(is_empty, 1.0)
        return cls(*(x.to(dtype) for x in (mean, std, -bound, bound)))


class ObservationNormalizer(nn.Module):
    """Centres observations, scales them to unit variance, and clips them.

    Numbers are normalised element by element, integers as floating-point numbers; all other leaves
    pass unchanged (see `env.images.is_measured`), as does a leaf `"action_mask"`. Before the
    first `update` every leaf passes unchanged and unclipped.

    Args:
        observation_spec: Spec of one observation.
        clip: Largest absolute value of a normalised observation; None for no limit.

    """

    #: Largest absolute value of a normalised observation.
    clip: None | float

    #: Moments of each leaf of numbers, by its index among the leaves.
    moments: nn.ModuleDict

    def __init__(self, observation_spec: TensorSpec, *, clip: None | float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.moments = nn.ModuleDict(
            {
                str(place): RunningMoments(*spec.shape)
                for place, spec in measured_leaves(observation_spec).items()
            }
        )

    def forward(self, leaves: Leaves) -> Leaves:
        """Normalised leaves `[…, *shape]`, of the same dtypes; integers in the default dtype."""
        return self.frozen()(leaves)

    def frozen(self) -> Callable[[Leaves], Leaves]:
        """A function that does as `forward` does with the moments of now, in three operations."""
        constants: dict[tuple[int, torch.dtype], None | _Constants] = {}

        def normalize(place: int, leaf: torch.Tensor) -> torch.Tensor:
            key = place, leaf.dtype
            if key not in constants:  # nothing else is looked up in a vector step
                constants[key] = self._constants(*key)
            found = constants[key]
            if found is None:
                return leaf
            mean, std, low, high = found
            normalized = (leaf - mean).div_(std).clamp_(low, high)
            if mean.dtype is leaf.dtype:
                return normalized
            return normalized.to(torch.get_default_dtype())

        return lambda leaves: tuple(map(normalize, itertools.count(), leaves))

    def _constants(self, place: int, dtype: torch.dtype) -> None | _Constants:
        """Constants of a leaf of that dtype; None if it passes unchanged."""
        if str(place) not in self.moments:
            return None
        moments = cast(RunningMoments, self.moments[str(place)])
        # Large integers are exact in float64 alone.
        return _Constants.of(
            moments, self.clip, dtype if dtype.is_floating_point else torch.float64
        )

    def update(
        self,
        leaves: Leaves,
        mask: torch.Tensor,
        moments_of: MomentsOf = RunningMoments.moments_of,
    ) -> None:
        """Update the moments with observations, in place.

        Args:
            leaves: Observations `[R, …]`.
            mask: True where a row counts, bool `[R]`.
            moments_of: Computes moments of rows.

        """
        update_moments(self.moments, leaves, mask, moments_of)

    def describe(self) -> dict[str, Any]:
        """Clip and moments, as `from_description` reads them."""
        return {"clip": self.clip, "moments": dict(self.moments.state_dict())}

    @classmethod
    def from_description(cls, observation_spec: TensorSpec, described: dict[str, Any]) -> Self:
        """The normaliser of a description; see `describe`."""
        clip = described["clip"]
        if clip is not None and not (type(clip) in (int, float) and clip > 0):
            raise ValueError(f"`clip` of its normalizer must be a number above 0; got {clip!r}")
        normalizer = cls(observation_spec, clip=clip)
        places = {key.split(".")[0] for key in described["moments"]}
        for place in normalizer.moments.keys() - places:  # older policies left integers as they are
            del normalizer.moments[place]
        normalizer.moments.load_state_dict(described["moments"])
        return normalizer
