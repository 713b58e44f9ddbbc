"""Clone the behaviour of a Minari dataset, and train on with PPO.

`python examples/warm_start/cloning.py` records a dataset of MountainCarContinuous-v0, and prints
mean returns: of the clone, after PPO that began with it, and after PPO alone with the same budget.
It needs `pip install "minari[hdf5]"`. `--dataset ID` takes one that `minari list local` shows.
"""

import argparse
import os
import tempfile
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import torch
from minari.data_collector import EpisodeBuffer
from tensordict import TensorDict

from everstep import Policy, Trainer, make
from everstep.core.intervals import mean_interval

#: The dataset that is recorded, and its environment.
OWN, ENV = "everstep/mountain-car/rule-v0", "MountainCarContinuous-v0"


def record(episodes: int = 20) -> None:
    """Record a rule of thumb: push where the car moves to already, with some noise."""
    env, generator, buffers = gym.make(ENV), np.random.default_rng(0), []
    for seed in range(episodes):
        observations, actions, outcomes = [env.reset(seed=seed)[0]], [], []
        while not outcomes or not any(outcomes[-1][1:]):
            push = np.sign(observations[-1][1:]) + 0.3 * generator.standard_normal(1)
            actions.append(push.clip(-1, 1).astype(np.float32))
            obs, *outcome, _ = env.step(actions[-1])
            observations.append(obs)
            outcomes.append(outcome)
        names = "observations", "actions", "rewards", "terminations", "truncations"
        columns = observations, actions, *zip(*outcomes, strict=True)
        arrays = {name: np.array(x) for name, x in zip(names, columns, strict=True)}
        buffers.append(EpisodeBuffer(id=seed, seed=seed, **arrays))
    minari.create_dataset_from_buffers(OWN, buffers, env=env, algorithm_name="a rule")


def pairs_of(dataset: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Observations `[B, …]` and the actions that followed them, `[B, …]`, of all episodes."""
    episodes = list(dataset.iterate_episodes())
    obs = np.concatenate([x.observations[:-1] for x in episodes])  # the last one has no action
    actions = np.concatenate([x.actions for x in episodes])
    return torch.as_tensor(obs), torch.as_tensor(actions).reshape(len(obs), -1)


def clone(policy: Policy, obs: torch.Tensor, actions: torch.Tensor, epochs: int = 20) -> None:
    """Maximise the log-probability of the actions; the policy normalises as the dataset is."""
    if policy.normalizer is not None:
        policy.normalizer.update((obs,), torch.ones(len(obs), dtype=torch.bool))
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(obs)).split(64):
            batch = TensorDict({"obs": obs[rows, None]}, [len(rows), 1])
            seen = policy.sample(batch, requires_grad=True, return_actions=False)
            logp = policy.distribution_cls(seen["features"], policy.model).logp(actions[rows])
            optimizer.zero_grad()
            (-logp.mean()).backward()
            optimizer.step()


def mean_return(trainer: Trainer) -> float:
    """Mean return of 50 episodes with the likeliest actions."""
    return float(trainer.eval(episodes=50)["eval/episodes/return_mean"])


def train(seed: int, env: str, budget: int, pairs: None | tuple[Any, Any]) -> tuple[float, float]:
    """Mean returns before and after PPO, of a clone or of an untrained policy."""
    own: Any = {"action_bounds": "clip"}  # in the environment's own unit, as the dataset has them
    # A clone's values are untrained: they learn alone at first.
    options: dict[str, Any] = {} if pairs is None else {"critic_warmup": 10_000}
    options |= {"env_kwargs": own, "eval_env": make(env, 8, **own), "run_dir": None}
    options["progress"] = False
    with Trainer(env, seed=seed, **options) as trainer:
        if pairs is not None:
            clone(trainer.algorithm.policy, *pairs)
        before = mean_return(trainer)
        trainer.run(total_env_steps=budget)
        return before, mean_return(trainer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default=OWN)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.dataset == OWN:
            os.environ["MINARI_DATASETS_PATH"] = folder
            record()
        dataset = minari.load_dataset(given.dataset)
        pairs, env = pairs_of(dataset), dataset.env_spec.id
        found: dict[str, list[float]] = {"clone": [], "clone, then PPO": [], "PPO alone": []}
        for seed in range(given.seeds):
            cloned, trained = train(seed, env, given.steps, pairs)
            _, alone = train(seed, env, given.steps, None)
            for name, value in zip(found, (cloned, trained, alone), strict=True):
                found[name].append(value)
            print(
                f"seed {seed}:", ", ".join(f"{k} {x[-1]:.1f}" for k, x in found.items()), flush=True
            )
    for name, values in found.items():
        mean, low, high = mean_interval(values)
        print(f"{name}: {mean:.1f} ({low:.1f} to {high:.1f})")
