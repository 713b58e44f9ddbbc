"""From observations of any spec to one vector."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Categorical, Composite, TensorSpec

from ..data import DataKeys
from ..specs import Path, leaf_specs, options

#: Top-level leaf that says which options of an action are allowed; it is not encoded.
ACTION_MASK = DataKeys.ACTION_MASK

#: Most options that are encoded one by one; more are embedded.
MAX_ONE_HOT = 1024

#: Width of the embedding of one of many options.
EMBEDDING = 64

#: Width of an image's encoding.
IMAGE = 512

#: Height and width below which an image is too small for the convolutions of DQN.
SMALLEST_IMAGE = 36

#: Most channels of an image whose channels come last.
MAX_LAST_CHANNELS = 4


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


class Choices(Encoder):
    """Choices, numbered through: an option's number is that of the first of its choice, plus it.

    Args:
        counts: Number of options of each choice.

    """

    #: Number of the first option of each choice.
    starts: torch.Tensor

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        starts = torch.tensor([0, *accumulate(counts[:-1])])
        self.register_buffer("starts", starts, persistent=False)

    def numbers(self, x: torch.Tensor) -> torch.Tensor:
        """Numbers `[B, D]` of the options chosen."""
        return x.flatten(1).long() + self.starts


class OneHot(Choices):
    """Choices among few options, one element an option.

    Args:
        counts: Number of options of each choice.

    """

    def __init__(self, counts: list[int]) -> None:
        super().__init__(counts)
        self.width = sum(counts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Ones and zeros `[B, width]`."""
        # Not `one_hot`, which looks at the smallest and largest choice first.
        return torch.zeros(x.shape[0], self.width, device=x.device).scatter(1, self.numbers(x), 1)


class Embedding(Choices):
    """Choices among many options, each embedded.

    Args:
        counts: Number of options of each choice.

    """

    def __init__(self, counts: list[int]) -> None:
        super().__init__(counts)
        self.table = nn.Embedding(sum(counts), EMBEDDING)
        self.width = EMBEDDING * len(counts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings `[B, width]`."""
        embedded: torch.Tensor = self.table(self.numbers(x))
        return embedded.flatten(1)


@dataclass(frozen=True)
class Layout:
    """How an image lies in a tensor."""

    #: Channels, those of all images of a stack.
    channels: int

    #: Pixels from top to bottom.
    height: int

    #: Pixels from left to right.
    width: int

    #: Whether the last dimension is that of channels.
    channels_last: bool

    @property
    def is_small(self) -> bool:
        """Whether the image is too small for the convolutions of DQN."""
        return min(self.height, self.width) < SMALLEST_IMAGE


class Image(Encoder):
    """The convolutions of DQN: 32 of 8x8 every 4, 64 of 4x4 every 2, 64 of 3x3, then 512 units.

    Images smaller than 36 by 36 go through convolutions of 3x3 with padding instead, 32, 64 every
    2 and 64 every 2. Weights are orthogonal with gain √2.

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning".

    Args:
        spec: Spec of the image; uint8 from 0 to 255, or floating point as it is.
        layout: How the image lies in it.

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
        pixels = self._pixels(x.to(self.linear.weight.dtype) * self.scale)
        units: torch.Tensor = self.linear(self.convolutions(pixels))
        return units.relu()

    def _pixels(self, x: torch.Tensor) -> torch.Tensor:
        """Images `[B, C, H, W]`."""
        if self.layout.channels_last:
            x = x.movedim(-1, -3)
        return x.reshape(-1, self.layout.channels, self.layout.height, self.layout.width)


def _convolutions(layout: Layout) -> nn.Sequential:
    """Convolutions `[B, C, H, W]` to `[B, D]`; see `Image`."""
    kernels, strides, padding = ((8, 4, 3), (4, 2, 1), 0)
    if layout.is_small:
        kernels, strides, padding = ((3, 3, 3), (1, 2, 2), 1)
    channels = (layout.channels, 32, 64, 64)
    layers: list[nn.Module] = []
    for before, after, kernel, stride in zip(
        channels, channels[1:], kernels, strides, strict=False
    ):
        layers += [nn.Conv2d(before, after, kernel, stride, padding), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())


class ObservationEncoder(Encoder):
    """A whole observation: each leaf by its own encoder, concatenated.

    Args:
        spec: Spec of one observation.

    Raises:
        ValueError: Where there is no leaf to encode.

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
        # At least the default dtype: half precision of one leaf must not round the others.
        dtypes = (vector.dtype for vector in vectors)
        dtype = reduce(torch.promote_types, dtypes, torch.get_default_dtype())
        return torch.cat([vector.to(dtype) for vector in vectors], -1)


def encoder_of(spec: TensorSpec) -> tuple[None | ObservationEncoder, int]:
    """The encoder of observations and the width of what it returns.

    None, and the number of elements, where observations are no more than a tensor of numbers.

    Raises:
        ValueError: Where a leaf has no dimension, or there is none.

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
    """Whether a leaf has numbers of options, which are not sizes."""
    written = isinstance(spec, Binary) or spec.dtype == torch.bool
    return isinstance(spec, Categorical) and not written


def is_image(spec: TensorSpec) -> bool:
    """Whether a leaf is an image."""
    return not is_choice(spec) and image_layout(spec) is not None


def image_layout(spec: TensorSpec) -> None | Layout:
    """How a leaf's image lies; None where it is none.

    Images are `[C, H, W]`, or `[H, W, C]` with at most four channels: of bytes in any size, of
    floating-point numbers from 36 by 36. So are, from that size, bytes `[H, W]` and stacks of
    images `[S, C, H, W]` or `[S, H, W, C]`.
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
