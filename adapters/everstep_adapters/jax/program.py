"""Compiled reset and env step of a batch: one call each."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .functions import Functions, Tree
from .packing import Packing

#: Rows that are reset together: resets cost as an env step or more, and few rows end at once.
_TOGETHER = 32


class Carry(NamedTuple):
    """All that changes between env steps."""

    #: Key from which those of env steps and resets are split.
    key: jax.Array

    #: States of the environments.
    states: Tree

    #: Env steps since the reset of each, `[N]`.
    elapsed: jax.Array


class Outcome(NamedTuple):
    """Results of an env step."""

    #: Observations that are acted on next, `[N, …]`.
    obs: Tree

    #: Observations before any reset.
    final_obs: Tree

    #: `[N, 1]`.
    rewards: jax.Array

    #: `terminated`, `truncated` and `first`, `[3, N, 1]`, as numbers.
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

    #: Shapes and dtypes of what `start` returns, the carry and observations.
    carry: Carry
    obs: Tree

    #: How `advance` joins an outcome.
    packing: Packing

    def __init__(
        self, functions: Functions, num_envs: int, limit: None | int, low: Any, high: Any
    ) -> None:
        self._num_envs, self._limit = num_envs, limit
        self._bounds = None if low is None else (jnp.asarray(low), jnp.asarray(high))
        self._reset_one = functions.reset
        self._reset, self._step = jax.vmap(functions.reset), jax.vmap(functions.step)
        self.start, self.advance = jax.jit(self._start), jax.jit(self._advance)
        self.carry, self.obs = jax.eval_shape(self._start, jax.random.PRNGKey(0))
        reals = (
            jax.ShapeDtypeStruct((*n, num_envs, 1), jnp.result_type(float)) for n in ((), (3,))
        )
        self.packing = Packing(Outcome(self.obs, self.obs, *reals))

    def _start(self, key: jax.Array) -> tuple[Carry, Tree]:
        """The first carry and observations."""
        key, following = jax.random.split(key)
        states, obs = self._reset(jax.random.split(key, self._num_envs))
        return Carry(following, states, jnp.zeros(self._num_envs, jnp.int32)), obs

    def _advance(self, carry: Carry, action: jax.Array) -> tuple[Carry, tuple[jax.Array, ...]]:
        """An env step, and the resets of the rows whose episodes it ended; a joined `Outcome`."""
        key, stepping, resetting = jax.random.split(carry.key, 3)
        if self._bounds is not None:
            action = jnp.clip(action, *self._bounds)
        keys = jax.random.split(stepping, self._num_envs)
        stepped = self._step(keys, carry.states, action)
        elapsed, ended = carry.elapsed + 1, stepped.ended
        if self._limit is not None:
            ended = ended | (elapsed >= self._limit)
        done = ended | stepped.terminated
        states, obs = self._reset_rows(resetting, done, (stepped.state, stepped.obs))
        flags = jnp.stack([stepped.terminated, done & ~stepped.terminated, done])[..., None]
        carry = Carry(key, states, jnp.where(done, 0, elapsed))
        outcome = Outcome(obs, stepped.obs, stepped.reward[:, None], flags)
        return carry, self.packing.join(outcome)

    def _reset_rows(self, key: jax.Array, rows: jax.Array, old: Tree) -> Tree:
        """States and observations, new ones in `rows`; some are reset at a time, until all are."""
        together = min(_TOGETHER, self._num_envs)
        size = math.ceil(self._num_envs / together) * together
        places = jnp.nonzero(rows, size=size, fill_value=self._num_envs)[0]
        count = rows.sum()
        one = jax.eval_shape(self._reset_one, key)

        def reset(i_and_old: tuple[jax.Array, Tree]) -> tuple[jax.Array, Tree]:
            i, old = i_and_old
            some = jax.lax.dynamic_slice(places, (i,), (together,))
            new = self._reset(jax.vmap(jax.random.fold_in, (None, 0))(key, some))

            def put(x: jax.Array, y: jax.Array, of_one: Any) -> jax.Array:
                is_shared = y.ndim == of_one.ndim  # by all rows, as contacts of MuJoCo Warp
                return x if is_shared else x.at[some].set(y, mode="drop")

            return i + together, jax.tree.map(put, old, new, one)

        start = (jnp.zeros((), count.dtype), old)
        return jax.lax.while_loop(lambda i_and_old: i_and_old[0] < count, reset, start)[1]
