"""Images among the leaves of an observation: how they lie in memory, and the range of pixels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torchrl.data import Binary, Bounded, Composite, MultiOneHot, OneHot, TensorSpec

from ..data import DataKeys
from .specs import Path, is_bound, is_choice, leaf_specs

#: How an image lies in memory; `"flat"` is none.
ImageLayout = Literal["channels_first", "channels_last", "flat"]

#: The option `image_layout` of models: of all images, or by the leaf's dotted keys; None to look.
ImageLayouts = None | ImageLayout | Mapping[str, ImageLayout]

#: Minimum height and width of images for DQN's convolutions.
SMALLEST_IMAGE = 36

#: Dimensions of at most so many are channels, whatever the others are.
FEW_CHANNELS = 4

#: Dimensions of at most so many may be channels of an image that would else be a narrow strip.
MANY_CHANNELS = 32


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
    def is_nearly_square(self) -> bool:
        """Whether the image is as square as 4:3."""
        short, long = sorted((self.height, self.width))
        return 3 * long <= 4 * short

    @property
    def is_small(self) -> bool:
        """Whether the image is too small for DQN's convolutions."""
        return min(self.height, self.width) < SMALLEST_IMAGE


def is_image(spec: TensorSpec) -> bool:
    """Whether a leaf is an image, in whichever layout."""
    return bool(_readings(spec))


def image_layout(spec: TensorSpec, said: None | ImageLayout = None) -> None | Layout:
    """Layout of a leaf's image, or None if the leaf is not an image.

    uint8 leaves `[C, H, W]` and `[H, W, C]` are images; so are `[H, W]`, `[S, C, H, W]` and
    `[S, H, W, C]` (stacks) from 36x36, and floating-point `[C, H, W]` and `[H, W, C]` from 36x36.
    Channels are the dimension of at most four elements, or the one beside a square, unless the
    other layout is nearly a square, too. If neither says it, and one layout is an image from 36x36
    with at most 32 channels and the other is not, it is that one.

    Args:
        spec: Spec of the leaf.
        said: The layout; None to infer it.

    Raises:
        ValueError: If the layout is not said, and both are possible.

    """
    readings = _readings(spec)
    if said == "flat" or not readings:
        return None
    if said is not None:
        last = said == "channels_last"
        return next((x for x in readings if x.channels_last is last), readings[0])
    stack = spec.shape[0] if len(spec.shape) == 4 else 1
    chosen = readings[0] if len(readings) == 1 else _decided(readings[0], readings[1], stack)
    if chosen is None:
        raise ValueError(
            f"an image {list(spec.shape)} may have its channels first or last: set `image_layout` "
            "to 'channels_first' or 'channels_last', or to 'flat' if it is no image"
        )
    return chosen


def _readings(spec: TensorSpec) -> list[Layout]:
    """The layouts in which a leaf may be an image: channels first, then channels last."""
    is_bytes = spec.dtype == torch.uint8
    if isinstance(spec, Composite) or is_choice(spec):
        return []
    if not (is_bytes or spec.dtype.is_floating_point):
        return []
    shape = tuple(spec.shape)
    if len(shape) not in ((2, 3, 4) if is_bytes else (3,)) or 0 in shape:
        return []
    stack = shape[0] if len(shape) == 4 else 1
    found = []
    for last in (False, True)[: len(shape) - 1]:
        *channels, height, width = (shape[-1], *shape[-3:-1]) if last else shape[-3:]
        layout = Layout(stack * (channels[0] if channels else 1), height, width, last)
        if not layout.is_small or (is_bytes and len(shape) == 3):
            found.append(layout)
    return found


def _decided(first: Layout, last: Layout, stack: int) -> None | Layout:
    """The layout that is beyond doubt; None if there is none."""
    few = [x for x in (first, last) if x.channels <= FEW_CHANNELS * stack]
    near = [x for x in (first, last) if x.is_nearly_square and x.channels <= MANY_CHANNELS * stack]
    # [10, 9, 9] may be ten channels of a square, or nine of a board of 10 rows.
    square = [x for x in (first, last) if x.height == x.width] if len(near) < 2 else []
    votes = {readings[0] for readings in (few, square) if len(readings) == 1}
    if not votes:
        votes = {x for x in (first, last) if not x.is_small and x.channels <= MANY_CHANNELS * stack}
    return votes.pop() if len(votes) == 1 else None


def pixel_range(spec: TensorSpec) -> None | tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest numbers `[*shape]` of an image, float64, which become 0 and 1.

    None if the numbers need no scaling, because their bounds are within ±1, or have no bounds.
    Bytes without bounds are from 0 to 255.
    """
    if not isinstance(spec, Bounded):
        zeros = torch.zeros(spec.shape, dtype=torch.float64, device="cpu")
        return (zeros, zeros + 255) if spec.dtype == torch.uint8 else None
    low, high = (
        end.expand(spec.shape).to("cpu", torch.float64) for end in (spec.space.low, spec.space.high)
    )
    if not bool((is_bound(low) & is_bound(high)).all()):
        return None
    return None if bool((low >= -1).all() & (high <= 1).all()) else (low, high)


def is_measured(spec: TensorSpec) -> bool:
    """Whether a leaf is normalised by running moments: numbers of any dtype are.

    Choices and flags are encoded instead. Images with bounds are scaled by them, images of bytes
    without bounds from 0..255.
    """
    if is_choice(spec) or isinstance(spec, Binary | OneHot | MultiOneHot | Composite):
        return False
    if spec.dtype == torch.bool:
        return False
    has_scale = isinstance(spec, Bounded) or spec.dtype == torch.uint8
    return not (is_image(spec) and has_scale and _has_bounds(spec))


def measured_leaves(spec: TensorSpec) -> dict[int, TensorSpec]:
    """Leaves of an observation that running moments normalise, by their index; see `is_measured`.

    A leaf `"action_mask"` is none.
    """
    return {
        place: leaf
        for place, (path, leaf) in enumerate(leaf_specs(spec).items())
        if is_measured(leaf) and path != (DataKeys.ACTION_MASK,)
    }


def _has_bounds(spec: TensorSpec) -> bool:
    if not isinstance(spec, Bounded):
        return True
    ends = torch.stack([spec.space.low.double().cpu(), spec.space.high.double().cpu()])
    return bool(is_bound(ends).all())


def said_layout(layouts: ImageLayouts, path: Path) -> None | ImageLayout:
    """The layout that the option `image_layout` says for a leaf; None if it does not."""
    if layouts is None or isinstance(layouts, str):
        return layouts
    return layouts.get(".".join(path))


def check_layouts(layouts: object, spec: TensorSpec) -> None:
    """Check the option `image_layout`.

    Raises:
        ValueError: If it is no layout, or is said of a leaf that does not exist, or cannot be one.

    """
    names = get_args(ImageLayout)
    leaves = {".".join(path): leaf for path, leaf in leaf_specs(spec).items()}
    said = dict(layouts) if isinstance(layouts, Mapping) else dict.fromkeys(leaves, layouts)
    for key, layout in said.items():
        if layout is not None and layout not in names:
            raise ValueError(
                f"`image_layout` expected one of {', '.join(names)}, or a mapping of leaves to "
                f"them; got {layout!r}"
            )
        if key not in leaves:
            raise ValueError(
                f"`image_layout` expected leaves among {', '.join(leaves)}; got {key!r}"
            )
    if layouts is not None and not any(is_image(leaves[key]) for key in said):
        raise ValueError(
            "`image_layout` is for images, of uint8, or floating point from 36x36; the observation "
            "has none there. Leave it out"
        )
