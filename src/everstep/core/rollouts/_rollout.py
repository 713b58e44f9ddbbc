"""Storage of one rollout: time-major, contiguous, allocated once and reused.

Row `t` of everything but observations and values belongs to action `t`; observation `t` is what
that action was chosen from. Rows are ordered `t·N + n`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import reduce
from typing import Any

import torch
from tensordict import TensorDict

from ...data import EPISODE_KEYS, DataKeys
from ...env import Env
from ...env.limits import Limit, Limits
from ...env.specs import EMPTY, Leaves, Structure
from ...errors import ConfigError, EnvError, NonFiniteError
from ..graphs import is_static

#: Observation or action rows, prebuilt: indexing costs more than copying a small row.
Rows = list[Leaves]


class _Expected:
    """Shape, dtype and device of a tensor; copying into storage would broadcast and cast silently.

    Args:
        name: Key, and path within it.
        row: Storage of one vector step.
        any_float: Whether any floating-point dtype is accepted.

    """

    def __init__(self, name: str, row: torch.Tensor, *, any_float: bool = False) -> None:
        self.name, self.any_float = name, any_float
        self.shape, self.dtype, self.device = row.shape, row.dtype, row.device

    def check(self, x: Any) -> None:
        """Check a tensor.

        Raises:
            EnvError: If type, shape, dtype or device differ.

        """
        if not isinstance(x, torch.Tensor):
            raise _mismatch(self.name, "type", "a tensor", type(x).__name__)
        if x.shape != self.shape:
            raise _mismatch(self.name, "shape", list(self.shape), list(x.shape))
        if x.dtype != self.dtype and not (self.any_float and x.is_floating_point()):
            expected = "a floating point type" if self.any_float else self.dtype
            raise _mismatch(self.name, "dtype", expected, x.dtype)
        if x.device != self.device:
            raise _mismatch(self.name, "device", self.device, x.device)


def _mismatch(name: str, what: str, expected: Any, received: Any) -> EnvError:
    """Error for a tensor that an environment returned."""
    return EnvError(
        f"The environment returned `{name}` with {what} {received}; expected {expected}. "
        "Fix what it returns, or the spec that describes it."
    )


#: Keys that end episodes.
_ENDS = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED})

_UNDECLARED = (
    "`Env.step` returned `terminated` or `truncated`, but the environment's `episode_keys` are "
    "empty, so its episodes would be trained as if they never ended. Set `episode_keys = "
    "frozenset({'terminated', 'truncated', 'first'})` in its class and return all three, or leave "
    "them out of the result."
)

_NOT_READ = (
    "`Env.step` returned `{}`, which is not among the environment's `episode_keys` {}, so nothing "
    "would read it. Add it to them in its class, or leave it out of the result."
)


class Rollout:
    """One rollout of `horizon` vector steps in `num_envs` environments.

    Args:
        num_envs: N.
        horizon: T.
        observation: Structure of one observation.
        action: Structure of one action.
        memory: Structure of the recurrent state of one environment.
        episode_keys: Episode keys that the environment returns.
        seq_len: Env steps a sequence.
        history: H, past observations that the policy's windows hold beside the present one.
        num_streams: K, reward streams.
        observation_limits: Limits of an observation's leaves; empty for none.
        action_limits: Limits of an action's leaves; empty for none.
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
        history: int = 0,
        num_streams: int = 1,
        observation_limits: Limits = (),
        action_limits: Limits = (),
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_envs, self.horizon, self.seq_len = num_envs, horizon, seq_len
        self.device, self.dtype = device, dtype
        self.observation, self.action, self.memory = observation, action, memory
        self.episode_keys, self.history = episode_keys, history
        self._limits = observation_limits or (None,) * len(observation.paths)
        self._action_limits = action_limits or (None,) * len(action.paths)

        def floats(columns: int) -> torch.Tensor:
            return torch.zeros(horizon + 1, num_envs, columns, dtype=dtype, device=device)

        def flags() -> torch.Tensor:
            return torch.zeros(horizon, num_envs, 1, dtype=torch.bool, device=device)

        # One row more than the horizon: observations and values have it, the rest has it so that
        # the documented `[N, T + 1]` buffer is a view.
        self._observed = observation.zeros(history + horizon + 1, num_envs, device=device)
        #: Observations `[T + 1, N, …]`, without the history.
        self.obs = tuple(leaf[history:] for leaf in self._observed)
        self.actions = action.zeros(horizon + 1, num_envs, device=device)
        self.logp, self.advantages = floats(1), floats(1)
        self.rewards, self.values, self.returns = (floats(num_streams) for _ in range(3))
        self.reversed_returns = floats(1)
        self.states = memory.zeros(horizon // seq_len, num_envs, device=device)
        self.terminated, self.truncated = flags(), flags()
        #: Rows `t` whose next observation, `t + 1`, opens an episode.
        self.first = flags()
        self.valid = ~flags()
        #: Rows whose final observation is not `obs_{t+1}`, its value, and rows whose bootstrap
        #: value is known.
        self.final, self.final_values, self.known = flags(), floats(num_streams)[:-1], ~flags()
        has_final = DataKeys.FINAL_OBS in episode_keys
        self.final_obs = observation.zeros(horizon, num_envs, device=device) if has_final else ()

        self._obs = _rows(self.obs)
        self._seen = self._obs if not history else _rows(self._windows(horizon + 1))
        self._actions = _rows(self.actions)
        self._logp, self._values = list(self.logp), list(self.values)
        self._final_obs = _rows(self.final_obs)
        self._action_names = [".".join((DataKeys.ACTIONS, *path)) for path in action.paths]
        self._names = {
            key: [".".join((key, *path)) for path in observation.paths]
            for key in (DataKeys.OBS, DataKeys.FINAL_OBS)
        }
        #: Storage rows of each vector step's outcome, and the tensors that they accept.
        self._flag_keys = sorted(episode_keys - {DataKeys.FINAL_OBS})
        self._num_keys = len({DataKeys.OBS, DataKeys.REWARDS} | episode_keys)
        #: Names of what the environment returned and nothing reads; whether this is the first
        #: rollout, in which nested ones are looked for.
        self.unread: set[str] = set()
        self._is_first = True
        #: Whether final observations lay in the memory of observations then.
        self._shares_final = False
        self._outcomes, self._expected = self._outcome_rows()

    def _outcome_rows(self) -> tuple[list[list[torch.Tensor]], list[_Expected]]:
        """Storage rows of each vector step's outcome, and the tensors they accept, in one order."""
        final_names = self._names[DataKeys.FINAL_OBS] if self.final_obs else []
        names = [*self._names[DataKeys.OBS], DataKeys.REWARDS, *self._flag_keys, *final_names]
        flags = (getattr(self, key) for key in self._flag_keys)
        following = (leaf[1:] for leaf in self.obs)
        storage = [*following, self.rewards[:-1, :, :1], *flags, *self.final_obs]
        rows = [list(row) for row in zip(*(x.unbind(0) for x in storage), strict=True)]
        expected = [
            _Expected(name, row, any_float=name == DataKeys.REWARDS)
            for name, row in zip(names, rows[0], strict=True)
        ]
        return rows, expected

    # ---- one vector step -------------------------------------------------------------------------

    def obs_at(self, t: int) -> Leaves:
        """Observation `t`, `[N, …]`; with a history the window that ends in it, `[N, H + 1, …]`."""
        return self._seen[t]

    def final_obs_at(self, t: int, rows: torch.Tensor | slice) -> Leaves:
        """Final observations of row `t`, `[R, …]`; with a history the windows that end in them.

        Args:
            t: Vector step.
            rows: Environments, `[R]`, or a slice of them.

        """
        final = tuple(leaf[rows] for leaf in self._final_obs[t])
        if not self.history:
            return final
        before = (leaf[t + 1 : t + 1 + self.history, rows] for leaf in self._observed)
        return tuple(
            torch.cat([past.transpose(0, 1), last.unsqueeze(1)], 1)
            for past, last in zip(before, final, strict=True)
        )

    def _windows(self, rows: int) -> Leaves:
        """The windows of the first observations, `[rows, N, H + 1, …]`, without a copy."""
        size = self.history + 1
        return tuple(leaf.unfold(0, size, 1)[:rows].movedim(-1, 2) for leaf in self._observed)

    def open(self, obs: torch.Tensor | TensorDict) -> None:
        """Start a rollout with the observations of a reset.

        Raises:
            EnvError: If they do not fit the observation spec.

        """
        for leaf in self._observed:
            leaf[: self.history].zero_()
        self._write_obs(self._obs[0], DataKeys.OBS, obs)
        self.reversed_returns[0].zero_()

    def carry(self) -> None:
        """Start a rollout where the last one ended."""
        overlap = self.horizon <= self.history
        for storage, last in zip(self._observed, self.last_obs(), strict=True):
            storage[: self.history + 1].copy_(last.clone() if overlap else last)
        self.reversed_returns[0].copy_(self.reversed_returns[-1].masked_fill(self.done[-1], 0.0))

    def reopen(self, rows: torch.Tensor, obs: torch.Tensor | TensorDict) -> None:
        """Replace the first observations of environments that were reset after `carry`.

        Args:
            rows: Environments that were reset, bool `[N, 1]`.
            obs: Observations `[N, …]`, of which theirs are read.

        Raises:
            EnvError: If they do not fit the observation spec.

        """
        was_reset = rows.view(-1)
        for leaf in self._observed:
            leaf[: self.history, was_reset] = 0
        before = [leaf.clone() for leaf in self._obs[0]]
        self._write_obs(self._obs[0], DataKeys.OBS, obs)
        for leaf, kept in zip(self._obs[0], before, strict=True):
            leaf[~was_reset] = kept[~was_reset]
        self.reversed_returns[0].masked_fill_(rows, 0.0)

    def last_obs(self) -> Leaves:
        """History and last observation, `[H + 1, N, …]`: where the next rollout starts."""
        return tuple(leaf[-1 - self.history :] for leaf in self._observed)

    def put_last_obs(self, leaves: Leaves) -> None:
        """Write history and last observation, `[H + 1, N, …]`, for the next `carry`."""
        for storage, leaf in zip(self.last_obs(), leaves, strict=True):
            storage.copy_(leaf)

    def write_states(self, sequence: int, states: Leaves) -> None:
        """Write the recurrent states, `[N, …]`, before a sequence's first env step."""
        for storage, state in zip(self.states, states, strict=True):
            storage[sequence].copy_(state)

    def write_sample(
        self, t: int, actions: Leaves, logp: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write actions, log-probabilities and values of vector step `t`."""
        _copy([*self._actions[t], self._logp[t], self._values[t]], [*actions, logp, values])

    def write_actions(self, t: int, actions: Leaves) -> None:
        """Write the actions of vector step `t`, as they were sampled."""
        for row, leaf in zip(self._actions[t], actions, strict=True):
            row.copy_(leaf)

    def write_outcome(self, t: int, outcome: TensorDict) -> bool:
        """Write the outcome of vector step `t`; whether a tensor of it requires gradients.

        The rollout has none: call it where gradients are disabled.

        Raises:
            EnvError: If a key is missing, a tensor does not fit its spec, or the environment ends
                episodes without declaring it.

        """
        if not hasattr(outcome, "items"):
            raise EnvError(
                f"`Env.step` must return a TensorDict; got {type(outcome).__name__}. "
                "Put observations and rewards into one."
            )
        found = dict(outcome.items())  # each look-up in a TensorDict costs 2 microseconds
        try:
            leaves = [*self._leaves(DataKeys.OBS, found[DataKeys.OBS]), found[DataKeys.REWARDS]]
            leaves += [found[key] for key in self._flag_keys]
            if self.final_obs:
                leaves += self._leaves(DataKeys.FINAL_OBS, found[DataKeys.FINAL_OBS])
        except KeyError as error:
            if not self.episode_keys:
                self._find_unread(found)
            raise self._missing(outcome, error) from None
        if len(found) != self._num_keys or self._is_first:
            self._find_unread(found)
            final = leaves[len(leaves) - len(self.final_obs) :]
            self._shares_final |= self._is_first and any(map(_is_one, leaves, final))
            self._is_first &= t < self.horizon - 1
        has_graph = False
        for x, expected in zip(leaves, self._expected, strict=True):
            if not (  # nearly all fit, and six calls would cost as much as the copy
                type(x) is torch.Tensor
                and x.shape == expected.shape
                and x.dtype is expected.dtype
                and x.device == expected.device
            ):
                expected.check(x)
            has_graph |= x.requires_grad
        # It waits for a device: in the first rollout alone there, and not in recorded work.
        if self._shares_final and (
            self.device.type != "cuda" or (self._is_first and not is_static())
        ):
            self._check_final(t, leaves, found)
        _copy(self._outcomes[t], leaves)
        return has_graph

    def lend(self) -> list[TensorDict]:
        """Memory of the outcome of each vector step, as an environment returns it, locked."""
        batch, lent = [self.num_envs], []
        for leaves in self._outcomes:
            obs, rest = leaves[: len(self.obs)], leaves[len(self.obs) :]
            tensors: dict[str, Any] = {
                DataKeys.OBS: self.observation.unflatten(tuple(obs), batch),
                **dict(zip([DataKeys.REWARDS, *self._flag_keys], rest, strict=False)),
            }
            if self.final_obs:
                final = tuple(leaves[len(leaves) - len(self.final_obs) :])
                tensors[DataKeys.FINAL_OBS] = self.observation.unflatten(final, batch)
            lent.append(TensorDict(tensors, batch, device=self.device, lock=True))
        return lent

    def _check_final(self, t: int, leaves: list[torch.Tensor], found: dict[str, Any]) -> None:
        """Check final observations that lie in the memory of `obs`.

        Raises:
            EnvError: If a row was truncated and opens the next episode, so that one is lost.

        """
        ends = found[DataKeys.TRUNCATED] & ~found[DataKeys.TERMINATED] & found[DataKeys.FIRST]
        rows, final = ends.flatten(), leaves[len(leaves) - len(self.final_obs) :]
        names = self._names[DataKeys.FINAL_OBS]
        for name, x, y, before in zip(names, leaves, final, self._obs[t], strict=False):
            if _is_one(x, y) and bool((x[rows] != before[rows]).any()):
                raise EnvError(
                    f"`{name}` lies in the memory of `obs`, which holds the next episode's where "
                    "one was truncated, so the observation that ended it is lost. Return a copy "
                    "that is made before the reset: `obs.clone()`."
                )

    def _find_unread(self, found: dict[str, Any]) -> None:
        """Add the names in an outcome that training does not read to `unread`.

        Raises:
            EnvError: If an episode key is among them: the environment does not declare it.

        """
        unread = unread_of(found, self.observation, self.episode_keys)
        undeclared = sorted(unread & EPISODE_KEYS)
        if undeclared and not self.episode_keys and not _ENDS.isdisjoint(undeclared):
            raise EnvError(_UNDECLARED)
        if undeclared:
            raise EnvError(_NOT_READ.format(undeclared[0], sorted(self.episode_keys)))
        self.unread |= unread

    def _write_obs(self, rows: Leaves, key: str, obs: torch.Tensor | TensorDict) -> None:
        leaves = self._leaves(key, obs)
        for leaf, expected in zip(leaves, self._expected, strict=False):
            expected.check(leaf)
        for row, leaf in zip(rows, leaves, strict=True):
            row.copy_(leaf)
        self.unread |= unread_of({key: obs}, self.observation, self.episode_keys)

    def _leaves(self, key: str, obs: torch.Tensor | TensorDict) -> Leaves:
        """Leaves of an observation."""
        if self.observation.is_plain is not isinstance(obs, torch.Tensor):
            expected = "a tensor" if self.observation.is_plain else "a TensorDict"
            raise _mismatch(key, "type", expected, type(obs).__name__)
        try:
            return self.observation.flatten(obs)
        except KeyError as error:
            raise EnvError(
                f"The environment returned `{key}` without {error}, which its spec has: "
                f"{self._names[key]}."
            ) from None

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

    def close_rows(
        self,
        *,
        bootstraps: bool = True,
        clean: None | Callable[[torch.Tensor, torch.Tensor], None] = None,
    ) -> None:
        """Set rewards and done flags of invalid rows to 0.

        Args:
            bootstraps: Whether values of truncated episodes' last observations are needed; in
                evaluations they are not.
            clean: Does what `clean_rows` does.

        """
        if DataKeys.VALID in self.episode_keys:
            invalid = ~self.valid
            self.rewards[:-1].masked_fill_(invalid, 0.0)
            self.terminated.logical_and_(self.valid)
            self.truncated.logical_and_(self.valid)
            ended = self.terminated if bootstraps else self.done
            self._close_unused_obs(ended, invalid, clean or clean_rows)

    def _close_unused_obs(
        self, ended: torch.Tensor, invalid: torch.Tensor, clean: Callable[..., None]
    ) -> None:
        """Set NaN and infinity to 0 in unused observations, and in what was computed from them.

        An environment that resets in the next env step returns an episode's last observation as
        `obs`. If the episode was terminated, the action in it is ignored, and its value is not
        needed. Environments that reset at once return it as `final_obs`, which may hold
        anything then.

        Args:
            ended: Rows that end an episode whose last observation is not valued, bool `[T, N, 1]`.
            invalid: Rows that are no results of the policy's actions, likewise.
            clean: Does what `clean_rows` does.

        """
        unused = torch.cat([invalid[:1], (ended | invalid) & ~self.first])
        for x in (*self.obs, *self.actions, self.values, self.logp):
            if x.is_floating_point():
                clean(x, unused)

    def examine(self, aminmax: Callable[..., Any] = torch.aminmax) -> dict[str, torch.Tensor]:
        """Faults of the environment's data, 0-d each, from one reduction of each leaf.

        `"finite"`: whether every reward and observation is finite, and every choice exists;
        `find_fault` finds what is not. `"beyond"`: leaves of numbers that are outside of the bounds
        of their space; `beyond_bounds` describes them. `aminmax` does what PyTorch's does.
        """
        # Extremes show NaN, too; a sum of large finite numbers may overflow.
        extremes = [*aminmax(self.rewards)]
        missing: list[torch.Tensor] = []
        beyond: list[torch.Tensor] = []
        for leaf, limit in zip(self.obs, self._limits, strict=True):
            if not leaf.numel() or (limit is None and not leaf.is_floating_point()):
                continue
            ends = aminmax(leaf) if limit is None else limit.extremes(leaf, aminmax)
            if leaf.is_floating_point():
                extremes += ends
            if limit is not None:
                (missing if limit.is_choice else beyond).append(_is_outside(limit, *ends))
        for _, limit, leaf, _ in self._other_choices():
            missing.append(_is_outside(limit, *limit.extremes(leaf, aminmax)))
        # 0·x is 0 for what is finite, and NaN for the rest.
        finite = torch.cat([x.flatten() for x in extremes]).mul_(0.0).sum() == 0.0
        found = {"finite": finite & ~reduce(torch.logical_or, missing) if missing else finite}
        return {**found, "beyond": reduce(torch.logical_or, beyond)} if beyond else found

    def _other_choices(self) -> Iterator[tuple[str, Limit, torch.Tensor, int]]:
        """Name, limit, rows `[T, N, …]` and offset of choices in actions and final observations.

        Final observations are those that are valued; other rows may hold anything.
        """
        for name, limit, leaf in zip(
            self._action_names, self._action_limits, self.actions, strict=True
        ):
            if limit is not None:
                yield name, limit, leaf[:-1], 0
        names = self._names[DataKeys.FINAL_OBS]
        for name, limit, leaf in zip(names, self._limits, self.final_obs, strict=False):
            if limit is not None and limit.is_choice:
                is_final = self.final.view(*self.final.shape[:2], *(1,) * (leaf.ndim - 2))
                yield name, limit, torch.where(is_final, leaf, limit.low), 0

    def find_fault(self) -> None:
        """Raise an error for the first number that is not finite or choice that does not exist.

        Raises:
            NonFiniteError: Names key, environment and env step of a number.
            EnvError: Names those of a choice in an observation.
            ConfigError: Names those of a choice in an action.

        """
        observed = list(zip(self._names[DataKeys.OBS], self._limits, self.obs, strict=True))
        rewards = (DataKeys.REWARDS, self.rewards[:-1, :, :1], 0)
        for name, x, offset in (rewards, *((name, x, 1) for name, _, x in observed)):
            bad = (~x.isfinite()).flatten(2).any(-1).nonzero()
            if len(bad):
                t, env = bad[0].tolist()
                value = x[t, env].flatten()
                raise NonFiniteError(
                    f"`{name}` of environment {env} is not finite at {_when(t, offset)}: "
                    f"{value[~value.isfinite()][0].item()} ({len(bad)} rows in all). "
                    "The policy was not changed; fix the environment, or bound what it returns."
                )
        choices = [(n, limit, x, 1) for n, limit, x in observed if limit and limit.is_choice]
        for name, limit, x, offset in (*choices, *self._other_choices()):
            text = _describe_outside(name, limit, x, offset)
            if text and name in self._action_names:
                raise ConfigError(f"The policy's {text}. Set a `distribution_cls` that fits.")
            if text:
                raise EnvError(
                    f"{text}. The policy was not changed; fix what the environment returns, or its "
                    "observation space."
                )

    def beyond_bounds(self) -> dict[str, str]:
        """Descriptions of numbers outside of the bounds of their space, by the leaf's name."""
        leaves = zip(self._names[DataKeys.OBS], self._limits, self.obs, strict=True)
        found = {
            name: _describe_outside(name, limit, leaf, 1)
            for name, limit, leaf in leaves
            if limit is not None and not limit.is_choice
        }
        return {name: text for name, text in found.items() if text}

    @property
    def ends(self) -> torch.Tensor:
        """Rows that end an episode and were reset at once, bool `[T, N, 1]`."""
        return self.done & self.first

    @property
    def next_known(self) -> torch.Tensor:
        """Rows whose next observation, before any reset, is known, bool `[T, N, 1]`."""
        found = ~self.ends if not self.final_obs else torch.ones_like(self.valid)
        for leaf in self.final_obs:
            if leaf.is_floating_point():
                # Extremes show NaN, too, and need no copy of the observations, as `isfinite` does.
                least, most = torch.aminmax(leaf.flatten(2), dim=-1, keepdim=True)
                found &= (least.isfinite() & most.isfinite()) | ~self.ends
        return found & self.valid

    def next_obs(self, start: int, end: int) -> Leaves:
        """Observations after vector steps `start` to `end`, `[(end − start)·N, …]`."""
        return before_reset(
            tuple(leaf[start + 1 : end + 1].flatten(0, 1) for leaf in self.obs),
            tuple(leaf[start:end].flatten(0, 1) for leaf in self.final_obs),
            self.ends[start:end].flatten(0, 1),
        )

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


def clean_rows(x: torch.Tensor, rows: torch.Tensor) -> None:
    """Set NaN and infinity in `x` `[T, N, …]` to 0 where `rows`, bool `[T, N, 1]`, is True."""
    rows = rows.view(*rows.shape[:2], *(1,) * (x.ndim - 2))
    x.copy_(torch.where(rows, x.nan_to_num(0.0, 0.0, 0.0), x))  # 3 operations, not 7


_Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]


def _copy(rows: _Tensors, leaves: _Tensors) -> None:
    """Copy leaves to rows, in one call instead of one a tensor.

    On a GPU that is one a dtype: several dtypes are a launch for each tensor, and older PyTorch
    assumes the first one's for all.
    """
    if not rows[0].is_cuda:
        torch._foreach_copy_(rows, leaves)
        return
    groups: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for row, leaf in zip(rows, leaves, strict=True):
        targets, sources = groups.setdefault(row.dtype, ([], []))
        targets.append(row)
        sources.append(leaf.to(row.dtype))
    for targets, sources in groups.values():
        torch._foreach_copy_(targets, sources)


def episode_keys_of(env: Env) -> frozenset[str]:
    """The episode keys that an environment declares; none for rl8's environments."""
    return frozenset(getattr(env, "episode_keys", ()))


def _is_outside(limit: Limit, least: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """Whether extremes are outside of a limit, 0-d bool."""
    outside = (least < limit.low) | (most > limit.high)
    return outside.any() if outside.ndim else outside


def _describe_outside(name: str, limit: Limit, x: torch.Tensor, offset: int) -> str:
    """The first number of rows `[T, N, …]` that is outside of a limit; empty if there is none."""
    bad = limit.beyond(x).flatten(2).any(-1).nonzero()
    if not len(bad):
        return ""
    t, env = bad[0].tolist()
    return (
        f"`{name}` of environment {env} is {limit.describe(x[t, env])}, at {_when(t, offset)} "
        f"({len(bad)} rows in all)"
    )


def _when(t: int, offset: int) -> str:
    """The time of row `t` of storage whose first `offset` rows are of the reset."""
    return f"env step {t - offset} of the rollout" if t >= offset else "the reset"


def _is_one(x: Any, y: Any) -> bool:
    """Whether two leaves are one memory."""
    are_tensors = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    return are_tensors and x.numel() > 0 and x.data_ptr() == y.data_ptr()


def _rows(leaves: Leaves) -> Rows:
    return list(zip(*(leaf.unbind(0) for leaf in leaves), strict=True)) if leaves else []


def _batch_first(leaves: Leaves) -> Leaves:
    return tuple(leaf.transpose(0, 1) for leaf in leaves)


def _paths_of(value: Any) -> Iterator[tuple[str, ...]]:
    """Paths of the leaves of nested mappings."""
    if not hasattr(value, "items"):
        yield ()
        return
    for key, child in value.items():
        yield from ((str(key), *path) for path in _paths_of(child))


def unread_of(
    outcome: Mapping[str, Any], observation: Structure, episode_keys: Collection[str]
) -> set[str]:
    """Names of what an environment returns and training does not read, such as `obs.debug`."""
    read = {DataKeys.OBS, DataKeys.REWARDS, *episode_keys}
    names = {str(key) for key in outcome.keys() - read}
    for key in {DataKeys.OBS, DataKeys.FINAL_OBS} & outcome.keys():
        unread = set(_paths_of(outcome[key])) - set(observation.paths)
        names |= {".".join((key, *path)) for path in unread}
    return names


def before_reset(next_obs: Leaves, final_obs: Leaves, ends: torch.Tensor) -> Leaves:
    """Observations after the actions, `[R, …]`: the final one where the environment was reset.

    Args:
        next_obs: Next observations in storage, `[R, …]`.
        final_obs: Final observations, `[R, …]`; may be empty.
        ends: Rows that were reset, bool `[R, 1]`.

    """
    if not final_obs:
        return next_obs
    return tuple(
        torch.where(ends.view(-1, *(1,) * (x.ndim - 1)), final, x)
        for x, final in zip(next_obs, final_obs, strict=True)
    )
