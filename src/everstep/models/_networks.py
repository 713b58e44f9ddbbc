"""A network from whole observations to numbers, for critics and bonuses."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from torchrl.data import TensorSpec

from ..env.images import ImageLayouts
from ..env.specs import Leaves, Structure
from ..nn import Head, get_activation
from ._encoders import ObservationEncoder
from ._layers import initialize


class ObservationNetwork(nn.Module):
    """An encoder of the observation and an MLP: leaves `[B, …]` to numbers `[B, outputs]`.

    Weights are orthogonal with gain √2, biases zero.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        outputs: Width of the output.
        hiddens: Widths of the hidden layers.
        activation_fn: Name of their activation.
        image_layout: How images lie in memory; see `DefaultModel`.

    Raises:
        ValueError: If the observation has no leaf to encode.

    """

    def __init__(
        self,
        observation_spec: TensorSpec,
        /,
        outputs: int,
        *,
        hiddens: Sequence[int] = (256, 256),
        activation_fn: str = "relu",
        image_layout: ImageLayouts = None,
    ) -> None:
        super().__init__()
        self._structure = Structure.of(observation_spec)
        self.encoder = ObservationEncoder(observation_spec, image_layout)
        layers: list[nn.Module] = []
        width = self.encoder.width
        for hidden in hiddens:
            layers += [nn.Linear(width, hidden), get_activation(activation_fn)]
            width = hidden
        self.layers = nn.Sequential(*layers, Head(width, outputs))
        initialize(self.layers, 2**0.5)

    def forward(self, leaves: Leaves) -> torch.Tensor:
        """Numbers `[B, outputs]`."""
        x = self.encoder(self._structure.unflatten(leaves, [len(leaves[0])]))
        return cast(torch.Tensor, self.layers(x.to(self.layers[-1].weight.dtype)))
