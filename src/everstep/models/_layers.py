"""Layers of default models, their options, and the part of the observation that they see."""

import math
from collections.abc import Sequence
from typing import Any

from torch import nn
from torchrl.data import Categorical, Composite, TensorSpec

from ..env.specs import Path, leaf_specs
from ..nn import MLP, Head, get_activation

#: Gain of hidden layers.
HIDDEN_GAIN = math.sqrt(2)


def perceptron(
    width: int,
    hiddens: Sequence[int],
    columns: int,
    *,
    activation_fn: str,
    bias: bool,
    gains: tuple[None | float, None | float],
    head_bias: bool = True,
) -> list[nn.Module]:
    """Hidden layers, an activation after each, and a linear head.

    Args:
        width: Width of the input.
        hiddens: Widths of the hidden layers.
        columns: Width of the output; 0 for no head.
        activation_fn: Name of the activation.
        bias: Whether hidden layers have biases.
        gains: Gains of the orthogonal weights of hidden layers and head; None for PyTorch's own
            initialisation.
        head_bias: Whether the head has a bias.

    """
    layers: list[nn.Module] = []
    if hiddens:
        mlp = MLP(width, hiddens, activation_fn=activation_fn, bias=bias)
        initialize(mlp, gains[0])
        layers = [*mlp, get_activation(activation_fn)]
    if columns:
        head = Head(hiddens[-1] if hiddens else width, columns, bias=head_bias)
        initialize(head, gains[1])
        layers.append(head)
    return layers


def initialize(module: nn.Module, gain: None | float) -> None:
    """Orthogonal weights and zero biases; None leaves PyTorch's own initialisation."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and gain is not None:
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def gains_of(*, ortho_init: bool, **gains: float) -> list[None | float]:
    """Gains of orthogonal weights by the names of their options; None each without `ortho_init`.

    Raises:
        ValueError: If one is not a positive number.

    """
    for name, gain in gains.items():
        if isinstance(gain, bool) or not isinstance(gain, int | float) or not gain > 0:
            raise ValueError(f"`{name}` expected float > 0, a gain of weights; got {gain!r}")
    return [float(gain) if ortho_init else None for gain in gains.values()]


def check_widths(name: str, widths: Any) -> None:
    """Raise if widths of hidden layers are not a sequence of positive integers."""
    is_list = isinstance(widths, Sequence) and not isinstance(widths, str)
    if not is_list or not all(type(width) is int and width > 0 for width in widths):
        example = [widths, widths] if type(widths) is int and widths > 0 else [64, 64]
        raise ValueError(
            f"`{name}` expected a list of int > 0, the widths of hidden layers; got {widths!r}. "
            f"Try {example}"
        )


def seen_by(name: str, keys: None | Sequence[str], observation_spec: TensorSpec) -> TensorSpec:
    """The part of the observation under `keys`; all of it if they are None.

    Args:
        name: Name of the option, for errors.
        keys: Outermost keys of a mapping.
        observation_spec: Spec of one observation.

    Raises:
        ValueError: If the observation is no mapping, or lacks a key.

    """
    if keys is None:
        return observation_spec
    if not isinstance(observation_spec, Composite):
        raise ValueError(
            f"`{name}` chooses keys of an observation that is a mapping; got {list(keys)!r} for "
            f"one tensor {list(observation_spec.shape)}. Leave it out"
        )
    known = [str(key) for key in observation_spec.keys()]  # noqa: SIM118  as everywhere
    is_list = isinstance(keys, Sequence) and not isinstance(keys, str)
    if not is_list or not keys or not set(keys) <= set(known):
        raise ValueError(
            f"`{name}` expected a list of keys among {', '.join(known)}; got {keys!r}. "
            f"Try {known[:1]}"
        )
    return Composite({key: observation_spec[key] for key in known if key in keys})


def paths_of(observation_spec: TensorSpec) -> tuple[Path, ...]:
    """Paths of an observation's leaves."""
    return tuple(leaf_specs(observation_spec))


def listed(**options: None | Sequence[Any]) -> dict[str, None | list[Any]]:
    """Sequences as lists, as files have them; None stays None."""
    return {name: None if x is None else list(x) for name, x in options.items()}


def stacked(observation_spec: TensorSpec, frame_stack: Any) -> TensorSpec:
    """Spec of so many observations in a row, `[frame_stack, …]`; of one if it is 1.

    Raises:
        ValueError: If it is no positive integer, or the observation a mapping or choices.

    """
    if type(frame_stack) is not int or frame_stack < 1:
        raise ValueError(f"`frame_stack` expected int > 0; got {frame_stack!r}")
    if frame_stack == 1:
        return observation_spec
    if isinstance(observation_spec, Composite | Categorical):
        raise ValueError(
            f"`frame_stack` is for observations of one tensor of numbers; got "
            f"{type(observation_spec).__name__}. Leave it out"
        )
    return observation_spec.expand(frame_stack, *observation_spec.shape)
