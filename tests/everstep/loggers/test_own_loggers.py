"""Loggers of one's own, as objects and by the names of their classes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import DiscreteDummyEnv
from everstep.__main__ import main
from everstep.errors import ConfigError


class Table:
    """Keeps what it gets, in a file of its own."""

    def __init__(self, path: str = "table.txt") -> None:
        self.path = Path(path)

    def log_params(self, params: Mapping[str, Any]) -> None:
        self._add("params")

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._add(str(step))

    def close(self, status: str = "FINISHED") -> None:
        self._add(status)

    def _add(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")


NAME = f"{__name__}.Table"
SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 4, "progress": False, "track": False}


@pytest.mark.slow
def test_a_file_names_a_class_and_its_options(tmp_path: Path) -> None:
    """They are recorded, and made again when the run is resumed."""
    file, table, run = tmp_path / "train.yaml", tmp_path / "own.txt", str(tmp_path / "run")
    file.write_text(
        "env_cls: everstep.DiscreteDummyEnv\nnum_envs: 4\nhorizon: 4\ntotal_env_steps: 32\n"
        f"loggers: [{{{NAME}: {{path: {table}}}}}]\n"
    )
    assert main(["train", "-f", str(file), "--run-dir", run, "--no-mlflow"]) == 0
    lines = table.read_text().split()
    assert lines[0] == "params"
    assert [x for x in lines if x.isdigit()] == ["16", "32"]
    assert lines[-1] == "FINISHED"
    assert main(["resume", run, "--steps", "48", "--no-mlflow"]) == 0
    assert [x for x in table.read_text().split() if x.isdigit()] == ["16", "32", "48"]


@pytest.mark.parametrize("given", [Table, NAME, {NAME: {}}, Table()])
def test_an_object_or_its_class_or_a_name(
    given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with everstep.Trainer(DiscreteDummyEnv, loggers=[given], run_dir=None, **SMALL) as trainer:
        trainer.run(total_env_steps=16)
    assert Path("table.txt").read_text().split()[-2:] == ["16", "FINISHED"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (object(), "which has no `log_params`"),
        (3, "which has no `log_params`"),
        ("mlfow", "did you mean mlflow"),
        ("table", "known are mlflow, tensorboard, wandb, and dotted names of classes"),
        (f"{__name__}.Tabel", "Table"),
        ("everstep.errors.ConfigError", "the dotted name of a class with the methods"),
        ({NAME: {"place": 3}}, "does not take"),
    ],
)
def test_others_are_refused_before_anything_is_written(
    tmp_path: Path, entry: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        everstep.Trainer(DiscreteDummyEnv, loggers=[entry], run_dir=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()
