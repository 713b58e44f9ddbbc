"""The progress that `run` shows."""

import sys
from typing import Any

import pytest

from everstep import DiscreteDummyEnv, Trainer
from everstep.conditions import HitsUpperBound
from everstep.trainers.progress import ConsoleProgress

SIZES: Any = {"num_envs": 4, "horizon": 8, "run_dir": None}


def test_a_run_shows_its_progress_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Trainer("CartPole-v1", **SIZES) as trainer:
        trainer.run(total_env_steps=64)
    out, error = capsys.readouterr()
    assert out == ""
    [line] = error.splitlines()
    assert line.startswith(f"env_steps={trainer.state['env/steps']}")
    assert trainer.view.progress is not None
    assert trainer.view.progress.total_env_steps == 64


def test_progress_can_be_silenced(capsys: pytest.CaptureFixture[str]) -> None:
    with Trainer(DiscreteDummyEnv, **SIZES, progress=False) as trainer:
        trainer.run(total_env_steps=64)
    assert capsys.readouterr() == ("", "")


def test_single_steps_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Trainer(DiscreteDummyEnv, **SIZES) as trainer:
        trainer.step()
        trainer.eval()
    assert capsys.readouterr() == ("", "")


def test_a_logger_that_shows_progress_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    with Trainer(DiscreteDummyEnv, **SIZES, loggers=[ConsoleProgress()]) as trainer:
        trainer.run(total_env_steps=64)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_budget_of_train_steps_is_one_of_env_steps() -> None:
    with Trainer(DiscreteDummyEnv, **SIZES) as trainer:
        trainer.run(
            total_env_steps=float("inf"), stop_conditions=[HitsUpperBound("algorithm/steps", 3)]
        )
    assert trainer.view.progress is not None
    assert trainer.view.progress.total_env_steps == 3 * 4 * 8


def test_a_closed_standard_error_does_not_stop_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stderr", Closed())
    with Trainer(DiscreteDummyEnv, **SIZES) as trainer:
        assert trainer.run(total_env_steps=64)["env/steps"] == 64


@pytest.mark.slow
def test_a_notebook_has_one_output_that_is_updated() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    code = (
        "import everstep\n"
        "with everstep.Trainer('CartPole-v1', seed=0, run_dir=None) as trainer:\n"
        "    trainer.run(total_env_steps=4096)\n"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
    outputs = notebook.cells[0].outputs
    assert [output.output_type for output in outputs] == ["display_data"]
    assert "of 4,096" in outputs[0].data["text/html"]
