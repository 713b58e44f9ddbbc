"""A default model as the native library sees it: addresses of its tensors, and an engine."""

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ...distributions import Categorical, MultiCategorical, Normal, SquashedNormal
from ...env.specs import Leaves, Path, options
from ...models._encoders import ACTION_MASK, Flatten, ObservationEncoder, OneHot
from ...nn.modules.activations import SquaredReLU
from ...policies import GenericPolicyBase
from ..normalizers import EPSILON, MOST_OF_SIZE, ObservationNormalizer, RunningMoments
from .library import Engine, Layer, Leaf, Library, Model, library

#: Activations by the numbers that `kernel.cpp` has for them.
ACTIVATIONS: dict[type[nn.Module], int] = {
    nn.ReLU: 1,
    nn.Tanh: 2,
    nn.Sigmoid: 3,
    nn.ELU: 4,
    nn.SiLU: 5,
    nn.GELU: 6,
    nn.SELU: 8,
    nn.LeakyReLU: 9,
    SquaredReLU: 10,
    nn.Hardtanh: 11,
    nn.ReLU6: 12,
    nn.Identity: 0,
}

#: The number of GELU's tanh form.
_TANH_GELU = 7

#: Options of activations, as the library has them.
_OPTIONS: dict[type[nn.Module], dict[str, float]] = {
    nn.ELU: {"alpha": 1.0},
    nn.LeakyReLU: {"negative_slope": 0.01},
    nn.Hardtanh: {"min_val": -1.0, "max_val": 1.0},
}

CATEGORICAL, NORMAL, PREDICTED_NORMAL = range(3)


def activation_of(module: Any) -> None | int:
    """Number of an activation; None if the library does not know it."""
    kind = type(module)
    if kind is nn.GELU and module.approximate == "tanh":
        return _TANH_GELU
    fits = all(getattr(module, name) == x for name, x in _OPTIONS.get(kind, {}).items())
    return ACTIVATIONS.get(kind) if fits else None


def kind_of(policy: GenericPolicyBase[Any]) -> None | int:
    """Number of a policy's distribution; None if the library does not know it."""
    outputs: Any = policy.model.outputs
    if policy.distribution_cls in (Categorical, MultiCategorical):
        return CATEGORICAL
    is_exact = policy._action.dtypes[0] is policy.dtype  # else samples are rounded
    if policy.distribution_cls in ((Normal, SquashedNormal) if is_exact else (Normal,)):
        return PREDICTED_NORMAL if outputs.log_std is None else NORMAL
    return None


class _Leaf(NamedTuple):
    """A leaf of observations in the networks' input."""

    #: Its place among the observation's leaves.
    place: int
    #: Numbers, or choices.
    size: int
    #: Where it begins.
    column: int
    #: Options of each choice; empty for numbers.
    options: tuple[int, ...]


#: The values' input begins at a multiple of so many columns, at least the lanes of a vector.
_LANES = 16


class Observations:
    """Observations as the library reads them, and the moments that it normalises them by.

    Args:
        policy: The policy, whose normaliser does not change meanwhile.

    """

    #: Where the values' input begins; 0 if they see what the policy sees.
    critic_column: int = 0

    def __init__(self, policy: GenericPolicyBase[Any]) -> None:
        self._dtype = policy.dtype
        self._convert: Callable[[Leaves], Leaves] = policy._normalization()
        #: Leaves that the library concatenates.
        self.leaves: list[_Leaf] = []
        structure, model = policy._observation, policy.model
        if model.encoder is None:
            self.leaves.append(_Leaf(0, structure.shapes[0].numel(), 0, ()))
        else:
            self._add(structure.paths, model.encoder)
        if model.critic_encoder is not None:
            self.critic_column = -(-model.encoder.width // _LANES) * _LANES
            self._add(structure.paths, model.critic_encoder)
        self._mask = structure.paths.index((ACTION_MASK,)) if model.has_mask else None
        normalizer = policy.normalizer
        dtypes = {structure.dtypes[x.place] for x in self.leaves if not x.options}
        self._is_native = dtypes <= {policy.dtype} and (
            normalizer is None or type(normalizer) is ObservationNormalizer
        )
        #: Largest absolute value of a normalised number; infinity for no limit.
        self.clip = math.inf
        #: Moments that each leaf is normalised by; None where it is not.
        self.moments: list[None | RunningMoments] = [None for _ in self.leaves]
        if not self._is_native or normalizer is None:
            return
        self.clip = math.inf if normalizer.clip is None else normalizer.clip
        known: Any = dict(normalizer.moments.items())
        self.moments = [known.get(str(leaf.place)) for leaf in self.leaves]

    def _add(self, paths: tuple[Path, ...], encoder: ObservationEncoder) -> None:
        column = self.critic_column
        for path, each in zip(encoder.paths, encoder.encoders, strict=True):
            assert isinstance(each, Flatten | OneHot)
            counts = tuple(each.places.bincount().tolist()) if isinstance(each, OneHot) else ()
            size = len(counts) or each.width
            self.leaves.append(_Leaf(paths.index(path), size, column, counts))
            column += each.width

    def __call__(self, obs: Leaves) -> list[torch.Tensor]:
        """Leaves `[B, …]` in the library's dtypes, contiguous; normalised if it does not do so."""
        if not self._is_native:
            obs = self._convert(obs)
        return [
            obs[leaf.place].to(torch.int64 if leaf.options else self._dtype).contiguous()
            for leaf in self.leaves
        ]

    def reads(self, obs: Leaves) -> bool:
        """Whether leaves are read as they are, and no options are masked.

        Args:
            obs: Observations of each vector step, `[T, N, …]`.

        """
        own = [obs[leaf.place] for leaf in self.leaves]
        read = self(tuple(x[0] for x in obs))
        return self._mask is None and all(
            x.is_contiguous() and x.data_ptr() == y.data_ptr()
            for x, y in zip(own, read, strict=True)
        )

    def mask(self, obs: Leaves) -> None | torch.Tensor:
        """Options that are not masked, bool `[B, …]`, contiguous; None if there is no mask."""
        return None if self._mask is None else obs[self._mask].bool().contiguous()


class _Network(NamedTuple):
    """A linear layer and the number of the activation after it."""

    layer: nn.Linear
    activation: None | int


def _layers(network: None | nn.Sequential) -> list[_Network]:
    found: list[_Network] = []
    for module in network or ():
        if isinstance(module, nn.Linear):
            found.append(_Network(module, 0))
        else:
            found[-1] = found[-1]._replace(activation=activation_of(module))
    return found


class NativeModel:
    """The engine of a policy's model, made again only where its tensors have moved."""

    def __init__(self) -> None:
        self._key: Any = None
        self._kept: list[Any] = []

    def __deepcopy__(self, memo: Any) -> "NativeModel":
        return type(self)()

    def __reduce__(self) -> Any:
        return type(self), ()

    def begin(
        self, policy: GenericPolicyBase[Any], observations: Observations, *, trains: bool
    ) -> tuple[Library, Engine]:
        """The library and the engine of an eligible policy.

        Args:
            policy: The policy; until the engine is used for the last time, tensors must stay.
            observations: Its observations.
            trains: Whether to add gradients to `p.grad`.

        """
        native = library()
        assert isinstance(native, Library)
        model: Any = policy.model
        parts = [_layers(x) for x in (model.trunk, model.policy, model.vf_model)]

        def addresses(p: None | torch.Tensor) -> tuple[None | int, None | int]:
            if p is None:
                return None, None
            gradient = p.grad if trains else None
            return p.data_ptr(), None if gradient is None else gradient.data_ptr()

        layers = [
            (*addresses(layer.weight), *addresses(layer.bias), *layer.weight.shape, activation)
            for part in parts
            for layer, activation in part
        ]
        log_std = addresses(getattr(model.outputs, "log_std", None))
        shape = [len(part) for part in parts], torch.get_num_threads(), native.level
        units = _units(policy)
        are_normalised = [x is not None for x in observations.moments]
        seen = observations.leaves, are_normalised, len(units)
        key = layers, log_std, shape, seen, kind_of(policy), policy.dtype, policy.distribution_cls
        if key != self._key:
            self._open(native, policy, observations, layers, log_std, shape)
            self._key = key
        self._fill(native, observations, units)
        return native, self._engine

    def _fill(self, native: Library, observations: Observations, units: Sequence[Any]) -> None:
        """Write the numbers that normalise observations and values where the engine reads them."""
        for own, moments in zip(self._constants, observations.moments, strict=True):
            if moments is not None:
                found = [x.double().contiguous() for x in moments.buffers()]
                native.constants(
                    own.dtype is torch.float64,
                    moments.mean.numel(),
                    *(x.data_ptr() for x in found),
                    observations.clip,
                    EPSILON,
                    MOST_OF_SIZE,
                    own.data_ptr(),
                )
        for mine, x in zip(self._units, units, strict=True):
            mine.copy_(x)

    def _open(
        self,
        native: Library,
        policy: Any,
        observations: Observations,
        layers: list[Any],
        log_std: Any,
        shape: Any,
    ) -> None:
        rows = (Layer * len(layers))()
        for row, (weight, weight_grad, bias, bias_grad, outputs, inputs, activation) in zip(
            rows, layers, strict=True
        ):
            row.weight, row.weight_grad, row.bias, row.bias_grad = (
                weight,
                weight_grad,
                bias,
                bias_grad,
            )
            row.inputs, row.outputs, row.activation = inputs, outputs, activation
        counts, threads, _ = shape
        model = Model(is_double=int(policy.dtype is torch.float64), threads=threads)
        model.counts[:], model.layers = counts, rows
        kind = kind_of(policy)
        model.kind = CATEGORICAL if kind is None else kind
        sizes = list(options(policy.model.action_spec)) if kind == CATEGORICAL else []
        model.choices, model.options = len(sizes), _integers(sizes)
        model.log_std, model.log_std_grad = log_std
        #: Mean, standard deviation, lowest and highest number of each leaf, `[4, size]`; none where
        #: it is not normalised.
        self._constants = [
            torch.empty(0 if x is None else 4 * x.mean.numel(), dtype=policy.dtype)
            for x in observations.moments
        ]
        self._units = [torch.empty_like(x) for x in _units(policy)]
        leaves = (Leaf * len(observations.leaves))()
        for to, leaf, constants in zip(leaves, observations.leaves, self._constants, strict=True):
            to.size, to.column = leaf.size, leaf.column
            if leaf.options:
                to.options = _integers(leaf.options)
            if len(constants):
                to.constants = constants.data_ptr()
        model.leaf_count, model.leaves = len(leaves), leaves
        model.critic_column = observations.critic_column
        if self._units:
            model.value_mean, model.value_scale = (x.data_ptr() for x in self._units)
        fixed = () if kind is None or kind == CATEGORICAL else _numbers(policy)
        for name, x in zip(("low", "high", "half", "side", "log_half"), fixed, strict=False):
            setattr(model, name, x.data_ptr())
        self._engine = Engine(native, model, leaves, self._constants, self._units, fixed)


def _units(policy: GenericPolicyBase[Any]) -> tuple[torch.Tensor, ...]:
    """Mean and scale of the values, `[K]` each; empty if they are not normalised."""
    moments = policy.value_normalizer
    return (
        () if moments is None else (moments.mean.to(policy.dtype), moments.scale.to(policy.dtype))
    )


def _numbers(policy: GenericPolicyBase[Any]) -> list[torch.Tensor]:
    """Ranges of actions that are numbers and, if they are squashed, how; flat."""
    like = torch.zeros(policy._action.shapes[0], dtype=policy.dtype)
    found = [*Normal.range_of(policy.model, like)]
    if issubclass(policy.distribution_cls, SquashedNormal):
        found += SquashedNormal.squash_of(policy.model, like).slopes()
    return [x.to(like).expand_as(like).flatten().contiguous() for x in found]


def _integers(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(1, len(numbers)))(*numbers)
