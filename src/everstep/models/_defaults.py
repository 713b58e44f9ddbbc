"""Default feedforward models, for the specs that environments have."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

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
from ..env.agents import ALL_AGENTS
from ..env.images import ImageLayouts, check_layouts, is_image
from ..env.specs import Path, leaf_specs, options
from ..nn import Head
from ..views import ViewRequirement
from ._base import GenericModelBase
from ._encoders import ACTION_MASK, ObservationEncoder, encoder_of
from ._feedforward import Model
from ._layers import (
    HIDDEN_GAIN,
    check_widths,
    gains_of,
    listed,
    paths_of,
    perceptron,
    seen_by,
    stacked,
)
from ._outputs import Exploration, NoisyHead, Outputs, StateDependentNoise

_Cls = TypeVar("_Cls", bound=type[GenericModelBase[..., Any]])


class KeepsValues(nn.Module):
    """A model that stores the values of its last `forward`."""

    _values: None | torch.Tensor = None

    def __getstate__(self) -> dict[str, Any]:
        """State for copies and pickles, without those values."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {**state, "_values": None}

    def forget_values(self) -> None:
        """Drop the values of the last `forward` and their autograd graph.

        The graph is bound to a stream of a GPU, and recording uses another one.
        """
        self._values = None

    def value_function(self) -> torch.Tensor:
        """Values `[B, K]` of the observations of the last `forward`."""
        assert self._values is not None, "call `forward` before `value_function`"
        return self._values


class Logits(Outputs):
    """One output per option: `logits` `[B, *shape, n]` for `Categorical` actions, `[B, *shape]` for
    `Binary` ones, and `[B, Σ n]`, one choice after the other, for all others.
    """

    def __init__(self, action_spec: TensorSpec) -> None:
        self.logits: tuple[int, ...]
        counts = options(action_spec)
        if isinstance(action_spec, Binary):
            super().__init__(action_spec, len(counts))
            self.logits = tuple(action_spec.shape)
        else:
            super().__init__(action_spec, sum(counts))
            alike = isinstance(action_spec, Categorical)
            alike = alike and not isinstance(action_spec, MultiCategorical)
            self.logits = (*action_spec.shape, counts[0]) if alike else (self.width,)
        self.maskable = self.width

    def forward(self, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits."""
        return {"logits": outputs.unflatten(-1, self.logits)}


class Gaussian(Outputs):
    """`mean` and `log_std`, `[B, *shape]`.

    The standard deviation is a parameter of its own, independent of the observation; with
    `state_dependent_std` the policy's network gives it.

    Args:
        action_spec: Spec of one action.
        log_std_init: Natural logarithm of the initial standard deviation.
        state_dependent_std: Whether the standard deviation depends on the observation.

    """

    #: Natural logarithm of the standard deviations; None where they depend on the observation.
    log_std: None | nn.Parameter

    def __init__(
        self, action_spec: TensorSpec, log_std_init: float, *, state_dependent_std: bool
    ) -> None:
        super().__init__(action_spec, action_spec.shape.numel())
        log_std_init = float(log_std_init)  # files write 0 and -1
        self.config = {"log_std_init": log_std_init, "state_dependent_std": state_dependent_std}
        log_std = nn.Parameter(torch.full(action_spec.shape, log_std_init))
        self.register_parameter("log_std", None if state_dependent_std else log_std)
        self.are_views = not state_dependent_std

    def prepare(self, network: nn.Sequential) -> None:
        """Widen the last layer if it gives standard deviations, too."""
        if self.log_std is not None:
            return
        head = network[-1]
        assert isinstance(head, nn.Linear)
        wide = Head(head.in_features, 2 * head.out_features)
        nn.init.orthogonal_(wide.weight, 0.01)
        nn.init.zeros_(wide.bias)
        with torch.no_grad():
            wide.weight[: head.out_features] = head.weight
            wide.bias[head.out_features :] = self.config["log_std_init"]
        network[-1] = wide

    def forward(self, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Means and logarithms of the standard deviations."""
        shape = (-1, *self.shape)
        if self.log_std is None:
            mean, log_std = outputs.chunk(2, -1)
            return {"mean": mean.reshape(shape), "log_std": log_std.reshape(shape)}
        mean = outputs.reshape(shape)
        return {"mean": mean, "log_std": self.log_std.expand_as(mean)}


def default_model_cls(observation_spec: TensorSpec, action_spec: TensorSpec, /) -> type[Model]:
    """Default model for the specs.

    Raises:
        TypeError: If there is none.

    """
    return choose_default(action_spec, DefaultDiscreteModel, DefaultContinuousModel)


def choose_default(action_spec: TensorSpec, discrete: _Cls, continuous: _Cls) -> _Cls:
    """The model class for actions that are choices, or the one for numbers."""
    if options(action_spec):
        return discrete
    if isinstance(action_spec, Unbounded | Bounded) and action_spec.dtype.is_floating_point:
        return continuous
    raise TypeError(
        f"There is no default model for actions of {type(action_spec).__name__} "
        f"{list(action_spec.shape)} ({action_spec.dtype}): set `model_cls`."
    )


class SeesParts(nn.Module):
    """A model whose policy and values may see different parts of the observation."""

    actor_paths: None | tuple[Path, ...]
    encoder: None | ObservationEncoder
    critic_encoder: None | ObservationEncoder
    has_mask: bool

    def _make_encoders(
        self,
        observation_spec: TensorSpec,
        actor_obs: None | Sequence[str],
        critic_obs: None | Sequence[str],
        image_layout: ImageLayouts,
    ) -> tuple[int, int]:
        """Make the encoders; the widths of the vectors of policy and values."""
        check_layouts(image_layout, observation_spec)
        if actor_obs is None and isinstance(observation_spec, Composite):
            keys = [str(key) for key in observation_spec.keys()]  # noqa: SIM118  as everywhere
            actor_obs = [key for key in keys if key != ALL_AGENTS] if ALL_AGENTS in keys else None
        actor = seen_by("actor_obs", actor_obs, observation_spec)
        critic = seen_by("critic_obs", critic_obs, observation_spec)
        if actor_obs is not None:
            mask = [(ACTION_MASK,)] if self.has_mask else []
            self.actor_paths = tuple(dict.fromkeys([*paths_of(actor), *mask]))
        self.encoder, width = encoder_of(actor, image_layout)
        self.critic_encoder = None
        if paths_of(actor) == paths_of(critic):
            return width, width
        self.critic_encoder, vf_width = encoder_of(critic, image_layout)
        return width, vf_width


class DefaultModel(KeepsValues, SeesParts, Model):
    """Separate perceptrons for policy and values, behind one encoder of the observation.

    Numbers are flattened, choices are one-hot encoded (embedded if there are more than 1,024
    options), and images go through convolutions. Each leaf of a mapping has an encoder, with two
    exceptions: a leaf `"action_mask"` excludes options instead, and only the values see a leaf
    `"all_agents"`, unless `actor_obs` has it. If `actor_obs` and `critic_obs` differ, policy and
    values have an encoder each.

    Weights are orthogonal with gain √2, but 1 in the value head, and 0.01 in the policy's head so
    that training starts near the uniform (or zero-mean) policy. Biases are zero.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        action_spec: Spec of one action.
        outputs: Maps the policy network's outputs to features of the action distribution.
        hiddens: Widths of the hidden layers; None for (256, 256), or for none behind an image.
        vf_hiddens: Those of the values' perceptron; None for `hiddens`.
        activation_fn: Name of their activation.
        bias: Whether hidden layers have biases.
        shared: Whether policy and values share the hidden layers: one perceptron, two heads.
        ortho_init: Whether weights are orthogonal; else PyTorch initialises them.
        hidden_gain: Gain of hidden layers.
        policy_gain: Gain of the policy's head.
        value_gain: Gain of the value head.
        actor_obs: Keys of the observation that the policy sees; None for all.
        critic_obs: Keys of the observation that the values see; None for all.
        frame_stack: Observations that the model sees, the present one and those before it, zeros
            before an episode's first. They are stored once, not once for each stack.
        image_layout: How images lie in memory, `"channels_first"` or `"channels_last"`, or `"flat"`
            for numbers that are no image; or a mapping of leaves to these. None: see `image_layout`
            of `everstep.env.images`.
        num_values: Value columns, one a reward stream.

    """

    #: From observations to the policy's vectors; None if they are vectors of numbers already.
    encoder: None | ObservationEncoder

    #: From observations to the values' vectors; None if these are the policy's.
    critic_encoder: None | ObservationEncoder

    #: From vectors `[B, D]` to those of both heads; None if nothing is shared.
    trunk: None | nn.Sequential

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
        vf_hiddens: None | Sequence[int] = None,
        activation_fn: str = "relu",
        bias: bool = True,
        shared: bool = False,
        ortho_init: bool = True,
        hidden_gain: float = HIDDEN_GAIN,
        policy_gain: float = 0.01,
        value_gain: float = 1.0,
        actor_obs: None | Sequence[str] = None,
        critic_obs: None | Sequence[str] = None,
        frame_stack: int = 1,
        image_layout: ImageLayouts = None,
        num_values: int = 1,
    ) -> None:
        if hiddens is None:
            hiddens = () if is_image(observation_spec) and image_layout != "flat" else (256, 256)
        seen = stacked(observation_spec, frame_stack)
        check_widths("hiddens", hiddens)
        check_widths("vf_hiddens", hiddens if vf_hiddens is None else vf_hiddens)
        gains = {"hidden_gain": hidden_gain, "policy_gain": policy_gain, "value_gain": value_gain}
        hidden, policy, value = gains_of(ortho_init=ortho_init, **gains)
        super().__init__(
            observation_spec,
            action_spec,
            **listed(hiddens=hiddens, vf_hiddens=vf_hiddens),
            activation_fn=activation_fn,
            bias=bias,
            shared=shared,
            ortho_init=ortho_init,
            **gains,
            **listed(actor_obs=actor_obs, critic_obs=critic_obs),
            frame_stack=frame_stack,
            image_layout=image_layout,
            num_values=num_values,
            **outputs.config,
        )
        if frame_stack > 1:
            self.view_requirements = {DataKeys.OBS: ViewRequirement(shift=frame_stack - 1)}
        self.has_mask = has_mask(observation_spec, action_spec, outputs)
        width, vf_width = self._make_encoders(seen, actor_obs, critic_obs, image_layout)
        layers: dict[str, Any] = {"activation_fn": activation_fn, "bias": bias}
        self.trunk = None
        if shared:
            if vf_hiddens is not None or self.critic_encoder is not None:
                raise ValueError(
                    "`shared` needs policy and values to have the same layers and observations; "
                    "got `vf_hiddens`, or different `actor_obs` and `critic_obs`. Drop one"
                )
            trunk = perceptron(width, hiddens, 0, **layers, gains=(hidden, None))
            self.trunk = nn.Sequential(*trunk)
            width = vf_width = hiddens[-1] if hiddens else width
            hiddens = ()
        below = hiddens if vf_hiddens is None else vf_hiddens
        # Flat Sequentials: every nested call costs a microsecond a vector step.
        self.policy = nn.Sequential(
            *perceptron(width, hiddens, outputs.width, **layers, gains=(hidden, policy))
        )
        self.vf_model = nn.Sequential(
            *perceptron(vf_width, below, num_values, **layers, gains=(hidden, value))
        )
        outputs.prepare(self.policy)
        self.outputs = outputs

    def forward(self, batch: TensorDict, /) -> Mapping[str, torch.Tensor]:
        """Features `[B, …]` for the action distribution."""
        self.forget_values()
        obs = batch[DataKeys.OBS]
        if not isinstance(obs, torch.Tensor) and self.config["frame_stack"] > 1:
            obs = obs[DataKeys.INPUTS]
        x = obs.flatten(1) if self.encoder is None else self.encoder(obs)
        x = x.to(self.vf_model[-1].weight.dtype)
        if self.trunk is not None:
            x = self.trunk(x)
        seen = x if self.critic_encoder is None else self.critic_encoder(obs).to(x.dtype)
        self._values = self.vf_model(seen)
        features: dict[str, torch.Tensor] = self.outputs(self.policy(x))
        if self.has_mask:
            features[ACTION_MASK] = obs[ACTION_MASK]
        return features


class DiscreteActions(nn.Module):
    """Mixin of default models that gives them the outputs of discrete actions."""

    def __init__(
        self, observation_spec: TensorSpec, action_spec: TensorSpec, /, **config: Any
    ) -> None:
        super().__init__(observation_spec, action_spec, outputs=Logits(action_spec), **config)


class ContinuousActions(nn.Module):
    """Mixin of default models that gives them the outputs of continuous actions."""

    exploration: None | Exploration
    policy: nn.Sequential

    def __init__(
        self,
        observation_spec: TensorSpec,
        action_spec: TensorSpec,
        /,
        *,
        log_std_init: float = 0.0,
        state_dependent_std: bool = False,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        full_std: bool = True,
        **config: Any,
    ) -> None:
        if use_sde and state_dependent_std:
            raise ValueError("`use_sde` excludes `state_dependent_std`: drop one of them")
        if not use_sde and (sde_sample_freq != -1 or not full_std):
            raise ValueError(
                "`sde_sample_freq` and `full_std` are options of `use_sde`, which is off: set it, "
                "or drop them"
            )
        outputs: Outputs = Gaussian(
            action_spec, log_std_init, state_dependent_std=state_dependent_std
        )
        if use_sde:
            options: Any = {"sde_sample_freq": sde_sample_freq, "full_std": full_std}
            outputs = StateDependentNoise(action_spec, log_std_init, **options)
        super().__init__(observation_spec, action_spec, outputs=outputs, **config)
        if isinstance(outputs, StateDependentNoise):
            self.exploration = Exploration(cast(NoisyHead, self.policy[-1]), sde_sample_freq)


class DefaultDiscreteModel(DiscreteActions, DefaultModel):
    """Default model for discrete actions: `logits` `[B, …, n]` of `Categorical` actions, `[B, …]`
    of `Binary` ones, and `[B, Σ n]` of others: `MultiCategorical`, one-hot, `Bounded` integers.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        action_spec: Spec of one action.
        **config: See `DefaultModel`.

    """


class DefaultContinuousModel(ContinuousActions, DefaultModel):
    """Default model for continuous actions: `mean` and `log_std`, `[B, …]`.

    The standard deviation is a parameter of its own, independent of the observation; with
    `state_dependent_std` the policy's network gives it.

    Args:
        observation_spec: Spec of one observation, any shape and dtype.
        action_spec: Spec of one action.
        log_std_init: Natural logarithm of the initial standard deviation.
        state_dependent_std: Whether the standard deviation depends on the observation.
        use_sde: Whether noise is a function of the state (gSDE, arXiv 2005.05719).
        sde_sample_freq: Env steps between draws of that function; -1 for once a rollout.
        full_std: Whether the weights of gSDE have a standard deviation for each action.
        **config: See `DefaultModel`.

    """


def has_mask(observation_spec: TensorSpec, action_spec: TensorSpec, outputs: Outputs) -> bool:
    """Whether observations have a mask of the allowed options of an action.

    Raises:
        ValueError: If the mask does not fit the actions.

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
