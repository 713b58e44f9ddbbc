"""Configuration files that came from somebody else: what they cannot do."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.config import dump, load
from everstep.errors import ConfigError
from everstep.trainers import TrainConfig

BASE = {"env_cls": "gymnasium:CartPole-v1", "num_envs": 2, "horizon": 8, "total_env_steps": 16}
TOUCH = {"args": ["touch", "touched"]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, **values: Any) -> str:
    (folder / "train.yaml").write_text(dump({**BASE, **values}))
    return "train.yaml"


COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("callbacks.0", {"callbacks": [{"subprocess.Popen": TOUCH}]}),
    ("callbacks.0", {"callbacks": ["subprocess.Popen"]}),
    ("callbacks.0", {"callbacks": [{"torch.hub.load": {"repo_or_dir": "a/b", "model": "c"}}]}),
    ("callbacks.0", {"callbacks": [{"tensorboard.compat.tf": {}}]}),
    ("bonuses.0", {"bonuses": [{"os.system": {"command": "touch touched"}}]}),
    ("bonuses.0", {"bonuses": [{"rnd": {"network_cls": "subprocess.Popen"}}]}),
    ("bonuses.0", {"bonuses": [{"torch.nn.Linear": {"in_features": 1, "out_features": 1}}]}),
    ("env_cls", {"env_cls": "subprocess.getoutput", "env_kwargs": {"cmd": "touch touched"}}),
    ("env_cls", {"env_cls": "torch.hub.load", "env_kwargs": {"repo_or_dir": "a/b"}}),
    ("env_cls", {"env_cls": "numpy.load", "env_kwargs": {"file": "x", "allow_pickle": True}}),
    ("env_cls", {"env_cls": "pip.__main__.x"}),
    ("env_cls", {"env_cls": "antigravity.fly"}),
    ("env_cls", {"env_cls": "torch.os.system", "env_kwargs": {"command": "touch touched"}}),
    ("env_cls", {"env_cls": "gymnasium:antigravity:CartPole-v1"}),
    ("env_cls", {"env_cls": "torchrl:subprocess:Popen"}),
    ("env_cls", {"env_cls": "everstep.cli._processes.start"}),
    ("objective", {"objective": "subprocess.Popen"}),
    ("objective", {"objective": "torch.load"}),
    ("model_cls", {"model_cls": "subprocess.Popen", "model_config": {"shell": True}}),
    ("model_cls", {"model_cls": "torch.hub.load"}),
    ("optimizer_cls", {"optimizer_cls": "os.system"}),
    ("optimizer_cls", {"optimizer_cls": "torch.nn.Linear"}),
    ("distribution_cls", {"distribution_cls": "torch.load"}),
    ("policy_loss_addons.0", {"policy_loss_addons": ["os.system"]}),
]


@pytest.mark.parametrize(("key", "values"), COMMANDS, ids=lambda x: str(x)[:60])
def test_a_file_names_no_command(here: Path, key: str, values: dict[str, Any]) -> None:
    """It is refused where it is read, with its line, and nothing of it was called or imported."""
    name = write(here, **values)
    with pytest.raises(ConfigError) as error:
        TrainConfig.from_file(name)
    found = [problem for problem in error.value.problems if f": {key}: " in problem]
    line = load(name).place(tuple(int(x) if x.isdecimal() else x for x in key.split("."))).label
    assert [text.startswith(f"{line}: {key}: ") for text in found] == [True], error.value.problems
    assert [path.name for path in here.iterdir()] == [name]
    assert "antigravity" not in sys.modules


def test_wrappers_in_a_file_are_wrappers(here: Path) -> None:
    for wrapper in ("os.system", {"subprocess.Popen": TOUCH}, {"torch.save": {"f": "touched"}}):
        name = write(here, env_kwargs={"wrappers": [wrapper]})
        with pytest.raises(ConfigError, match=r"train.yaml:.*(standard library|Wrapper)"):
            TrainConfig.from_file(name).build(run_dir=None)
    assert [path.name for path in here.iterdir()] == [name]


OWN = """
import functools
import subprocess
from subprocess import Popen

import gymnasium
from torch import nn

from everstep.callbacks import Callback
from everstep.models import DefaultDiscreteModel
from everstep.objectives import PPO

run = subprocess.run


def make_env():
    return gymnasium.make("CartPole-v1")


bound = functools.partial(gymnasium.make, "CartPole-v1")


def sized(num_envs, horizon=None, *, device="cpu"):
    import everstep
    return everstep.make("CartPole-v1", num_envs, horizon=horizon, device=device)


def make_model(observation_spec, action_spec, **config):
    return DefaultDiscreteModel(observation_spec, action_spec, **config)


def my_objective(config, *, entropy_coeff):
    return PPO(config, entropy_coeff=entropy_coeff)


class Quiet(Callback):
    made = 0

    def __init__(self, every=1):
        Quiet.made += 1


def wrap(env, times=1):
    return gymnasium.wrappers.RecordEpisodeStatistics(env)
"""


@pytest.fixture
def own(here: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's own, on the path."""
    (here / "my_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(here)
    import my_own

    yield my_own
    del sys.modules["my_own"]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "values",
    [
        {"env_cls": "my_own.make_env"},
        {"env_cls": "my_own.bound"},
        {"env_cls": "my_own.sized"},
        {"env_cls": "gymnasium.make", "env_kwargs": {"id": "CartPole-v1"}},
        {"env_cls": "gymnasium.envs.classic_control.CartPoleEnv"},
        {"env_cls": "everstep_lab.recipes.envs.cartpole_positions"},
        {"model_cls": "my_own.make_model"},
        {"objective": "my_own.my_objective"},
        {"objective": "everstep.objectives.A2C"},
        {"callbacks": [{"my_own.Quiet": {"every": 3}}]},
        {"env_kwargs": {"wrappers": [{"my_own.wrap": {"times": 2}}]}},
    ],
    ids=str,
)
def test_what_a_user_wrote_is_taken(own: Any, here: Path, values: dict[str, Any]) -> None:
    config = TrainConfig.from_file(write(here, **values))
    assert own.Quiet.made == 0  # a callback is checked, and made when the trainer is
    trainer: Any = config.build(run_dir=None)
    with trainer:
        trainer.step()
    trainer.algorithm.env.close()
    assert own.Quiet.made == ("callbacks" in values)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("env_cls", "my_own.Popen"),
        ("env_cls", "my_own.run"),
        ("env_cls", "my_own.subprocess.Popen"),
        ("model_cls", "my_own.Popen"),
        ("objective", "my_own.run"),
        ("callbacks", "my_own.Popen"),
    ],
)
def test_a_command_is_none_by_another_name(own: Any, here: Path, key: str, name: str) -> None:
    values = {key: [{name: TOUCH}] if key == "callbacks" else name}
    with pytest.raises(ConfigError, match="Python's standard library"):
        TrainConfig.from_file(write(here, **values))
    assert not (here / "touched").exists()


def everstep(*words: str, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "everstep", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_a_module_beside_a_file_takes_no_library_s_place(here: Path) -> None:
    """Not beside the file, and not in the current directory, whose own modules are still found."""
    folder = here / "downloaded"
    folder.mkdir()
    write(folder)
    for place in (folder, here):
        for name in ("mlflow", "yaml", "rich", "torch", "gymnasium"):
            (place / f"{name}.py").write_text("open('touched', 'w')\nraise SystemExit(9)\n")
    found = everstep("train", "-f", "downloaded/train.yaml", "--run-dir", "run", cwd=here)
    assert found.returncode == 0, found.stderr
    assert not (here / "touched").exists()
    (here / "my_own.py").write_text(OWN)
    found = everstep("train", "my_own.make_env", "--steps", "16", "num_envs=2", cwd=here)
    assert found.returncode == 0, found.stderr


@pytest.mark.slow
def test_a_module_of_ones_own_behind_a_library_is_told(here: Path) -> None:
    (here / "yaml.py").write_text(OWN)
    found = everstep("train", "yaml.make_env", cwd=here)
    assert found.returncode == 2
    assert "installed" in found.stderr
    assert "before a module of your own" in found.stderr
