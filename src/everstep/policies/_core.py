"""Core of policies: acting in rollouts and evaluating minibatches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import FrozenInstanceError, replace
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Composite, TensorSpec
from typing_extensions import Self

from ..core.normalizers import (
    MomentsOf,
    ObservationNormalizer,
    RunningMoments,
    ValueNormalizer,
)
from ..core.rollouts import Minibatch, Rollout, Sequences
from ..data import DataKeys, Device
from ..distributions import Distribution
from ..env.formats import EnvFormat, format_of, unit_problem
from ..env.limits import limits_of
from ..env.specs import EMPTY, Leaves, Structure, described
from ..errors import ConfigError
from ..models import Exploration, GenericModelBase
from ._models import make_model

_Model = TypeVar("_Model", bound=GenericModelBase[..., Any])


_REBUILD = "build a new algorithm with `{}=…`"

#: What to do instead of replacing a part of a policy that is trained.
_WIRED = {
    "critic": _REBUILD.format("bonuses"),
    "distribution_cls": _REBUILD.format("distribution_cls"),
    "dtype": "call `torch.set_default_dtype` before the algorithm is built",
    "history": _REBUILD.format("model_cls"),
    "memory": _REBUILD.format("model_cls"),
    "model": "call `model.load_state_dict(…)`, or build a new algorithm with `model=…`",
    "normalizer": "call `normalizer.load_state_dict(…)`, or set `normalize_observations`",
    "seq_len": _REBUILD.format("seq_len"),
    "value_normalizer": "call `value_normalizer.load_state_dict(…)`, or set `normalize_values`",
}


class Sample(NamedTuple):
    """Actions of one vector step, with what is stored beside them."""

    #: Actions `[N, …]` as they were sampled; these are stored and learned from.
    latents: Leaves
    #: Actions `[N, …]` as the environment executes them.
    actions: Leaves
    #: Log-probabilities `[N, 1]`.
    logp: torch.Tensor
    #: Values `[N, K]`.
    values: torch.Tensor
    #: Recurrent states `[N, …]` after the observation, not reset where an episode ends.
    states: Leaves


class PolicyCore(ABC, Generic[_Model]):
    """A model and an action distribution, and their interface to a rollout.

    Algorithms use every kind of policy through this interface. A kind defines the past observations
    it sees (`history`), its recurrent state (`memory`, `init_states`, `next_states`), the sequences
    of a rollout (`seq_len`, `sequences`) and the evaluation of a minibatch (`evaluate`).

    Args:
        observation_spec: Spec of one observation.
        action_spec: Spec of one action.
        model: Model instance. Excludes `model_cls`.
        model_cls: Model class, or function of (observation spec, action spec, **model_config).
        model_config: Keyword arguments of the model class.
        distribution_cls: Action distribution; None for the action spec's default.
        device: Where the model lives.
        normalizer: Normalises observations before the model sees them; None for none.
        autocast: Context that models run in.
        env_format: Observations and actions as the environment's library has them, for `predict`;
            None for what the specs say.

    Raises:
        ConfigError: If `model` and `model_cls` are both given, there is no default, or the model
            has no parameters.

    """

    #: Values of the bonuses' reward streams `[B, …]` from normalised observations, if the model has
    #: none.
    critic: None | nn.Module = None

    #: Past observations in a window, beside the present one.
    history: int = 0

    #: Structure of one environment's recurrent state.
    memory: Structure = EMPTY

    #: Env steps a sequence.
    seq_len: int = 1

    #: Action distribution.
    distribution_cls: type[Distribution]

    #: Observations and actions as the environment's library has them.
    env_format: EnvFormat

    #: Keys of a configuration file that make the environment that it was made for; empty if a file
    #: cannot, or it is not known.
    made_for: Mapping[str, Any] = MappingProxyType({})

    #: Dtype of values and log-probabilities in a rollout: PyTorch's default when this was made.
    dtype: torch.dtype

    #: From observations to features and values.
    model: _Model

    #: Normalises observations before the model sees them.
    normalizer: None | ObservationNormalizer

    #: Moments of returns that the model's values are in units of; a module of the model.
    value_normalizer: None | ValueNormalizer

    #: Whether it has recurrent states, and is trained as a recurrent policy.
    is_recurrent: bool = False

    #: Whether an algorithm trains this policy: other parts hold references to its own then.
    is_wired: bool = False

    #: The normaliser's function in `keep_casts`.
    _frozen: None | Callable[[Leaves], Leaves] = None

    def __init__(
        self,
        observation_spec: TensorSpec,
        action_spec: TensorSpec,
        /,
        *,
        model: None | nn.Module = None,
        model_cls: None | Any = None,
        model_config: None | dict[str, Any] = None,
        distribution_cls: None | type[Distribution] = None,
        device: Device = "cpu",
        normalizer: None | ObservationNormalizer = None,
        autocast: None | AbstractContextManager[Any] = None,
        env_format: None | EnvFormat = None,
    ) -> None:
        if model is not None and model_cls is not None:
            raise ConfigError(
                "`model` and `model_cls` are mutually exclusive; both were given. Drop one."
            )
        self.model_config = model_config or {}
        if model is None:
            try:
                model_cls = model_cls or self._default_model_cls(observation_spec, action_spec)
                distribution_cls = distribution_cls or Distribution.default_dist_cls(action_spec)
            except TypeError as error:
                raise ConfigError(str(error)) from None
            model = make_model(model_cls, observation_spec, action_spec, self.model_config)
        if not any(True for _ in model.parameters()):
            raise ConfigError(
                f"{type(model).__name__} has no parameters, so there is nothing to train: give the "
                "model at least one."
            )
        self.model = model.to(device)  # type: ignore[assignment]
        self.value_normalizer = getattr(self.model, "value_normalizer", None)
        self.dtype = torch.get_default_dtype()
        self.distribution_cls = distribution_cls or Distribution.default_dist_cls(action_spec)
        self.normalizer = None if normalizer is None else normalizer.to(device)
        self._observation = Structure.of(observation_spec)
        self._action = Structure.of(action_spec)
        self._autocast = autocast or nullcontext()
        self._spec = (observation_spec, action_spec)
        self.env_format = env_format or EnvFormat.of(observation_spec, action_spec)
        #: Limits of an observation's leaves, on the CPU.
        self.observation_limits = limits_of(
            observation_spec, torch.device("cpu"), self.env_format.observation
        )
        self._prepare()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; refuses those that the optimizer or the rollout has taken over."""
        if self.is_wired and name in _WIRED and value is not getattr(self, name):
            raise FrozenInstanceError(
                f"`policy.{name}` cannot be set while an algorithm trains the policy: optimizer "
                f"and rollout would go on with the one that they have. Instead, {_WIRED[name]}."
            )
        super().__setattr__(name, value)

    @staticmethod
    @abstractmethod
    def _default_model_cls(observation_spec: TensorSpec, action_spec: TensorSpec, /) -> Any:
        """Default model class of this kind of policy; a TypeError where there is none."""

    @abstractmethod
    def _prepare(self) -> None:
        """Set `history` and `memory`, now that the model is known."""

    def __repr__(self) -> str:
        weights = sum(x.numel() for x in self.model.parameters())
        return (
            f"{type(self).__name__}(observation {described(self.observation_spec)}, action "
            f"{described(self.action_spec)}, {type(self.model).__name__} of {weights:,} "
            f"parameters, {self.distribution_cls.__name__}, device={str(self.device)!r})"
        )

    @property
    def action_spec(self) -> TensorSpec:
        """Spec of one action."""
        return self._spec[1].to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return next(self.model.parameters()).device

    @property
    def is_autocast(self) -> bool:
        """Whether the model runs in half precision."""
        return isinstance(self._autocast, torch.autocast)

    def normalize_values(self, columns: int) -> None:
        """Let the model's values `[B, K]` be in units of returns, as far as they are known."""
        if self.value_normalizer is None:
            self.value_normalizer = ValueNormalizer(columns).to(self.device)
            self.model.value_normalizer = self.value_normalizer

    @property
    def observation_spec(self) -> TensorSpec:
        """Spec of one observation."""
        return self._spec[0].to(self.device)

    @property
    def state_spec(self) -> Composite:
        """Spec of one environment's recurrent state; empty for a feedforward policy."""
        return Composite(device=self.device)

    def to(self, device: Device, /) -> Self:
        """The policy, with its model on `device`."""
        self.model = self.model.to(device)
        if self.normalizer is not None:
            self.normalizer.to(device)
        return self

    def problems_in(self, env: Any) -> list[str]:
        """Why the policy cannot act in an environment of its specs, one message each."""
        there = env.action_spec, format_of(env)
        problem = self.unit_problem("the policy", type(env).__name__, there)
        return [problem] if problem else []

    def unit_problem(self, what: str, where: str, at: tuple[TensorSpec, EnvFormat]) -> None | str:
        """Why the policy's actions mean something else elsewhere; see `everstep.env.formats`."""
        return unit_problem(what, (self.action_spec, self.env_format), where, at)

    # ---- acting -------------------------------------------------------------------------------

    @abstractmethod
    def init_states(self, n: int, /) -> TensorDict:
        """Recurrent states at the start of `n` episodes, batch `[n]`."""

    def act(self, obs: Leaves, states: Leaves, *, deterministic: bool = False) -> Sample:
        """Actions of one vector step.

        Args:
            obs: Observations `[N, …]`; windows `[N, history + 1, …]` where there is a history.
            states: Recurrent states before the observation, `[N, …]`.
            deterministic: Whether to take the distribution's mode rather than a sample.

        """
        distribution, values, states = self._respond(obs, states)
        latents = distribution.latents(deterministic=deterministic)
        actions = distribution.actions(latents)
        return Sample(
            self._action.flatten(latents),
            self._action.flatten(actions),
            distribution.latents_logp(latents),
            values,
            states,
        )

    def values(self, obs: Leaves, states: Leaves) -> torch.Tensor:
        """Values `[N, K]` of observations, given the recurrent states before them; see `act`."""
        return self._respond(obs, states)[1]

    @abstractmethod
    def _respond(self, obs: Leaves, states: Leaves) -> tuple[Distribution, torch.Tensor, Leaves]:
        """Distribution, values `[N, K]` and states `[N, …]` after observations."""

    @abstractmethod
    def next_states(self, states: Leaves, first: torch.Tensor) -> Leaves:
        """Recurrent states `[N, …]`, reset where an episode starts.

        Args:
            states: States after the vector step.
            first: Whether the new observation is the first of an episode, bool `[N, 1]`.

        """

    # ---- learning -----------------------------------------------------------------------------

    def update_statistics(
        self, rollout: Rollout, moments_of: MomentsOf = RunningMoments.moments_of
    ) -> None:
        """Update the moments of observations and returns with a rollout, after an update.

        Args:
            rollout: Complete rollout, with advantages.
            moments_of: Computes moments of observations.

        """
        if self.normalizer is not None:
            obs = tuple(leaf[:-1].flatten(0, 1) for leaf in rollout.obs)
            self.normalizer.update(obs, rollout.valid.flatten(), moments_of)
        if self.value_normalizer is not None:
            rows = self.learnable(rollout).flatten()
            self.value_normalizer.update(rollout.returns[:-1].flatten(0, 1), rows)

    def in_deviations(
        self, minibatch: Minibatch, values: torch.Tensor
    ) -> tuple[Minibatch, torch.Tensor]:
        """Minibatch and values `[B, K]` as losses have them, if values are normalised."""
        if self.value_normalizer is None:
            return minibatch, values
        convert = self.value_normalizer.in_deviations
        returns, previous = convert(minibatch.returns), convert(minibatch.values)
        return replace(minibatch, returns=returns, values=previous), convert(values)

    def learnable(self, rollout: Rollout) -> torch.Tensor:
        """Rows that enter the losses, bool `[T, N, 1]`."""
        return rollout.known & rollout.valid

    def sequences(self, rollout: Rollout, **options: Any) -> Sequences:
        """The rollout cut into the sequences that minibatches are gathered from.

        Args:
            rollout: Complete rollout, with advantages.
            **options: See `Sequences`.

        """
        return Sequences(rollout, self.learnable(rollout), **options)

    @abstractmethod
    def evaluate(self, minibatch: Minibatch) -> tuple[Distribution, torch.Tensor]:
        """The present distribution over each row's actions, and the present values `[B·L, K]`."""

    @contextmanager
    def keep_casts(self) -> Iterator[None]:
        """Context in which weights are cast to half precision, and the normaliser's constants
        computed, only once, however often the model runs.

        Weights and normaliser must not change in the block.
        """
        before = self._frozen
        self._frozen = None if self.normalizer is None else self.normalizer.frozen()
        outermost: AbstractContextManager[Any] = nullcontext()
        # Looking up the device takes as long as a small layer does.
        if self.is_autocast or torch._C._is_any_autocast_enabled():
            device = self.device
            is_enabled, dtype = autocast_of(device)
            if self.is_autocast:  # the outermost autocast keeps the casts
                # It changes nothing: environments are stepped in it.
                outermost = torch.autocast(device.type, dtype=dtype, enabled=is_enabled)
            if is_enabled:  # that of the caller keeps casts of weights that were changed since
                torch.clear_autocast_cache()
        try:
            with outermost:
                yield
        finally:
            self._frozen = before

    @contextmanager
    def own_casts(self) -> Iterator[None]:
        """`keep_casts` that neither uses casts made before the block nor leaves its own behind.

        Recorded work needs it: each replay has to cast the weights as they are then.
        """
        torch.clear_autocast_cache()
        try:
            with self.keep_casts():
                yield
        finally:
            torch.clear_autocast_cache()

    # ---- for everybody ------------------------------------------------------------------------

    def _normalization(self) -> Callable[[Leaves], Leaves]:
        """A function that normalises observations, while the normaliser does not change."""
        if self._frozen is not None:
            return self._frozen
        return (lambda obs: obs) if self.normalizer is None else self.normalizer.frozen()

    def _all_values(self, values: torch.Tensor, obs: Leaves) -> torch.Tensor:
        """The model's values, and behind them those of the streams that it does not know.

        Args:
            values: The model's, `[B, 1]`.
            obs: Normalised observations, `[B, …]`.

        """
        values = in_full({"": values})[""]
        values = values if self.critic is None else torch.cat([values, self.critic(obs)], -1)
        normalizer = self.value_normalizer
        return values if normalizer is None else normalizer.denormalize(values)

    def _distribution(self, features: Any) -> Distribution:
        return self.distribution_cls(in_full(features), self.model)

    def _outputs(
        self,
        out: TensorDict,
        features: Any,
        *,
        deterministic: bool,
        return_actions: bool,
        return_logp: bool,
        return_values: bool,
    ) -> TensorDict:
        """`out`, with what `sample` was asked for; `features` are the model's last ones."""
        out[DataKeys.FEATURES] = TensorDict(dict(features.items()), batch_size=out.batch_size)
        if return_values:
            values = in_full({"": self.model.value_function()})[""]
            normalizer = self.value_normalizer
            values = values if normalizer is None else normalizer.denormalize(values)
            out[DataKeys.VALUES] = values
        if return_actions:
            distribution = self._distribution(features)
            latents = distribution.latents(deterministic=deterministic)
            out[DataKeys.ACTIONS] = distribution.actions(latents)
            if return_logp:
                out[DataKeys.LOGP] = distribution.latents_logp(latents)
        return out


class Actor:
    """Acts through one rollout, and stores actions, log-probabilities and values in it.

    Args:
        policy: The policy, whose weights must not change meanwhile.
        rollout: Storage that observations are read from, and the rest is written to.
        deterministic: Whether actions are the distribution's mode.

    """

    def __init__(self, policy: PolicyCore[Any], rollout: Rollout, *, deterministic: bool) -> None:
        self.policy, self.rollout, self.deterministic = policy, rollout, deterministic
        self._noise: None | Exploration = getattr(policy.model, "exploration", None)

    def act(self, t: int, states: Leaves) -> tuple[Leaves, Leaves]:
        """Actions of vector step `t` for the environment, and the recurrent states after it.

        Args:
            t: Vector step.
            states: Recurrent states before it, `[N, …]`.

        """
        if self._noise is not None:
            self._noise.begin_step(t, self.rollout.num_envs)
        sample = self.sample(t, states)
        # Stored before the environment sees them: it may work in place.
        self.rollout.write_sample(t, sample.latents, sample.logp, sample.values)
        return sample.actions, sample.states

    def sample(self, t: int, states: Leaves) -> Sample:
        """The policy's sample for the observations of vector step `t`; see `act`."""
        obs = self.rollout.obs_at(t)
        return self.policy.act(obs, states, deterministic=self.deterministic)

    def finish(self, states: Leaves) -> None:
        """Store the values of the last observations, given the recurrent states before them."""
        rollout = self.rollout
        if self._noise is not None:
            self._noise.end()
        rollout.values[-1].copy_(self.policy.values(rollout.obs_at(rollout.horizon), states))


def in_full(features: TensorDict | Mapping[str, torch.Tensor]) -> Any:
    """`features` in float32 where autocast left them in half precision."""
    if not any(x.dtype in (torch.bfloat16, torch.float16) for x in features.values()):
        return features
    half = (torch.bfloat16, torch.float16)
    if isinstance(features, TensorDict):
        return features.apply(lambda x: x.float() if x.dtype in half else x)
    return {key: x.float() if x.dtype in half else x for key, x in features.items()}


def autocast_of(device: torch.device) -> tuple[bool, torch.dtype]:
    """Whether autocast is enabled for a device, and its dtype."""
    kind = device.type
    if not torch.amp.is_autocast_available(kind):
        return False, torch.float32
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


@contextmanager
def model_mode(model: nn.Module, *, training: bool, precision: None | str = None) -> Iterator[None]:
    """Put a model into train or eval mode, and back into what it was, whatever happens.

    Float32 matrix products have that precision meanwhile; None changes nothing.
    """
    before = {module: module.training for module in model.modules()}
    if not training or not all(before.values()):  # else 50 microseconds for nothing
        model.train(training)
    try:
        with nullcontext() if precision is None else _matmul_precision(precision):
            yield
    finally:
        for module, was_training in before.items():
            if module.training is not was_training:
                module.training = was_training


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
