"""Storage of one rollout: time-major, contiguous, allocated once and reused.

Row `t` of everything but observations and values belongs to action `t`; observation `t` is what
that action was chosen from. Rows are ordered `t·N + n`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict

from .data import DataKeys
from .errors import EnvError, NonFiniteError
from .specs import EMPTY, Leaves, Structure

#: Observation or action rows, prebuilt: indexing costs more than copying a small row.
Rows = list[Leaves]


@dataclass(frozen=True)
class Minibatch:
    """`B` sequences of `L` env steps; rows are `B·L` transitions. `L` is 1 without recurrence."""

    #: Observations `[B, L, …]`.
    obs: Leaves
    #: Recurrent states before each sequence's first step, `[B, …]`.
    states: Leaves
    #: Whether a step's observation opens an episode, so that states are zeroed, bool `[B, L, 1]`.
    first: torch.Tensor
    #: Actions `[B·L, …]`, as distributions take them.
    actions: torch.Tensor | TensorDict
    #: Log-probabilities when the actions were taken, `[B·L, 1]`.
    logp: torch.Tensor
    #: Values when the actions were taken, `[B·L, K]`.
    values: torch.Tensor
    #: Advantages, as the policy's loss uses them, `[B·L, 1]`.
    advantages: torch.Tensor
    #: Targets of the values, `[B·L, K]`.
    returns: torch.Tensor
    #: Each row's share of the loss, 0 where it is left out, `[B·L, 1]`.
    weight: torch.Tensor


class Rollout:
    """One rollout of `horizon` env steps in `num_envs` environments.

    Args:
        num_envs: N.
        horizon: T.
        observation: Structure of one observation.
        action: Structure of one action.
        memory: Structure of one environment's recurrent state.
        episode_keys: Episode keys that the environment returns.
        seq_len: Env steps a sequence.
        num_streams: K, reward streams.
        dtype: Of rewards, values and everything computed from them.
        device: Where everything lives.

    """

    def __init__(
        self,
        num_envs: int,
        horizon: int,
        *,
        observation: Structure,
        action: Structure,
        memory: Structure = EMPTY,
        episode_keys: frozenset[str] = frozenset(),
        seq_len: int = 1,
        num_streams: int = 1,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_envs, self.horizon, self.seq_len = num_envs, horizon, seq_len
        self.device, self.dtype = device, dtype
        self.observation, self.action, self.memory = observation, action, memory
        self.episode_keys = episode_keys

        def floats(columns: int) -> torch.Tensor:
            return torch.zeros(horizon + 1, num_envs, columns, dtype=dtype, device=device)

        def flags() -> torch.Tensor:
            return torch.zeros(horizon, num_envs, 1, dtype=torch.bool, device=device)

        # One row more than the horizon: observations and values have it, the rest has it so that
        # the documented `[N, T + 1]` buffer is a view.
        self.obs = observation.zeros(horizon + 1, num_envs, device=device)
        self.actions = action.zeros(horizon + 1, num_envs, device=device)
        self.logp, self.advantages = floats(1), floats(1)
        self.rewards, self.values, self.returns = (floats(num_streams) for _ in range(3))
        self.reversed_returns = floats(1)
        self.states = memory.zeros(horizon // seq_len, num_envs, device=device)
        self.terminated, self.truncated, self.first = flags(), flags(), flags()
        self.valid = ~flags()
        #: Rows whose final observation is not `obs_{t+1}`, its value, and whether it is known.
        self.final, self.final_values, self.known = flags(), floats(num_streams)[:-1], ~flags()
        has_final = DataKeys.FINAL_OBS in episode_keys
        self.final_obs = observation.zeros(horizon, num_envs, device=device) if has_final else ()

        self._obs = _rows(self.obs)
        self._actions = _rows(self.actions)
        self._logp, self._values = list(self.logp), list(self.values)
        self._flags = {
            key: list(getattr(self, key)) for key in sorted(episode_keys - {DataKeys.FINAL_OBS})
        }
        self._rewards = list(self.rewards[..., :1])
        self._final_obs = _rows(self.final_obs)
        self._names = {
            key: [".".join((key, *path)) for path in observation.paths]
            for key in (DataKeys.OBS, DataKeys.FINAL_OBS)
        }

    # ---- one env step -------------------------------------------------------------------------

    def obs_at(self, t: int) -> Leaves:
        """Observation `t`, `[N, …]`: what action `t` is chosen from."""
        return self._obs[t]

    def first_at(self, t: int) -> torch.Tensor:
        """Whether observation `t + 1` opens an episode, bool `[N, 1]`."""
        return self.first[t]

    def open(self, obs: torch.Tensor | TensorDict) -> None:
        """Start with the observations of a reset.

        Raises:
            EnvError: Where they do not fit the observation spec.

        """
        self._write_obs(self._obs[0], DataKeys.OBS, obs)
        self.reversed_returns[0].zero_()

    def carry(self) -> None:
        """Start where the last rollout ended."""
        for leaf in self.obs:
            leaf[0].copy_(leaf[-1])
        self.reversed_returns[0].copy_(self.reversed_returns[-1].masked_fill(self.done[-1], 0.0))

    def write_states(self, sequence: int, states: Leaves) -> None:
        """Keep the recurrent states `[N, …]` before a sequence's first env step."""
        for storage, state in zip(self.states, states, strict=True):
            storage[sequence].copy_(state)

    def write_sample(
        self, t: int, actions: Leaves, logp: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Keep what the policy did in env step `t`."""
        for row, leaf in zip(self._actions[t], actions, strict=True):
            row.copy_(leaf)
        self._logp[t].copy_(logp)
        self._values[t].copy_(values)

    def write_outcome(self, t: int, outcome: TensorDict) -> None:
        """Keep what action `t` caused.

        Raises:
            EnvError: Where a key is missing, or a tensor is not what it is declared to be.

        """
        if not hasattr(outcome, "keys"):
            raise EnvError(
                f"`Env.step` must return a TensorDict; got {type(outcome).__name__}. "
                "Put observations and rewards into one."
            )
        try:
            self._write_obs(self._obs[t + 1], DataKeys.OBS, outcome[DataKeys.OBS])
            rewards = outcome[DataKeys.REWARDS]
            row = self._rewards[t]
            if isinstance(rewards, torch.Tensor) and not rewards.is_floating_point():
                raise _mismatch(DataKeys.REWARDS, "dtype", "a floating point type", rewards.dtype)
            dtype = getattr(rewards, "dtype", row.dtype)
            _check(DataKeys.REWARDS, rewards, row.shape, dtype, row.device)
            row.copy_(rewards)
            for key, rows in self._flags.items():
                flag = outcome[key]
                row = rows[t]
                _check(key, flag, row.shape, torch.bool, row.device)
                row.copy_(flag)
            if self.final_obs:
                final_obs = outcome[DataKeys.FINAL_OBS]
                self._write_obs(self._final_obs[t], DataKeys.FINAL_OBS, final_obs)
        except KeyError as error:
            raise self._missing(outcome, error) from None

    def _write_obs(self, rows: Leaves, key: str, obs: torch.Tensor | TensorDict) -> None:
        if self.observation.is_plain is not isinstance(obs, torch.Tensor):
            expected = "a tensor" if self.observation.is_plain else "a TensorDict"
            raise _mismatch(key, "type", expected, type(obs).__name__)
        names = self._names[key]
        try:
            leaves = self.observation.flatten(obs)
        except KeyError as error:
            raise EnvError(
                f"The environment returned `{key}` without {error}, which its spec has: {names}."
            ) from None
        for name, row, leaf in zip(names, rows, leaves, strict=True):
            _check(name, leaf, row.shape, row.dtype, row.device)
            row.copy_(leaf)

    def _missing(self, outcome: Any, error: KeyError) -> EnvError:
        known = sorted(map(str, outcome.keys())) if hasattr(outcome, "keys") else type(outcome)
        declared = sorted({DataKeys.OBS, DataKeys.REWARDS} | self.episode_keys)
        return EnvError(
            f"`Env.step` must return {', '.join(declared)} in every row; {error} is missing from "
            f"{known}. Return it, or leave it out of `episode_keys`."
        )

    # ---- the whole rollout --------------------------------------------------------------------

    @property
    def done(self) -> torch.Tensor:
        """Rows that end an episode, bool `[T, N, 1]`."""
        return self.terminated | self.truncated

    def close_rows(self) -> None:
        """Clear what invalid rows must not carry: rewards and the ends of episodes."""
        if DataKeys.VALID in self.episode_keys:
            invalid = ~self.valid
            self.rewards[:-1].masked_fill_(invalid, 0.0)
            self.terminated.masked_fill_(invalid, False)
            self.truncated.masked_fill_(invalid, False)

    def is_finite(self) -> torch.Tensor:
        """Whether rewards and observations are finite, 0-d bool: a sum shows it in one pass.

        A sum of huge finite numbers may overflow too; `find_non_finite` tells them apart.
        """
        sums = [x.sum() for x in (self.rewards, *self.obs) if x.is_floating_point()]
        return torch.stack([s.double() for s in sums]).sum().isfinite()

    def find_non_finite(self) -> None:
        """Look for the first number that is not finite.

        Raises:
            NonFiniteError: Names key, environment and env step, where there is one.

        """
        names = [(DataKeys.REWARDS, self.rewards[:-1], 0)]
        names += [(n, x, 1) for n, x in zip(self._names[DataKeys.OBS], self.obs, strict=True)]
        for name, x, offset in names:
            bad = (~x.isfinite()).flatten(2).any(-1).nonzero()
            if len(bad):
                t, env = bad[0].tolist()
                value = x[t, env].flatten()
                when = f"env step {t - offset} of the rollout" if t >= offset else "the reset"
                raise NonFiniteError(
                    f"`{name}` of environment {env} is not finite at {when}: "
                    f"{value[~value.isfinite()][0].item()} ({len(bad)} rows in all). "
                    "The policy was not changed; mend the environment, or bound what it returns."
                )

    def sequences(self, learnable: torch.Tensor) -> "Sequences":
        """The rollout as sequences of `seq_len` env steps.

        Args:
            learnable: Rows that the losses see, bool `[T, N, 1]`.

        """
        return Sequences(self, learnable)

    def view(self) -> TensorDict:
        """Zero-copy view `[num_envs, horizon + 1]` of the storage."""
        batch = [self.num_envs, self.horizon + 1]
        tensors: dict[str, Any] = {
            DataKeys.OBS: self.observation.unflatten(_batch_first(self.obs), batch),
            DataKeys.ACTIONS: self.action.unflatten(_batch_first(self.actions), batch),
        }
        for key in ("rewards", "logp", "values", "advantages", "returns"):
            tensors[key] = getattr(self, key).transpose(0, 1)
        tensors[DataKeys.REVERSED_DISCOUNTED_RETURNS] = self.reversed_returns.transpose(0, 1)
        return TensorDict(tensors, batch_size=batch, device=self.device)


class Sequences:
    """A rollout cut into `S·N` sequences of `L` env steps, ready to be gathered.

    Nothing is copied here: fields are views `[S, N, L, …]`.

    Args:
        rollout: The rollout.
        learnable: Rows that the losses see, bool `[T, N, 1]`.

    """

    #: Number of sequences, `S·N`.
    count: int

    def __init__(self, rollout: Rollout, learnable: torch.Tensor) -> None:
        self.length = rollout.seq_len
        self.num_envs = rollout.num_envs
        self.count = rollout.horizon // rollout.seq_len * rollout.num_envs
        self.learnable = learnable.sum()
        self._action = rollout.action
        self._has_invalid = DataKeys.VALID in rollout.episode_keys
        # first[t] belongs to observation t + 1; a sequence needs it with the observation, and its
        # own first step starts from the stored states.
        first = torch.cat([torch.zeros_like(rollout.first[:1]), rollout.first[:-1]])
        horizon = rollout.horizon
        self._fields = {
            "obs": self._cut_all(leaf[:horizon] for leaf in rollout.obs),
            "states": rollout.states,
            "first": self._cut_all([first]),
            "actions": self._cut_all(leaf[:horizon] for leaf in rollout.actions),
            "rows": self._cut_all(
                x[:horizon]
                for x in (rollout.logp, rollout.values, rollout.advantages, rollout.returns)
            ),
            "mask": self._cut_all([learnable]),
        }

    def _cut_all(self, leaves: Any) -> Leaves:
        return tuple(x.unflatten(0, (-1, self.length)).transpose(1, 2) for x in leaves)

    def minibatches(
        self, size: int, *, shuffle: bool, joint: bool, permute: Callable[[int], torch.Tensor]
    ) -> Iterator[Minibatch]:
        """Minibatches of `size` sequences that cover the rollout once.

        A full batch is neither gathered nor shuffled: its order does not matter.

        Args:
            size: Sequences a minibatch.
            shuffle: Whether to draw the order.
            joint: Whether all minibatches share one optimizer step, and so one total weight.
            permute: Draws a permutation of that many indices.

        """
        total = self.learnable if joint else None
        if size == self.count:
            yield self.select(None, total)
            return
        if not shuffle:
            for start in range(0, self.count, size):
                yield self.select(slice(start, start + size), total)
            return
        for index in permute(self.count).split(size):
            yield self.select(index, total)

    def select(
        self, index: None | slice | torch.Tensor, total: None | torch.Tensor = None
    ) -> Minibatch:
        """The sequences at `index` (s·N + n), or all of them.

        Args:
            index: Which sequences.
            total: Rows that share one optimizer step; the minibatch's own where None.

        """
        obs, states, (first,), actions, rows, (mask,) = (
            tuple(self._take(x, index) for x in leaves) for leaves in self._fields.values()
        )
        logp, values, advantages, returns = (x.flatten(0, 1) for x in rows)
        mask = mask.flatten(0, 1)
        total = mask.sum() if total is None else total
        if self._has_invalid:
            # What an invalid row saw must not reach a gradient, not even as 0 · NaN.
            seen = mask.view(*first.shape)
            obs = tuple(x.where(_like(seen, x), torch.zeros_like(x[:1])) for x in obs)
            logp, values, advantages, returns = (
                torch.where(mask, x, 0.0) for x in (logp, values, advantages, returns)
            )
        return Minibatch(
            obs=obs,
            states=states,
            first=first,
            actions=self._action.unflatten(tuple(x.flatten(0, 1) for x in actions), [len(logp)]),
            logp=logp,
            values=values,
            advantages=advantages,
            returns=returns,
            weight=mask.to(logp.dtype) / total.clamp(min=1),
        )

    def _take(self, x: torch.Tensor, index: None | slice | torch.Tensor) -> torch.Tensor:
        """Rows of `x` `[S, N, …]` at flat indices, `[B, …]`."""
        if index is None:
            return x.flatten(0, 1)
        if x.is_contiguous():
            flat = x.flatten(0, 1)
            return flat[index] if isinstance(index, slice) else flat.index_select(0, index)
        if isinstance(index, slice):
            index = torch.arange(index.start, index.stop, device=x.device)
        return x[index // self.num_envs, index % self.num_envs]


def _like(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`mask` `[B, L, 1]` with as many trailing dimensions of 1 as `x` `[B, L, …]` has."""
    return mask.view(*mask.shape[:2], *(1,) * (x.ndim - 2))


def _rows(leaves: Leaves) -> Rows:
    return list(zip(*(leaf.unbind(0) for leaf in leaves), strict=True)) if leaves else []


def _batch_first(leaves: Leaves) -> Leaves:
    return tuple(leaf.transpose(0, 1) for leaf in leaves)


def _check(key: str, x: Any, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
    """Raise where `x` is not exactly what the storage expects: `copy_` would broadcast and cast."""
    if not isinstance(x, torch.Tensor):
        raise _mismatch(key, "type", "a tensor", type(x).__name__)
    if x.shape != shape:
        raise _mismatch(key, "shape", list(shape), list(x.shape))
    if x.dtype != dtype:
        raise _mismatch(key, "dtype", dtype, x.dtype)
    if x.device != device:
        raise _mismatch(key, "device", device, x.device)


def _mismatch(key: str, what: str, expected: Any, received: Any) -> EnvError:
    return EnvError(
        f"The environment returned `{key}` with {what} {received}; expected {expected}. "
        "Mend what it returns, or the spec that describes it."
    )
