"""A recurrent model, which remembers what it needs."""

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Composite, TensorSpec, Unbounded

from everstep.data import DataKeys
from everstep.models import RecurrentModel
from everstep_lab.recipes.envs.algotrading import CHANGE, POSITION, SCALE, Heads, position


class LSTMModel(RecurrentModel):
    """Two small networks over what an LSTM remembers of the observations.

    Args:
        observation_spec: Spec of one observation.
        action_spec: Spec of one action.
        memory: Width of the LSTM.
        hidden: Width of the networks.

    """

    def __init__(
        self,
        observation_spec: TensorSpec,
        action_spec: TensorSpec,
        /,
        memory: int = 32,
        hidden: int = 64,
    ) -> None:
        super().__init__(observation_spec, action_spec, memory=memory, hidden=hidden)
        state = Unbounded(memory, device=action_spec.device)
        self.state_spec = Composite(
            {DataKeys.HIDDEN_STATES: state, DataKeys.CELL_STATES: state.clone()}
        )
        self.lstm = nn.LSTM(POSITION + 1, memory, batch_first=True)
        self.heads = Heads(memory + POSITION, hidden)
        self._values: None | torch.Tensor = None

    def forward(
        self, batch: TensorDict, states: TensorDict, /
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Features `[B·T, …]` of the action distribution, and the states `[B, memory]` afterwards.

        Args:
            batch: Observations `[B, T]`.
            states: States before them, `[B, 1]`.

        """
        obs = batch[DataKeys.OBS]
        x = torch.cat([position(obs), SCALE * obs[CHANGE]], -1)
        before = tuple(
            states[key].transpose(0, 1).contiguous()  # [1, B, memory]: one layer
            for key in (DataKeys.HIDDEN_STATES, DataKeys.CELL_STATES)
        )
        latents, (hidden, cell) = self.lstm(x, before)
        inputs = torch.cat([latents, position(obs)], -1).flatten(0, 1)
        mask = obs["action_mask"].flatten(0, 1)
        features, self._values = self.heads(inputs, mask)
        return features, {DataKeys.HIDDEN_STATES: hidden[0], DataKeys.CELL_STATES: cell[0]}

    def value_function(self) -> torch.Tensor:
        """Values `[B·T, 1]` of the last observations."""
        assert self._values is not None
        return self._values
