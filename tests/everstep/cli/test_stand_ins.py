"""Modules in the current directory, which may be a run that was downloaded."""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.__main__ import modules_importable, parse

READERS = ("report", "plot", "compare", "watch", "publish")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [x for x in sys.path if x not in ("", str(tmp_path))])
    (tmp_path / "a_stand_in.py").write_text("raise SystemExit(9)\n")
    return tmp_path


def found(arguments: argparse.Namespace) -> bool:
    importlib.invalidate_caches()
    with modules_importable(arguments):
        return importlib.util.find_spec("a_stand_in") is not None


def test_commands_that_only_read_find_no_module_of_the_directory() -> None:
    assert not any(found(parse([name, "a", "b"][: 2 + (name == "publish")])) for name in READERS)
    assert found(parse(["eval", "a"]))
    assert found(parse(["init", "my_env.MyEnv"]))
    assert found(parse(["train", "CartPole-v1"]))


def test_a_module_with_the_name_of_a_library_that_is_missing_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def requires(name: str) -> list[str]:
        return ["a-stand-in>=1; extra == 'a'", "numpy>=2; extra == 'b'", "mine>=1"]

    monkeypatch.setattr("importlib.metadata.requires", requires)
    for name in ("numpy", "mine", "other"):
        (here / f"{name}.py").touch()
    arguments: Any = parse(["train", "-f", "train.yaml"])
    assert found(arguments)
    told = capsys.readouterr().err
    assert told.count("has the name of the library") == 1
    assert f"{here / 'a_stand_in.py'} has the name of the library a_stand_in" in told
    assert not found(parse(["report", "a"]))
    assert capsys.readouterr().err == ""


def test_a_command_that_reads_a_configuration_finds_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_by_doctor.py").write_text("from everstep import DiscreteDummyEnv\n")
    (tmp_path / "train.yaml").write_text(
        "env_cls: found_by_doctor.DiscreteDummyEnv\ntotal_env_steps: 64\n"
    )
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "everstep", "doctor", "-f", "train.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "found_by_doctor" not in done.stderr
