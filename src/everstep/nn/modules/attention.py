"""Attention over sequences.

Masks mark excluded elements, as PyTorch's do: True, or −inf in a floating-point mask, which is
added to the scores. A query that may attend to nothing receives zeros.
"""

import copy
from typing import ClassVar, ParamSpec, TypeAlias

import torch
from torch import nn

from ..functional import binary_mask_to_float_mask, masked_log_softmax
from .activations import get_activation
from .module import Module
from .skip import SequentialSkipConnection

_P = ParamSpec("_P")

#: Optional mask.
Mask: TypeAlias = None | torch.Tensor


class PointerNetwork(Module[[torch.Tensor, torch.Tensor, Mask], torch.Tensor]):
    """Log-probabilities of the elements of one sequence, for each element of another.

        log softmaxₑ vᵀ tanh(W₁·encoder_outₑ + W₂·decoder_out_d)

    Args:
        embed_dim: C, features of the elements of both sequences.

    Source: arXiv 1506.03134, eq. 3.

    """

    #: W₁, of the encoder's sequence.
    W1: nn.Linear

    #: W₂, of the decoder's sequence.
    W2: nn.Linear

    #: vᵀ, of the scores.
    VT: nn.Linear

    def __init__(self, embed_dim: int, /) -> None:
        super().__init__()
        self.W1 = nn.Linear(embed_dim, embed_dim, bias=False)
        self.W2 = nn.Linear(embed_dim, embed_dim, bias=False)
        self.VT = nn.Linear(embed_dim, 1, bias=False)

    def forward(
        self, decoder_out: torch.Tensor, encoder_out: torch.Tensor, mask: Mask = None
    ) -> torch.Tensor:
        """Log-probability of each element of `encoder_out`, `[B, D, E]`.

        Args:
            decoder_out: Sequence of queries, `[B, D, C]`.
            encoder_out: Sequence to choose from, `[B, E, C]`.
            mask: True or 1 for elements that may be chosen, `[B, D, E]`.

        """
        hidden = self.W1(encoder_out).unsqueeze(1) + self.W2(decoder_out).unsqueeze(2)
        scores = self.VT(hidden.tanh()).squeeze(-1)  # [B, D, E]
        return masked_log_softmax(scores, mask=mask, dim=-1)


class _AttentionBlock(Module[_P, torch.Tensor]):
    """Multi-head attention and a feedforward network, with skip connections."""

    #: Names of the layers that normalise the attention's inputs.
    norms: ClassVar[tuple[str, ...]]

    #: Multi-head attention.
    attention: nn.MultiheadAttention

    #: Skip connections around attention and feedforward network.
    skip_connection: SequentialSkipConnection

    def __init__(
        self,
        embed_dim: int,
        /,
        num_heads: int = 2,
        hidden_dim: int = 128,
        activation_fn: str = "relu",
        attention_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        skip_kind: None | str = "cat",
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"`num_heads` must divide `embed_dim` ({embed_dim}); got {num_heads}.")
        for norm in self.norms:
            self.add_module(norm, nn.LayerNorm(embed_dim))
        self.attention = nn.MultiheadAttention(
            embed_dim, num_heads, dropout=attention_dropout, batch_first=True
        )
        self.skip_connection = SequentialSkipConnection(embed_dim, skip_kind)
        self.skip_connection.append(
            nn.Sequential(
                nn.LayerNorm(embed_dim),
                nn.Linear(embed_dim, hidden_dim),
                get_activation(activation_fn),
                nn.Dropout(hidden_dropout),
                nn.Linear(hidden_dim, embed_dim),
            )
        )

    def _attend(
        self, q: torch.Tensor, kv: torch.Tensor, key_padding_mask: Mask, attention_mask: Mask
    ) -> torch.Tensor:
        """Attention's output, `[B, Q, E]`; zeros for queries that may attend to nothing."""
        padding = _added_to_scores(key_padding_mask, q.dtype)
        mask = _added_to_scores(attention_mask, q.dtype)
        received: torch.Tensor
        received, _ = self.attention(
            q, kv, kv, key_padding_mask=padding, attn_mask=mask, need_weights=False
        )
        masks = [None if padding is None else padding.unsqueeze(-2), mask]
        given = [x for x in masks if x is not None]
        if not given:
            return received
        # Depending on the kernel such queries receive the output's bias, or NaN.
        nothing = (sum(given[1:], given[0]) == -torch.inf).all(-1, keepdim=True)
        return received.masked_fill(nothing, 0.0)


def _added_to_scores(mask: Mask, dtype: torch.dtype) -> Mask:
    """The mask to add to scores: 0, or −inf for excluded elements."""
    if mask is None:
        return None
    if mask.dim() > 2:
        raise ValueError(f"A mask must be [B, K] or [Q, K], for all heads; got {list(mask.shape)}.")
    if not mask.is_floating_point():
        mask = binary_mask_to_float_mask(~mask.bool())
    return mask.to(dtype)


class CrossAttention(_AttentionBlock[[torch.Tensor, torch.Tensor, Mask, Mask]]):
    """Attention from queries to another sequence, then a feedforward network.

        h = join(skip(q, attention(norm(q), norm(kv))))        out = join(skip(h, network(h)))

    Args:
        embed_dim: E, features of queries and keys.
        num_heads: Attention heads; divides `embed_dim`.
        hidden_dim: Width of the feedforward network.
        activation_fn: Name of its activation.
        attention_dropout: Probability of dropout of attention weights.
        hidden_dropout: Probability of dropout in the feedforward network.
        skip_kind: Kind of the skip connections; see `everstep.nn.skip_connection`.

    Raises:
        ValueError: If `num_heads` does not divide `embed_dim`, or a name is unknown.

    """

    norms = ("q_norm", "kv_norm")

    #: Normalises the queries.
    q_norm: nn.LayerNorm

    #: Normalises the keys, which are the values too.
    kv_norm: nn.LayerNorm

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        key_padding_mask: Mask = None,
        attention_mask: Mask = None,
    ) -> torch.Tensor:
        """The queries after attending, `[B, Q, E]`.

        Args:
            q: Queries `[B, Q, E]`.
            kv: Keys `[B, K, E]`.
            key_padding_mask: Keys that are padding (True, or −inf), `[B, K]`.
            attention_mask: Keys that a query must not attend to (True, or −inf), `[Q, K]`.

        """
        received = self._attend(self.q_norm(q), self.kv_norm(kv), key_padding_mask, attention_mask)
        return self.skip_connection(q, received)


class SelfAttention(_AttentionBlock[[torch.Tensor, Mask, Mask]]):
    """Attention between the elements of a sequence, then a feedforward network.

        h = join(skip(x, attention(norm(x))))        out = join(skip(h, network(h)))

    Args:
        embed_dim: E, features of an element.
        num_heads: Attention heads; divides `embed_dim`.
        hidden_dim: Width of the feedforward network.
        activation_fn: Name of its activation.
        attention_dropout: Probability of dropout of attention weights.
        hidden_dropout: Probability of dropout in the feedforward network.
        skip_kind: Kind of the skip connections; see `everstep.nn.skip_connection`.

    Raises:
        ValueError: If `num_heads` does not divide `embed_dim`, or a name is unknown.

    """

    norms = ("x_norm",)

    #: Normalises the sequence.
    x_norm: nn.LayerNorm

    def forward(
        self, x: torch.Tensor, key_padding_mask: Mask = None, attention_mask: Mask = None
    ) -> torch.Tensor:
        """The sequence after attending, `[B, X, E]`.

        Args:
            x: Sequence `[B, X, E]`.
            key_padding_mask: Elements that are padding (True, or −inf), `[B, X]`.
            attention_mask: Elements (columns) that an element (row) must not attend to (True, or
                −inf), `[X, X]`.

        """
        normalized = self.x_norm(x)
        received = self._attend(normalized, normalized, key_padding_mask, attention_mask)
        return self.skip_connection(x, received)


class SelfAttentionStack(Module[[torch.Tensor, Mask, Mask], torch.Tensor]):
    """Layers of self-attention in sequence.

    Args:
        module: The first layer. The others are copies of it, so they begin with equal weights.
        num_layers: Number of layers.
        share_parameters: Whether every layer is `module` itself, so that all share its weights.

    """

    #: The layers, first to last.
    layers: nn.ModuleList

    def __init__(
        self, module: SelfAttention, num_layers: int, /, *, share_parameters: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            module if share_parameters else copy.deepcopy(module) for _ in range(num_layers)
        )

    def forward(
        self, x: torch.Tensor, key_padding_mask: Mask = None, attention_mask: Mask = None
    ) -> torch.Tensor:
        """The sequence after the last layer, `[B, X, E]`; see `SelfAttention.forward`."""
        for layer in self.layers:
            x = layer(x, key_padding_mask, attention_mask)
        return x
