"""Rows of the adapters beside the libraries' own resetting steps: ends, rewards, observations.

The two draw different keys for resets, and a library's step may start every episode in the same
state. So the environments here are given resets that ignore their key, and env steps whose keys
follow from the state: then every row must be the library's, over thousands of env steps.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import everstep

jax = pytest.importorskip("jax")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]

KEY = jax.random.PRNGKey(3)

#: Rows of a batch, and its vector steps: 2,400 env steps.
ROWS, STEPS = 8, 300


class Own(NamedTuple):
    """Results of a vector step by the library's own functions."""

    obs: Any
    reward: Any
    done: Any

    #: The task ended the episode; None if the library does not say what did.
    terminated: Any = None

    #: Observations before the resets; None if they are lost.
    final_obs: Any = None


class Library(NamedTuple):
    """The adapter of an environment, and the library's functions of a batch of it."""

    env: Any
    reset: Callable[[Any], Any]
    step: Callable[[Any, Any], tuple[Any, Own]]

    #: Vector steps of the longest episode.
    limit: int


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def same_resets(env: Any) -> None:
    """Let the resets of an environment ignore their key."""
    reset = env.reset
    env.reset = lambda key: reset(KEY)


def of_gymnax(env: Any, params: Any, time: str) -> tuple[Any, Any, Any]:
    """The adapter and the library's functions; `time` is the state's count of env steps."""
    reset_env, step_env = env.reset_env, env.step_env

    def step_as_the_time_says(key: Any, state: Any, action: Any, params: Any) -> Any:
        return step_env(jax.random.fold_in(KEY, getattr(state, time)), state, action, params)

    env.reset_env = lambda key, params: reset_env(KEY, params)
    env.step_env = step_as_the_time_says

    def step(state: Any, action: Any) -> tuple[Any, Own]:
        obs, state, reward, *ends, info = env.step(KEY, state, action, params)
        if len(ends) == 1:
            return state, Own(obs, reward, ends[0])
        final_obs = info["final_observation"]
        return state, Own(obs, reward, ends[0] | ends[1], ends[0], final_obs)

    def reset(key: Any) -> Any:
        return env.reset(key, params)[1]

    wrapped = everstep.wrap((env, params), num_envs=ROWS, action_bounds="clip")
    return wrapped, jax.vmap(reset), jax.vmap(step)


def gymnax(name: str, limit: int) -> Library:
    env, params = imported("gymnax").make(name)
    params = params.replace(max_steps_in_episode=limit)
    return Library(*of_gymnax(env, params, "time"), limit)


def craftax(name: str, limit: int) -> Library:
    env = imported("craftax.craftax_env").make_craftax_env_from_name(name, auto_reset=True)
    params = env.default_params.replace(max_timesteps=limit)
    return Library(*of_gymnax(env, params, "timestep"), limit)


def of_training(wrapped: Any, length: int, repeat: int) -> Library:
    """Brax's training wrappers, and Playground's."""

    def step(state: Any, action: Any) -> tuple[Any, Own]:
        state = wrapped.step(state, action)
        done, truncated = state.done > 0.5, state.info["truncation"] > 0.5
        return state, Own(state.obs, state.reward, done, done & ~truncated)

    env = everstep.wrap(wrapped, num_envs=ROWS, action_bounds="clip")
    return Library(env, wrapped.reset, step, math.ceil(length / repeat))


def brax(name: str, length: int, repeat: int = 1) -> Library:
    raw = imported("brax.envs").get_environment(name)
    same_resets(raw)
    training = imported("brax.envs.wrappers.training")
    return of_training(training.wrap(raw, length, repeat), length, repeat)


def playground(name: str, length: int, repeat: int = 1) -> Library:
    registry = imported("mujoco_playground").registry
    wrapper = imported("mujoco_playground").wrapper
    raw = registry.load(name, config_overrides={"impl": "jax"})
    same_resets(raw)
    wrapped = wrapper.wrap_for_brax_training(raw, length, repeat)
    return of_training(wrapped, length, repeat)


def jumanji(name: str, limit: int, **options: Any) -> Library:
    raw: Any = imported("jumanji").make(name, **options)
    wrappers = imported("jumanji.wrappers")
    if raw.reward_spec.shape:
        raw = wrappers.MultiToSingleWrapper(raw)
    same_resets(raw)
    wrapped = wrappers.AutoResetWrapper(raw, next_obs_in_extras=True)

    def step(state: Any, action: Any) -> tuple[Any, Own]:
        state, seen = wrapped.step(state, action)
        terminated, final_obs = seen.last() & (seen.discount == 0), seen.extras["next_obs"]
        return state, Own(seen.observation, seen.reward, seen.last(), terminated, final_obs)

    env = everstep.wrap(wrapped, num_envs=ROWS, action_bounds="clip")
    return Library(env, jax.vmap(lambda key: wrapped.reset(key)[0]), jax.vmap(step), limit)


CASES: list[tuple[Callable[..., Library], tuple[Any, ...], dict[str, Any]]] = [
    (gymnax, ("CartPole-v1", 12), {}),
    (gymnax, ("Pendulum-v1", 9), {}),
    (gymnax, ("MountainCar-v0", 20), {}),
    (gymnax, ("Breakout-MinAtar", 15), {}),
    (gymnax, ("Catch-bsuite", 30), {}),
    (gymnax, ("DiscountingChain-bsuite", 30), {}),
    (gymnax, ("FourRooms-misc", 15), {}),
    (jumanji, ("Snake-v1", 30), {"time_limit": 30}),
    (jumanji, ("Game2048-v1", 4000), {}),
    (jumanji, ("LevelBasedForaging-v0", 30), {"time_limit": 30}),
    (jumanji, ("Connector-v3", 20), {"time_limit": 20}),
    (craftax, ("Craftax-Classic-Symbolic-v1", 60), {}),
    (craftax, ("Craftax-Symbolic-v1", 60), {}),
    (brax, ("inverted_pendulum", 15), {}),
    (brax, ("inverted_pendulum", 16, 3), {}),
    (brax, ("hopper", 20), {}),
    (brax, ("reacher", 10), {}),
    (brax, ("fast", 7), {}),
    (playground, ("CartpoleBalance", 20), {}),
    (playground, ("CartpoleBalance", 20, 3), {}),
    (playground, ("PendulumSwingup", 10), {}),
]


def column(values: Any) -> torch.Tensor:
    return torch.tensor(values.tolist()).reshape(ROWS, -1)


def check_same(found: Any, wanted: Any, rows: torch.Tensor | slice) -> None:
    """Observations of these rows are those of a tree of arrays."""
    pairs = jax.tree_util.tree_flatten_with_path(wanted)[0]
    for path, leaf in pairs:
        names = [next(getattr(x, y) for y in ("name", "key", "idx") if hasattr(x, y)) for x in path]
        one = found if len(pairs) == 1 else found[tuple(map(str, names))]
        other = torch.tensor(leaf.tolist()).reshape(one.shape).to(one.dtype)
        torch.testing.assert_close(one[rows], other[rows], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("library", "args", "options"),
    CASES,
    ids=["-".join(map(str, (x.__name__, *y))) for x, y, _ in CASES],
)
def test_rows_are_those_of_the_librarys_own_step(
    library: Callable[..., Library], args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    env, reset, step, limit = library(*args, **options)
    form = env.env_format.action[0]
    step, state = jax.jit(step), jax.jit(reset)(jax.random.split(KEY, ROWS))
    torch.manual_seed(0)
    env.reset()
    elapsed, ends = torch.zeros(ROWS, 1, dtype=torch.int64), 0
    for _ in range(STEPS):
        action = env.action_spec.rand(torch.Size([ROWS]))
        row = env.step(action)
        state, own = step(state, action.numpy().astype(form.dtype).reshape(ROWS, *form.shape))
        elapsed += 1
        done, by_clock = column(own.done), elapsed >= limit
        assert torch.equal(row["first"], done)
        # Where only `done` is known, both may have ended the episode in the clock's last env step.
        asked = ~by_clock if own.terminated is None else torch.ones_like(by_clock)
        terminated = done if own.terminated is None else column(own.terminated)
        assert torch.equal(row["terminated"] & asked, terminated & asked)
        assert torch.equal(row["truncated"], done & ~row["terminated"])
        assert not bool((row["truncated"] & ~by_clock).any())
        torch.testing.assert_close(row["rewards"], column(own.reward).float(), rtol=1e-4, atol=1e-4)
        check_same(row["obs"], own.obs, slice(None))
        is_known = own.final_obs is not None
        final_obs, rows = (own.final_obs, slice(None)) if is_known else (own.obs, ~done[:, 0])
        check_same(row["final_obs"], final_obs, rows)
        elapsed[done] = 0
        ends += int(done.sum())
    assert ends >= ROWS
