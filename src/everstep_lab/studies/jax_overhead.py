"""Time of an env step of JAX's environments: wrapped, and compiled alone with the library's resets.

    pip install gymnax six brax craftax jumanji playground
    OMP_NUM_THREADS=1 python -m everstep_lab.studies.jax_overhead

Blocks of env steps of both sides alternate, with the same number of environments and random
actions made beforehand; the side of the library waits for its results, too. Prints the time of the
block that a tenth of all beat, the median, and the ratio of both.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import everstep

#: Seconds that a block takes, about.
BLOCK = 0.02

Step = Callable[[Any], None]


def gymnax_alone(num_envs: int) -> Step:
    """CartPole-v1 of gymnax, by its own `step`, which resets."""
    import gymnax
    import jax

    env, params = gymnax.make("CartPole-v1")
    keys = jax.random.split(jax.random.PRNGKey(0), num_envs)
    _, state = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)

    def advance(key: Any, state: Any, action: Any) -> Any:
        key, *keys = jax.random.split(key, num_envs + 1)
        obs, state, *rest = jax.vmap(env.step, (0, 0, 0, None))(
            jax.numpy.stack(keys), state, action, params
        )
        return key, state, (obs, *rest[:2])

    return _looped(advance, jax.random.PRNGKey(1), state)


def brax_alone(num_envs: int) -> Step:
    """`inverted_pendulum` of Brax, in its own wrappers for training."""
    import jax
    from brax import envs

    env = envs.create("inverted_pendulum", batch_size=num_envs)
    return _looped_states(env, jax.random.PRNGKey(0))


def craftax_alone(num_envs: int) -> Step:
    """Craftax-Classic of symbols, whose own `step` resets."""
    import jax
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=True)
    params = env.default_params
    keys = jax.random.split(jax.random.PRNGKey(0), num_envs)
    _, state = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)

    def advance(key: Any, state: Any, action: Any) -> Any:
        key, following = jax.random.split(key)
        keys = jax.random.split(key, num_envs)
        obs, state, *rest = jax.vmap(env.step, (0, 0, 0, None))(keys, state, action, params)
        return following, state, (obs, *rest[:2])

    return _looped(advance, jax.random.PRNGKey(1), state)


def jumanji_alone(num_envs: int) -> Step:
    """Snake-v1 of Jumanji, in its own wrapper that resets."""
    import jax
    import jumanji
    from jumanji.wrappers import VmapAutoResetWrapper

    env: Any = VmapAutoResetWrapper(jumanji.make("Snake-v1"))
    state, _ = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), num_envs))

    def advance(key: Any, state: Any, action: Any) -> Any:
        state, timestep = env.step(state, action)
        return key, state, (timestep.observation, timestep.reward, timestep.discount)

    return _looped(advance, None, state)


def playground_alone(num_envs: int) -> Step:
    """CartpoleBalance of MuJoCo Playground, in its own wrappers for training."""
    import jax
    from mujoco_playground import registry, wrapper

    own = registry.load("CartpoleBalance")
    length = registry.get_default_config("CartpoleBalance").episode_length
    env = wrapper.wrap_for_brax_training(own, episode_length=length)
    return _looped_states(env, jax.random.split(jax.random.PRNGKey(0), num_envs))


def _looped_states(env: Any, keys: Any) -> Step:
    """Env steps of Brax's protocol, whose outcome is in the state."""
    import jax

    def advance(key: Any, state: Any, action: Any) -> Any:
        state = env.step(state, action)
        return key, state, (state.obs, state.reward, state.done)

    return _looped(advance, None, jax.jit(env.reset)(keys))


def _looped(advance: Any, key: Any, state: Any) -> Step:
    """Env steps one after another, each waited for."""
    import jax

    compiled, carry = jax.jit(advance), (key, state)

    def step(action: Any) -> None:
        nonlocal carry
        *following, outcome = compiled(*carry, action)
        carry = tuple(following)
        jax.block_until_ready(outcome)

    return step


#: Rows of the table: name, and the library alone.
KINDS: dict[str, Callable[[int], Step]] = {
    "gymnax:CartPole-v1": gymnax_alone,
    "brax:inverted_pendulum": brax_alone,
    "jumanji:Snake-v1": jumanji_alone,
    "playground:CartpoleBalance": playground_alone,
    "craftax:Craftax-Classic-Symbolic-v1": craftax_alone,
}


def microseconds(step: Callable[[Any], Any], actions: Sequence[Any], count: int) -> float:
    """Of one env step, over a block of them."""
    start = time.perf_counter_ns()
    for i in range(count):
        step(actions[i % len(actions)])
    return (time.perf_counter_ns() - start) / count / 1e3


def measure(name: str, num_envs: int, pairs: int) -> str:
    """A row of the table."""
    wrapped: Any = everstep.make(name, num_envs)
    wrapped.seed(0)
    wrapped.reset()
    tensors = [wrapped.action_spec.rand(torch.Size([num_envs])) for _ in range(64)]
    arrays = [x.numpy().reshape(num_envs, *wrapped.env_format.action[0].shape) for x in tensors]
    arrays = [x.astype(np.int32) if x.dtype == np.int64 else x for x in arrays]
    alone = KINDS[name](num_envs)
    for step, actions in ((alone, arrays), (wrapped.step, tensors)):
        microseconds(step, actions, 4)  # compiles
    count = max(1, round(BLOCK * 1e6 / microseconds(alone, arrays, 4)))
    found = []
    for pair in range(pairs):
        sides = [(alone, arrays), (wrapped.step, tensors)]
        times = [microseconds(*side, count) for side in (sides if pair % 2 else sides[::-1])]
        found.append(times if pair % 2 else times[::-1])
    kept = np.array(found[pairs // 10 :])  # the first ones warm up
    fast, median = np.quantile(kept, [0.1, 0.5], axis=0)
    return (
        f"| {name} | {fast[0]:,.0f} | {median[0]:,.0f} | {fast[1]:,.0f} | {median[1]:,.0f} "
        f"| {fast[1] / fast[0]:.2f} | {np.median(kept[:, 1] / kept[:, 0]):.2f} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(KINDS), help="environments (default: all)")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=100, help="pairs of blocks of env steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| environment | alone, µs | median | wrapped, µs | median | ratio | median |")
    print("|---|---|---|---|---|---|---|")
    for name in options.names:
        print(measure(name, options.num_envs, options.pairs), flush=True)


if __name__ == "__main__":
    main()
