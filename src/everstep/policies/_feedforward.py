"""Policies: a model and an action distribution, and all that differs between kinds of policy.

`collect` and `step` exist once. What a policy remembers, how a rollout is cut for it and how a
minibatch is evaluated is said here: `init_states`, `act`, `sequences`, `evaluate`, `seq_len`.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import TensorSpec
from typing_extensions import Self

from .. import distributions, models
from ..checkpoints import load_file, save_file
from ..data import DataKeys, Device
from ..distributions import Distribution
from ..errors import CheckpointError, ConfigError
from ..models import Model, ModelFactory
from ..rollouts import Minibatch, Rollout, Sequences
from ..specs import EMPTY, Leaves, Structure, spec_from_dict, spec_to_dict


class Policy:
    """A feedforward policy: a recurrent one whose memory is empty and whose sequences are steps.

    Args:
        observation_spec: Spec of one observation.
        action_spec: Spec of one action.
        model: Model instance. Excludes `model_cls`.
        model_cls: Model class, or function of (observation spec, action spec, **model_config).
        model_config: Keyword arguments of the model class.
        distribution_cls: Action distribution; None for the action spec's default.
        device: Where the model lives.
        autocast: Context that models run in.

    Raises:
        ConfigError: Where `model` and `model_cls` are both given, or there is no default.

    """

    #: Env steps a sequence.
    seq_len = 1

    #: Structure of one environment's recurrent state.
    memory: Structure = EMPTY

    #: Action distribution.
    distribution_cls: type[Distribution]

    #: From observations to features and values.
    model: Model

    def __init__(
        self,
        observation_spec: TensorSpec,
        action_spec: TensorSpec,
        /,
        *,
        model: None | nn.Module = None,
        model_cls: None | ModelFactory = None,
        model_config: None | dict[str, Any] = None,
        distribution_cls: None | type[Distribution] = None,
        device: Device = "cpu",
        autocast: None | AbstractContextManager[Any] = None,
    ) -> None:
        if model is not None and model_cls is not None:
            raise ConfigError(
                "`model` and `model_cls` are mutually exclusive; both were given. Drop one."
            )
        self.model_config = model_config or {}
        if model is None:
            try:
                model_cls = model_cls or Model.default_model_cls(observation_spec, action_spec)
                distribution_cls = distribution_cls or Distribution.default_dist_cls(action_spec)
            except TypeError as error:
                raise ConfigError(str(error)) from None
            try:
                model = model_cls(observation_spec, action_spec, **self.model_config)
            except (TypeError, ValueError, IndexError) as error:
                name = getattr(model_cls, "__name__", type(model_cls).__name__)
                raise ConfigError(
                    f"`model_config` {self.model_config} does not suit {name}: {error}"
                ) from error
        self.model = model.to(device)  # type: ignore[assignment]
        self.distribution_cls = distribution_cls or Distribution.default_dist_cls(action_spec)
        self._observation = Structure.of(observation_spec)
        self._action = Structure.of(action_spec)
        self._autocast = autocast or nullcontext()
        self._spec = (observation_spec, action_spec)

    @property
    def action_spec(self) -> TensorSpec:
        """Spec of one action."""
        return self._spec[1].to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return next(self.model.parameters()).device

    @property
    def observation_spec(self) -> TensorSpec:
        """Spec of one observation."""
        return self._spec[0].to(self.device)

    def to(self, device: Device, /) -> Self:
        """The policy with its model on `device`."""
        self.model = self.model.to(device)
        return self

    # ---- what kinds of policy differ in -------------------------------------------------------

    def init_states(self, n: int, /) -> Leaves:
        """Recurrent states `[n, …]` of episodes that begin. None here."""
        return self.memory.zeros(n, device=self.device)

    def act(
        self, obs: Leaves, states: Leaves, *, deterministic: bool = False
    ) -> tuple[Leaves, torch.Tensor, torch.Tensor, Leaves]:
        """Actions `[N, …]`, their log-probabilities `[N, 1]`, values `[N, K]` and new states.

        Args:
            obs: Observations `[N, …]`.
            states: Recurrent states `[N, …]`.
            deterministic: Whether to take the distribution's mode rather than a sample.

        """
        distribution, values = self._forward(obs)
        sample = distribution.deterministic_sample() if deterministic else distribution.sample()
        return self._action.flatten(sample), distribution.logp(sample), values, states

    def next_states(self, states: Leaves, first: torch.Tensor) -> Leaves:
        """Recurrent states `[N, …]`, started anew where an episode opens.

        Args:
            states: Recurrent states after the env step.
            first: Whether the new observation opens an episode, bool `[N, 1]`.

        """
        return tuple(torch.where(first.view(-1, *(1,) * (x.ndim - 1)), 0, x) for x in states)

    def values(self, obs: Leaves, states: Leaves) -> torch.Tensor:
        """Values `[N, K]` of observations `[N, …]`."""
        _, values = self._forward(obs)
        return values

    def sequences(self, rollout: Rollout, learnable: torch.Tensor) -> Sequences:
        """The rollout, cut into what one minibatch is made of.

        Args:
            rollout: The rollout.
            learnable: Rows that the losses see, bool `[T, N, 1]`.

        """
        return rollout.sequences(learnable)

    def evaluate(self, minibatch: Minibatch) -> tuple[Distribution, torch.Tensor]:
        """The distribution now over each row's actions, and its values `[B·L, K]`."""
        return self._forward(tuple(leaf.flatten(0, 1) for leaf in minibatch.obs))

    def _forward(self, obs: Leaves) -> tuple[Distribution, torch.Tensor]:
        """Action distribution and values `[B, K]` of observations `[B, …]`."""
        batch_size = [len(obs[0])]
        batch = TensorDict(
            {DataKeys.OBS: self._observation.unflatten(obs, batch_size)}, batch_size=batch_size
        )
        with self._autocast:
            features = self.model(batch)
            values = self.model.value_function()
        if values.dtype in (torch.bfloat16, torch.float16):
            values = values.float()
        return self.distribution_cls(_in_full(features), self.model), values

    # ---- saving -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], /) -> None:
        """Write the policy to one file, without pickle: weights, specs and how it was built.

        Args:
            path: File to write or replace; any suffix.

        """
        observation_spec, action_spec = self._spec
        state = {
            "kind": type(self).__name__,
            "model_cls": type(self.model).__name__,
            "model_config": dict(getattr(self.model, "config", None) or self.model_config),
            "distribution_cls": self.distribution_cls.__name__,
            "observation_spec": spec_to_dict(observation_spec),
            "action_spec": spec_to_dict(action_spec),
            "weights": dict(self.model.state_dict()),
        }
        save_file(Path(path), state)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        /,
        *,
        model: None | nn.Module = None,
        model_cls: None | ModelFactory = None,
        distribution_cls: None | type[Distribution] = None,
        device: Device = "cpu",
    ) -> Self:
        """The policy that `save` wrote. Reading it never runs code from the file.

        Args:
            path: File to read.
            model: Model to load the weights into, where it was not a default one.
            model_cls: Class to build that model with, from the saved `model_config`.
            distribution_cls: Action distribution, where it was not a default one.
            device: Where the model lives.

        Raises:
            CheckpointError: Where the file is damaged, or its weights do not fit the model.

        """
        state = _read(path, cls.__name__)
        specs = [spec_from_dict(state[key]) for key in ("observation_spec", "action_spec")]
        if model is None and model_cls is None:
            model_cls = _default(state["model_cls"], "model", "model_cls", models, path)
        if distribution_cls is None:
            distribution_cls = _default(
                state["distribution_cls"], "distribution", "distribution_cls", distributions, path
            )
        policy = cls(
            *specs,
            model=model,
            model_cls=model_cls,
            model_config=state["model_config"],
            distribution_cls=distribution_cls,
            device=device,
        )
        try:
            policy.model.load_state_dict(state["weights"])
        except RuntimeError as error:
            raise CheckpointError(
                f"{path}: the weights do not fit {type(policy.model).__name__}. {error}"
            ) from None
        return policy


def _read(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    state = load_file(Path(path))
    keys = {"kind", "model_cls", "model_config", "distribution_cls", "weights"}
    if not isinstance(state, dict) or not keys | {"observation_spec", "action_spec"} <= set(state):
        raise CheckpointError(f"{path} is not a saved policy.")
    if state["kind"] != kind:
        raise CheckpointError(f"{path} holds a {state['kind']}; it was loaded as a {kind}.")
    return state


def _default(name: str, what: str, argument: str, module: ModuleType, path: Any) -> Any:
    """The default class of that name: a file may choose among ours, and import nothing else."""
    found = getattr(module, str(name), None)
    if not isinstance(found, type) or not found.__module__.startswith(module.__name__):
        raise CheckpointError(
            f"{path} was saved with the {what} {name}, which is not one of the defaults: pass "
            f"`{argument}` (from the code that trained it) to `load`."
        )
    return found


def _in_full(features: TensorDict | Mapping[str, torch.Tensor]) -> Any:
    """`features` in float32 where autocast left them in half precision."""
    if not any(x.dtype in (torch.bfloat16, torch.float16) for x in features.values()):
        return features
    return {key: x.float() for key, x in features.items()}


@contextmanager
def model_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a model into train or eval mode, and back into what it was, whatever happens."""
    before = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, was_training in before.items():
            module.training = was_training
