"""Policies as TensorDict modules, for TorchRL's collectors."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase, composite_lp_aggregate
from tensordict.nn.probabilistic import interaction_type
from torchrl.data import Unbounded

from ..env.specs import Leaves, Path, Structure
from ..errors import ConfigError
from ._core import PolicyCore, model_mode
from ._windows import extended, past_structure, without

#: Key of the flags of rows that begin an episode; TorchRL's `InitTracker` writes them.
IS_INIT = "is_init"

#: Key of recurrent states and past observations.
STATES = "states"


class PolicyModule(TensorDictModuleBase, ABC):  # type: ignore[misc]
    """Base class of policies that act on TensorDicts of any batch size; see `as_tensordict_module`.

    The model acts in eval mode and without gradients: the module is for acting, not for losses. It
    shares the policy's parameters.

    Args:
        policy: Policy.
        deterministic: Whether to take the most likely action.
        observation_path: Keys of the observation; none for the root.

    """

    #: The policy.
    policy: PolicyCore[Any]

    def __init__(
        self, policy: PolicyCore[Any], *, deterministic: bool, observation_path: Path
    ) -> None:
        super().__init__()
        self.policy, self.deterministic = policy, deterministic
        self.model, self.normalizer = policy.model, policy.normalizer  # registered with the module
        self._observation = Structure.of(policy.observation_spec)
        self._obs_keys = [_key((*observation_path, *path)) for path in self._observation.paths]
        action = Structure.of(policy.action_spec)
        self._action_keys = [_key(("action", *path)) for path in action.paths]
        self._logp_key = "sample_log_prob" if composite_lp_aggregate() else "action_log_prob"
        self.in_keys = [*self._obs_keys]
        self.out_keys = [*self._action_keys, self._logp_key, "state_value"]

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The TensorDict, with actions, log-probabilities and values added.

        Raises:
            ConfigError: If a recurrent policy lacks its state or `is_init`.

        """
        batch = tensordict.batch_size
        obs = _read(tensordict, self._obs_keys, self._observation)
        windows, states = self._inputs(tensordict, obs)
        likeliest = (InteractionType.DETERMINISTIC, InteractionType.MODE)
        deterministic = self.deterministic or interaction_type() in likeliest
        with model_mode(self.model, training=False):
            sample = self.policy.act(windows, states, deterministic=deterministic)
        for key, leaf in zip(self._action_keys, sample.actions, strict=True):
            tensordict.set(key, leaf.reshape((*batch, *leaf.shape[1:])))
        tensordict.set(self._logp_key, sample.logp.reshape(batch))
        # The environment's own rewards are the first stream.
        tensordict.set("state_value", sample.values[:, :1].reshape((*batch, 1)))
        self._write_states(tensordict, windows, sample.states)
        return tensordict

    @abstractmethod
    def _inputs(self, tensordict: TensorDictBase, obs: Leaves) -> tuple[Leaves, Leaves]:
        """Arguments of `act`: observations or windows `[B, …]`, and states `[B, …]`."""

    @abstractmethod
    def _write_states(self, tensordict: TensorDictBase, windows: Leaves, states: Leaves) -> None:
        """Write past observations and states for the next env step."""


class FeedforwardModule(PolicyModule):
    """A policy of the present observation."""

    def _inputs(self, tensordict: TensorDictBase, obs: Leaves) -> tuple[Leaves, Leaves]:
        return obs, ()

    def _write_states(self, tensordict: TensorDictBase, windows: Leaves, states: Leaves) -> None:
        """Nothing to write."""


class RecurrentModule(PolicyModule):
    """A policy with recurrent states, or with windows over past observations.

    Both are stored under `"states"`. The environment's transforms carry them from one env step to
    the next; see `make_tensordict_primer`.
    """

    def __init__(
        self, policy: PolicyCore[Any], *, deterministic: bool, observation_path: Path
    ) -> None:
        super().__init__(policy, deterministic=deterministic, observation_path=observation_path)
        self._past = past_structure(self._observation, policy.history)
        paths = [*self._past.paths, *policy.memory.paths]
        self._stored = Structure(
            tuple((STATES, *path) for path in paths),
            self._past.shapes + policy.memory.shapes,
            self._past.dtypes + policy.memory.dtypes,
        )
        self._state_keys = list(self._stored.paths)
        self.in_keys = [*self.in_keys, *self._state_keys, IS_INIT]
        self.out_keys = [*self.out_keys, *(("next", *key) for key in self._state_keys)]

    def make_tensordict_primer(self) -> Any:
        """The TorchRL transform that declares the module's states to an environment."""
        from torchrl.envs import TensorDictPrimer  # slow: imports TorchRL's environments

        specs = {
            path: Unbounded(shape, dtype=dtype, device=self.policy.device)
            for path, shape, dtype in self._stored.leaves()
        }
        return TensorDictPrimer(specs, expand_specs=True)

    def _inputs(self, tensordict: TensorDictBase, obs: Leaves) -> tuple[Leaves, Leaves]:
        first = tensordict.get(IS_INIT, None)
        if first is None:
            raise ConfigError(
                f"The policy has a state, and no '{IS_INIT}' marks the rows that begin an episode. "
                "Append torchrl's `InitTracker()` to the environment."
            )
        first = first.reshape(-1, 1)
        stored = self._read_states(tensordict, first)
        split = len(self._past.paths)
        states = self.policy.next_states(stored[split:], first)
        return extended(without(stored[:split], first), obs), states

    def _read_states(self, tensordict: TensorDictBase, first: torch.Tensor) -> Leaves:
        """Past observations and states `[B, …]`; zeros if every row begins an episode."""
        if tensordict.get(self._state_keys[0], None) is not None:
            return _read(tensordict, self._state_keys, self._stored)
        if not bool(first.all()):  # synchronises, but only without a primer
            raise ConfigError(
                f"'{STATES}', which the policy wrote in the last env step, is missing. Append the "
                "result of the module's `make_tensordict_primer()` to the environment."
            )
        return self._stored.zeros(len(first), device=first.device)

    def _write_states(self, tensordict: TensorDictBase, windows: Leaves, states: Leaves) -> None:
        past = tuple(window[:, 1:] for window in windows) if self._past.paths else ()
        for key, leaf in zip(self._state_keys, (*past, *states), strict=True):
            value = leaf.reshape((*tensordict.batch_size, *leaf.shape[1:]))
            tensordict.set(("next", *key), value)


def as_module(
    policy: PolicyCore[Any], *, deterministic: bool, observation_path: Path
) -> PolicyModule:
    """The module of a policy; see `GenericPolicyBase.as_tensordict_module`."""
    kind = RecurrentModule if policy.memory.paths else FeedforwardModule
    return kind(policy, deterministic=deterministic, observation_path=observation_path)


def _read(tensordict: TensorDictBase, keys: list[Any], structure: Structure) -> Leaves:
    """Leaves `[B, …]` of a TensorDict of any batch size."""
    return tuple(
        tensordict.get(key).reshape(-1, *shape)
        for key, shape in zip(keys, structure.shapes, strict=True)
    )


def _key(path: Path) -> str | Path:
    """A TensorDict key: a string if it is not nested."""
    return path[0] if len(path) == 1 else path
