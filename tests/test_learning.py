"""Policies learn: small budgets here, the published thresholds behind the `learning` marker."""

import subprocess
import sys
from pathlib import Path

import pytest

from everstep import ContinuousDummyEnv, TrainConfig, Trainer, evaluate, make

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_cartpole_is_learned_in_40_000_env_steps() -> None:
    """A random policy's mean return is about 22."""
    config = TrainConfig.from_file(
        EXAMPLES / "gymnasium_cartpole" / "train.yaml", ["total_env_steps=40_000"]
    )
    trainer = config.build(run_dir=None)
    stats = trainer.run()
    assert stats["episodes/return_mean_100"] >= 150
    env = make("gymnasium:CartPole-v1", 8)
    env.seed(1)
    assert evaluate(trainer.algorithm.policy, env, episodes=16)["episodes/return_mean"] >= 150


def test_the_known_optimum_of_the_continuous_dummy_is_approached() -> None:
    """The best action moves the point to the origin at once; doing nothing is far worse."""
    trainer = Trainer(
        ContinuousDummyEnv,
        num_envs=256,
        horizon=8,
        seed=0,
        gamma=0.9,
        sgd_minibatch_size=256,
        model_config={"hiddens": (32, 32)},
        run_dir=None,
    )
    config = {"bounds": 2.0}
    before = trainer.eval(env_config=config)["eval/rewards/mean"]
    for _ in range(60):
        trainer.step(env_config=config)
    after = trainer.eval(env_config=config)["eval/rewards/mean"]
    assert before < -0.9
    assert after > -0.15


@pytest.mark.learning
@pytest.mark.parametrize(
    ("example", "seeds", "needed", "threshold"),
    [("cartpole", 10, 9, 475.0), ("acrobot", 5, 4, -100.0), ("pendulum", 5, 4, -250.0)],
)
def test_examples_reach_their_thresholds(
    example: str, seeds: int, needed: int, threshold: float
) -> None:
    """The table of `examples/README.md`, anew."""
    file = EXAMPLES / f"gymnasium_{example}" / "train.yaml"
    command = [sys.executable, str(EXAMPLES / "seeds.py"), str(file), "--seeds", str(seeds)]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    reached = [float(row[2]) for row in rows]
    evaluated = [float(row[3]) for row in rows]
    assert sum(r >= threshold for r in reached) >= needed
    assert sum(r >= threshold for r in evaluated) >= needed
