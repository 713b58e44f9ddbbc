"""Encoders from observations of any spec to one vector."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Categorical, Composite, TensorSpec

from ..data import DataKeys
from ..specs import Path, leaf_specs, options

#: Top-level leaf with the allowed options of an action; it is not encoded.
ACTION_MASK = DataKeys.ACTION_MASK

#: Maximum number of options of a one-hot encoding; more are embedded.
MAX_ONE_HOT = 1024

#: Width of the embedding of a choice.
EMBEDDING = 64

#: Width of the encoding of an image.
IMAGE = 512

#: Minimum height and width of images for DQN's convolutions.
SMALLEST_IMAGE = 36

#: Maximum number of channels of an image with channels last.
MAX_LAST_CHANNELS = 4


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


class Choices(Encoder):
    """Base class of encoders of choices, whose options have consecutive indices.

    Args:
        counts: Number of options of each choice.

    """

    #: Index of the first option of each choice.
    starts: torch.Tensor

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        starts = torch.tensor([0, *accumulate(counts[:-1])])
        self.register_buffer("starts", starts, persistent=False)

    def indices(self, x: torch.Tensor) -> torch.Tensor:
        """Indices `[B, D]` of the chosen options."""
        return x.flatten(1).long() + self.starts


class OneHot(Choices):
    """One-hot encoding of choices.

    Args:
        counts: Number of options of each choice.

    """

    def __init__(self, counts: list[int]) -> None:
        super().__init__(counts)
        self.width = sum(counts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Ones and zeros `[B, width]`."""
        # `one_hot` would synchronise to check the range.
        return torch.zeros(x.shape[0], self.width, device=x.device).scatter(1, self.indices(x), 1)


class Embedding(Choices):
    """Learned embeddings of choices among many options.

    Args:
        counts: Number of options of each choice.

    """

    def __init__(self, counts: list[int]) -> None:
        super().__init__(counts)
        self.table = nn.Embedding(sum(counts), EMBEDDING)
        self.width = EMBEDDING * len(counts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings `[B, width]`."""
        embedded: torch.Tensor = self.table(self.indices(x))
        return embedded.flatten(1)


@dataclass(frozen=True)
class Layout:
    """Dimensions of an image, or of a stack of images, in a tensor."""

    #: Channels of all images of a stack together.
    channels: int

    #: Height in pixels.
    height: int

    #: Width in pixels.
    width: int

    #: Whether the last dimension is the channels.
    channels_last: bool

    @property
    def is_small(self) -> bool:
        """Whether the image is too small for DQN's convolutions."""
        return min(self.height, self.width) < SMALLEST_IMAGE


class Image(Encoder):
    """DQN's convolutions: 32 of 8x8 stride 4, 64 of 4x4 stride 2, 64 of 3x3, then 512 units.

    Images smaller than 36x36 have padded convolutions of 3x3 instead: 32, 64 stride 2, 64 stride 2.
    Weights are orthogonal with gain √2. Images are laid out with channels last, with which the
    convolutions are faster.

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning".

    Args:
        spec: Spec of the image; uint8 is scaled from 0..255 to 0..1, floating point is not scaled.
        layout: Dimensions of the image.

    """

    def __init__(self, spec: TensorSpec, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.scale = 1 / 255 if spec.dtype == torch.uint8 else 1.0
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
        pixels = self._pixels(x).contiguous(memory_format=torch.channels_last).to(dtype)
        if self.scale != 1.0:
            pixels.mul_(self.scale)  # a copy: its type is not that of uint8
        units: torch.Tensor = self.linear(self.convolutions(pixels))
        return units.relu()

    def _pixels(self, x: torch.Tensor) -> torch.Tensor:
        """Images `[B, C, H, W]`."""
        if self.layout.channels_last:
            x = x.movedim(-1, -3)
        return x.reshape(-1, self.layout.channels, self.layout.height, self.layout.width)


def _convolutions(layout: Layout) -> nn.Sequential:
    """Convolutions from `[B, C, H, W]` to `[B, D]`; see `Image`."""
    kernels, strides, padding = ((8, 4, 3), (4, 2, 1), 0)
    if layout.is_small:
        kernels, strides, padding = ((3, 3, 3), (1, 2, 2), 1)
    channels = (layout.channels, 32, 64, 64)
    layers: list[nn.Module] = []
    for (before, after), kernel, stride in zip(pairwise(channels), kernels, strides, strict=True):
        layers += [nn.Conv2d(before, after, kernel, stride, padding), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())


class ObservationEncoder(Encoder):
    """Encoder of whole observations: each leaf has an encoder, and the vectors are concatenated.

    Args:
        spec: Spec of one observation.

    Raises:
        ValueError: If there is no leaf to encode.

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
        # At least the default dtype, so that a half-precision leaf does not round the others.
        dtypes = (vector.dtype for vector in vectors)
        dtype = reduce(torch.promote_types, dtypes, torch.get_default_dtype())
        return torch.cat([vector.to(dtype) for vector in vectors], -1)


def encoder_of(spec: TensorSpec) -> tuple[None | ObservationEncoder, int]:
    """The encoder of observations and its width.

    None and the number of elements if observations are one tensor of numbers.

    Raises:
        ValueError: If a leaf has no dimensions, or there is no leaf.

    """
    for path, leaf in leaf_specs(spec).items():
        if not leaf.shape:
            raise ValueError(
                f"observations need at least one dimension; got {'.'.join(path) or 'one'} without. "
                "Use the shape [1] for a scalar"
            )
    if not isinstance(spec, Composite) and not is_choice(spec) and image_layout(spec) is None:
        return None, spec.shape.numel()
    encoder = ObservationEncoder(spec)
    return encoder, encoder.width


def make_encoder(spec: TensorSpec) -> Encoder:
    """The encoder of one leaf."""
    if is_choice(spec):
        counts = options(spec)
        return OneHot(counts) if sum(counts) <= MAX_ONE_HOT else Embedding(counts)
    layout = image_layout(spec)
    return Flatten(spec) if layout is None else Image(spec, layout)


def is_choice(spec: TensorSpec) -> bool:
    """Whether the numbers of a leaf are indices of options."""
    is_binary = isinstance(spec, Binary) or spec.dtype == torch.bool
    return isinstance(spec, Categorical) and not is_binary


def is_image(spec: TensorSpec) -> bool:
    """Whether a leaf is an image."""
    return not is_choice(spec) and image_layout(spec) is not None


def image_layout(spec: TensorSpec) -> None | Layout:
    """Layout of a leaf's image, or None if the leaf is not an image.

    Images are `[C, H, W]`, or `[H, W, C]` with at most four channels: of any size if uint8, from
    36x36 if floating-point. From 36x36, uint8 `[H, W]`, `[S, C, H, W]` and `[S, H, W, C]` (stacks)
    are images, too.
    """
    shape = tuple(spec.shape)
    is_bytes = spec.dtype == torch.uint8
    if len(shape) not in ((2, 3, 4) if is_bytes else (3,)) or isinstance(spec, Composite):
        return None
    last = len(shape) > 2 and shape[-1] <= MAX_LAST_CHANNELS < shape[-3]
    height, width = shape[-3:-1] if last else shape[-2:]
    layout = Layout(spec.shape.numel() // (height * width), height, width, last)
    accepted = is_bytes if layout.is_small and len(shape) == 3 else not layout.is_small
    return layout if accepted and (is_bytes or spec.dtype.is_floating_point) else None
