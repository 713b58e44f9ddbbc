"""A policy as a module that reads and writes TensorDicts, as TorchRL's collectors call it."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase, composite_lp_aggregate
from tensordict.nn.probabilistic import interaction_type
from torchrl.data import Unbounded

from ..errors import ConfigError
from ..specs import Leaves, Path, Structure
from ._base import GenericPolicyBase, model_mode

#: Key of what an environment tells a policy that remembers: which rows open an episode.
IS_INIT = "is_init"

#: Key of what a policy remembers.
STATES = "states"


class PolicyModule(TensorDictModuleBase, ABC):  # type: ignore[misc]
    """A policy that acts on TensorDicts of any batch size; see `as_tensordict_module`.

    The model is in eval mode while it acts, and no gradients are tracked: this is for acting, not
    for losses. Parameters are the policy's own, not copies.

    Args:
        policy: Policy.
        deterministic: Whether to take the likeliest action.
        observation_path: Keys under which the observation lies; none for the root.

    """

    #: The policy.
    policy: GenericPolicyBase[Any]

    def __init__(
        self, policy: GenericPolicyBase[Any], *, deterministic: bool, observation_path: Path
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
        """The TensorDict, with what the policy does written into it.

        Raises:
            ConfigError: Where a policy that remembers cannot know what it remembers.

        """
        batch = tensordict.batch_size
        obs = _read(tensordict, self._obs_keys, self._observation)
        seen, states = self._recall(tensordict, obs)
        with model_mode(self.model, training=False):
            sample = self.policy.act(seen, states, deterministic=self._is_deterministic())
        for key, leaf in zip(self._action_keys, sample.actions, strict=True):
            tensordict.set(key, leaf.reshape((*batch, *leaf.shape[1:])))
        tensordict.set(self._logp_key, sample.logp.reshape(batch))
        # The environment's own rewards are the first stream.
        tensordict.set("state_value", sample.values[:, :1].reshape((*batch, 1)))
        self._remember(tensordict, seen, sample.states)
        return tensordict

    @abstractmethod
    def _recall(self, tensordict: TensorDictBase, obs: Leaves) -> tuple[Leaves, Leaves]:
        """What `act` takes: observations or windows `[B, …]`, and states `[B, …]`."""

    @abstractmethod
    def _remember(self, tensordict: TensorDictBase, seen: Leaves, states: Leaves) -> None:
        """Write what the next env step needs to know of this one."""

    def _is_deterministic(self) -> bool:
        """As asked for when it was made, or now, with torchrl's `set_exploration_type`."""
        likeliest = (InteractionType.DETERMINISTIC, InteractionType.MODE)
        return self.deterministic or interaction_type() in likeliest


class MemorylessModule(PolicyModule):
    """A policy of the present observation."""

    def _recall(self, tensordict: TensorDictBase, obs: Leaves) -> tuple[Leaves, Leaves]:
        return obs, ()

    def _remember(self, tensordict: TensorDictBase, seen: Leaves, states: Leaves) -> None:
        """Nothing."""


class RememberingModule(PolicyModule):
    """A policy that remembers: its states, and the past observations of its windows.

    All of it lies under `"states"`, and is carried from one env step to the next by the
    environment's transforms; see `make_tensordict_primer`.
    """

    def __init__(
        self, policy: GenericPolicyBase[Any], *, deterministic: bool, observation_path: Path
    ) -> None:
        super().__init__(policy, deterministic=deterministic, observation_path=observation_path)
        self._past = _past(self._observation, policy.history)
        paths = [*self._past.paths, *policy.memory.paths]
        self._remembered = Structure(
            tuple((STATES, *path) for path in paths),
            self._past.shapes + policy.memory.shapes,
            self._past.dtypes + policy.memory.dtypes,
        )
        self._state_keys = list(self._remembered.paths)
        self.in_keys = [*self.in_keys, *self._state_keys, IS_INIT]
        self.out_keys = [*self.out_keys, *(("next", *key) for key in self._state_keys)]

    def make_tensordict_primer(self) -> Any:
        """The TorchRL transform that declares to an environment what the policy remembers."""
        from torchrl.envs import TensorDictPrimer  # takes TorchRL's environments along

        described = zip(self._remembered.shapes, self._remembered.dtypes, strict=True)
        specs = [
            Unbounded(shape, dtype=dtype, device=self.policy.device) for shape, dtype in described
        ]
        return TensorDictPrimer(dict(zip(self._state_keys, specs, strict=True)), expand_specs=True)

    def _recall(self, tensordict: TensorDictBase, obs: Leaves) -> tuple[Leaves, Leaves]:
        first = tensordict.get(IS_INIT, None)
        if first is None:
            raise ConfigError(
                f"The policy remembers, and no '{IS_INIT}' tells it where an episode opens. Append "
                "torchrl's `InitTracker()` to the environment."
            )
        first = first.reshape(-1, 1)
        kept = self._kept(tensordict, first)
        split = len(self._past.paths)
        states = self.policy.next_states(kept[split:], first)
        if not split:
            return obs, states
        past = (x.masked_fill(first.view(-1, *(1,) * (x.ndim - 1)), 0) for x in kept[:split])
        windows = (torch.cat([x, now.unsqueeze(1)], 1) for x, now in zip(past, obs, strict=True))
        return tuple(windows), states

    def _kept(self, tensordict: TensorDictBase, first: torch.Tensor) -> Leaves:
        """What was remembered, `[B, …]`; anything where every row opens an episode."""
        if tensordict.get(self._state_keys[0], None) is not None:
            return _read(tensordict, self._state_keys, self._remembered)
        if not bool(first.all()):  # never reached where there is a primer, so nothing waits
            raise ConfigError(
                f"'{STATES}', which the policy wrote in the last env step, is not handed on. "
                "Append what the module's `make_tensordict_primer()` returns to the environment."
            )
        return self._remembered.zeros(len(first), device=first.device)

    def _remember(self, tensordict: TensorDictBase, seen: Leaves, states: Leaves) -> None:
        past = tuple(window[:, 1:] for window in seen) if self._past.paths else ()
        for key, leaf in zip(self._state_keys, (*past, *states), strict=True):
            kept = leaf.reshape((*tensordict.batch_size, *leaf.shape[1:]))
            tensordict.set(("next", *key), kept)


def as_module(
    policy: GenericPolicyBase[Any], *, deterministic: bool, observation_path: Path
) -> PolicyModule:
    """The module of a policy; see `GenericPolicyBase.as_tensordict_module`."""
    kind = RememberingModule if policy.memory.paths else MemorylessModule
    return kind(policy, deterministic=deterministic, observation_path=observation_path)


def _past(observation: Structure, history: int) -> Structure:
    """Structure of the observations before the present one that a policy sees."""
    if not history:
        return Structure((), (), ())
    return Structure(
        tuple(("window", *path) for path in observation.paths),
        tuple(torch.Size([history, *shape]) for shape in observation.shapes),
        observation.dtypes,
    )


def _read(tensordict: TensorDictBase, keys: list[Any], structure: Structure) -> Leaves:
    """Leaves `[B, …]` of a TensorDict of any batch size."""
    return tuple(
        tensordict.get(key).reshape(-1, *shape)
        for key, shape in zip(keys, structure.shapes, strict=True)
    )


def _key(path: Path) -> str | Path:
    """A key as TensorDict spells it: a string where it is not nested."""
    return path[0] if len(path) == 1 else path
