"""Train with Ray's actors: they collect and compute gradients, this program applies them.

python examples/launch/ray_workers.py --workers 2 --updates 60

Ray only starts the processes and carries arrays between them. Every worker has its own environments
and seed; the gradients of all workers are averaged for each optimizer step.
"""

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
import torch

from everstep import Algorithm

#: Weights, moments or gradients by name or place, as arrays.
Arrays = dict[str, np.ndarray]

OPTIONS: dict[str, Any] = {
    "num_envs": 8,
    "horizon": 64,
    "num_epochs": 4,
    "num_mini_batch": 4,
    "lr": 1e-3,
    "gamma": 0.98,
    "gae_lambda": 0.9,
    "normalize_observations": True,
}


def make(env: str, seed: int) -> Algorithm:
    """An algorithm: of a worker, or the one that has the optimizer."""
    create, _ = Algorithm.create_factory(**OPTIONS, seed=seed)
    return create("cpu", None, env)


def arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Tensors as arrays, which Ray shares between processes without a copy."""
    return {name: x.numpy() for name, x in tensors.items()}


class Worker:
    """An algorithm in a process of its own."""

    def __init__(self, env: str, seed: int) -> None:
        torch.set_num_threads(1)
        self.algorithm = make(env, seed)

    def collect(self, weights: Arrays, moments: Arrays) -> dict[str, float]:
        """Collect a rollout, and begin an update with it; the rollout's statistics."""
        self.algorithm.set_weights(weights)
        self.algorithm.set_moments(moments)
        stats = self.algorithm.collect()
        self.minibatches = self.algorithm.minibatches()
        return dict(stats)

    def gradients(self, weights: Arrays) -> None | list[None | np.ndarray]:
        """Gradients of the next minibatch; None after the last, when the update ends."""
        self.algorithm.set_weights(weights)
        minibatch = next(self.minibatches, None)
        if minibatch is None:
            return None
        found, _ = self.algorithm.compute_gradients(minibatch)
        return [None if gradient is None else gradient.numpy() for gradient in found]

    def moments(self) -> Arrays:
        """The moments of the observations that this worker has seen."""
        return arrays(self.algorithm.get_moments())


def mean(gradients: Sequence[None | np.ndarray]) -> None | np.ndarray:
    """Mean of a parameter's gradients; None if it has none."""
    found = [gradient for gradient in gradients if gradient is not None]
    return np.mean(found, axis=0) if found else None


def train(env: str, workers: int, updates: int) -> float:
    """Train, and print each update's mean return; the last one."""
    actors = [ray.remote(num_cpus=1)(Worker).remote(env, seed) for seed in range(1, workers + 1)]
    server, result = make(env, 0), math.nan
    for update in range(updates):
        weights, moments = arrays(server.get_weights()), arrays(server.get_moments())
        stats = ray.get([actor.collect.remote(weights, moments) for actor in actors])
        while True:
            weights = ray.put(arrays(server.get_weights()))
            found = ray.get([actor.gradients.remote(weights) for actor in actors])
            if found[0] is None:  # all have as many minibatches
                break
            server.apply_gradients([mean(each) for each in zip(*found, strict=True)])
        server.merge_moments(ray.get([actor.moments.remote() for actor in actors]))
        key = "episodes/return_mean_100"
        returns = [each[key] for each in stats if key in each]
        result = sum(returns) / len(returns) if returns else math.nan
        steps = (update + 1) * workers * OPTIONS["num_envs"] * OPTIONS["horizon"]
        print(f"update {update + 1}  env steps {steps:,}  return {result:.1f}", flush=True)
    return result


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="gymnasium:CartPole-v1")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--updates", type=int, default=60)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the actors inherit it
    ray.init(num_cpus=arguments.workers, include_dashboard=False)
    try:
        train(arguments.env, arguments.workers, arguments.updates)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
