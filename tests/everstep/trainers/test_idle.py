"""Arguments that others leave without effect: refused, or said, before anything is trained."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from everstep import DiscreteDummyEnv, TrainConfig, Trainer
from everstep.errors import ConfigError
from everstep.visualization.recording import RecordVideos

SMALL: dict[str, Any] = {"num_envs": 2, "horizon": 4, "progress": False}

#: Arguments of a trainer, and the one that has no effect.
IDLE: list[tuple[dict[str, Any], str]] = [
    *(
        ({"run_dir": None, **given}, next(iter(given)))
        for given in (
            {"checkpoint_every": 10},
            {"checkpoint_every": "1m"},
            {"keep_last": 3},
            {"best": "episodes/return_mean_100"},
            {"run_name": "one"},
            {"experiment_name": "all"},
            {"loggers": ["tensorboard"]},
            {"loggers": [{"wandb": {"project": "x"}}]},
            {"track": True},
        )
    ),
    ({"track": False, "loggers": ["mlflow"]}, "loggers"),
    ({"track": False, "loggers": ["tensorboard", "mlflow"]}, "loggers"),
    ({"track": False, "experiment_name": "all"}, "experiment_name"),
    ({"loggers": ["tensorboard"], "experiment_name": "all"}, "experiment_name"),
    ({"run_dir": "here", "track": False, "run_name": "one"}, "run_name"),
]


@pytest.mark.few(7)
@pytest.mark.parametrize(("given", "name"), IDLE)
def test_an_argument_that_another_switches_off_is_refused(
    given: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"`{name}` (has no effect|names mlflow).*\. Drop "):
        Trainer(DiscreteDummyEnv, **given, **SMALL)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "given",
    [
        {"run_dir": None, "track": False},
        {"run_dir": None, "best": None, "experiment_name": None},
        {"run_dir": "here", "track": False, "keep_last": 3, "checkpoint_every": 10},
        {"track": False, "run_name": "one"},  # the name of the directory
    ],
)
def test_arguments_that_have_an_effect_are_taken(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Trainer(DiscreteDummyEnv, **given, **SMALL).close()


def test_what_a_file_says_is_left_out_where_its_caller_switches_it_off(tmp_path: Path) -> None:
    """`--no-mlflow`, and a trial without a record."""
    config = TrainConfig(
        DiscreteDummyEnv,
        num_envs=2,
        horizon=4,
        total_env_steps=16,
        experiment_name="all",
        checkpoint_every=1,
        keep_last=3,
        best="returns/mean",
        loggers=["mlflow", "tensorboard"],
        video_every=1,
    )
    with config.build(run_dir=None, progress=False) as trainer:
        trainer.run()
    with config.build(run_dir=tmp_path / "run", track=False, progress=False) as trainer:
        assert [*trainer.trackers] == ["tensorboard"]
    with pytest.raises(ConfigError, match="`keep_last` has no effect"):
        config.build(run_dir=None, keep_last=1)


def test_arguments_of_the_environment_of_evaluations_make_one() -> None:
    """They were dropped where the environment is a class: evaluations shared that of training."""
    config = TrainConfig(
        _Bounded, num_envs=2, horizon=4, steps_per_eval=1, eval_env_kwargs={"bounds": 3.0}
    )
    with config.build(run_dir=None, progress=False) as trainer:
        assert trainer.eval_env.bounds == 3.0
        assert trainer.algorithm.env.bounds == 1.0


class _Bounded(DiscreteDummyEnv):
    def __init__(self, *sizes: Any, bounds: float = 1.0, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.bounds = bounds


def test_videos_need_a_directory() -> None:
    with (
        Trainer(DiscreteDummyEnv, callbacks=[RecordVideos(1)], run_dir=None, **SMALL) as trainer,
        pytest.raises(ConfigError, match="`RecordVideos` writes videos to the run's directory"),
    ):
        trainer.run(total_env_steps=16)


def test_arguments_of_run_are_those_that_it_has() -> None:
    with pytest.raises(ConfigError, match=r"`run_arguments` are arguments of `run`.*got steps"):
        Trainer(DiscreteDummyEnv, run_arguments={"steps": 100}, run_dir=None, **SMALL)


def test_a_config_of_evaluations_that_are_not_made_is_refused() -> None:
    with (
        Trainer(DiscreteDummyEnv, run_dir=None, **SMALL) as trainer,
        pytest.raises(ConfigError, match=r"`eval_env_config` has no effect.*`steps_per_eval`"),
    ):
        trainer.run(total_env_steps=16, eval_env_config={"bounds": 3.0})


#: Hyperparameters and arguments of a run of 16 env steps, two train steps, and what is said.
SAID: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"critic_warmup": 16}, {}, "`critic_warmup`: .* so the policy is never trained"),
    ({"critic_warmup": 8}, {}, ""),
    (
        {"lr_schedule": [(0, 1e-3), (8, 1e-4), (16, 1e-5)]},
        {},
        r"`lr_schedule`: .*\[\(16, 1e-05\)\]",
    ),
    ({"lr_schedule": [(0, 1e-3), (15, 1e-4)]}, {}, ""),
    (
        {"lr_schedule": [(0, 1e-3), (99, 1e-4)], "lr_schedule_kind": "interp"},
        {},
        "",
    ),
    (
        {
            "entropy_coeff_schedule": [(0, 0.1), (99, 0.01), (100, 0.0)],
            "entropy_coeff_schedule_kind": "interp",
        },
        {},
        r"`entropy_coeff_schedule`: .*\[\(100, 0.0\)\]",
    ),
    ({}, {"steps_per_eval": 2}, "`steps_per_eval`: .* every 2 train steps.* it makes none"),
    ({}, {"steps_per_eval": 1}, ""),
]


@pytest.mark.parametrize(("given", "arguments", "said"), SAID)
def test_what_a_budget_leaves_without_effect_is_said(
    given: dict[str, Any], arguments: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Trainer(DiscreteDummyEnv, run_dir=None, **given, **SMALL) as trainer:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            trainer.run(total_env_steps=16, **arguments)
    assert bool(caplog.messages) is bool(said)
    if said:
        (message,) = caplog.messages
        assert re.search(said, message), message
