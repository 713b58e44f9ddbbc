"""Runs from elsewhere: code that they name is imported after the user said so, once."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.__main__ import main
from everstep.config import load
from everstep.errors import AdapterError, ConfigError
from everstep.trainers._trust import foreign_names

OWN = """
import pathlib
import gymnasium
from everstep.callbacks import Callback

pathlib.Path("imported").touch()


def make_env():
    return gymnasium.make("CartPole-v1")


class Quiet(Callback):
    pass
"""


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run with an environment of the user's own; its module is no longer imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_trusted.py").write_text(OWN)
    file = Path("train.yaml")
    file.write_text(
        "env_cls: my_trusted.make_env\nnum_envs: 2\nhorizon: 8\ntotal_env_steps: 16\n"
        "callbacks: [my_trusted.Quiet]\nrun_dir: run\n"
    )
    assert main(["train", "-f", "train.yaml", "--no-mlflow"]) == 0
    forget()
    yield Path("run")
    forget()


def forget() -> None:
    sys.modules.pop("my_trusted", None)
    Path("imported").unlink(missing_ok=True)


WORDS = {
    "eval": ["--episodes", "1"],
    "resume": ["--steps", "32", "--no-mlflow"],
}


@pytest.mark.slow
def test_a_run_of_ones_own_needs_no_question(run_dir: Path) -> None:
    assert main(["eval", "run", *WORDS["eval"]]) == 0
    assert main(["resume", "run", *WORDS["resume"]]) == 0
    assert main(["eval", "run", *WORDS["eval"]]) == 0  # resuming writes the file anew


@pytest.mark.slow
@pytest.mark.parametrize("command", WORDS)
def test_a_run_from_elsewhere_is_asked_for_once(
    run_dir: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree("run", "downloaded")
    words = [command, "downloaded", *WORDS[command]]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "env_cls: my_trusted.make_env" in told
    assert ("callbacks.0: my_trusted.Quiet" in told) == (command == "resume")
    assert "--trust" in told
    assert not Path("imported").exists()
    assert main([*words, "--trust"]) == 0
    assert Path("imported").exists()
    if command != "resume":
        assert main(words) == 0
    assert main(["eval", "downloaded", "--episodes", "1"]) == 0
    shutil.copytree("downloaded", "moved")
    assert main(["eval", "moved", "--episodes", "1"]) == 2
    with Path("downloaded/config.yaml").open("a") as file:
        file.write("# edited\n")
    assert main(["eval", "downloaded", "--episodes", "1"]) == 2


@pytest.mark.slow
def test_a_run_cannot_vouch_for_itself(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the run's directory counts, and no other user's notes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("elsewhere").absolute()))
    assert main(["eval", "run", "--episodes", "1"]) == 2


def test_what_the_user_names_needs_no_question(run_dir: Path) -> None:
    shutil.copytree("run", "downloaded")
    assert main(["eval", "downloaded", "env_cls=CartPole-v1", "--episodes", "1"]) == 0
    assert main(["eval", "downloaded", "env_cls=my_trusted.make_env", "--episodes", "1"]) == 0
    assert main(["eval", "downloaded", "--episodes", "1"]) == 2


@pytest.mark.slow
def test_python_asks_too(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path().absolute())
    everstep.Trainer.load("run", track=False).close()
    shutil.copytree("run", "downloaded")
    forget()
    with pytest.raises(ConfigError, match="trust=True"):
        everstep.Trainer.load("downloaded", track=False)
    assert not Path("imported").exists()
    everstep.Trainer.load("downloaded", track=False, trust=True).close()
    everstep.Trainer.load("downloaded", track=False).close()


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("env_cls: gymnasium:CartPole-v1", []),
        ("env_cls: CartPole-v1", []),
        ("env_cls: pettingzoo:sisl.pursuit_v4", []),
        ("env_cls: gymnasium:ALE/Pong-v5", []),
        ("env_cls: gymnasium:other:Lake-v0", ["other.Lake-v0"]),
        ("env_cls: torchrl:other.Lake", ["other.Lake"]),
        ("env_cls: pettingzoo:other", ["other"]),
        ("env_cls: gymnasium.envs.classic_control.CartPoleEnv", []),
        ("env_cls: everstep.env.DiscreteDummyEnv\noptimizer_cls: torch.optim.Adam", []),
        ("model_cls: other.A\ndistribution_cls: other.B", ["other.A", "other.B"]),
        ("algorithm_config: {model_cls: other.A}", ["other.A"]),
        ("objective: ppo\nbonuses: [rnd, {rnd: {network_cls: other.A}}]", ["other.A"]),
        ("objective: other.A\nbonuses: [{other.B: {}}]", ["other.A", "other.B"]),
        ("env_cls: bridge:gym:A-v0", []),
        ("env_cls: bridge:gym:other:A-v0", ["other.A-v0"]),
        ("env_cls: bridge:other:make", ["other.make"]),
        ("env_cls: bridge:gym:A-v0\nenv_kwargs: {python: ./p, seed: 1}", ["./p"]),
        ("env_cls: bridge:gym:A-v0\neval_env_kwargs: {python: p}", ["p"]),
        (
            "env_cls: bridge:procgen:A\nenv_kwargs: {server: [h:7, i:7], key: k, python: null}",
            ["['h:7', 'i:7']", "k"],
        ),
        ("env_cls: gymnasium:A-v0\nenv_kwargs: {python: 3, key: k}", []),
        ("env_kwargs: {wrappers: [TimeLimit, gymnasium.wrappers.TimeLimit]}", []),
        ("env_kwargs: {wrappers: [{'other:A': {a: 1}}]}", ["other.A"]),
        ("env_cls: gymnasium:other-one:Lake-v0", ["other-one.Lake-v0"]),
        ("env_cls: torchrl:other one:Lake-v0", ["other one.Lake-v0"]),
        ("env_kwargs: {env_kwargs: {wrappers: [other.A]}}", ["other.A"]),
        ("eval_env_kwargs: {env_kwargs: {env_kwargs: {wrappers: [other.A]}}}", ["other.A"]),
        ("env_cls: bridge:gym:A-v0\nenv_kwargs: {env_kwargs: {python: p}}", ["p"]),
        ("callbacks: [other.A, {other.B: {a: 1}}]", ["other.A", "other.B"]),
        ("loggers: [mlflow]", []),
        ("loggers: [other.A, {other.B: {a: 1}}]", ["other.A", "other.B"]),
        (
            "loggers: [{mlflow: {tracking_uri: 'http://x'}}]",
            ["mlflow {'tracking_uri': 'http://x'}"],
        ),
    ],
)
def test_the_names_of_others(tmp_path: Path, text: str, names: list[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert [name for _, name in foreign_names(load(file))] == names


@pytest.mark.skipif(find_spec("isaacgymenvs") is not None, reason="the library is installed")
@pytest.mark.parametrize(
    "text",
    ["env_cls: gymnasium:isaacgymenvs:A-v0", "env_kwargs: {wrappers: [isaacgymenvs.A]}"],
)
def test_a_file_with_the_name_of_a_library_is_code_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert foreign_names(load(file)) == []  # nothing to import
    (tmp_path / "isaacgymenvs.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert [name for _, name in foreign_names(load(file))] != []


@pytest.mark.parametrize("name", ["sisl.none_v4", "classic.none"])
def test_packages_of_pettingzoo_are_not_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("pettingzoo")
    own = tmp_path / name.partition(".")[0]
    own.mkdir()
    (own / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AdapterError, match="There is no module"):
        everstep.make(f"pettingzoo:{name}", 1)


@pytest.mark.parametrize("key", ["env_kwargs", "eval_env_kwargs"])
@pytest.mark.parametrize("inner", ["[1]", "text", "3"])
def test_inner_options_that_are_no_mapping_are_named(tmp_path: Path, key: str, inner: str) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(f"env_cls: CartPole-v1\n{key}: {{env_kwargs: {inner}}}\n")
    with pytest.raises(ConfigError, match="must be a mapping of names to values"):
        everstep.TrainConfig.from_file(file)


@pytest.mark.parametrize("spec", ["gymnasium:pip.__main__:A-v0", "torchrl:pip.__main__.A"])
def test_programs_of_a_library_are_not_imported(spec: str) -> None:
    with pytest.raises(AdapterError, match="two underscores"):
        everstep.factory(spec)
