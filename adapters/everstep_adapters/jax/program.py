"""Compiled reset and vector step of a batch: one call each."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from everstep.errors import EnvError

from ..common.endings import select
from .packing import Packing
from .source import Functions, Stepped, Tree

#: Rows that are reset together: resets cost as a vector step or more, and few rows end at once.
_TOGETHER = 32

#: Bytes that a reset of all rows moves, up to which all are: fewer than a loop's start takes.
_CHEAP = 2**20


class Carry(NamedTuple):
    """All that changes between vector steps."""

    #: Key from which those of vector steps and resets are split.
    key: jax.Array

    #: States of the environments.
    states: Tree

    #: Env steps since the reset of each, `[N]`.
    elapsed: jax.Array


class Outcome(NamedTuple):
    """Results of a vector step."""

    #: Observations that are acted on next, `[N, …]`.
    obs: Tree

    #: Observations before any reset.
    final_obs: Tree

    #: `[N, 1]`.
    rewards: jax.Array

    #: `terminated`, `truncated` and `first`, `[3, N, 1]`.
    flags: jax.Array


class Program:
    """`num_envs` environments with their resets.

    Args:
        functions: One of the environments.
        num_envs: Number of rows.
        limit: Env steps after which an episode is truncated; None for no limit of the adapter's.
        low: Lower bounds of real actions; None for none.
        high: Upper bounds.

    """

    #: Shapes and dtypes of the carry and of observations.
    carry: Carry
    obs: Tree

    #: How a carry is joined between vector steps, and an outcome.
    held: Packing
    packing: Packing

    def __init__(
        self, functions: Functions, num_envs: int, limit: None | int, low: Any, high: Any
    ) -> None:
        self._num_envs, self._limit = num_envs, limit
        self._bounds = None if low is None else (jnp.asarray(low), jnp.asarray(high))
        self._reset_one = functions.reset
        self._reset, self._step = jax.vmap(functions.reset), jax.vmap(functions.step)
        self.carry, self.obs = jax.eval_shape(self._first, jax.random.PRNGKey(0))
        rewards = jax.ShapeDtypeStruct((num_envs, 1), jnp.result_type(float))
        flags = jax.ShapeDtypeStruct((3, num_envs, 1), jnp.bool_)
        self.held = Packing(self.carry)
        self.packing = Packing(Outcome(self.obs, self.obs, rewards, flags))
        self._resets_all = self._is_cheap()
        self.start, self.advance = jax.jit(self._start), jax.jit(self._advance)
        self.reset_rows = jax.jit(self._again)
        self.hold, self.restore = jax.jit(self.held.join), jax.jit(self.held.restore)

    def _is_cheap(self) -> bool:
        """Whether resetting all rows costs less than finding those that have to be reset."""
        leaves = jax.tree_util.tree_leaves((self.carry.states, self.obs))
        if sum(x.size * x.dtype.itemsize for x in leaves) > _CHEAP:
            return False  # so is the cost, which takes time to find
        keys = jax.eval_shape(self._keys, jax.random.PRNGKey(0))
        costs = jax.jit(self._reset).lower(keys).cost_analysis() or {}
        return bool(costs.get("bytes accessed", math.inf) <= _CHEAP)

    def _keys(self, key: jax.Array) -> jax.Array:
        """A key for each row."""
        return jax.random.split(key, self._num_envs)

    def _first(self, key: jax.Array) -> tuple[Carry, Tree]:
        key, following = jax.random.split(key)
        states, obs = self._reset(self._keys(key))
        return Carry(following, states, jnp.zeros(self._num_envs, jnp.int32)), obs

    def _start(self, key: jax.Array) -> tuple[tuple[jax.Array, ...], Tree]:
        """The first carry, joined, and observations."""
        carry, obs = self._first(key)
        return self.held.join(carry), obs

    def _advance(
        self, held: tuple[jax.Array, ...], action: jax.Array
    ) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
        """A vector step, and the resets of the rows whose episodes it ended.

        Takes and returns a joined `Carry`; the second that is returned is a joined `Outcome`.
        """
        carry: Carry = self.held.restore(held)
        key, stepping, resetting = jax.random.split(carry.key, 3)
        if self._bounds is not None:
            action = jnp.clip(action, *self._bounds)
        stepped = self._step(self._keys(stepping), carry.states, action)
        self._check(carry.states, stepped)  # while it is traced
        elapsed, ended = carry.elapsed + 1, stepped.ended
        if self._limit is not None:
            ended = ended | (elapsed >= self._limit)
        done = ended | stepped.terminated
        states, obs = self._reset_rows(resetting, done, (stepped.state, stepped.obs))
        flags = jnp.stack([stepped.terminated, done & ~stepped.terminated, done])[..., None]
        carry = Carry(key, states, jnp.where(done, 0, elapsed))
        outcome = Outcome(obs, stepped.obs, stepped.reward.reshape(-1, 1), flags)
        return self.held.join(carry), self.packing.join(outcome)

    def _again(
        self, held: tuple[jax.Array, ...], rows: jax.Array
    ) -> tuple[tuple[jax.Array, ...], Tree]:
        """A carry, joined, whose `rows` begin episodes, and observations of these rows."""
        carry: Carry = self.held.restore(held)
        key, resetting = jax.random.split(carry.key)
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.obs)
        states, obs = self._reset_rows(resetting, rows, (carry.states, blank))
        return self.held.join(Carry(key, states, jnp.where(rows, 0, carry.elapsed))), obs

    def _check(self, states: Tree, stepped: Stepped) -> None:
        """Check that an env step returns what a reset does, and one number and flags a row.

        Raises:
            EnvError: If it does not: a leaf would be cast to the dtype of the reset, and numbers be
                those of other rows.

        """
        for name in ("reward", "terminated", "ended"):
            if (value := getattr(stepped, name)).size != self._num_envs:
                raise EnvError(
                    f"`{name}` must be one number; got the shape {list(value.shape[1:])}. Return "
                    "one, such as a weighted sum."
                )
        pairs = (("state", states, stepped.state), ("obs", self.obs, stepped.obs))
        for name, old, new in pairs:
            if jax.tree_util.tree_structure(old) != jax.tree_util.tree_structure(new):
                raise EnvError(f"`{name}` of an env step has other entries than that of a reset.")
            leaves = jax.tree_util.tree_flatten_with_path(old)[0]
            for (path, was), now in zip(leaves, jax.tree_util.tree_leaves(new), strict=True):
                if was.shape != now.shape or not _holds(was.dtype, now.dtype):
                    raise EnvError(
                        f"`{name}{jax.tree_util.keystr(path)}` is {was.dtype} "
                        f"{list(was.shape[1:])} in a reset and {now.dtype} {list(now.shape[1:])} "
                        "in an env step, which it cannot hold. Let both return the same."
                    )

    def _reset_rows(self, key: jax.Array, rows: jax.Array, old: Tree) -> Tree:
        """States and observations, new ones in `rows`."""
        one = jax.eval_shape(self._reset_one, key)  # leaves of all rows, as contacts, are kept
        reset = self._reset_all if self._resets_all else self._reset_some
        return reset(key, rows, old, one)

    def _new(self, key: jax.Array, rows: jax.Array) -> Tree:
        """States and observations of rows, by their indices."""
        return self._reset(jax.vmap(jax.random.fold_in, (None, 0))(key, rows))

    def _reset_all(self, key: jax.Array, rows: jax.Array, old: Tree, one: Tree) -> Tree:
        """Reset all rows, and take the `rows`."""

        def choose(x: jax.Array, y: jax.Array, of_one: Any) -> jax.Array:
            return x if x.ndim == of_one.ndim else select(rows, y, x)

        return jax.tree.map(choose, old, self._new(key, jnp.arange(self._num_envs)), one)

    def _reset_some(self, key: jax.Array, rows: jax.Array, old: Tree, one: Tree) -> Tree:
        """Reset some of the `rows` at a time, until all are."""
        together = min(_TOGETHER, self._num_envs)
        size = math.ceil(self._num_envs / together) * together
        places = jnp.nonzero(rows, size=size, fill_value=self._num_envs)[0]
        count = rows.sum()

        def reset(i_and_old: tuple[jax.Array, Tree]) -> tuple[jax.Array, Tree]:
            i, old = i_and_old
            some = jax.lax.dynamic_slice(places, (i,), (together,))

            def put(x: jax.Array, y: jax.Array, of_one: Any) -> jax.Array:
                return x if y.ndim == of_one.ndim else x.at[some].set(y, mode="drop")

            return i + together, jax.tree.map(put, old, self._new(key, some), one)

        start = (jnp.zeros((), count.dtype), old)
        return jax.lax.while_loop(lambda i_and_old: i_and_old[0] < count, reset, start)[1]


def _holds(dtype: Any, other: Any) -> bool:
    """Whether numbers of another dtype keep their values in one: floats may be rounded."""
    if dtype == other:
        return True
    if any(jax.dtypes.issubdtype(x, jax.dtypes.extended) for x in (dtype, other)):
        return False
    kinds = [jnp.issubdtype(x, jnp.floating) for x in (dtype, other)]
    return all(kinds) or bool(np.can_cast(other, dtype, "same_kind" if kinds[0] else "safe"))
