"""Default recurrent models: an encoder of the observation, then an LSTM."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Composite, TensorSpec, Unbounded

from ..data import DataKeys
from ..env.images import ImageLayouts
from ._defaults import (
    ContinuousActions,
    DiscreteActions,
    KeepsValues,
    SeesParts,
    choose_default,
    has_mask,
)
from ._encoders import ACTION_MASK, ObservationEncoder
from ._layers import HIDDEN_GAIN, check_widths, gains_of, initialize, listed, perceptron
from ._outputs import Outputs
from ._recurrent import RecurrentModel

#: Keys of the states of the LSTM, and of that of the values if they have one of their own.
STATES: tuple[str, ...] = (DataKeys.HIDDEN_STATES, DataKeys.CELL_STATES)
CRITIC_STATES = tuple(f"critic_{key}" for key in STATES)


def default_recurrent_model_cls(
    observation_spec: TensorSpec, action_spec: TensorSpec, /
) -> type[RecurrentModel]:
    """Default recurrent model for the specs.

    Raises:
        TypeError: If there is none.

    """
    kinds = DefaultDiscreteRecurrentModel, DefaultContinuousRecurrentModel
    return choose_default(action_spec, *kinds)


class DefaultRecurrentModel(KeepsValues, SeesParts, RecurrentModel):
    """An encoder, an LSTM, and a perceptron each for policy and values, by default a linear layer.

    Observations are encoded as by `DefaultModel`. Weights are orthogonal, those of the policy's
    head with gain 0.01 so that training starts near the uniform (or zero-mean) policy; biases are
    zero.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        action_spec: Spec of one action.
        outputs: Conversion of the policy head's outputs to features of the action distribution.
        hidden_size: Width of the LSTM.
        num_layers: Layers of the LSTM.
        bias: Whether LSTM, hidden layers and value head have biases.
        hiddens: Widths of hidden layers between the LSTM and the heads.
        vf_hiddens: Those before the value head; None for `hiddens`.
        activation_fn: Name of their activation.
        shared: Whether policy and values share the LSTM; None if they see the same.
        ortho_init: Whether weights are orthogonal; else PyTorch initialises them.
        hidden_gain: Gain of hidden layers.
        policy_gain: Gain of the policy's head.
        value_gain: Gain of the value head.
        actor_obs: Keys of the observation that the policy sees; None for all.
        critic_obs: Keys of the observation that the values see; None for all.
        image_layout: How images lie in memory; see `DefaultModel`.
        num_values: Value columns, one per reward stream.

    """

    #: From observations to the policy's vectors; None if observations are vectors of numbers.
    encoder: None | ObservationEncoder

    #: From observations to the values' vectors; None if these are the policy's.
    critic_encoder: None | ObservationEncoder

    #: From sequences of vectors to sequences of latents.
    lstm: nn.LSTM

    #: The same for values; None if these share the LSTM.
    critic_lstm: None | nn.LSTM

    #: From latents to outputs for the action distribution.
    policy: nn.Sequential

    #: From latents to values.
    vf_model: nn.Module

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
        hiddens: Sequence[int] = (),
        vf_hiddens: None | Sequence[int] = None,
        activation_fn: str = "relu",
        shared: None | bool = None,
        ortho_init: bool = True,
        hidden_gain: float = HIDDEN_GAIN,
        policy_gain: float = 0.01,
        value_gain: float = 1.0,
        actor_obs: None | Sequence[str] = None,
        critic_obs: None | Sequence[str] = None,
        image_layout: ImageLayouts = None,
        num_values: int = 1,
    ) -> None:
        below = hiddens if vf_hiddens is None else vf_hiddens
        check_widths("hiddens", hiddens)
        check_widths("vf_hiddens", below)
        gains = {"hidden_gain": hidden_gain, "policy_gain": policy_gain, "value_gain": value_gain}
        hidden, policy, value = gains_of(ortho_init=ortho_init, **gains)
        super().__init__(
            observation_spec,
            action_spec,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bias=bias,
            **listed(hiddens=hiddens, vf_hiddens=vf_hiddens),
            activation_fn=activation_fn,
            shared=shared,
            ortho_init=ortho_init,
            **gains,
            **listed(actor_obs=actor_obs, critic_obs=critic_obs),
            image_layout=image_layout,
            num_values=num_values,
            **outputs.config,
        )
        self.has_mask = has_mask(observation_spec, action_spec, outputs)
        width, vf_width = self._make_encoders(observation_spec, actor_obs, critic_obs, image_layout)
        if shared and self.critic_encoder is not None:
            raise ValueError(
                "`shared` needs policy and values to see the same; got different `actor_obs` and "
                "`critic_obs`. Drop it"
            )
        self._make_lstms(width, vf_width, separate=shared is False)
        layers: dict[str, Any] = {"activation_fn": activation_fn, "bias": bias}
        layers["gains"] = (None, None)
        networks = [
            perceptron(hidden_size, hiddens, outputs.width, **layers),
            perceptron(hidden_size, below, num_values, **layers, head_bias=bias),
        ]
        for network, gain in zip(networks, (policy, value), strict=True):
            initialize(nn.Sequential(*network[:-1]), hidden)
            initialize(network[-1], gain)
        self.policy = nn.Sequential(*networks[0])
        # Older files have the weights of a head without hidden layers under this name.
        self.vf_model = nn.Sequential(*networks[1]) if below else networks[1][0]
        outputs.prepare(self.policy)
        self.outputs = outputs

    @property
    def _head(self) -> nn.Linear:
        return cast(nn.Linear, self.policy[-1])

    def _make_lstms(self, width: int, vf_width: int, *, separate: bool) -> None:
        """Make the LSTM, that of the values if it is separate, and the spec of their states."""
        size, layers = self.config["hidden_size"], self.config["num_layers"]
        state = Unbounded(torch.Size([layers, size]), device=self.action_spec.device)
        self.lstm, self.critic_lstm = self._lstm(width), None
        keys = STATES
        if separate or self.critic_encoder is not None:
            self.critic_lstm = self._lstm(vf_width)
            keys, self.critic_states = (*STATES, *CRITIC_STATES), CRITIC_STATES
        specs = {key: state.clone() for key in keys}
        self.state_spec = Composite(specs, device=self.action_spec.device)

    def _lstm(self, width: int) -> nn.LSTM:
        size, layers, bias = (self.config[key] for key in ("hidden_size", "num_layers", "bias"))
        lstm = nn.LSTM(width, size, layers, bias=bias, batch_first=True)
        if self.config["ortho_init"]:
            for name, weights in lstm.named_parameters():
                nn.init.orthogonal_(weights) if "weight" in name else nn.init.zeros_(weights)
        return lstm

    def forward(
        self, batch: TensorDict, states: TensorDict, /
    ) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
        """Features `[B·T, …]` for the action distribution, and the next states `[B, …]`."""
        self.forget_values()
        obs = batch[DataKeys.OBS]
        vectors = self._encode(obs, self.encoder)
        latents, after = self._run(self.lstm, vectors, states, STATES)
        seen = latents
        if self.critic_lstm is not None:
            if self.critic_encoder is not None:
                vectors = self._encode(obs, self.critic_encoder)
            seen, others = self._run(self.critic_lstm, vectors, states, CRITIC_STATES)
            after |= others
        self._values = self.vf_model(seen)
        features: dict[str, torch.Tensor] = self.outputs(self.policy(latents))
        if self.has_mask:
            features[ACTION_MASK] = obs[ACTION_MASK].flatten(0, 1)
        return features, after

    def _run(
        self, lstm: nn.LSTM, vectors: torch.Tensor, states: TensorDict, keys: tuple[str, ...]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Latents `[B·T, D]`, and the states `[B, …]` after them by their keys."""
        before = tuple(states[key][:, 0].transpose(0, 1).contiguous() for key in keys)
        latents, after = lstm(vectors, before)
        dtype = self._head.weight.dtype  # under autocast states are in half precision
        after = (state.transpose(0, 1).to(dtype) for state in after)
        return latents.flatten(0, 1), dict(zip(keys, after, strict=True))

    def _encode(
        self, obs: torch.Tensor | TensorDict, encoder: None | ObservationEncoder
    ) -> torch.Tensor:
        """Vectors `[B, T, D]` of observations `[B, T, …]`."""
        dtype = self._head.weight.dtype
        if encoder is None:
            assert isinstance(obs, torch.Tensor)
            return obs.flatten(2).to(dtype)
        rows = encoder(obs.flatten(0, 1)).to(dtype)
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
        use_sde: Whether noise is a function of the state (gSDE, arXiv 2005.05719).
        sde_sample_freq: Env steps between draws of that function; -1 for once a rollout.
        full_std: Whether the weights of gSDE have a standard deviation for each action.
        **config: See `DefaultRecurrentModel`.

    """
