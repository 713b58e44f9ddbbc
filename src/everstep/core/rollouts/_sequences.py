"""Sequences of a rollout, and the minibatches gathered from them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from tensordict import TensorDict

from ...data import DataKeys
from ...env.specs import Leaves
from ..advantages import centre_and_scale, measured_rows, scale_of
from ..ranks import Measured, Reducer
from ._rollout import Rollout, before_reset

#: Largest rollout that is copied in the order of an epoch, rather than minibatch by minibatch.
GATHERED_BYTES = 2**21

#: Data that bonuses stored for each row, by their names.
Caches = Mapping[str, Leaves]

#: Which sequences; None for all of them.
Index = None | slice | torch.Tensor


@dataclass(frozen=True)
class Minibatch:
    """`B` sequences of `L` env steps; rows are `B·L` transitions. `L` is 1 without recurrence."""

    #: Observations `[B, L, …]`; windows `[B, history + 1, …]` for policies with a history.
    obs: Leaves
    #: Recurrent states before each sequence's first step, `[B, …]`.
    states: Leaves
    #: Whether a step's observation is the first of an episode, so that states are reset, bool
    #: `[B, L, 1]`; None if episodes never end.
    first: None | torch.Tensor
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
    #: Each row's share of the loss, 0 if it is excluded, `[B·L, 1]`.
    weight: torch.Tensor
    #: Whether rows may be excluded, so that what they hold must not reach the loss.
    has_excluded: bool = True
    #: Observations after the actions, before any reset, `[B·L, …]`; empty without bonuses.
    next_obs: Leaves = ()
    #: Whether those are known, bool `[B·L, 1]`; None without bonuses.
    next_known: None | torch.Tensor = None
    #: Data that bonuses stored for each row, `[B·L, …]`, by their names.
    cache: Caches = field(default_factory=dict)
    #: Data that the objective stored for each row, `[B·L, …]`.
    labels: Leaves = ()

    def split(self, size: int) -> "list[Minibatch]":
        """Views of `size` sequences each; the last one may be smaller."""
        count, rows = self.obs[0].shape[0], self.logp.shape[0]
        if count <= size:
            return [self]

        number, own = -(-count // size), size * rows // count

        def pieces(x: Any) -> Sequence[Any]:
            """The pieces of a field: a tensor, a tuple or a mapping of fields, a flag, or None."""
            if x is None or isinstance(x, bool) or len(x) == 0:
                return [x] * number
            if isinstance(x, tuple):
                return list(zip(*map(pieces, x), strict=True))
            if isinstance(x, dict):
                columns = zip(*map(pieces, x.values()), strict=True)
                return [dict(zip(x, column, strict=True)) for column in columns]
            return cast(Sequence[Any], x.split(size if x.shape[0] == count else own))

        fields = zip(*map(pieces, vars(self).values()), strict=True)
        return [Minibatch(*each) for each in fields]

    def take(self, order: torch.Tensor) -> "Minibatch":
        """Its sequences in another order, copied."""
        count = self.obs[0].shape[0]

        def put_in_order(x: Any) -> Any:
            if x.shape[0] == count:
                return _select(x, order)
            return _select(x.unflatten(0, (count, -1)), order).flatten(0, 1)

        return self.map(put_in_order)

    def map(self, function: Callable[[Any], Any]) -> "Minibatch":
        """A minibatch of the results of a function of each tensor."""

        def mapped(x: Any) -> Any:
            """A field: a tensor, a tuple or a mapping of fields, a flag, or None."""
            if isinstance(x, tuple):
                return tuple(map(mapped, x))
            if isinstance(x, dict):
                return {name: mapped(leaves) for name, leaves in x.items()}
            return x if x is None or isinstance(x, bool) else function(x)

        return Minibatch(**{name: mapped(x) for name, x in vars(self).items()})


class Sequences:
    """A rollout cut into `S·N` sequences of `L` env steps; fields are views `[S, N, L, …]`.

    Args:
        rollout: Complete rollout, with advantages.
        learnable: Rows that enter the losses, bool `[T, N, 1]`.
        cache: Data that bonuses stored for each row, `[T, N, …]`, by their names; minibatches then
            hold it, and the observations after the actions. None without bonuses.
        standardized: Whether to standardise advantages over each minibatch.
        labels: Data that the objective stored for each row, `[T, N, …]`.
        more_states: Further recurrent states before each sequence, `[S, N, …]`; minibatches have
            them behind the policy's own.

    """

    #: Number of sequences, `S·N`.
    count: int

    def __init__(
        self,
        rollout: Rollout,
        learnable: torch.Tensor,
        *,
        cache: None | Caches = None,
        standardized: bool = False,
        labels: Leaves = (),
        more_states: Leaves = (),
    ) -> None:
        self.standardized = standardized
        self.length = rollout.seq_len
        self.num_envs = rollout.num_envs
        self.count = rollout.horizon // rollout.seq_len * rollout.num_envs
        self.learnable = learnable.sum()
        self._all: None | Minibatch = None
        self._action = rollout.action
        self._has_excluded = bool(rollout.episode_keys) or rollout.history > 0
        self._has_invalid = DataKeys.VALID in rollout.episode_keys
        # An action mask of zeros would forbid the action that was taken.
        self._is_mask = [path == (DataKeys.ACTION_MASK,) for path in rollout.observation.paths]
        horizon = rollout.horizon
        if rollout.history:
            # The window of an env step takes the place of the steps of a sequence.
            obs = rollout._windows(horizon)
        else:
            obs = self._cut_all(leaf[:horizon] for leaf in rollout.obs)
        first: tuple[torch.Tensor, ...] = ()
        if DataKeys.FIRST in rollout.episode_keys:
            # first[t] belongs to observation t + 1; a sequence needs it with the observation, and
            # its own first step starts from the stored states.
            first = (torch.cat([torch.zeros_like(rollout.first[:1]), rollout.first[:-1]]),)
        self._fields = {
            "obs": obs,
            "states": (*rollout.states, *more_states),
            "first": self._cut_all(first),
            "actions": self._cut_all(leaf[:horizon] for leaf in rollout.actions),
            "rows": self._cut_all(
                x[:horizon]
                for x in (rollout.logp, rollout.values, rollout.advantages, rollout.returns)
            ),
            "mask": self._cut_all([learnable]),
            "labels": self._cut_all(labels),
        }
        self._cached = tuple(cache or ())
        if cache is not None:
            self._fields["next"] = self._cut_all(leaf[1:] for leaf in rollout.obs)
            self._fields["final"] = self._cut_all(rollout.final_obs)
            self._fields["ends"] = self._cut_all([rollout.ends, rollout.next_known])
            self._fields |= {f"cache of {name}": self._cut_all(x) for name, x in cache.items()}
        self._bytes = sum(x.nbytes for leaves in self._fields.values() for x in leaves)

    def _cut_all(self, leaves: Any) -> Leaves:
        return tuple(x.unflatten(0, (-1, self.length)).transpose(1, 2) for x in leaves)

    def minibatches(
        self, size: int, *, shuffle: bool, joint: bool, permute: Callable[[int], torch.Tensor]
    ) -> Iterator[Minibatch]:
        """Minibatches of an epoch, which cover the rollout once; see `steps` for the options."""
        steps = self.steps(size, chunk=None, shuffle=shuffle, joint=joint, permute=permute)
        return chain.from_iterable(steps)

    def epochs(
        self, count: int, size: int, *, reducer: Reducer, **options: Any
    ) -> Iterator[Iterator[Minibatch]]:
        """Minibatches of each optimizer step of `count` epochs; see `steps` for the options.

        A minibatch's advantages are standardised over the rows of all processes of `reducer`.
        """
        permute, is_drawn = options["permute"], options["shuffle"] and size < self.count
        orders = (permute(self.count) if is_drawn else None for _ in range(count))
        epochs: Iterator[tuple[Any, None | Measured]] = ((order, None) for order in orders)
        if self.standardized:
            epochs = reducer.measured(orders, partial(self.measure, size=size))
        for order, measured in epochs:
            drawn = {**options, "permute": lambda _, order=order: order}
            yield from self.steps(size, measured=measured, **drawn)

    def steps(
        self,
        size: int,
        *,
        chunk: None | int,
        shuffle: bool,
        joint: bool,
        permute: Callable[[int], torch.Tensor],
        measured: None | Measured = None,
    ) -> Iterator[Iterator[Minibatch]]:
        """Minibatches of each optimizer step of an epoch; their weights sum to 1 in each.

        A full batch is neither gathered nor shuffled: its order does not matter.

        Args:
            size: Sequences a minibatch.
            chunk: Sequences at once, None for a minibatch at once; the gradients of its chunks add
                up to those of a minibatch.
            shuffle: Whether to draw the order.
            joint: Whether all minibatches share one optimizer step.
            permute: Draws a permutation of that many indices.
            measured: What `measure` returns of the rows that advantages are standardised over;
                None for those of this rollout.

        """
        if shuffle and size < self.count and self._bytes <= GATHERED_BYTES:
            whole = self._whole().take(permute(self.count))
            minibatches = self._weighted(whole, size, joint, measured).split(size)
            for group in [minibatches] if joint else [[piece] for piece in minibatches]:
                yield (part for piece in group for part in piece.split(chunk or size))
            return
        indices = list(self.indices(size, shuffle, permute))
        scales = None if measured is None else list(zip(*scale_of(*measured), strict=True))
        for i, shared in enumerate([indices] if joint else [[index] for index in indices]):
            own = scales if scales is None or joint else [scales[i]]
            yield self.step(shared, chunk, joint=joint, scales=own)

    def measure(self, order: None | torch.Tensor, size: int) -> Measured:
        """Moments and largest magnitudes of the advantages of each minibatch, `[M]` each."""
        _, _, advantages, _ = self._fields["rows"]
        (mask,) = self._fields["mask"]
        x, mask = (self._take(x, order).reshape(-1, size * self.length) for x in (advantages, mask))
        return measured_rows(x, mask)

    def _whole(self) -> Minibatch:
        """All sequences with weight 1 for each learnable row, built once."""
        if self._all is None:
            self._all = self.select(None, torch.ones_like(self.learnable))
        return self._all

    def _weighted(
        self, whole: Minibatch, size: int, joint: bool, measured: None | Measured
    ) -> Minibatch:
        """All sequences, weighted for minibatches of `size` of them."""
        weight = whole.weight if joint else whole.weight.view(-1, size * self.length)
        total = weight.sum(-2 if joint else -1, keepdim=True)
        if self.standardized:
            rows = whole.advantages.view(-1, size * self.length)
            mask = whole.weight.view_as(rows) > 0
            mean, scale = scale_of(*(measured or measured_rows(rows, mask)))
            rows = torch.where(mask, rows - mean.view(-1, 1), 0.0) / scale.view(-1, 1)
            whole = replace(whole, advantages=rows.view_as(whole.advantages))
        return replace(whole, weight=(weight / total.clamp(min=1)).view_as(whole.weight))

    def step(
        self,
        indices: list[Index],
        chunk: None | int,
        *,
        joint: bool,
        scales: None | Sequence[tuple[torch.Tensor, ...]] = None,
    ) -> Iterator[Minibatch]:
        """Minibatches of one optimizer step, in chunks, from indices of sequences.

        `scales` has the mean and divisor that standardise the advantages of each minibatch; None
        for those of its own rows.
        """
        return self._chunks(indices, chunk, self.learnable if joint else None, scales)

    def indices(
        self, size: int, shuffle: bool, permute: Callable[[int], torch.Tensor]
    ) -> Iterator[Index]:
        """Indices of the sequences of each minibatch of an epoch."""
        if size == self.count:
            yield None
        elif shuffle:
            yield from permute(self.count).split(size)
        else:
            yield from (slice(start, start + size) for start in range(0, self.count, size))

    def _chunks(
        self,
        indices: list[Index],
        chunk: None | int,
        total: None | torch.Tensor,
        scales: None | Sequence[tuple[torch.Tensor, ...]],
    ) -> Iterator[Minibatch]:
        """The minibatches of one optimizer step, in chunks."""
        for i, index in enumerate(indices):
            pieces = [index] if chunk is None else _split(index, chunk, self.count)
            shared = total
            if shared is None and len(pieces) > 1:
                (mask,) = self._fields["mask"]
                shared = self._take(mask, index).sum()
            scale = None if scales is None else scales[i]
            if self.standardized and scale is None:
                scale = self._centre_and_scale(index)
            for piece in pieces:
                minibatch = self.select(piece, shared)
                yield minibatch if scale is None else _standardized(minibatch, *scale)

    def _centre_and_scale(self, index: Index) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and divisor that standardise the advantages of a minibatch, 0-d each."""
        _, _, advantages, _ = self._fields["rows"]
        (mask,) = self._fields["mask"]
        return centre_and_scale(self._take(advantages, index), self._take(mask, index))

    def select(self, index: Index, total: None | torch.Tensor = None) -> Minibatch:
        """The sequences at `index` (s·N + n), or all of them.

        Args:
            index: Which sequences.
            total: Rows that share one optimizer step; the minibatch's own where None.

        """
        taken = {
            name: tuple(self._take(x, index) for x in leaves)
            for name, leaves in self._fields.items()
        }
        obs, states, first, actions, rows, (mask,), labels = list(taken.values())[:7]
        logp, values, advantages, returns = (x.flatten(0, 1) for x in rows)
        mask = mask.flatten(0, 1)
        total = mask.sum() if total is None else total
        if self._has_invalid:
            # The observation of an invalid row must not reach a gradient, not even as 0 · NaN. In a
            # sequence it stays: the recurrent states of the rows after it depend on it.
            if self.length == 1:
                seen = mask.view(-1, self.length, 1)
                obs = tuple(
                    x if is_mask else _zeroed(x, _like(seen, x))
                    for x, is_mask in zip(obs, self._is_mask, strict=True)
                )
            logp, values, advantages, returns = (
                torch.where(mask, x, 0.0) for x in (logp, values, advantages, returns)
            )
        return Minibatch(
            obs=obs,
            states=states,
            first=first[0] if first else None,
            actions=self._action.unflatten(tuple(x.flatten(0, 1) for x in actions), [len(logp)]),
            logp=logp,
            values=values,
            advantages=advantages,
            returns=returns,
            weight=mask.to(logp.dtype) / total.clamp(min=1),
            has_excluded=self._has_excluded,
            labels=tuple(x.flatten(0, 1) for x in labels),
            **_next(taken, self._cached),
        )

    def _take(self, x: torch.Tensor, index: Index) -> torch.Tensor:
        """Rows of `x` `[S, N, …]` at flat indices, `[B, …]`."""
        if index is None:
            return x.flatten(0, 1)
        if x.is_contiguous():
            flat = x.flatten(0, 1)
            return flat[index] if isinstance(index, slice) else _select(flat, index)
        if isinstance(index, slice):
            index = torch.arange(index.start, index.stop, device=x.device)
        return x[index // self.num_envs, index % self.num_envs]


def _select(x: Any, index: torch.Tensor) -> Any:
    """Rows of a tensor or TensorDict at these indices, `[len(index), …]`."""
    if isinstance(x, torch.Tensor) and x.numel() == x.shape[0]:
        # Several times faster without the dimensions of 1.
        return x.view(-1).index_select(0, index).view(-1, *x.shape[1:])
    return x.index_select(0, index) if isinstance(x, torch.Tensor) else x[index]


def _standardized(minibatch: Minibatch, mean: torch.Tensor, scale: torch.Tensor) -> Minibatch:
    """A minibatch with standardised advantages, 0 in excluded rows."""
    centred = (minibatch.advantages - mean).masked_fill(minibatch.weight == 0, 0.0)
    return replace(minibatch, advantages=centred / scale)


def _split(index: Index, size: int, count: int) -> list[Index]:
    """`index` in pieces of `size` sequences, the last one shorter; `count` is all there are."""
    if isinstance(index, torch.Tensor):
        return list(index.split(size))
    start, stop = (0, count) if index is None else (index.start, index.stop)
    if stop - start <= size:
        return [index]
    return [slice(i, min(i + size, stop)) for i in range(start, stop, size)]


def _next(taken: dict[str, Leaves], names: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a minibatch that bonuses use; empty without bonuses."""
    if "next" not in taken:
        return {}
    ends, known = (x.flatten(0, 1) for x in taken["ends"])
    next_obs = tuple(x.flatten(0, 1) for x in taken["next"])
    return {
        "next_obs": before_reset(next_obs, tuple(x.flatten(0, 1) for x in taken["final"]), ends),
        "next_known": known,
        "cache": {key: tuple(x.flatten(0, 1) for x in taken[f"cache of {key}"]) for key in names},
    }


def _like(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`mask` `[B, L, 1]` with as many trailing dimensions of 1 as `x` `[B, L, …]` has."""
    return mask.view(*mask.shape[:2], *(1,) * (x.ndim - 2))


def _zeroed(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """`x` with zeros where `seen` is false; `seen` is broadcast."""
    if x.is_floating_point():  # a product would keep NaN
        return x.where(seen, torch.zeros_like(x[:1]))
    return x * seen  # of images: a tenth of the time of `where`
