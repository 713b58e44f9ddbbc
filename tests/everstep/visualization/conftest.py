"""Small real runs, trained once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep import TrainConfig

Train = Callable[..., Path]

PAINTED = "tests.everstep.visualization.painted"


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains for some env steps, as `everstep train -f FILE key=value …` does."""

    def train_run(name: str = "run", **values: Any) -> Path:
        file = tmp_path_factory.mktemp("trained") / "train.yaml"
        run_dir = file.parent / name
        small = {"num_envs": 4, "horizon": 16, "device": "cpu", "total_env_steps": 256, "seed": 0}
        file.write_text(json.dumps({**small, "run_dir": str(run_dir), **values}))
        with torch.random.fork_rng(devices=[]):
            config = TrainConfig.from_file(file)
            with config.build(track=False, progress=False) as trainer:
                trainer.run(**config.run_arguments())
                trainer.algorithm.env.close()
        return run_dir

    return train_run


@pytest.fixture(scope="session")
def seeds(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of four runs of CartPole: three seeds, and one with another `gamma`."""
    runs = tmp_path_factory.mktemp("runs")
    cartpole = {"env_cls": "gymnasium:CartPole-v1", "steps_per_eval": 2, "eval_episodes": 2}
    for seed in range(3):
        train(run_dir=str(runs / f"seed-{seed}"), seed=seed, **cartpole)
    train(run_dir=str(runs / "short-sighted"), seed=0, gamma=0.5, **cartpole)
    return runs


@pytest.fixture(scope="session")
def painted(train: Train) -> Path:
    """A run of an environment that paints itself."""
    return train(env_cls=f"{PAINTED}.PaintedEnv")
