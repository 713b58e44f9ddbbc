"""`everstep resume RUN_DIR`, and `everstep train … --resume auto`."""

import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.__main__ import main
from everstep.loggers import read_metrics

#: 32 env steps a train step, in which no episode ends, and a learning rate that does not depend on
#: the budget.
SMALL = ("num_envs=2", "horizon=16", "lr_schedule=null", "seed=3")

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def everstep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """A command in an empty directory: its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def run(*arguments: str, track: bool = False) -> tuple[int, str, str]:
        code = main([*arguments, *([] if track else ["--no-mlflow"])])
        return code, *capsys.readouterr()

    return run


def train(everstep: Command, run_dir: str, steps: int, *more: str, **options: Any) -> Any:
    flags = ("--steps", str(steps), "--run-dir", run_dir, *more)
    return everstep("train", "Pendulum-v1", *SMALL, *flags, **options)


def curve(run_dir: str) -> list[dict[str, Any]]:
    """Statistics that do not depend on the machine."""
    left_out = ("profiling/", "memory/", "time")
    records = read_metrics(Path(run_dir, "metrics.jsonl"))
    return [{k: v for k, v in r.items() if not k.startswith(left_out)} for r in records]


def test_a_run_goes_on_as_if_it_had_not_ended(everstep: Command) -> None:
    assert train(everstep, "whole", 128)[0] == 0
    assert train(everstep, "halves", 64)[0] == 0
    code, out, err = everstep("resume", "halves", "--steps", "128")
    assert code == 0, err
    assert out.startswith("Run     halves\n")
    assert [x["env/steps"] for x in curve("halves")] == [32, 64, 96, 128]
    assert curve("halves") == curve("whole")


@pytest.mark.slow
def test_what_a_user_reads_of_a_run_that_went_on(everstep: Command) -> None:
    """Env steps and speed are of this training alone, and so is what stands beside a score."""
    keys = ("env_kwargs.max_episode_steps=6", "steps_per_eval=2", "eval_episodes=2")
    keys += ("best=eval/episodes/return_mean", "--steps", "64", "--run-dir", "pole")
    code, out, err = everstep("train", "CartPole-v1", *SMALL, *keys)
    assert code == 0, err
    assert re.search(r"^Trained 64 env steps in \S+, [\d,]+ env steps/s\.$", out, re.MULTILINE)
    code, out, err = everstep("resume", "pole", "--steps", "160")
    assert code == 0, err
    said = r"^Trained 96 env steps in \d+:\d+, [\d,]+ env steps/s; 160 in all\.$"
    assert re.search(said, out, re.MULTILINE)
    assert not re.search(r"env_steps=0\b", err)
    assert re.search(r"^  return, last \d+ +6\.0$", out, re.MULTILINE)
    assert re.search(r"^  episode length, last rollout +6\.0$", out, re.MULTILINE)
    assert re.search(r"^  evaluation +6\.0$", out, re.MULTILINE)
    assert "no episode has ended" not in err
    assert curve("pole")[-1]["eval/episodes/return_mean"] == 6  # the last update is evaluated
    code, _, err = everstep("resume", "pole")
    assert code == 2
    assert "everstep resume pole --steps N" in err.splitlines()[-1]


def test_a_finished_run_says_how_to_go_on(everstep: Command) -> None:
    train(everstep, "run", 32)
    code, out, err = everstep("resume", "run")
    assert (code, out) == (2, "")
    assert "run: the run is finished, at 32 env steps (total_env_steps: 32)" in err
    assert "everstep resume run --steps N" in err


def test_keys_of_the_checkpoint_cannot_change(everstep: Command) -> None:
    train(everstep, "run", 32)
    before = sorted(Path("run").rglob("*"))
    code, _, err = everstep("resume", "run", "horizon=8", "num_envs=4", "--steps", "64")
    assert code == 2
    assert "horizon=8: cannot change" in err
    assert "was made with 16;" in err
    assert "num_envs=4: cannot change" in err
    assert sorted(Path("run").rglob("*")) == before


def test_one_command_begins_a_run_and_continues_it(everstep: Command) -> None:
    assert train(everstep, "run", 64, "--resume", "auto")[0] == 0
    code, out, err = train(everstep, "run", 64, "--resume", "auto")
    assert code == 0, err
    assert "the run is finished, at 64 env steps" in out
    assert train(everstep, "run", 96, "--resume", "auto")[0] == 0
    assert [x["env/steps"] for x in curve("run")] == [32, 64, 96]


def test_resuming_needs_a_run(everstep: Command) -> None:
    code, _, err = everstep("train", "CartPole-v1", "--resume", "auto")
    assert code == 2
    assert "--run-dir DIR" in err
    code, _, err = everstep("resume", "nowhere")
    assert code == 2
    assert "nowhere: not the directory of a run" in err


@pytest.mark.slow
def test_the_mlflow_run_is_the_same(everstep: Command, empty_store: Path) -> None:
    Path("runs").mkdir()
    shutil.copy(empty_store, "runs")
    assert train(everstep, "runs/a", 64, track=True)[0] == 0
    code, _, err = everstep("resume", "runs/a", "--steps", "128", track=True)
    assert code == 0, err
    store = sqlite3.connect("runs/mlflow.db")
    assert store.execute("select status from runs").fetchall() == [("FINISHED",)]
    points = "select step from metrics where key = 'rewards/mean' order by step"
    assert store.execute(points).fetchall() == [(32,), (64,), (96,), (128,)]
    store.close()
