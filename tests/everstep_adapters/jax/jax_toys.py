"""Environments in JAX whose episodes are drawn from a key, and their rows worked out by hand."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from everstep_adapters.jax import GymnaxEnv, JaxEnv
from everstep_adapters.jax.source import Choices, Functions, Stepped

#: Ends of episodes: by the task, by its clock, by both.
TERMINATED, TRUNCATED, BOTH = 0, 1, 2


class Counter:
    """Observes (its name, length times 4 plus the kind of its end, env step)."""


class State(NamedTuple):
    name: jax.Array
    script: jax.Array
    t: jax.Array


def observe(state: State) -> jax.Array:
    return jnp.stack([state.name, state.script, state.t]).astype(
        float
    )  # of 64 bits if JAX has them


def reset(key: jax.Array) -> tuple[State, jax.Array]:
    one, two, three = jax.random.split(key, 3)
    name = jax.random.randint(one, (), 0, 64)
    length = jax.random.randint(two, (), 1, 6)
    state = State(name, 4 * length + jax.random.randint(three, (), 0, 3), jnp.zeros((), jnp.int32))
    return state, observe(state)


def step(key: jax.Array, state: State, action: jax.Array) -> Stepped:
    following = state._replace(t=state.t + 1)
    kind, ended = state.script % 4, following.t >= state.script // 4
    reward = state.name + 0.25 * state.t + 0.5 * action
    return Stepped(following, observe(following), reward, ended & (kind != TRUNCATED), ended)


class CounterEnv(JaxEnv):
    """Counters in a batch."""

    family = "counters"
    kinds = ((__name__, "Counter"),)

    @classmethod
    def _read(cls, env: Any, params: Any) -> Functions:
        return Functions(reset, step, Choices(np.asarray(2), jnp.int32), None, "its script's")


class Row(NamedTuple):
    obs: list[float]
    rewards: float
    terminated: bool
    truncated: bool
    first: bool
    final_obs: list[float]


def rows_of(
    start: list[float], firsts: list[list[float]], actions: list[int], limit: float
) -> list[Row]:
    """The rows of one environment, from the first observations of its episodes alone."""
    rows, (name, script, t) = [], start
    upcoming = iter(firsts)
    for action in actions:
        reward = name + 0.25 * t + 0.5 * action
        t += 1
        length, kind = divmod(int(script), 4)
        by_task = t >= length
        terminated = by_task and kind != TRUNCATED
        done = by_task or t >= limit
        final = [name, script, t]
        if done:
            name, script, t = next(upcoming)
        row = Row([name, script, t], reward, terminated, done and not terminated, done, final)
        rows.append(row)
    return rows


# ---- gymnax's two styles ----------------------------------------------------------------------


class Moment(NamedTuple):
    time: jax.Array


@dataclass(frozen=True)
class ClockParams:
    max_steps_in_episode: int = 5

    def replace(self, **changes: Any) -> "ClockParams":
        return replace(self, **changes)


class CountedInStep:
    """gymnax 0.0: `step_env` ends an episode by its task, here the action 1, and by its clock."""

    default_params = ClockParams()

    def action_space(self, params: ClockParams) -> Any:
        return SimpleNamespace(n=2)

    def reset_env(self, key: jax.Array, params: ClockParams) -> Any:
        return jnp.zeros(1), Moment(jnp.zeros((), jnp.int32))

    def is_terminal(self, action: jax.Array, state: Moment, params: ClockParams) -> jax.Array:
        return (action == 1) | (state.time >= params.max_steps_in_episode)

    def step_env(self, key: jax.Array, state: Moment, action: jax.Array, params: Any) -> Any:
        state = Moment(state.time + 1)
        ended = self.is_terminal(action, state, params)
        return state.time[None].astype(float), state, jnp.ones(()), ended, {}


class CountedApart(CountedInStep):
    """gymnax 1.0: `step_env` ends an episode by its task only; `is_truncated` asks its clock."""

    def is_terminal(self, action: jax.Array, state: Moment, params: ClockParams) -> jax.Array:
        return action == 1

    def is_truncated(self, state: Moment, params: ClockParams) -> jax.Array:
        return state.time >= params.max_steps_in_episode


class ClockEnv(GymnaxEnv):
    """Either of them in a batch."""

    kinds = ((__name__, "CountedInStep"),)
