"""Multi-layer perceptrons and output layers."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from .activations import get_activation
from .module import Module


class MLP(nn.Sequential, Module[[torch.Tensor], torch.Tensor]):
    """Linear layers with activations in between; the output is linear.

    Args:
        input_dim: Width of the input.
        hiddens: Width of each layer, the output last.
        activation_fn: Name of the activation after every layer except the last.
        norm_layer: Normalisation between a layer and its activation.
        bias: Whether layers have biases.
        dropout: Probability of dropout after activations.
        inplace: Whether activations work in place.

    """

    def __init__(
        self,
        input_dim: int,
        hiddens: Sequence[int],
        /,
        *,
        activation_fn: str = "relu",
        norm_layer: None | type[nn.BatchNorm1d | nn.LayerNorm] = None,
        bias: bool = True,
        dropout: float = 0.0,
        inplace: bool = False,
    ) -> None:
        params = {"inplace": True} if inplace else {}
        layers: list[nn.Module] = []
        for width in hiddens[:-1]:
            layers.append(nn.Linear(input_dim, width, bias=bias))
            if norm_layer is not None:
                layers.append(norm_layer(width))
            layers.append(get_activation(activation_fn, **params))
            if dropout:
                layers.append(nn.Dropout(dropout))
            input_dim = width
        layers.append(nn.Linear(input_dim, hiddens[-1], bias=bias))
        super().__init__(*layers)


class Head(nn.Linear):
    """A linear output layer with full precision under autocast."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs `[…, out_features]` in the weights' dtype."""
        if not torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias)
