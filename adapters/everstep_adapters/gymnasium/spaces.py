"""Gymnasium spaces as torchrl specs, and the values of the one as the values of the other.

Specs describe one environment. A scalar gets one dimension, so every leaf is at least `[1]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    TensorSpec,
    Unbounded,
)

from everstep.errors import AdapterError

from ..common.actions import ActionBounds
from ..common.handoff import Downlink

if TYPE_CHECKING:
    from gymnasium import spaces

# PyTorch has few operations on wide unsigned integers: they are widened.
_WIDENED = {"uint16": torch.int32, "uint32": torch.int64}
_KEPT = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32")

_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


@dataclass(frozen=True)
class Part:
    """One leaf of an observation space, and the spec of its tensor."""

    #: Indices to it in an observation, outermost first; empty where the space is one leaf.
    path: tuple[Any, ...]

    #: The leaf's own space.
    space: "spaces.Space[Any]"

    #: Spec of one environment's value.
    spec: TensorSpec

    @property
    def key(self) -> tuple[str, ...]:
        """Its key in a `Composite` spec and in a TensorDict."""
        return tuple(str(index) for index in self.path)


def observation_parts(
    space: "spaces.Space[Any]", device: torch.device, path: tuple[Any, ...] = ()
) -> list[Part]:
    """The leaves of an observation space, `Dict` and `Tuple` taken apart, in the space's order.

    Raises:
        AdapterError: Names the part of the space that has no tensor, and why.

    """
    children = _children(space)
    if not children:
        return [Part(path, space, _leaf_spec(space, device, where("observation_space", path)))]
    return [
        part
        for index, child in children
        for part in observation_parts(child, device, (*path, index))
    ]


def observation_spec(parts: Sequence[Part], device: torch.device) -> TensorSpec:
    """Spec of the whole observation: `Composite`, or the spec of its only leaf."""
    if parts[0].path == ():
        return parts[0].spec
    spec = Composite(device=device)
    for part in parts:
        spec[part.key] = part.spec
    return spec


def where(name: str, path: tuple[Any, ...]) -> str:
    """A leaf's name in errors, such as `obs['camera'][0]`."""
    return name + "".join(f"[{index!r}]" for index in path)


def _children(space: "spaces.Space[Any]") -> list[tuple[Any, "spaces.Space[Any]"]]:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return list(enumerate(space.spaces))
    return []


def _leaf_spec(space: "spaces.Space[Any]", device: torch.device, name: str) -> TensorSpec:
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return _box_spec(space, device, name)
    if isinstance(space, spaces.Discrete):
        return _discrete_spec(space, device)
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_discrete_spec(space, device)
    if isinstance(space, spaces.MultiBinary):
        return Binary(shape=torch.Size(space.shape), device=device, dtype=torch.int8)
    raise AdapterError(f"`{name}` cannot be a tensor: {_reason(space)}.")


def _box_spec(space: "spaces.Box", device: torch.device, name: str) -> TensorSpec:
    """`Bounded` where every bound is below the dtype's largest number, else `Unbounded`.

    The largest number is what some write for infinity.
    """
    dtype = _torch_dtype(space.dtype, name)
    shape = torch.Size(space.shape or (1,))
    wide = np.float64 if dtype.is_floating_point else np.int64  # NumPy warns of what overflows
    low, high = (
        torch.from_numpy(bound.astype(wide)).to(device, dtype).reshape(shape)
        for bound in (space.low, space.high)
    )
    ends = torch.stack((low, high))
    if not dtype.is_floating_point or bool((ends.abs() < torch.finfo(dtype).max).all()):
        return Bounded(low=low, high=high, shape=shape, device=device, dtype=dtype)
    return Unbounded(shape=shape, device=device, dtype=dtype)


def _discrete_spec(space: "spaces.Discrete", device: torch.device) -> TensorSpec:
    return Categorical(int(space.n), shape=torch.Size([1]), device=device)


def _multi_discrete_spec(space: "spaces.Space[Any]", device: torch.device) -> TensorSpec:
    """`MultiCategorical`; past one dimension, which that has not, `Bounded` integers.

    What says no numbers of options, `MultiBinary` and booleans, has two.
    """
    count = np.atleast_1d(getattr(space, "nvec", np.full(space.shape or (), 2)))
    counts = torch.tensor(count.tolist(), dtype=torch.int64, device=device)
    if counts.ndim == 1:
        return MultiCategorical(counts, shape=counts.shape, device=device)
    low = torch.zeros_like(counts)
    return Bounded(low=low, high=counts - 1, shape=counts.shape, device=device, dtype=torch.int64)


def _integer_spec(space: "spaces.Space[Any]", device: torch.device) -> TensorSpec:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return _discrete_spec(space, device)
    if isinstance(space, spaces.Box) and space.dtype.kind in "iu":
        return _box_spec(space, device, "action_space")
    return _multi_discrete_spec(space, device)


def _torch_dtype(dtype: np.dtype[Any], name: str) -> torch.dtype:
    """The same dtype; but `float64` becomes PyTorch's default, what networks are made of."""
    if dtype == np.float64:
        return torch.get_default_dtype()
    if dtype.name in _WIDENED:
        return _WIDENED[dtype.name]
    if dtype.name in _KEPT:
        kept: torch.dtype = getattr(torch, dtype.name)
        return kept
    raise AdapterError(
        f"`{name}` cannot be a tensor: PyTorch has no {dtype.name}. "
        f"Use one of {', '.join(_KEPT)}, {', '.join(_WIDENED)}, float64."
    )


def _reason(space: object) -> str:
    from gymnasium import spaces

    if space is None:
        return "the environment does not say what it is (None)"
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return f"an empty `{type(space).__name__}` holds nothing"
    return f"the size or the kind of a `{type(space).__name__}` value varies; got {space}"


class Actions(Protocol):
    """The two sides of an action: what a policy samples, and what the environment is sent."""

    #: Spec of one environment's action.
    spec: TensorSpec

    #: Dtypes that an action may have.
    dtypes: frozenset[torch.dtype]

    def to_env(self, action: torch.Tensor) -> npt.NDArray[Any]:
        """What the environment is sent: a new array `[num_envs, …]`, never the caller's memory.

        New in each env step, because environments keep actions, say to penalise their changes.

        Args:
            action: Action `[num_envs, *spec.shape]`.

        """
        ...

    def to_tensor_env(self, action: torch.Tensor, device: torch.device) -> torch.Tensor:
        """What an environment is sent that takes tensors: a new one, on `device`."""
        ...


class _Constants:
    """Arrays as tensors, made once for each device that asks for them."""

    def __init__(self, *arrays: npt.NDArray[Any]) -> None:
        self._arrays = arrays
        self._tensors: dict[torch.device, list[torch.Tensor]] = {}

    def on(self, device: torch.device) -> list[torch.Tensor]:
        if device not in self._tensors:
            self._tensors[device] = [torch.tensor(array, device=device) for array in self._arrays]
        return self._tensors[device]


class IntegerActions:
    """Integers. Choices count from 0 on the policy's side, and from `start` on the other.

    A `Box` of integers keeps its numbers on both sides; one of booleans is choices of two.

    Args:
        space: `Discrete`, `MultiDiscrete`, `MultiBinary`, or a `Box` of integers or booleans.
        num_envs: Number of actions in a batch.
        device: Device of the spec.

    """

    dtypes = _INTEGERS

    def __init__(self, space: "spaces.Space[Any]", num_envs: int, device: torch.device) -> None:
        self.spec = _integer_spec(space, device)
        dtype = np.dtype(space.dtype)
        self._dtype = dtype
        self._start = np.asarray(getattr(space, "start", 0), dtype=np.int64)
        self._starts_at_zero = not self._start.any()
        self._constants = _Constants(self._start)
        self._shape = (num_envs, *(space.shape or ()))
        self._downlink = Downlink(self._shape, is_real=False)

    def to_env(self, action: torch.Tensor) -> npt.NDArray[Any]:
        """See `Actions.to_env`."""
        sent = self._downlink.fetch(action)
        if self._starts_at_zero:
            return sent.astype(self._dtype)
        return (sent + self._start).astype(self._dtype, copy=False)

    def to_tensor_env(self, action: torch.Tensor, device: torch.device) -> torch.Tensor:
        """See `Actions.to_tensor_env`."""
        (start,) = self._constants.on(device)
        sent = action.detach().to(device).reshape(self._shape) + start
        return sent.to(getattr(torch, self._dtype.name))


class BoxActions:
    """Real numbers, kept inside the space's bounds on the way to the environment.

    `"clip"` sends the nearest action inside the bounds. `"rescale"` maps -1 to the lower and 1 to
    the upper bound, linearly, then clips; dimensions with an infinite bound are only clipped.

    Args:
        space: Floating-point `Box`.
        num_envs: Number of actions in a batch.
        device: Device of the spec.
        bounds: `"clip"` or `"rescale"`.

    """

    dtypes = _FLOATS

    def __init__(
        self, space: "spaces.Box", num_envs: int, device: torch.device, bounds: ActionBounds
    ) -> None:
        self.spec: TensorSpec = _box_spec(space, device, "action_space")
        self._low, self._high = space.low, space.high
        self._shape, self._dtype = (num_envs, *space.shape), space.dtype
        self._downlink = Downlink(self._shape)
        self._affine: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None
        if bounds == "rescale":
            self._affine = self._unit_to_bounds()
            if isinstance(self.spec, Bounded):
                self.spec = Bounded(-1.0, 1.0, self.spec.shape, device, self.spec.dtype)
        self._constants = _Constants(self._low, self._high, *(self._affine or ()))

    def to_env(self, action: torch.Tensor) -> npt.NDArray[Any]:
        """See `Actions.to_env`."""
        sent = self._downlink.fetch(action).astype(self._dtype, order="C")
        if self._affine is not None:
            scale, offset = self._affine
            sent *= scale
            sent += offset
        np.maximum(sent, self._low, out=sent)
        np.minimum(sent, self._high, out=sent)
        return sent

    def to_tensor_env(self, action: torch.Tensor, device: torch.device) -> torch.Tensor:
        """See `Actions.to_tensor_env`."""
        low, high, *affine = self._constants.on(device)
        sent = action.detach().to(device, low.dtype).reshape(self._shape)
        if affine:
            sent = sent * affine[0] + affine[1]
        return sent.clamp(low, high)

    def _unit_to_bounds(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Scale and offset that take [-1, 1] to the bounds; 1 and 0 where a bound is infinite."""
        finite = np.isfinite(self._low) & np.isfinite(self._high)
        if not finite.any():
            raise AdapterError(
                "`action_bounds='rescale'` needs a dimension with finite bounds; got "
                f"low={self._low.tolist()}, high={self._high.tolist()}. Use 'clip'."
            )
        # Halved first: the difference of two large bounds would overflow.
        half_low = np.where(finite, self._low / 2, -0.5)
        half_high = np.where(finite, self._high / 2, 0.5)
        return (
            (half_high - half_low).astype(self._dtype),
            (half_high + half_low).astype(self._dtype),
        )


def make_actions(
    space: "spaces.Space[Any]", num_envs: int, device: torch.device, bounds: ActionBounds
) -> Actions:
    """How actions of `space` are described and sent.

    Args:
        space: Space of one environment's action.
        num_envs: Number of actions in a batch.
        device: Device of the spec.
        bounds: What keeps a `Box` action inside its bounds, `"clip"` or `"rescale"`.

    Raises:
        AdapterError: Where the space has no action that a policy could sample.

    """
    from gymnasium import spaces

    if bounds not in ("clip", "rescale"):
        raise AdapterError(f"`action_bounds` must be 'clip' or 'rescale'; got {bounds!r}.")
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return BoxActions(space, num_envs, device, bounds)
    if bounds == "rescale":
        raise AdapterError(
            f"`action_bounds='rescale'` is for `Box` actions of floating point; got {space}."
        )
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)):
        return IntegerActions(space, num_envs, device)
    if space is None:
        raise AdapterError("`action_space` must be one space; the environment says None.")
    raise AdapterError(
        "`action_space` must be `Discrete`, `MultiDiscrete`, `MultiBinary` or `Box`, which one "
        f"policy can sample; got {space}. Give each environment such a space in a "
        "`gymnasium.wrappers.TransformAction`, which takes its actions apart."
    )
