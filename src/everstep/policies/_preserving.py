"""Outputs of default models that stay as they are when the moments of observations change.

Idea: van Hasselt et al. 2016, arXiv 1602.07714, which does it for the outputs' moments.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from ..core.normalizers import ObservationNormalizer, RunningMoments
from ..env.specs import Path
from ..models import DefaultModel
from ..models._default_recurrent import DefaultRecurrentModel
from ..models._encoders import Flatten, ObservationEncoder
from ..nn import Head

if TYPE_CHECKING:
    from ._core import PolicyCore


#: Standard deviations that a mean, and factor that a standard deviation, may change by.
MOST = 10.0

#: Methods of default models that decide what the first layers see.
_METHODS = ("forward", "value_function", "_run", "_encode")


class _Columns(NamedTuple):
    """Columns of a layer's input that hold a normalised leaf, and the leaf's moments."""

    columns: slice
    moments: RunningMoments


class _Input(NamedTuple):
    """Weight and bias of a layer, and the parts of its input that are normalised."""

    weight: torch.Tensor
    bias: torch.Tensor
    parts: list[_Columns]


@contextmanager
def preserving(policy: "PolicyCore[Any]") -> Iterator[None]:
    """Context that updates the moments of observations; what the model computes stays.

    The layers that observations enter are changed by as much as the observations are, up to
    rounding and to `clip_observations`. An element whose moments move by more than `MOST`, such as
    one that was constant, is left alone: nearly all of it was clipped. Nothing is done for other
    models than the default ones, nor if one of these layers has no bias or is frozen, if the model
    sees windows, or if images are normalised.
    """
    layers = list(_inputs(policy))
    before = [[(x.moments.mean.clone(), x.moments.std) for x in layer.parts] for layer in layers]
    yield
    with torch.no_grad():
        for (weight, bias, parts), old in zip(layers, before, strict=True):
            for (columns, moments), (mean, std) in zip(parts, old, strict=True):
                own = weight[:, columns]
                shift, ratio = (moments.mean - mean) / std, moments.std / std
                is_near = (shift.abs() <= MOST) & (ratio <= MOST) & (ratio >= 1 / MOST)
                shift, ratio = shift.where(is_near, 0.0), ratio.where(is_near, 1.0)
                bias.add_((own.double() @ shift.flatten()).to(bias.dtype))
                own.mul_(ratio.flatten().to(own.dtype))


def preserves(policy: "PolicyCore[Any]") -> bool:
    """Whether `preserving` does anything."""
    return any(layer.parts for layer in _inputs(policy))


def _inputs(policy: "PolicyCore[Any]") -> Iterator[_Input]:
    """The layers that observations enter, if all of them can be changed."""
    normalizer, paths = policy.normalizer, policy._observation.paths
    if type(normalizer) is not ObservationNormalizer or policy.history:
        return
    found: list[_Input] = []
    for encoder, layer, weight, bias in _first_layers(policy.model):
        parts = list(_parts(encoder, paths, normalizer))
        if type(layer) not in (nn.Linear, Head, nn.LSTM) or None in parts:
            return
        if not all(isinstance(x, nn.Parameter) and x.requires_grad for x in (weight, bias)):
            return  # there is no bias, a hook computes one of them, or it is frozen
        found.append(_Input(weight, bias, cast(list[_Columns], parts)))
    yield from found


def _first_layers(model: Any) -> Iterator[tuple[None | ObservationEncoder, Any, Any, Any]]:
    """Encoder, layer, weight and bias of each layer that encoded observations enter."""
    kind = DefaultModel if isinstance(model, DefaultModel) else DefaultRecurrentModel
    if not isinstance(model, kind) or any(
        name in vars(model) or getattr(type(model), name, None) is not getattr(kind, name, None)
        for name in _METHODS
    ):
        return  # a model of the user's
    critic_encoder = model.critic_encoder or model.encoder
    if isinstance(model, DefaultRecurrentModel):
        for lstm, encoder in ((model.lstm, model.encoder), (model.critic_lstm, critic_encoder)):
            if lstm is not None:
                yield encoder, lstm, lstm.weight_ih_l0, getattr(lstm, "bias_ih_l0", None)
        return
    networks = [(model.policy, model.encoder), (model.vf_model, critic_encoder)]
    if model.trunk:  # one without layers shares nothing
        networks = [(model.trunk, model.encoder)]
    for network, encoder in networks:
        layer = network[0]
        yield encoder, layer, getattr(layer, "weight", None), getattr(layer, "bias", None)


def _parts(
    encoder: None | ObservationEncoder, paths: tuple[Path, ...], normalizer: ObservationNormalizer
) -> Iterator[None | _Columns]:
    """The normalised leaves in an encoder's output; None for one that is not merely flattened."""
    each: list[tuple[Path, Any]] = [(paths[0], None)]
    if encoder is not None:
        each = list(zip(encoder.paths, encoder.encoders, strict=True))
    start = 0
    for path, module in each:
        place = str(paths.index(path))
        moments: Any = dict(normalizer.moments.items()).get(place)
        width = module.width if module else moments.mean.numel() if moments else 0
        if moments is not None:
            is_flat = type(module) in (NoneType, Flatten) and width == moments.mean.numel()
            yield _Columns(slice(start, start + width), moments) if is_flat else None
        start += width
