"""Building blocks of models."""

from ._activations import ACTIVATIONS, SquaredReLU, get_activation
from ._mlp import MLP, Head

__all__ = ["ACTIVATIONS", "MLP", "Head", "SquaredReLU", "get_activation"]
