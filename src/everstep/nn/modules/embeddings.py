"""Embeddings of sequences."""

import math
from typing import cast

import torch
from torch import nn

from .module import Module


class PositionalEmbedding(Module[[torch.Tensor], torch.Tensor]):
    """Sinusoidal positional embedding, added to the elements of a sequence.

        pe[t, 2i] = sin(t / 10000^(2i/E))        pe[t, 2i + 1] = cos(t / 10000^(2i/E))

    Args:
        embed_dim: E, features of an element.
        max_len: Elements of the longest sequence.
        dropout: Probability of dropout of the sum.

    Source: arXiv 1706.03762, section 3.5.

    """

    #: Dropout of the sum.
    dropout: nn.Dropout

    #: The embedding, `[1, max_len, E]`.
    pe: torch.Tensor

    def __init__(self, embed_dim: int, max_len: int, /, *, dropout: float = 0.0) -> None:
        super().__init__()
        frequencies = torch.exp(torch.arange(0, embed_dim, 2) * (-math.log(10_000) / embed_dim))
        angles = torch.outer(torch.arange(max_len).to(frequencies), frequencies)
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)  # [max_len, E or E + 1]
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pe", waves[:, :embed_dim].unsqueeze(0).contiguous())

    def forward(self, x: torch.Tensor, /) -> torch.Tensor:
        """`x` with the embedding of its positions added, `[B, T, E]` in the dtype of `x`.

        Args:
            x: Sequences `[B, T, E]`.

        Raises:
            ValueError: If they are longer than `max_len`.

        """
        length, max_len = x.shape[1], self.pe.shape[1]
        if length > max_len:
            raise ValueError(
                f"Sequences must not be longer than `max_len` ({max_len}); got {length} elements. "
                "Make the embedding with a larger `max_len`."
            )
        return cast(torch.Tensor, self.dropout(x + self.pe[:, :length].to(x.dtype)))
