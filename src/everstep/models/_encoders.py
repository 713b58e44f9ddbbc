"""Encoders from observations of any spec to one vector."""

from collections.abc import Mapping
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Composite, TensorSpec

from ..data import DataKeys
from ..env.images import (
    ImageLayouts,
    Layout,
    image_layout,
    pixel_range,
    said_layout,
)
from ..env.specs import Path, is_choice, leaf_specs, options

#: Top-level leaf with the allowed options of an action; it is not encoded.
ACTION_MASK = DataKeys.ACTION_MASK

#: Maximum number of options of a one-hot encoding; more are embedded.
MAX_ONE_HOT = 1024

#: Width of the embedding of a choice.
EMBEDDING = 64

#: Width of the encoding of an image.
IMAGE = 512

#: Height and width of images whose convolutions are not padded.
UNPADDED = 84


class Encoder(nn.Module):
    """Base class of encoders: one leaf `[B, …]` to a vector `[B, width]`."""

    #: Width of the vector.
    width: int


class Flatten(Encoder):
    """The elements of a leaf, flattened.

    Args:
        spec: Spec of the leaf, numbers of any shape.

    """

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        self.width = spec.shape.numel()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Elements `[B, width]`."""
        return x.flatten(1)


class OneHot(Encoder):
    """One-hot encoding of choices; a choice that does not exist becomes zeros.

    Such choices are an error once the rollout is complete. Here a check would synchronise, and
    indexing with them would end a process on a GPU.

    Args:
        counts: Number of options of each choice.

    """

    #: Number of each option among those of its choice.
    numbers: torch.Tensor

    #: Choice of each option.
    places: torch.Tensor

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        numbers = [number for count in counts for number in range(count)]
        places = [place for place, count in enumerate(counts) for _ in range(count)]
        self.register_buffer("numbers", torch.tensor(numbers), persistent=False)
        self.register_buffer("places", torch.tensor(places), persistent=False)
        self.is_one = len(counts) == 1
        self.width = sum(counts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Ones and zeros `[B, width]`."""
        x = x.flatten(1)
        chosen = x if self.is_one else x[:, self.places]
        return (chosen == self.numbers).to(torch.get_default_dtype())


class Embedding(Encoder):
    """Learned embeddings of choices among many options.

    Args:
        counts: Number of options of each choice.

    """

    #: Index of the first option of each choice.
    starts: torch.Tensor

    #: Number of the last option of each choice.
    last: torch.Tensor

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        starts = torch.tensor([0, *accumulate(counts[:-1])])
        self.register_buffer("starts", starts, persistent=False)
        self.register_buffer("last", torch.tensor(counts) - 1, persistent=False)
        self.table = nn.Embedding(sum(counts), EMBEDDING)
        self.width = EMBEDDING * len(counts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings `[B, width]`."""
        existing = x.flatten(1).long().clamp(min=0).minimum(self.last)  # see `OneHot`
        embedded: torch.Tensor = self.table(existing + self.starts)
        return embedded.flatten(1)


class Image(Encoder):
    """DQN's convolutions: 32 of 8x8 stride 4, 64 of 4x4 stride 2, 64 of 3x3, then 512 units.

    Images smaller than DQN's 84x84 are padded before each convolution, so that it has an output for
    each stride of its input: else 40x40 pixels would become a single place. Those smaller than
    36x36 have convolutions of 3x3 instead: 32, 64 stride 2, 64 stride 2. Weights are orthogonal
    with gain √2. Images are laid out with channels last, with which the convolutions are faster.

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning".

    Args:
        spec: Spec of the image, which is scaled from its bounds to 0..1; see `pixel_range`.
        layout: Dimensions of the image.

    """

    def __init__(self, spec: TensorSpec, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        low, factor = _affine(spec)
        self._is_uniform = all(len(x.unique()) == 1 for x in (low, factor))
        #: Number that is subtracted from all pixels, and their factor; of no use if they differ.
        self.shift, self.factor = float(low.flatten()[0]), float(factor.flatten()[0])
        self.low: torch.Tensor
        self.factors: torch.Tensor
        self.register_buffer("low", low.to(torch.get_default_dtype()), persistent=False)
        self.register_buffer("factors", factor.to(torch.get_default_dtype()), persistent=False)
        self.convolutions = _convolutions(layout)
        with torch.no_grad():
            flat = self.convolutions(self._pixels(torch.zeros(1, *spec.shape))).shape[1]
        self.linear = nn.Linear(flat, IMAGE)
        self.width = IMAGE
        for layer in (*self.convolutions, self.linear):
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(layer.weight, 2**0.5)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Units `[B, width]`."""
        dtype = self.linear.weight.dtype
        if not self._is_uniform:
            x = (x - self.low) * self.factors
        pixels = self._pixels(x).contiguous(memory_format=torch.channels_last).to(dtype)
        if self._is_uniform and self.shift:
            pixels = pixels - self.shift
        if self._is_uniform and self.factor != 1.0:
            is_copy = not x.is_floating_point() or self.shift
            pixels = pixels.mul_(self.factor) if is_copy else pixels * self.factor
        units: torch.Tensor = self.linear(self.convolutions(pixels))
        return units.relu()

    def _pixels(self, x: torch.Tensor) -> torch.Tensor:
        """Images `[B, C, H, W]`."""
        if self.layout.channels_last:
            x = x.movedim(-1, -3)
        return x.reshape(-1, self.layout.channels, self.layout.height, self.layout.width)


def _convolutions(layout: Layout) -> nn.Sequential:
    """Convolutions from `[B, C, H, W]` to `[B, D]`; see `Image`."""
    kernels, strides = ((3, 3, 3), (1, 2, 2)) if layout.is_small else ((8, 4, 3), (4, 2, 1))
    is_padded = min(layout.height, layout.width) < UNPADDED
    channels = (layout.channels, 32, 64, 64)
    layers: list[nn.Module] = []
    for (before, after), kernel, stride in zip(pairwise(channels), kernels, strides, strict=True):
        padding = (kernel - stride + 1) // 2 if is_padded else 0
        layers += [nn.Conv2d(before, after, kernel, stride, padding), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())


class ObservationEncoder(Encoder):
    """Encoder of whole observations: each leaf has an encoder, and the vectors are concatenated.

    Args:
        spec: Spec of one observation.
        layouts: How images lie in memory.

    Raises:
        ValueError: If there is no leaf to encode, or an image may lie in two ways.

    """

    #: Keys that lead to each encoded leaf.
    paths: list[Path]

    def __init__(self, spec: TensorSpec, layouts: ImageLayouts = None) -> None:
        super().__init__()
        leaves = {path: leaf for path, leaf in leaf_specs(spec).items() if path != (ACTION_MASK,)}
        if not leaves:
            raise ValueError("there is nothing to observe. Set `model_cls`")
        self.paths = list(leaves)
        self.encoders = nn.ModuleList(
            make_encoder(path, leaf, layouts) for path, leaf in leaves.items()
        )
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
        # At least the default dtype, so that a half-precision leaf does not round the others.
        dtypes = (vector.dtype for vector in vectors)
        dtype = reduce(torch.promote_types, dtypes, torch.get_default_dtype())
        return torch.cat([vector.to(dtype) for vector in vectors], -1)


def encoder_of(
    spec: TensorSpec, layouts: ImageLayouts = None
) -> tuple[None | ObservationEncoder, int]:
    """The encoder of observations and its width.

    None and the number of elements if observations are one tensor of numbers.

    Raises:
        ValueError: If a leaf has no dimensions, there is no leaf, or an image may lie in two ways.

    """
    for path, leaf in leaf_specs(spec).items():
        if not leaf.shape:
            raise ValueError(
                f"observations need at least one dimension; got {'.'.join(path) or 'one'} without. "
                "Use the shape [1] for a scalar"
            )
    is_numbers = not isinstance(spec, Composite) and not is_choice(spec)
    if is_numbers and _layout_of((), spec, layouts) is None:
        return None, spec.shape.numel()
    encoder = ObservationEncoder(spec, layouts)
    return encoder, encoder.width


def make_encoder(path: Path, spec: TensorSpec, layouts: ImageLayouts) -> Encoder:
    """The encoder of one leaf."""
    if is_choice(spec):
        counts = options(spec)
        return OneHot(counts) if sum(counts) <= MAX_ONE_HOT else Embedding(counts)
    layout = _layout_of(path, spec, layouts)
    return Flatten(spec) if layout is None else Image(spec, layout)


def _layout_of(path: Path, spec: TensorSpec, layouts: ImageLayouts) -> None | Layout:
    """Layout of a leaf's image; None if it is not an image."""
    try:
        return image_layout(spec, said_layout(layouts, path))
    except ValueError as error:
        raise ValueError(f"`{'.'.join(('obs', *path))}`: {error}") from None


def _affine(spec: TensorSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Number to subtract from each pixel, then the factor to multiply by, `[*shape]`, float64."""
    ends = pixel_range(spec)
    if ends is None:
        zeros = torch.zeros(spec.shape, dtype=torch.float64, device="cpu")
        return zeros, zeros + 1
    low, high = ends
    return low, 1 / (high - low).where(high > low, 1.0)
