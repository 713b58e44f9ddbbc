"""The last update is evaluated where evaluations choose the best policy; reprs of trainers."""

from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import DiscreteDummyEnv, Trainer
from everstep.callbacks import Callback
from everstep.conditions import HitsUpperBound


class Evaluations(Callback):
    """Train steps after which evaluations were made."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_evaluation(self, stats: dict[str, Any]) -> None:
        self.steps.append(self.trainer.state["algorithm/steps"])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("best", "updates", "expected"),
    [
        ("eval/episodes/return_mean", 5, [2, 4, 5]),
        ("eval/episodes/return_mean", 4, [2, 4]),
        ("eval/episodes/return_mean", 1, [1]),
        ("episodes/return_mean_100", 5, [2, 4]),
        (None, 5, [2, 4]),
    ],
)
def test_the_last_update_is_evaluated_where_the_best_is_chosen_by_evaluations(
    best: None | str, updates: int, expected: list[int], tmp_path: Path
) -> None:
    seen = Evaluations()
    with Trainer(
        "CartPole-v1",
        num_envs=2,
        horizon=16,
        device="cpu",
        seed=0,
        run_dir=tmp_path / "run",
        track=False,
        progress=False,
        eval_env=everstep.make("CartPole-v1", 2),
        eval_episodes=2,
        best=best,
        callbacks=[seen],
        run_arguments={"steps_per_eval": 2},
    ) as trainer:
        trainer.run(stop_conditions=[HitsUpperBound("algorithm/steps", updates)])
    assert seen.steps == expected


def test_reprs_say_what_is_trained() -> None:
    trainer = Trainer(DiscreteDummyEnv, num_envs=2, horizon=4, run_dir=None, device="cpu")
    text = repr(trainer)
    assert text.startswith("Trainer(Algorithm(DiscreteDummyEnv(num_envs=2, horizon=4")
    assert "Policy(observation float32 [1], action int64 [1] of 2 options" in text
    assert text.endswith("env_steps=0, run_dir=None)")
    assert repr(trainer.algorithm.policy) in text
