"""A model that attends to a window of price changes."""

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import TensorSpec

from everstep.data import DataKeys
from everstep.models import Model
from everstep.nn import PositionalEmbedding, SelfAttention, SelfAttentionStack
from everstep.views import ViewRequirement
from everstep_lab.recipes.envs.algotrading import CHANGE, POSITION, SCALE, Heads, position


class TransformerModel(Model):
    """Two small networks over the position and what the present gathers from the past.

    Args:
        observation_spec: Spec of one observation.
        action_spec: Spec of one action.
        past: Price changes that are seen beside the present one.
        embed_dim: Features of a price change.
        num_heads: Attention heads.
        num_layers: Layers of self-attention.
        hidden: Width of the networks.

    """

    def __init__(
        self,
        observation_spec: TensorSpec,
        action_spec: TensorSpec,
        /,
        past: int = 7,
        embed_dim: int = 16,
        num_heads: int = 2,
        num_layers: int = 2,
        hidden: int = 64,
    ) -> None:
        super().__init__(
            observation_spec,
            action_spec,
            past=past,
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_layers=num_layers,
            hidden=hidden,
        )
        self.view_requirements[(DataKeys.OBS, CHANGE)] = ViewRequirement(shift=past)
        self.embedding = nn.Linear(1, embed_dim)
        self.places = PositionalEmbedding(embed_dim, past + 1)
        layer = SelfAttention(
            embed_dim, num_heads=num_heads, hidden_dim=2 * embed_dim, skip_kind="residual"
        )
        self.attention = SelfAttentionStack(layer, num_layers)
        self.heads = Heads(POSITION + 1 + embed_dim, hidden)
        self._values: None | torch.Tensor = None

    def forward(self, batch: TensorDict, /) -> dict[str, torch.Tensor]:
        """Features of the action distribution, from observations `[B]`."""
        obs = batch[DataKeys.OBS]
        window = obs[CHANGE]
        changes = SCALE * window[DataKeys.INPUTS]  # [B, past + 1, 1]
        sequence = self.places(self.embedding(changes))
        gathered = self.attention(sequence, key_padding_mask=window[DataKeys.PADDING_MASK])
        x = torch.cat([position(obs), changes[:, -1], gathered[:, -1]], -1)
        features, self._values = self.heads(x, obs["action_mask"])
        return features

    def value_function(self) -> torch.Tensor:
        """Values `[B, 1]` of the last observations."""
        assert self._values is not None
        return self._values
