"""Code for the processes of a test: an environment in parts, and a worker that has one."""

from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

from everstep import Algorithm, AlgorithmConfig
from everstep.env import Env

ROUNDS, EPOCHS, MINIBATCHES = 3, 2, 2


class DriftingEnv(Env):
    """Environment `i` is that of number `offset + i`, whoever else there is."""

    def __init__(
        self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu", offset: int = 0
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(2, dtype=torch.float64)
        # Modes have gradients, unlike those of a normal distribution.
        self.action_spec = Categorical(3, shape=torch.Size([1]))
        self.number = torch.arange(offset, offset + num_envs).unsqueeze(-1).double()

    def reset(self, *, config: Any = None) -> torch.Tensor:
        self.state = torch.cat([self.number.sin(), self.number.cos()], -1)
        return self.state

    def step(self, action: Any) -> TensorDict:
        self.state = (1.7 * self.state + 0.3 * self.number + action).sin()
        rewards = 1 - (action - 1 - self.state[:, :1]).square()
        return TensorDict({"obs": self.state, "rewards": rewards}, [self.num_envs])


def drifting(num_envs: int, *, offset: int = 0) -> Algorithm:
    """An algorithm whose minibatches have the same env steps, however many environments."""
    config = AlgorithmConfig(
        num_envs=num_envs,
        horizon=8,
        seed=0,
        num_sgd_iters=EPOCHS,
        sgd_minibatch_size=num_envs * 8 // MINIBATCHES,
        shuffle_minibatches=False,
        normalize_advantages=False,
        normalize_rewards=False,
        max_grad_norm=0.1,
        entropy_coeff=0.01,
        optimizer_config={"lr": 1e-2},
    )
    return config.build(partial(DriftingEnv, offset=offset))


def as_arrays(weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: x.numpy() for name, x in weights.items()}


def work(pipe: Any, offset: int, weights: dict[str, Any]) -> None:
    """Collect and compute gradients; weights come back."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    algorithm = drifting(3, offset=offset)
    algorithm.set_weights(weights)
    for _ in range(ROUNDS):
        algorithm.collect(deterministic=True)
        for minibatch in algorithm.minibatches():
            gradients, _ = algorithm.compute_gradients(minibatch)
            pipe.send([None if g is None else g.numpy() for g in gradients])
            algorithm.set_weights(pipe.recv())
