"""Default models, for the specs that environments have."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    TensorSpec,
    Unbounded,
)

from ..data import DataKeys
from ..nn import MLP, Head, get_activation
from ._feedforward import Model
from ._recurrent import RecurrentModel


def default_model_cls(observation_spec: TensorSpec, action_spec: TensorSpec, /) -> type[Model]:
    """Default model that fits the specs.

    Raises:
        TypeError: Where none does.

    """
    if isinstance(observation_spec, Composite):
        raise TypeError(
            "There is no default model for mappings of observations "
            f"({', '.join(map(str, observation_spec.keys()))}): set `model_cls`."
        )
    if isinstance(action_spec, Categorical | MultiCategorical) and not isinstance(
        action_spec, Binary
    ):
        return DefaultDiscreteModel
    if isinstance(action_spec, Unbounded | Bounded) and action_spec.dtype.is_floating_point:
        return DefaultContinuousModel
    raise TypeError(
        f"There is no default model for actions of {type(action_spec).__name__} "
        f"{list(action_spec.shape)} ({action_spec.dtype}): set `model_cls`."
    )


def default_recurrent_model_cls(
    observation_spec: TensorSpec, action_spec: TensorSpec, /
) -> type[RecurrentModel]:
    """Default recurrent model that fits the specs.

    Raises:
        TypeError: Where none does.

    """
    raise TypeError("There is no default recurrent model yet: set `model_cls`.")


class DefaultModel(Model):
    """Separate perceptrons for policy and values; observations are flattened.

    Weights are orthogonal with gain √2, the policy's head with gain 0.01 so that training starts
    near the uniform (or zero-mean) policy, the value head with gain 1; biases are zero.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        action_spec: Spec of one action.
        hiddens: Widths of the hidden layers.
        activation_fn: Name of their activation.
        bias: Whether hidden layers have biases.
        num_values: Value columns, one a reward stream.

    """

    #: From observations `[B, D]` to what the action distribution needs.
    policy: nn.Sequential

    #: From observations `[B, D]` to values `[B, K]`.
    vf_model: nn.Sequential

    def __init__(
        self,
        observation_spec: TensorSpec,
        action_spec: TensorSpec,
        /,
        *,
        hiddens: Sequence[int] = (256, 256),
        activation_fn: str = "relu",
        bias: bool = True,
        num_values: int = 1,
    ) -> None:
        super().__init__(
            observation_spec,
            action_spec,
            hiddens=list(hiddens),
            activation_fn=activation_fn,
            bias=bias,
            num_values=num_values,
        )
        width = observation_spec.shape.numel()

        def perceptron(outputs: int, gain: float) -> nn.Sequential:
            hidden = MLP(width, hiddens, activation_fn=activation_fn, bias=bias)
            head = Head(hiddens[-1], outputs)
            _initialize(hidden, 2**0.5)
            _initialize(head, gain)
            # One flat chain of layers: every nested call costs a microsecond a step.
            return nn.Sequential(*hidden, get_activation(activation_fn), head)

        self.policy = perceptron(self.num_policy_outputs(action_spec), gain=0.01)
        self.vf_model = perceptron(num_values, gain=1.0)
        self._values: torch.Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The model without the values of its last observations, for copies and pickles."""
        return {**self.__dict__, "_values": None}

    @staticmethod
    @abstractmethod
    def num_policy_outputs(action_spec: TensorSpec, /) -> int:
        """Width of the policy's head."""

    @abstractmethod
    def features(self, outputs: torch.Tensor, /) -> dict[str, torch.Tensor]:
        """Features of the action distribution, made of the policy's outputs `[B, W]`."""

    def forward(self, batch: TensorDict, /) -> Mapping[str, torch.Tensor]:
        """Features `[B, …]` for the action distribution."""
        obs = batch[DataKeys.OBS].flatten(1)
        dtype = self.vf_model[-1].weight.dtype
        obs = obs if obs.dtype == dtype else obs.to(dtype)
        self._values = self.vf_model(obs)
        return self.features(self.policy(obs))

    def value_function(self) -> torch.Tensor:
        """Values `[B, K]` of the observations of the last `forward`."""
        assert self._values is not None, "`forward` comes before `value_function`"
        return self._values


class DefaultDiscreteModel(DefaultModel):
    """Default model for discrete actions: `logits` `[B, D, n]`, or `[B, Σ nvec]` where choices
    differ in their number of options.
    """

    @staticmethod
    def num_policy_outputs(action_spec: TensorSpec, /) -> int:
        """One logit an option."""
        if isinstance(action_spec, MultiCategorical):
            return int(action_spec.nvec.sum())
        assert isinstance(action_spec, Categorical)
        return int(action_spec.shape.numel() * action_spec.space.n)

    def features(self, outputs: torch.Tensor, /) -> dict[str, torch.Tensor]:
        """Logits."""
        if isinstance(self.action_spec, MultiCategorical):
            return {"logits": outputs}
        return {"logits": outputs.unflatten(-1, (*self.action_spec.shape, -1))}


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

    #: Natural logarithm of the standard deviations; None where they depend on the observation.
    log_std: None | nn.Parameter

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
        super().__init__(observation_spec, action_spec, **config)
        self.config |= {"log_std_init": log_std_init, "state_dependent_std": state_dependent_std}
        if state_dependent_std:
            _add_outputs(self.policy, action_spec.shape.numel(), bias=log_std_init)
            self.register_parameter("log_std", None)
        else:
            self.log_std = nn.Parameter(torch.full(action_spec.shape, log_std_init))

    @staticmethod
    def num_policy_outputs(action_spec: TensorSpec, /) -> int:
        """One mean an action dimension."""
        return int(action_spec.shape.numel())

    def features(self, outputs: torch.Tensor, /) -> dict[str, torch.Tensor]:
        """Means and logarithms of the standard deviations."""
        if self.log_std is None:
            outputs, log_std = outputs.chunk(2, -1)
            shape = (-1, *self.action_spec.shape)
            return {"mean": outputs.reshape(shape), "log_std": log_std.reshape(shape)}
        mean = outputs.reshape(-1, *self.action_spec.shape)
        return {"mean": mean, "log_std": self.log_std.expand_as(mean)}


def _add_outputs(policy: nn.Sequential, outputs: int, *, bias: float) -> None:
    """Widen the head of `policy` by `outputs` that start at `bias`."""
    head = policy[-1]
    assert isinstance(head, nn.Linear)
    wide = Head(head.in_features, head.out_features + outputs)
    _initialize(wide, 0.01)
    with torch.no_grad():
        wide.weight[: head.out_features] = head.weight
        wide.bias[head.out_features :] = bias
    policy[-1] = wide


def _initialize(module: nn.Module, gain: float) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
