"""From observations of any spec to one vector."""

from collections.abc import Mapping
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Categorical, Composite, MultiCategorical, TensorSpec

from ..data import DataKeys
from ..specs import Path, leaf_specs

#: Top-level leaf that says which options of an action are allowed; it is not encoded.
ACTION_MASK = DataKeys.ACTION_MASK

#: Most options that are encoded one by one; more are embedded.
MAX_ONE_HOT = 1024

#: Width of the embedding of one of many options.
EMBEDDING = 64

#: Width of an image's encoding.
IMAGE = 512

#: Height and width below which an image is too small for the convolutions.
SMALLEST_IMAGE = 36


class Encoder(nn.Module):
    """Base of encoders: one leaf `[B, …]` to a vector `[B, width]`."""

    #: Width of the vector.
    width: int


class Flatten(Encoder):
    """A leaf's elements, as they are.

    Args:
        spec: Spec of the leaf, of any shape and of numbers.

    """

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        self.width = spec.shape.numel()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Elements `[B, width]`."""
        return x.flatten(1)


class OneHot(Encoder):
    """Choices among few options, one element an option.

    Args:
        counts: Number of options of each choice.

    """

    #: Number of options of each choice.
    counts: list[int]

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.counts = counts
        self.width = sum(counts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Ones and zeros `[B, width]`."""
        choices = x.flatten(1).long()
        if len(set(self.counts)) == 1:
            return F.one_hot(choices, self.counts[0]).flatten(1)
        pieces = [F.one_hot(choices[:, i], count) for i, count in enumerate(self.counts)]
        return torch.cat(pieces, -1)


class Embedding(Encoder):
    """Choices among many options, each embedded.

    Args:
        counts: Number of options of each choice.

    """

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, EMBEDDING) for count in counts)
        self.width = EMBEDDING * len(counts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings `[B, width]`."""
        choices = x.flatten(1).long()
        return torch.cat([table(choices[:, i]) for i, table in enumerate(self.tables)], -1)


class Image(Encoder):
    """The convolutions of DQN: 32 of 8x8 every 4, 64 of 4x4 every 2, 64 of 3x3, then 512 units.

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning". Weights
    are orthogonal with gain √2.

    Args:
        spec: Spec of the image, `[C, H, W]`, or `[H, W, C]` with at most four channels; uint8
            from 0 to 255, or floating point as it is.

    Raises:
        ValueError: Where the image is smaller than 36 by 36.

    """

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        shape = tuple(spec.shape)
        self.channels_last = shape[-1] <= 4 < shape[0]
        channels, *size = (shape[-1], *shape[:2]) if self.channels_last else shape
        if min(size) < SMALLEST_IMAGE:
            raise ValueError(
                f"images must be at least {SMALLEST_IMAGE} by {SMALLEST_IMAGE} for the default "
                f"convolutions; got {list(shape)}. Set `model_cls`, or flatten the observation"
            )
        self.scale = 1 / 255 if spec.dtype == torch.uint8 else 1.0
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            flat = self.convolutions(torch.zeros(1, channels, *size)).shape[1]
        self.linear = nn.Linear(flat, IMAGE)
        self.width = IMAGE
        for layer in (*self.convolutions, self.linear):
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(layer.weight, 2**0.5)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Units `[B, width]`."""
        x = x.to(self.linear.weight.dtype) * self.scale
        if self.channels_last:
            x = x.movedim(-1, -3)
        units: torch.Tensor = self.linear(self.convolutions(x))
        return units.relu()


class ObservationEncoder(Encoder):
    """A whole observation: each leaf by its own encoder, concatenated.

    Args:
        spec: Spec of one observation.

    Raises:
        ValueError: Where a leaf has no encoder, or there is none.

    """

    #: Keys that lead to each encoded leaf.
    paths: list[Path]

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        leaves = {path: leaf for path, leaf in leaf_specs(spec).items() if path != (ACTION_MASK,)}
        if not leaves:
            raise ValueError("there is nothing to observe. Set `model_cls`")
        self.paths = list(leaves)
        self.encoders = nn.ModuleList(make_encoder(leaf) for leaf in leaves.values())
        self.width = sum(cast(Encoder, encoder).width for encoder in self.encoders)

    def forward(self, obs: torch.Tensor | TensorDict | Mapping[str, Any]) -> torch.Tensor:
        """The observations' vectors `[B, width]`."""
        vectors: list[torch.Tensor] = []
        for path, encode in zip(self.paths, self.encoders, strict=True):
            leaf: Any = obs
            for key in path:
                leaf = leaf[key]
            vectors.append(encode(leaf))
        if len(vectors) == 1:
            return vectors[0]
        dtype = torch.promote_types(torch.get_default_dtype(), vectors[0].dtype)
        return torch.cat([vector.to(dtype) for vector in vectors], -1)


def make_encoder(spec: TensorSpec) -> Encoder:
    """The encoder of one leaf.

    Raises:
        ValueError: Where an image is too small for the convolutions.

    """
    if isinstance(spec, MultiCategorical):
        return _choices([int(n) for n in spec.nvec.flatten()])
    if isinstance(spec, Categorical) and not isinstance(spec, Binary) and spec.dtype != torch.bool:
        return _choices([int(spec.space.n)] * prod(spec.shape))
    if is_image(spec):
        return Image(spec)
    return Flatten(spec)


def _choices(counts: list[int]) -> Encoder:
    return OneHot(counts) if sum(counts) <= MAX_ONE_HOT else Embedding(counts)


def is_image(spec: TensorSpec) -> bool:
    """Whether a leaf is an image: three dimensions, and bytes, or height and width of one."""
    if len(spec.shape) != 3:
        return False
    if spec.dtype == torch.uint8:
        return True
    return bool(spec.dtype.is_floating_point and sorted(spec.shape)[1] >= SMALLEST_IMAGE)


def has_encoders(spec: TensorSpec) -> bool:
    """Whether observations are more than a vector of numbers."""
    return isinstance(spec, Composite) or not isinstance(make_encoder(spec), Flatten)
