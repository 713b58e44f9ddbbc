"""PPO and CartPole in JAX, where a rollout and its update are one compiled program.

The environments reset in the env step that ends an episode, and the end of an episode bootstraps
nothing, also where it was truncated, as in PureJaxRL. Networks, loss and schedule of minibatches
are those of `_ppo.py`. All of an iteration's time is reported as that of the update; compilation
is part of the first iteration.

Source: the environment is Gymnasium's `CartPole-v1` (Barto, Sutton and Anderson, 1983).
"""

import os
from collections import deque
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from ._serving import Iteration, Stopwatch, serve

#: Episodes of CartPole-v1 are truncated after so many env steps.
LIMIT = 500

#: Constants of CartPole: gravity, masses of cart and pole, half the pole's length, force, seconds.
GRAVITY, CART, POLE, LENGTH, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02

#: Bounds of position and angle.
POSITION, ANGLE = 2.4, 12 * 2 * 3.141592653589793 / 360


class Carts(NamedTuple):
    """Environments: states `[N, 4]`, env steps and returns `[N]` of their episodes."""

    state: Any
    steps: Any
    returns: Any


class Rows(NamedTuple):
    """Rows of a rollout, `[T, N, …]`; `returns` are those of episodes that end in a row."""

    obs: Any
    actions: Any
    logp: Any
    values: Any
    rewards: Any
    ends: Any
    returns: Any


def moved(state: Any, action: Any) -> Any:
    """States `[N, 4]` after actions `[N]`, 0 or 1."""
    import jax.numpy as jnp

    x, speed, angle, turn = state.T
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    total = CART + POLE
    pushed = (jnp.where(action == 1, FORCE, -FORCE) + POLE * LENGTH * turn**2 * sin) / total
    inertia = LENGTH * (4 / 3 - POLE * cos**2 / total)
    turning = (GRAVITY * sin - cos * pushed) / inertia
    moving = pushed - POLE * LENGTH * turning * cos / total
    after = x + TAU * speed, speed + TAU * moving, angle + TAU * turn, turn + TAU * turning
    return jnp.stack(after, 1)


def stepped(carts: Carts, action: Any, key: Any) -> tuple[Carts, Any, Any]:
    """Environments after an env step, which episodes ended, and the returns of all, `[N]`."""
    import jax
    import jax.numpy as jnp

    state, steps, returns = moved(carts.state, action), carts.steps + 1, carts.returns + 1
    fallen = (jnp.abs(state[:, 0]) > POSITION) | (jnp.abs(state[:, 2]) > ANGLE)
    ends = fallen | (steps >= LIMIT)
    opened = jax.random.uniform(key, state.shape, minval=-0.05, maxval=0.05)
    new = Carts(
        jnp.where(ends[:, None], opened, state),
        jnp.where(ends, 0, steps),
        jnp.where(ends, 0.0, returns),
    )
    return new, ends, returns


def advantages_of(rows: Rows, last_values: Any, gamma: float, gae_lambda: float) -> Any:
    """Advantages `[T, N]`; `last_values` are those behind the last row, `[N]`."""
    import jax
    import jax.numpy as jnp

    def before(carry: Any, row: Any) -> tuple[Any, Any]:
        advantage, next_values = carry
        rewards, values, ends = row
        goes_on = 1.0 - ends
        delta = rewards + gamma * goes_on * next_values - values
        advantage = delta + gamma * gae_lambda * goes_on * advantage
        return (advantage, values), advantage

    start = jnp.zeros_like(last_values), last_values
    columns = rows.rewards, rows.values, rows.ends.astype(last_values.dtype)
    return jax.lax.scan(before, start, columns, reverse=True)[1]


def network(key: Any, sizes: list[int], gain: float) -> list[tuple[Any, Any]]:
    """Weights and biases of linear layers; orthogonal, the last one with another gain."""
    import jax
    import jax.numpy as jnp

    layers = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        key, own = jax.random.split(key)
        is_last = i == len(sizes) - 2
        draw = jax.nn.initializers.orthogonal(gain if is_last else 2**0.5)
        layers.append((draw(own, (inputs, outputs)), jnp.zeros(outputs)))
    return layers


def outputs_of(layers: list[tuple[Any, Any]], x: Any) -> Any:
    """Outputs of a network with tanh between its layers."""
    import jax.numpy as jnp

    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


class Jax:
    """The program, compiled when it is made; two actions, observations of four numbers."""

    def __init__(self, work: dict[str, Any]) -> None:
        # Both are read when JAX is imported; XLA has a thread for each processor otherwise.
        threads = work["threads"]
        os.environ["NPROC"] = str(threads)
        os.environ["XLA_FLAGS"] = (
            f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
        )
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax
        import jax.numpy as jnp

        if work["env"] != "gymnasium:CartPole-v1":
            raise ValueError(f"this program has CartPole-v1 alone; got {work['env']!r}")
        self.work, num_envs = work, work["num_envs"]
        self.rows = num_envs * work["horizon"]
        key, actor, critic, first = jax.random.split(jax.random.key(work["seed"]), 4)
        weights = {
            "actor": network(actor, [4, *work["hiddens"], 2], 0.01),
            "critic": network(critic, [4, *work["hiddens"], 1], 1.0),
        }
        zeros = jax.tree.map(jnp.zeros_like, weights)
        state = jax.random.uniform(first, (num_envs, 4), minval=-0.05, maxval=0.05)
        carts = Carts(state, jnp.zeros(num_envs, jnp.int32), jnp.zeros(num_envs))
        moments = zeros, jax.tree.map(jnp.zeros_like, weights), jnp.zeros((), jnp.int32)
        self.state: Any = (weights, moments, carts, key)
        #: Env steps so far, and those after which the learning rate is 0.
        self.seen, self.total = 0, work["options"].get("decay_env_steps", float("inf"))
        self._iterate = jax.jit(self._iteration, donate_argnums=0)
        #: Ends and returns of the last rollouts.
        self.last: deque[tuple[Any, Any]] = deque(maxlen=64)

    def iterate(self) -> Iteration:
        """A rollout, and an update from it."""
        import jax

        elapsed = Stopwatch()
        lr = self.work["lr"] * max(0.0, 1 - self.seen / self.total)
        self.state, found = self._iterate(self.state, lr)
        self.seen += self.rows
        jax.block_until_ready(self.state)
        self.last.append(found)
        return Iteration(self.rows, 0.0, elapsed())

    def score(self, metric: str) -> None | float:
        """Mean return of the last episodes, or mean reward of the last rollout, which is 1."""
        import numpy as np

        if metric != "return":
            return 1.0
        ended = [np.asarray(returns)[np.asarray(ends)] for ends, returns in self.last]
        returns = np.concatenate(ended)[-100:]
        return float(returns.mean()) if len(returns) else None

    def close(self) -> None:
        """Nothing is open."""

    # ---- compiled ----

    def _iteration(self, state: Any, lr: Any) -> Any:
        import jax

        weights, moments, carts, key = state
        key, acting, learning = jax.random.split(key, 3)
        carts, rows = self._roll_out(weights, carts, acting)
        last_values = outputs_of(weights["critic"], carts.state)[:, 0]
        gamma, gae_lambda = self.work["gamma"], self.work["gae_lambda"]
        advantages = advantages_of(rows, last_values, gamma, gae_lambda)
        columns = rows.obs, rows.actions, rows.logp, advantages, advantages + rows.values
        flat = jax.tree.map(lambda x: x.reshape(self.rows, *x.shape[2:]), columns)

        def epoch(carry: Any, key: Any) -> tuple[Any, None]:
            count = self.work["num_minibatches"]
            order = jax.random.permutation(key, self.rows)
            shuffled = jax.tree.map(
                lambda x: x[order].reshape(count, self.rows // count, *x.shape[1:]), flat
            )
            return jax.lax.scan(partial(self._descend, lr), carry, shuffled)[0], None

        keys = jax.random.split(learning, self.work["num_sgd_iters"])
        (weights, moments), _ = jax.lax.scan(epoch, (weights, moments), keys)
        return (weights, moments, carts, key), (rows.ends, rows.returns)

    def _roll_out(self, weights: Any, carts: Carts, key: Any) -> tuple[Carts, Rows]:
        import jax
        import jax.numpy as jnp

        def step(carts: Carts, key: Any) -> tuple[Carts, Rows]:
            drawing, opening = jax.random.split(key)
            obs = carts.state
            logits = jax.nn.log_softmax(outputs_of(weights["actor"], obs))
            actions = jax.random.categorical(drawing, logits)
            logp = jnp.take_along_axis(logits, actions[:, None], 1)[:, 0]
            values = outputs_of(weights["critic"], obs)[:, 0]
            carts, ends, returns = stepped(carts, actions, opening)
            rewards = jnp.ones_like(values)
            return carts, Rows(obs, actions, logp, values, rewards, ends, returns)

        keys = jax.random.split(key, self.work["horizon"])
        found: tuple[Carts, Rows] = jax.lax.scan(step, carts, keys)
        return found

    def _loss(self, weights: Any, minibatch: Any) -> Any:
        import jax
        import jax.numpy as jnp

        obs, actions, old_logp, advantages, returns = minibatch
        clip = self.work["clip_param"]
        logits = jax.nn.log_softmax(outputs_of(weights["actor"], obs))
        logp = jnp.take_along_axis(logits, actions[:, None], 1)[:, 0]
        entropy = -(jnp.exp(logits) * logits).sum(1).mean()
        advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
        ratio = jnp.exp(logp - old_logp)
        clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
        gain = jnp.minimum(ratio * advantages, clipped * advantages).mean()
        errors = outputs_of(weights["critic"], obs)[:, 0] - returns
        value_loss = self.work["vf_coeff"] * 0.5 * (errors**2).mean()
        return value_loss - gain - self.work["entropy_coeff"] * entropy

    def _descend(self, lr: Any, carry: Any, minibatch: Any) -> tuple[Any, None]:
        """A step of Adam, with clipped gradients."""
        import jax
        import jax.numpy as jnp

        weights, (means, squares, count) = carry
        gradients = jax.grad(self._loss)(weights, minibatch)
        norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradients)))
        scale = jnp.minimum(1.0, self.work["max_grad_norm"] / (norm + 1e-6))
        count = count + 1
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * scale * g, means, gradients)
        squares = jax.tree.map(
            lambda v, g: 0.999 * v + 0.001 * (scale * g) ** 2, squares, gradients
        )
        first, second = 1 - 0.9**count, jnp.sqrt(1 - 0.999**count)

        def after(w: Any, m: Any, v: Any) -> Any:
            return w - lr / first * m / (jnp.sqrt(v) / second + 1e-5)

        weights = jax.tree.map(after, weights, means, squares)
        return (weights, (means, squares, count)), None


if __name__ == "__main__":
    serve(Jax, ("jax", "jaxlib"))
