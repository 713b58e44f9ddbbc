"""Default feedforward models, for the specs that environments have."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import TensorSpec

from ..data import DataKeys
from ..nn import MLP, Head, get_activation
from ..specs import leaf_specs
from ._base import KeepsValues
from ._chains import as_vectors, is_chain, is_own, is_watched
from ._encoders import ACTION_MASK, ObservationEncoder, encoder_of, image_layout
from ._feedforward import Model
from ._outputs import Gaussian, Logits, Outputs, is_continuous, is_discrete


def default_model_cls(observation_spec: TensorSpec, action_spec: TensorSpec, /) -> type[Model]:
    """Default model that fits the specs.

    Raises:
        TypeError: Where none does.

    """
    if is_discrete(action_spec):
        return DefaultDiscreteModel
    if is_continuous(action_spec):
        return DefaultContinuousModel
    raise TypeError(no_default(action_spec))


def no_default(action_spec: TensorSpec) -> str:
    """What to say where no default model fits the actions."""
    return (
        f"There is no default model for actions of {type(action_spec).__name__} "
        f"{list(action_spec.shape)} ({action_spec.dtype}): set `model_cls`."
    )


class DefaultModel(KeepsValues, Model):
    """Separate perceptrons for policy and values, behind one encoder of the observation.

    Numbers are flattened, choices one-hot encoded (embedded where there are more than 1,024
    options), images go through convolutions, and of a mapping each leaf is encoded by itself; a
    leaf `"action_mask"` excludes options instead. Weights are orthogonal with gain √2, the policy's
    head with gain 0.01 so that training starts near the uniform (or zero-mean) policy, the value
    head with gain 1; biases are zero.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        action_spec: Spec of one action.
        outputs: What the policy's outputs are to the action distribution.
        hiddens: Widths of the hidden layers; None for (256, 256), or for none behind an image.
        activation_fn: Name of their activation.
        bias: Whether hidden layers have biases.
        num_values: Value columns, one a reward stream.

    """

    #: From observations to vectors; None where they are vectors of numbers already.
    encoder: None | ObservationEncoder

    #: From vectors `[B, D]` to what the action distribution needs.
    policy: nn.Sequential

    #: From vectors `[B, D]` to values `[B, K]`.
    vf_model: nn.Sequential

    def __init__(
        self,
        observation_spec: TensorSpec,
        action_spec: TensorSpec,
        /,
        *,
        outputs: Outputs,
        hiddens: None | Sequence[int] = None,
        activation_fn: str = "relu",
        bias: bool = True,
        num_values: int = 1,
    ) -> None:
        if hiddens is None:
            hiddens = () if image_layout(observation_spec) else (256, 256)
        super().__init__(
            observation_spec,
            action_spec,
            hiddens=list(hiddens),
            activation_fn=activation_fn,
            bias=bias,
            num_values=num_values,
            **outputs.config,
        )
        self.has_mask = has_mask(observation_spec, action_spec, outputs)
        self.encoder, width = encoder_of(observation_spec)

        def perceptron(columns: int, gain: float) -> nn.Sequential:
            hidden: list[nn.Module] = []
            if hiddens:
                perceptron = MLP(width, hiddens, activation_fn=activation_fn, bias=bias)
                hidden = [*perceptron, get_activation(activation_fn)]
                initialize(perceptron, 2**0.5)
            head = Head(hiddens[-1] if hiddens else width, columns)
            initialize(head, gain)
            # One flat chain of layers: every nested call costs a microsecond a step.
            return nn.Sequential(*hidden, head)

        self.policy = perceptron(outputs.width, gain=0.01)
        self.vf_model = perceptron(num_values, gain=1.0)
        outputs.prepare(self.policy)
        self.outputs = outputs

    def forward(self, batch: TensorDict, /) -> Mapping[str, torch.Tensor]:
        """Features `[B, …]` for the action distribution."""
        self.forget_values()
        obs = batch[DataKeys.OBS]
        x = as_vectors(obs if self.encoder is None else self.encoder(obs), self._dtype())
        self._values = self.vf_model(x)
        features: dict[str, torch.Tensor] = self.outputs(self.policy(x))
        if self.has_mask:
            features[ACTION_MASK] = obs[ACTION_MASK]
        return features

    def _dtype(self) -> torch.dtype:
        head = self.vf_model[-1]
        assert isinstance(head, nn.Linear)
        return head.weight.dtype

    def are_chains(self) -> bool:
        """Whether all that the model does is what its two networks do, and both are chains."""
        return (
            self.encoder is None
            and not self.has_mask
            and is_own(self, "forward", DefaultModel)
            and is_own(self, "value_function", KeepsValues)
            and self._compiled_call_impl is None
            and not is_watched(self)
            and not is_watched(self.outputs)
            and is_chain(self.policy)
            and is_chain(self.vf_model)
        )


class DefaultDiscreteModel(DefaultModel):
    """Default model for discrete actions: `logits` `[B, …, n]` of `Categorical` actions, `[B, …]`
    of `Binary` ones, and `[B, Σ n]` of others: `MultiCategorical`, one-hot, `Bounded` integers.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        action_spec: Spec of one action.
        **config: See `DefaultModel`.

    """

    def __init__(
        self, observation_spec: TensorSpec, action_spec: TensorSpec, /, **config: Any
    ) -> None:
        super().__init__(observation_spec, action_spec, outputs=Logits(action_spec), **config)


class DefaultContinuousModel(DefaultModel):
    """Default model for continuous actions: `mean` and `log_std`, `[B, …]`.

    The standard deviation is a parameter of its own, independent of the observation; with
    `state_dependent_std` the policy's network gives it.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        action_spec: Spec of one action.
        log_std_init: Natural logarithm of the initial standard deviation.
        state_dependent_std: Whether the standard deviation depends on the observation.
        **config: See `DefaultModel`.

    """

    def __init__(
        self,
        observation_spec: TensorSpec,
        action_spec: TensorSpec,
        /,
        *,
        log_std_init: float = 0.0,
        state_dependent_std: bool = False,
        **config: Any,
    ) -> None:
        outputs = Gaussian(action_spec, log_std_init, state_dependent_std=state_dependent_std)
        super().__init__(observation_spec, action_spec, outputs=outputs, **config)


def has_mask(observation_spec: TensorSpec, action_spec: TensorSpec, outputs: Outputs) -> bool:
    """Whether observations say which options of an action are allowed.

    Raises:
        ValueError: Where what they say does not fit the actions.

    """
    mask = leaf_specs(observation_spec).get((ACTION_MASK,))
    if mask is not None and mask.shape.numel() != outputs.maskable:
        rule = f"one element an option, {outputs.maskable}" if outputs.maskable else "choices only"
        raise ValueError(
            f"`{ACTION_MASK}` is for {rule}; got {list(mask.shape)} for actions of "
            f"{type(action_spec).__name__} {list(action_spec.shape)}. Rename that leaf, change its "
            "shape, or set `model_cls`"
        )
    return mask is not None


def initialize(module: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
