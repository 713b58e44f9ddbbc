"""A feedforward model over a window of price changes."""

import torch
from tensordict import TensorDict
from torchrl.data import TensorSpec

from everstep.data import DataKeys
from everstep.models import Model
from everstep.views import ViewRequirement

from .env import CHANGE
from .parts import POSITION, SCALE, Heads, position


class ViewsModel(Model):
    """Two small networks over the last price changes and the position.

    Args:
        observation_spec: Spec of one observation.
        action_spec: Spec of one action.
        past: Price changes that are seen beside the present one.
        hidden: Width of the networks.

    """

    def __init__(
        self,
        observation_spec: TensorSpec,
        action_spec: TensorSpec,
        /,
        past: int = 7,
        hidden: int = 64,
    ) -> None:
        super().__init__(observation_spec, action_spec, past=past, hidden=hidden)
        # Beside the present observation, which every feedforward model gets.
        self.view_requirements[(DataKeys.OBS, CHANGE)] = ViewRequirement(shift=past)
        # What lies before the episode comes as zeros, and a mask says so: both are seen.
        self.heads = Heads(POSITION + 2 * (past + 1), hidden)
        self._values: None | torch.Tensor = None

    def forward(self, batch: TensorDict, /) -> dict[str, torch.Tensor]:
        """Features of the action distribution, from observations `[B]`."""
        obs = batch[DataKeys.OBS]
        window = obs[CHANGE]
        changes = SCALE * window[DataKeys.INPUTS].squeeze(-1)  # [B, past + 1]
        padding = window[DataKeys.PADDING_MASK].float()
        x = torch.cat([position(obs), changes, padding], -1)
        features: dict[str, torch.Tensor]
        features, self._values = self.heads(x, obs["action_mask"])
        return features

    def value_function(self) -> torch.Tensor:
        """Values `[B, 1]` of the last observations."""
        assert self._values is not None
        return self._values
