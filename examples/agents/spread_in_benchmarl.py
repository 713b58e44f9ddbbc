"""The task of `spread.py` with BenchMARL's IPPO and MAPPO, which need an environment of their own.

    pip install "torch==2.13.0" "torchrl==0.10.1" "tensordict<0.11"
    pip install "benchmarl==1.5.1" "pettingzoo[mpe]==1.24.3"
    python examples/agents/spread_in_benchmarl.py ippo 1

trains with seed 1 and BenchMARL's default hyperparameters, for as many env steps as `spread.py`,
and prints the mean return of an agent, in 300 episodes of agents with deterministic actions.
`KEY=VALUE` after the seed changes one of its hyperparameters, such as `lr=3e-4`.
"""

import sys
import tempfile

import torch
from benchmarl.algorithms import IppoConfig, MappoConfig
from benchmarl.environments import PettingZooTask
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from torchrl.envs.utils import ExplorationType, set_exploration_type

#: Env steps of an episode, and of a training: 100,000 are 300,000 of agents.
EPISODE, ENV_STEPS = 25, 100_000

ALGORITHMS = {"ippo": IppoConfig, "mappo": MappoConfig}


def experiment(variant: str, seed: int, folder: str, **changes: float) -> Experiment:
    """BenchMARL's experiment, with choices as actions, as the environment has them by default."""
    task, config = PettingZooTask.SIMPLE_SPREAD.get_from_yaml(), ExperimentConfig.get_from_yaml()
    task.config["max_cycles"] = EPISODE
    options = {
        "max_n_frames": ENV_STEPS,
        "prefer_continuous_actions": False,
        "evaluation": False,
        "loggers": [],
        "create_json": False,
        "save_folder": folder,
        **changes,
    }
    for key, value in options.items():
        setattr(config, key, value)
    return Experiment(
        task=task,
        algorithm_config=ALGORITHMS[variant].get_from_yaml(),
        model_config=MlpConfig.get_from_yaml(),
        critic_model_config=MlpConfig.get_from_yaml(),
        seed=seed,
        config=config,
    )


def train(variant: str, seed: int, **changes: float) -> float:
    """The mean return of an agent after a training."""
    with tempfile.TemporaryDirectory() as folder:
        trained = experiment(variant, seed, folder, **changes)
        trained.run()
    returns = []
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        for _ in range(100):
            episode = trained.test_env.rollout(EPISODE, trained.policy)
            returns.append(float(episode["next", "agent", "reward"].sum(0).mean()))
    return sum(returns) / len(returns)


if __name__ == "__main__":
    variant, seed, *words = sys.argv[1:]
    pairs = (word.split("=", 1) for word in words)
    print(f"{train(variant, int(seed), **{key: float(value) for key, value in pairs}):.1f}")
