"""Default recurrent models: an encoder of the observation, then an LSTM."""

from collections.abc import Mapping
from typing import cast

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Composite, TensorSpec, Unbounded

from ..data import DataKeys
from ..nn import Head
from ._defaults import (
    ContinuousActions,
    DiscreteActions,
    KeepsValues,
    Outputs,
    choose_default,
    has_mask,
    initialize,
)
from ._encoders import ACTION_MASK, ObservationEncoder, encoder_of
from ._recurrent import RecurrentModel


def default_recurrent_model_cls(
    observation_spec: TensorSpec, action_spec: TensorSpec, /
) -> type[RecurrentModel]:
    """Default recurrent model for the specs.

    Raises:
        TypeError: If there is none.

    """
    kinds = DefaultDiscreteRecurrentModel, DefaultContinuousRecurrentModel
    return choose_default(action_spec, *kinds)


class DefaultRecurrentModel(KeepsValues, RecurrentModel):
    """An encoder, an LSTM, and linear heads for policy and values.

    Observations are encoded as by `DefaultModel`. Weights are orthogonal, those of the policy's
    head with gain 0.01 so that training starts near the uniform (or zero-mean) policy; biases are
    zero.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        action_spec: Spec of one action.
        outputs: Conversion of the policy head's outputs to features of the action distribution.
        hidden_size: Width of the LSTM.
        num_layers: Layers of the LSTM.
        bias: Whether LSTM and value head have biases.
        num_values: Value columns, one per reward stream.

    """

    #: From observations to vectors; None if observations are vectors of numbers.
    encoder: None | ObservationEncoder

    #: From sequences of vectors to sequences of latents.
    lstm: nn.LSTM

    #: From latents to outputs for the action distribution.
    policy: nn.Sequential

    #: From latents to values.
    vf_model: Head

    def __init__(
        self,
        observation_spec: TensorSpec,
        action_spec: TensorSpec,
        /,
        *,
        outputs: Outputs,
        hidden_size: int = 256,
        num_layers: int = 1,
        bias: bool = True,
        num_values: int = 1,
    ) -> None:
        super().__init__(
            observation_spec,
            action_spec,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bias=bias,
            num_values=num_values,
            **outputs.config,
        )
        state = Unbounded(torch.Size([num_layers, hidden_size]), device=action_spec.device)
        self.state_spec = Composite(
            {DataKeys.HIDDEN_STATES: state, DataKeys.CELL_STATES: state.clone()},
            device=action_spec.device,
        )
        self.has_mask = has_mask(observation_spec, action_spec, outputs)
        self.encoder, width = encoder_of(observation_spec)
        self.lstm = nn.LSTM(width, hidden_size, num_layers, bias=bias, batch_first=True)
        for name, weights in self.lstm.named_parameters():
            nn.init.orthogonal_(weights) if "weight" in name else nn.init.zeros_(weights)
        self.policy = nn.Sequential(Head(hidden_size, outputs.width))
        self.vf_model = Head(hidden_size, num_values, bias=bias)
        initialize(self.policy, 0.01)
        initialize(self.vf_model, 1.0)
        outputs.prepare(self.policy)
        self.outputs = outputs

    def forward(
        self, batch: TensorDict, states: TensorDict, /
    ) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
        """Features `[B·T, …]` for the action distribution, and the next states `[B, …]`."""
        self.forget_values()
        obs = batch[DataKeys.OBS]
        keys = (DataKeys.HIDDEN_STATES, DataKeys.CELL_STATES)
        before = tuple(states[key][:, 0].transpose(0, 1).contiguous() for key in keys)
        latents, after = self.lstm(self._encode(obs), before)
        latents = latents.flatten(0, 1)
        self._values = self.vf_model(latents)
        features: dict[str, torch.Tensor] = self.outputs(self.policy(latents))
        if self.has_mask:
            features[ACTION_MASK] = obs[ACTION_MASK].flatten(0, 1)
        dtype = self.vf_model.weight.dtype  # under autocast states are in half precision
        after = (state.transpose(0, 1).to(dtype) for state in after)
        return features, dict(zip(keys, after, strict=True))

    def _encode(self, obs: torch.Tensor | TensorDict) -> torch.Tensor:
        """Vectors `[B, T, D]` of observations `[B, T, …]`."""
        dtype = self.vf_model.weight.dtype
        if self.encoder is None:
            assert isinstance(obs, torch.Tensor)
            return obs.flatten(2).to(dtype)
        rows = self.encoder(obs.flatten(0, 1)).to(dtype)
        return cast(torch.Tensor, rows.unflatten(0, (-1, obs.shape[1])))


class DefaultDiscreteRecurrentModel(DiscreteActions, DefaultRecurrentModel):
    """Default recurrent model for discrete actions; see `DefaultDiscreteModel`.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        action_spec: Spec of one action.
        **config: See `DefaultRecurrentModel`.

    """


class DefaultContinuousRecurrentModel(ContinuousActions, DefaultRecurrentModel):
    """Default recurrent model for continuous actions; see `DefaultContinuousModel`.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        action_spec: Spec of one action.
        log_std_init: Natural logarithm of the initial standard deviation.
        state_dependent_std: Whether the standard deviation depends on the observations.
        **config: See `DefaultRecurrentModel`.

    """
