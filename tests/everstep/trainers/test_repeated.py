"""Evaluations and videos that a seed repeats, and how a run was made, as its record says it."""

from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import Trainer
from everstep.errors import ConfigError
from everstep.trainers import TrainConfig

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 16, "seed": 3, "track": False, "progress": False}


def evaluations(trainer: Any, **options: Any) -> list[dict[str, float]]:
    """Statistics of three evaluations, with train steps between them."""
    found = []
    with trainer:
        for _ in range(3):
            trainer.step()
            found.append(trainer.eval(episodes=4, **options))
    return found


@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluations_of_one_seed_are_the_same(deterministic: bool) -> None:
    def trained(**options: Any) -> list[dict[str, float]]:
        made = everstep.make("gymnasium:CartPole-v1", 2)
        trainer = Trainer("CartPole-v1", eval_env=made, run_dir=None, **{**SMALL, **options})
        return evaluations(trainer, deterministic=deterministic)

    first = trained()
    assert first == trained()
    assert first != trained(seed=4)


def test_the_trainer_of_a_file_evaluates_as_that_of_a_program() -> None:
    options = {k: x for k, x in SMALL.items() if k not in ("track", "progress")}
    config = TrainConfig("CartPole-v1", eval_episodes=4, total_env_steps=64, **options)
    from_file = evaluations(config.build(run_dir=None, progress=False))
    made = everstep.make("gymnasium:CartPole-v1", 4)
    program = Trainer("CartPole-v1", eval_env=made, eval_episodes=4, run_dir=None, **SMALL)
    assert from_file == evaluations(program)


def test_a_seed_that_was_drawn_repeats_evaluations(tmp_path: Path) -> None:
    def trained(run_dir: Path, **options: Any) -> Any:
        made = everstep.make("gymnasium:CartPole-v1", 2)
        trainer = Trainer("CartPole-v1", eval_env=made, run_dir=run_dir, **{**SMALL, **options})
        return trainer.algorithm.hparams.seed, evaluations(trainer)

    seed, first = trained(tmp_path / "a", seed=None)
    assert first == trained(tmp_path / "b", seed=seed)[1]


def test_the_environment_of_the_training_is_no_evaluation_environment() -> None:
    env = everstep.make("gymnasium:CartPole-v1", 4, horizon=16)
    with pytest.raises(ConfigError, match="`eval_env` is the environment of the training"):
        Trainer(env, eval_env=env, run_dir=None, seed=0)
