"""One environment of each library as a pair of functions."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from everstep.errors import AdapterError

#: A pytree of arrays.
Tree = Any

#: Parameters that are the clock of an environment, in gymnax and in Craftax.
_CLOCKS = ("max_steps_in_episode", "max_timesteps")

#: Env steps of an episode for a clock that never ends one.
_NEVER = 2**31 - 2

#: Brax's own number of env steps of an episode, which it keeps in its training wrapper.
_BRAX_EPISODE = 1000

#: Wrappers that batch, count or reset environments, as the adapter does itself.
_RESETTING = (
    *("AutoResetWrapper", "BraxAutoResetWrapper", "EpisodeWrapper", "EvalWrapper"),
    *("VmapAutoResetWrapper", "VmapWrapper"),
)

#: Wrappers that do so and change the task, too.
_INSEPARABLE = (
    *("BraxDomainRandomizationVmapWrapper", "DomainRandomizationVmapWrapper"),
    "GymnaxToBraxWrapper",
)


class Stepped(NamedTuple):
    """Results of a vector step of one environment."""

    state: Tree
    obs: Tree
    reward: jax.Array

    #: The task ended the episode.
    terminated: jax.Array

    #: The episode ended, for any reason.
    ended: jax.Array


@dataclass(frozen=True)
class Choices:
    """Actions of whole numbers."""

    #: Options of each; an array of none or one dimension.
    counts: np.ndarray[Any, Any]

    dtype: Any


@dataclass(frozen=True)
class Reals:
    """Actions of real numbers."""

    #: Bounds, of the action's shape.
    low: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]

    dtype: Any


@dataclass(frozen=True)
class Functions:
    """One environment as functions without side effects."""

    #: State and observation of a new episode, from a key.
    reset: Callable[[jax.Array], tuple[Tree, Tree]]

    #: A vector step, from a key, a state and an action.
    step: Callable[[jax.Array, Tree, jax.Array], Stepped]

    #: Actions that `step` takes.
    action: Choices | Reals

    #: Env steps after which the adapter truncates an episode unless it is told; None for none.
    limit: None | int

    #: The environment's own time limit, for `describe`.
    clock: str

    #: Env steps of it; None for none, or one that is not known.
    own_limit: None | int = None


def _without_resets(env: Any) -> tuple[Any, list[Any]]:
    """The environment within the wrappers that reset it, and these, from the outside.

    Raises:
        AdapterError: If one cannot be taken off.

    """
    taken = []
    while type(env).__name__ in _RESETTING:
        taken.append(env)
        env = _wrapped(env)
    layer = env
    while layer is not None:
        name = type(layer).__name__
        if name in (*_RESETTING, *_INSEPARABLE):
            raise AdapterError(
                f"The environment must reset and batch nothing itself: its `{name}` loses final "
                "observations or takes whole batches. Wrap the environment without it."
            )
        layer = _wrapped(layer)
    return env, taken


def _wrapped(env: Any) -> Any:
    """The environment in a wrapper of Brax, Playground or Jumanji; None without a wrapper."""
    own = getattr(env, "__dict__", {})
    return own.get("env", own.get("_env"))


def of_gymnax(env: Any, params: Any) -> Functions:
    """Gymnax's and Craftax's environments: `step_env`, `reset_env` and parameters.

    With the clock in the parameters, an env step is computed twice: what the clock does not touch
    is the same computation, which the compiler does once. gymnax 1.0 asks its clock apart from the
    env step, in `is_truncated`.
    """
    params = env.default_params if params is None else params
    clock = next((name for name in _CLOCKS if hasattr(params, name)), None)
    endless = params if clock is None else params.replace(**{clock: _NEVER})

    def reset(key: jax.Array) -> tuple[Tree, Tree]:
        obs, state = env.reset_env(key, params)
        return state, obs

    def step(key: jax.Array, state: Tree, action: jax.Array) -> Stepped:
        obs, following, reward, ended, _ = env.step_env(key, state, action, params)
        terminated = ended
        if clock is not None:
            terminated = env.step_env(key, state, action, endless)[3] & ended
        if hasattr(env, "is_truncated"):
            ended = ended | env.is_truncated(following, params)
        return Stepped(following, obs, reward, terminated, ended)

    own, action = None if clock is None else getattr(params, clock), env.action_space(params)
    text = "none" if own is None else f"{own} env steps, its `{clock}`"
    return Functions(reset, step, _gymnax_action(action), None, text, _limit(own))


def _limit(own: Any) -> None | int:
    """A number of env steps as the library has it; None for none, or something else."""
    is_number = isinstance(own, int | float | np.generic | np.ndarray | jax.Array)
    is_limit = is_number and np.size(own) == 1 and 0 < own < _NEVER
    return int(np.ceil(own).item()) if is_limit else None


def _gymnax_action(space: Any) -> Choices | Reals:
    if hasattr(space, "n"):
        return Choices(np.asarray(space.n), jnp.int32)
    if hasattr(space, "low"):
        low, high = (np.broadcast_to(x, space.shape).astype(float) for x in (space.low, space.high))
        return Reals(low, high, space.dtype)
    raise AdapterError(f"Actions must be `Discrete` or a `Box`; got a {type(space).__name__}.")


def of_brax(env: Any) -> Functions:
    """Brax's and MuJoCo Playground's environments: a state that holds what it returns.

    The length of an episode and the number of times that an action is repeated are those of the
    training wrapper that is taken off, or of the environment's configuration. As in that wrapper,
    rewards are summed, and only the last state says whether the task ended.
    """
    config = getattr(env, "_config", None)
    length = getattr(config, "episode_length", _BRAX_EPISODE)
    repeat = getattr(config, "action_repeat", 1)
    env, taken = _without_resets(env)
    for wrapper in taken:
        length = vars(wrapper).get("episode_length", length)
        repeat = vars(wrapper).get("action_repeat", repeat)

    def reset(key: jax.Array) -> tuple[Tree, Tree]:
        state = env.reset(key)
        return state, state.obs

    def step(key: jax.Array, state: Tree, action: jax.Array) -> Stepped:
        def once(state: Tree, _: None) -> tuple[Tree, jax.Array]:
            following = env.step(state, action)
            return following, following.reward

        if repeat == 1:
            following, reward = once(state, None)
        else:
            following, rewards = jax.lax.scan(once, state, length=repeat)
            reward = rewards.sum(axis=0)
        terminated = following.done > 0.5
        return Stepped(following, following.obs, reward, terminated, terminated)

    ones = np.ones(env.action_size)
    limit = math.ceil(length / repeat)
    own = "none" if repeat == 1 else f"none, with {repeat} of its steps for each action"
    return Functions(reset, step, Reals(-ones, ones, jnp.float32), limit, own)


def of_jumanji(env: Any) -> Functions:
    """Jumanji's environments: time steps with a discount, 0 where the task ended."""
    env, _ = _without_resets(env)
    if env.reward_spec.shape:
        raise AdapterError(
            f"A reward must be one number; {type(env).__name__} has {list(env.reward_spec.shape)}. "
            "Add them up with `jumanji.wrappers.MultiToSingleWrapper`."
        )

    def reset(key: jax.Array) -> tuple[Tree, Tree]:
        state, timestep = env.reset(key)
        return state, timestep.observation

    def step(key: jax.Array, state: Tree, action: jax.Array) -> Stepped:
        following, timestep = env.step(state, action)
        ended = timestep.last()
        terminated = ended & (timestep.discount == 0)
        return Stepped(following, timestep.observation, timestep.reward, terminated, ended)

    own = _limit(getattr(getattr(env, "unwrapped", env), "time_limit", None))
    text = "the task's" if own is None else f"{own} env steps, its `time_limit`"
    return Functions(reset, step, _jumanji_action(env.action_spec), None, text, own)


def _jumanji_action(spec: Any) -> Choices | Reals:
    if hasattr(spec, "num_values"):
        return Choices(np.asarray(spec.num_values), spec.dtype)
    if hasattr(spec, "minimum"):
        ends = (np.broadcast_to(x, spec.shape).astype(float) for x in (spec.minimum, spec.maximum))
        low, high = ends
        return Reals(low, high, spec.dtype)
    raise AdapterError(f"Actions must be discrete or bounded; got {spec}.")
