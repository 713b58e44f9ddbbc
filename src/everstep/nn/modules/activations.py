"""Activation functions by name."""

import difflib
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .module import Module


class SquaredReLU(Module[[torch.Tensor], torch.Tensor]):
    """max(0, x)²."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """max(0, x)², any shape."""
        return F.relu(x).square()


#: Activation modules by name.
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "hard_shrink": nn.Hardshrink,
    "hard_sigmoid": nn.Hardsigmoid,
    "hard_swish": nn.Hardswish,
    "hard_tanh": nn.Hardtanh,
    "identity": nn.Identity,
    "leaky_relu": nn.LeakyReLU,
    "log_sigmoid": nn.LogSigmoid,
    "log_softmax": nn.LogSoftmax,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "softmax": nn.Softmax,
    "squared_relu": SquaredReLU,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
}


def get_activation(name: str, /, **params: Any) -> nn.Module:
    """A new activation module.

    Args:
        name: A key of `ACTIVATIONS`.
        **params: Keyword arguments of the module.

    Raises:
        ValueError: If the name is unknown.

    """
    if name not in ACTIVATIONS:
        word = str(getattr(name, "__name__", name)).lower()  # of `nn.ReLU`
        nearest = difflib.get_close_matches(word, ACTIVATIONS, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else f" Known: {', '.join(ACTIVATIONS)}."
        raise ValueError(f"Unknown activation {name!r}.{hint}")
    return ACTIVATIONS[name](**params)
