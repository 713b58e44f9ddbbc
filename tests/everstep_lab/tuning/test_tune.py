"""`everstep tune` with Optuna itself: spaces, pruning, studies that go on and are shared."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep import TrainConfig
from everstep.__main__ import main
from everstep.config import load
from everstep.errors import ConfigError
from everstep_lab.recipes import read_recipe
from everstep_lab.tuning import read_space

ROOT = Path(__file__).parents[3]

FILE = """
recipe: {task: CartPole-v1, source: a trial}
env_cls: gymnasium:CartPole-v1
total_env_steps: 1_500
num_envs: 4
horizon: 64
lr: 1e-3
tune:
  lr: {low: 1e-4, high: 1e-2, log: true}
  num_sgd_iters: {low: 1, high: 4}
  model_config: [{hiddens: [16]}, {hiddens: [32, 32]}]
  optimizer_config.eps: [1e-8, 1e-5]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a search space, in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pole.yaml").write_text(FILE)
    return tmp_path / "pole.yaml"


def states(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        return [x for (x,) in connection.execute("select state from trials order by number")]


def test_training_ignores_the_space(file: Path) -> None:
    assert TrainConfig.from_file(file).lr == 1e-3


def test_the_files_own_values_are_a_trial_if_the_space_has_them(file: Path) -> None:
    document = load(file)
    space = read_space(document)
    assert space.first(document.values) == {}  # it has no num_sgd_iters
    more: dict[str, Any] = {
        "num_sgd_iters": 2,
        "model_config": {"hiddens": [16]},
        "optimizer_config": {"eps": 1e-5},
    }
    first = space.first(document.values | more)
    assert space.decode(first) == {
        **{"lr": 1e-3, "num_sgd_iters": 2, "model_config": {"hiddens": [16]}},
        "optimizer_config.eps": 1e-5,
    }
    assert space.first(document.values | more | {"lr": 1.0}) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("env_cls: CartPole-v1", "no search space"),
        ("tune: {lr: 3}", "tune.lr: expected a list of choices"),
        ("tune: {lr: {low: 1, high: 0}}", "tune.lr: expected"),
        ("tune: {lr: {low: 0, high: 1, mid: 2}}", "tune.lr: expected"),
        ("tune: {lr: []}", "tune.lr: expected"),
    ],
)
def test_wrong_spaces_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_space(load(tmp_path / "a.yaml"))
    assert words in str(caught.value)


@pytest.mark.slow
def test_a_study_is_searched_and_goes_on(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("matplotlib")
    words = ["tune", "pole.yaml", "--sampler", "random", "--sampler-seed", "0", "--pruner", "none"]
    assert main([*words, "--trials", "2"]) == 0
    assert states(file.with_suffix(".db")) == ["COMPLETE"] * 2
    assert main([*words, "--trials", "5"]) == 0
    assert len(states(file.with_suffix(".db"))) == 5
    said = capsys.readouterr().out
    assert said.count("trial 1: complete") == 1
    best = read_recipe("pole-best.yaml")
    assert best.header.source.startswith("everstep tune, trial ")
    assert "tune" not in best.values
    config = TrainConfig.from_file("pole-best.yaml")
    assert 1e-4 <= config.lr <= 1e-2
    assert config.model_config in ({"hiddens": [16]}, {"hiddens": [32, 32]})
    assert config.optimizer_config["eps"] in (1e-8, 1e-5)
    assert (file.parent / "pole-best-importance.svg").exists()


@pytest.mark.slow
def test_bad_trials_are_pruned_and_broken_ones_fail(file: Path) -> None:
    """Minibatches of 100 do not divide 256; learning rates of 10 learn nothing."""
    pytest.importorskip("optuna")
    text = FILE.split("tune:")[0].replace("lr: 1e-3\n", "").replace("1_500", "6_000")
    space = "tune: {lr: [1e-3, 2e-3, 3e-3, 10.0], sgd_minibatch_size: [32, 64, 128, 100]}\n"
    file.write_text(text + space)
    words = ["tune", "pole.yaml", "--sampler", "random", "--sampler-seed", "1", "--trials", "20"]
    assert main(words) == 0
    found = states(file.with_suffix(".db"))
    assert {"COMPLETE", "PRUNED", "FAIL"} == set(found)
    assert TrainConfig.from_file("pole-best.yaml").lr != 10.0


@pytest.mark.slow
def test_processes_share_a_study(file: Path) -> None:
    pytest.importorskip("optuna")
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("src", "adapters"))
    command = [sys.executable, "-m", "everstep", "tune", "pole.yaml", "--trials", "4"]
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    main(["tune", "pole.yaml", "--trials", "1"])  # the database is there before both
    both = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert 4 <= len(states(file.with_suffix(".db"))) <= 5  # two may begin the last one together


# Databases of somebody else, or of another search.

SMALL = FILE.replace("1_500", "256").replace("lr: {low: 1e-4, high: 1e-2, log: true}", "lr: [1e-3]")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a study of one trial."""
    pytest.importorskip("optuna")
    folder = tmp_path_factory.mktemp("study")
    (folder / "pole.yaml").write_text(SMALL)
    assert main(["tune", str(folder / "pole.yaml"), "--trials", "1"]) == 0
    return folder / "pole.db"


def _link(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes among files")
@pytest.mark.parametrize("name", ["pole.db", "pole-best.yaml"])
@pytest.mark.parametrize("make", [os.mkfifo, _link, Path.mkdir])
def test_files_that_are_none_are_refused(
    name: str, make: Any, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pole.yaml").write_text(SMALL)
    shutil.copy(study, tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    if make is not _link or name == "pole.db":  # a device is written to directly
        assert main(["tune", str(tmp_path / "pole.yaml"), "--trials", "1"]) == 2
        assert str(tmp_path / name) in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:The reported value is ignored")  # Optuna's, of a lost table
@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_database_is_named(
    seed: int, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or its study goes on, where the damage is in none of what is read."""
    draw, path = random.Random(seed), tmp_path / "pole.db"
    (tmp_path / "pole.yaml").write_text(SMALL)
    content = bytearray(study.read_bytes())
    for _ in range(draw.choice((1, 30, 1000))):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(content) if seed else b"no database " * 500)
    if seed % 2:
        shutil.copy(study, path)
        with sqlite3.connect(path) as connection:
            names = connection.execute("select name from sqlite_master where type = 'table'")
            table = draw.choice([name for (name,) in names if name != "version_info"])
            connection.execute(f"drop table {table}")
    code = main(["tune", str(tmp_path / "pole.yaml"), "--trials", "1"])
    assert code in ((0, 2) if seed else (2,))
    if code:
        [line] = capsys.readouterr().err.splitlines()
        assert str(path) in line


def test_another_space_in_a_study_is_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(study, tmp_path)
    (tmp_path / "pole.yaml").write_text(SMALL.replace("[1e-3]", "[1e-3, 1e-4]"))
    assert main(["tune", str(tmp_path / "pole.yaml"), "--trials", "2"]) == 0
    assert "has trials of another search space" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["seed=5"], 2, "seed: has no effect: a trial trains with the seeds 0, 1"),
        (["--score", "evaluation"], 2, "has scores of training, and --score evaluation has others"),
        ([], 0, "has 1 trials: none was trained, as --trials counts them"),
    ],
)
def test_what_a_study_leaves_without_effect_is_told(
    study: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
) -> None:
    shutil.copy(study, tmp_path)
    (tmp_path / "pole.yaml").write_text(SMALL)
    assert main(["tune", str(tmp_path / "pole.yaml"), "--trials", "1", *words]) == code
    assert message in "".join(capsys.readouterr())


def test_a_study_may_have_any_name(study: Path, tmp_path: Path) -> None:
    (tmp_path / "pole.yaml").write_text(SMALL)
    shutil.copy(study, tmp_path / "a?b=c %41#.db")
    words = ["--study", str(tmp_path / "a?b=c %41#.db")]
    assert main(["tune", str(tmp_path / "pole.yaml"), "--trials", "1", *words]) == 0
    assert sorted(x.name for x in tmp_path.glob("a*")) == ["a?b=c %41#.db"]
