"""A policy evaluated on another policy's rollouts, with its own recurrent states."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..core.rollouts import Rollout
from ..distributions import Distribution
from ..env.specs import Leaves
from ._core import PolicyCore
from ._windows import extended, past_structure, without


class Follower:
    """A policy's action distributions in rollouts that another policy collected.

    Args:
        policy: The policy.
        seen: Maps the rollout's observations `[N, …]` to those that the policy sees.

    """

    def __init__(self, policy: PolicyCore[Any], seen: Callable[[Leaves], Leaves]) -> None:
        self.policy, self._seen = policy, seen
        self._past = past_structure(policy._observation, policy.history)
        #: Past observations and recurrent states `[N, …]` after the last rollout; None at the start
        #: of episodes.
        self.states: None | Leaves = None

    @property
    def has_states(self) -> bool:
        """Whether the policy has states: recurrent ones, or windows and their ages."""
        return bool(self.policy.memory.paths)

    def opened(self, num_envs: int) -> Leaves:
        """Past observations and recurrent states `[N, …]` at the start of episodes."""
        past = self._past.zeros(num_envs, device=self.policy.device)
        return (*past, *self.policy.memory.flatten(self.policy.init_states(num_envs)))

    def follow(
        self, rollout: Rollout, *, was_reset: bool, resets: Sequence[bool] = ()
    ) -> Iterator[tuple[Leaves, Distribution]]:
        """The states before each vector step, and the distribution over its actions.

        Args:
            rollout: Complete rollout; continues that of the last call, unless `was_reset`.
            was_reset: Whether environments were reset before the rollout.
            resets: Sequences that reset the states; empty if none does.

        """
        policy, count = self.policy, len(self._past.paths)
        if was_reset or self.states is None:
            self.states = self.opened(rollout.num_envs)
        states = self.states
        for t in range(rollout.horizon):
            if resets and t % rollout.seq_len == 0 and resets[t // rollout.seq_len]:
                states = self.opened(rollout.num_envs)
            windows = extended(states[:count], self._seen(tuple(x[t] for x in rollout.obs)))
            distribution, _, after = policy._respond(windows, states[count:])
            yield states, distribution
            past = tuple(window[:, 1:] for window in windows) if count else ()
            states = self._after((*past, *after), rollout.first[t])
        self.states = states

    def reset_rows(self, rows: torch.Tensor) -> None:
        """Start episodes in `rows`, bool `[N, 1]`."""
        if self.states is not None:
            self.states = self._after(self.states, rows)

    def _after(self, states: Leaves, first: torch.Tensor) -> Leaves:
        """States with those of the start of episodes where `first`, bool `[N, 1]`."""
        count = len(self._past.paths)
        return (*without(states[:count], first), *self.policy.next_states(states[count:], first))
