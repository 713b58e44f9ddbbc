"""Building blocks of models."""

from .activations import ACTIVATIONS, SquaredReLU, get_activation
from .attention import CrossAttention, PointerNetwork, SelfAttention, SelfAttentionStack
from .embeddings import PositionalEmbedding
from .mlp import MLP, Head
from .module import Module
from .perceiver import PerceiverIOLayer, PerceiverLayer
from .skip import SequentialSkipConnection

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "CrossAttention",
    "Head",
    "Module",
    "PerceiverIOLayer",
    "PerceiverLayer",
    "PointerNetwork",
    "PositionalEmbedding",
    "SelfAttention",
    "SelfAttentionStack",
    "SequentialSkipConnection",
    "SquaredReLU",
    "get_activation",
]
