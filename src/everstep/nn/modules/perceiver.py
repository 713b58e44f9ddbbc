"""Perceivers: latent arrays of fixed length that attend to sequences of any length."""

import torch
from torch import nn

from .attention import CrossAttention, Mask, SelfAttention, SelfAttentionStack
from .module import Module


class PerceiverLayer(Module[[torch.Tensor, torch.Tensor, Mask, Mask], torch.Tensor]):
    """Cross-attention from a latent array to a sequence, then self-attention of the latent array.

    The cost is linear in the sequence's length. Successive layers may attend to different
    sequences.

    Args:
        embed_dim: E, features of the latent array and of the sequence.
        num_heads: Heads of every attention; divides `embed_dim`.
        hidden_dim: Width of the feedforward networks.
        num_layers: Layers of self-attention.
        activation_fn: Name of the feedforward networks' activation.
        attention_dropout: Probability of dropout of attention weights.
        hidden_dropout: Probability of dropout in the feedforward networks.
        skip_kind: Kind of the skip connections; see `everstep.nn.skip_connection`.
        share_parameters: Whether the layers of self-attention share their parameters.

    Source: arXiv 2103.03206.

    """

    #: From the sequence to the latent array.
    cross_attention: CrossAttention

    #: Within the latent array.
    self_attention: SelfAttentionStack

    def __init__(
        self,
        embed_dim: int,
        /,
        *,
        num_heads: int = 2,
        hidden_dim: int = 128,
        num_layers: int = 2,
        activation_fn: str = "relu",
        attention_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        skip_kind: None | str = "cat",
        share_parameters: bool = False,
    ) -> None:
        super().__init__()
        args = (num_heads, hidden_dim, activation_fn, attention_dropout, hidden_dropout, skip_kind)
        self.cross_attention = CrossAttention(embed_dim, *args)
        self.self_attention = SelfAttentionStack(
            SelfAttention(embed_dim, *args), num_layers, share_parameters=share_parameters
        )

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        key_padding_mask: Mask = None,
        attention_mask: Mask = None,
    ) -> torch.Tensor:
        """The latent array after attending, `[B, Q, E]`.

        Args:
            q: Latent array `[B, Q, E]`.
            kv: Sequence `[B, K, E]`.
            key_padding_mask: Elements of `kv` that are padding (True, or −inf), `[B, K]`.
            attention_mask: Elements of `kv` that an element of `q` must not attend to (True, or
                −inf), `[Q, K]`.

        """
        latents = self.cross_attention(q, kv, key_padding_mask, attention_mask)
        return self.self_attention(latents, None, None)


class PerceiverIOLayer(Module[[torch.Tensor, torch.Tensor, Mask, Mask], torch.Tensor]):
    """A `PerceiverLayer`, and cross-attention from an output array to its latent array.

    Args:
        embed_dim: E, features of the latent array, the sequence and the output array.
        output_seq_dim: O, elements of the output array.
        num_heads: Heads of every attention; divides `embed_dim`.
        hidden_dim: Width of the feedforward networks.
        num_layers: Layers of self-attention.
        activation_fn: Name of the feedforward networks' activation.
        attention_dropout: Probability of dropout of attention weights.
        hidden_dropout: Probability of dropout in the feedforward networks.
        skip_kind: Kind of the skip connections; see `everstep.nn.skip_connection`.
        share_parameters: Whether the layers of self-attention share their parameters.

    Source: arXiv 2107.14795.

    """

    #: From the sequence to the latent array.
    perceiver_layer: PerceiverLayer

    #: Learned queries of the output array, `[O, E]`.
    output_query: nn.Parameter

    #: From the latent array to the output array.
    decoder: CrossAttention

    def __init__(
        self,
        embed_dim: int,
        output_seq_dim: int,
        /,
        *,
        num_heads: int = 2,
        hidden_dim: int = 128,
        num_layers: int = 2,
        activation_fn: str = "relu",
        attention_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        skip_kind: None | str = "cat",
        share_parameters: bool = False,
    ) -> None:
        super().__init__()
        self.perceiver_layer = PerceiverLayer(
            embed_dim,
            num_heads=num_heads,
            hidden_dim=hidden_dim,
            num_layers=num_layers,
            activation_fn=activation_fn,
            attention_dropout=attention_dropout,
            hidden_dropout=hidden_dropout,
            skip_kind=skip_kind,
            share_parameters=share_parameters,
        )
        self.output_query = nn.Parameter(torch.empty(output_seq_dim, embed_dim))
        nn.init.xavier_uniform_(self.output_query)
        args = (num_heads, hidden_dim, activation_fn, attention_dropout, hidden_dropout, skip_kind)
        self.decoder = CrossAttention(embed_dim, *args)

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        key_padding_mask: Mask = None,
        attention_mask: Mask = None,
    ) -> torch.Tensor:
        """The output array, `[B, O, E]`; the arguments are those of `PerceiverLayer.forward`."""
        latents = self.perceiver_layer(q, kv, key_padding_mask, attention_mask)
        queries = self.output_query.expand(len(q), -1, -1)
        return self.decoder(queries, latents, None, None)
