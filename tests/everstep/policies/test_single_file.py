"""A policy in one file: what reads it, and what a file of unknown origin can claim."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep import DiscreteDummyEnv, Policy, RecurrentPolicy, RecurrentTrainer, Trainer
from everstep.__main__ import main
from everstep.core.checkpoints import load_file, save_file
from everstep.env import Env
from everstep.errors import CheckpointError, ConfigError
from everstep.policies import env_of, load_policy

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "seed": 1, "track": False, "progress": False}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def same_weights(one: Any, other: Any) -> bool:
    own, given = one.model.state_dict(), other.model.state_dict()
    return own.keys() == given.keys() and all(torch.equal(own[k], given[k]) for k in own)


@pytest.mark.parametrize("trainer_cls", [Trainer, RecurrentTrainer])
def test_a_file_and_the_directory_of_a_run_are_read_alike(here: Path, trainer_cls: Any) -> None:
    """Bit for bit, with the environment that it was trained in."""
    kwargs = {"max_episode_steps": 7}
    with trainer_cls("CartPole-v1", env_kwargs=kwargs, run_dir="run", **SMALL) as trainer:
        trainer.run(total_env_steps=32)
        policy = trainer.algorithm.policy
        policy.save("x.everstep")
    cls = RecurrentPolicy if trainer_cls is RecurrentTrainer else Policy
    assert sorted(path.name for path in here.glob("x*")) == ["x.everstep"]
    for path in ("x.everstep", Path("run"), "run/policy"):
        for loaded in (cls.load(path), load_policy(path)):
            assert type(loaded) is cls
            assert same_weights(loaded, policy)
            assert loaded.made_for == {"env_cls": "gymnasium:CartPole-v1", "env_kwargs": kwargs}
    cls.load("x.everstep").save("y.everstep")
    one, other = load_file(here / "x.everstep"), load_file(here / "y.everstep")
    assert one["env"] == other["env"]
    assert json.dumps(one["observation_spec"]) == json.dumps(other["observation_spec"])


def test_a_directory_is_no_place_for_a_file(here: Path) -> None:
    (here / "pictures").mkdir()
    (here / "pictures" / "one").write_text("x")
    (here / "run.everstep").mkdir()
    policy = Trainer(DiscreteDummyEnv, run_dir=None, **SMALL).algorithm.policy
    for place in ("pictures", "run.everstep", Path("pictures")):
        with pytest.raises(
            ConfigError, match=r"is a directory; name a file, such as .*/policy\.ev"
        ):
            policy.save(place)
    assert [path.name for path in (here / "pictures").iterdir()] == ["one"]


def test_a_directory_without_a_policy_is_named(here: Path) -> None:
    (here / "empty").mkdir()
    with pytest.raises(CheckpointError, match="empty: a directory without a policy"):
        Policy.load("empty")
    (here / "elsewhere").write_text("x")
    (here / "empty" / "policy").symlink_to(here / "elsewhere")
    with pytest.raises((CheckpointError, OSError), match="leads out of"):
        Policy.load("empty")


@pytest.mark.slow
def test_the_commands_play_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Trainer("CartPole-v1", run_dir="run", **SMALL) as trainer:
        trainer.run(total_env_steps=32)
        trainer.algorithm.policy.save("x.everstep")
    results = []
    for path in ("x.everstep", "run"):
        assert main(["eval", path, "--episodes", "3", "--seed", "5", "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[0]["run_dir"] == "x.everstep"
    assert {**results[0], "run_dir": "run"} == results[1]
    assert main(["export", "x.everstep", "--format", "torch-export"]) == 0
    assert (here / "x.pt2").exists()
    assert main(["eval", "x.everstep", "lr=1"]) == 2
    assert "lr: unknown key" in capsys.readouterr().err


class MyEnv(DiscreteDummyEnv):
    """An environment of the user's own."""


def test_code_that_a_file_names_is_imported_after_a_yes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reading imports nothing; an environment of one's own asks for `--trust`, once."""
    with Trainer(MyEnv, run_dir=None, num_envs=4, horizon=8, progress=False) as trainer:
        trainer.step()
        trainer.algorithm.policy.save("x.everstep")
    assert env_of("x.everstep") == {"env_cls": f"{__name__}.MyEnv"}
    command = ["eval", "x.everstep", "--episodes", "2", "horizon=8"]
    assert main(command) == 2
    assert f"env_cls: {__name__}.MyEnv" in capsys.readouterr().err
    assert main([*command, "env_cls=everstep.DiscreteDummyEnv"]) == 0  # the user's own word
    assert main([*command, "--trust"]) == 0
    assert main(command) == 0


def test_a_file_without_an_environment_asks_for_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = DiscreteDummyEnv(4, 8)
    Policy(env.observation_spec, env.action_spec).save("x.everstep")
    assert env_of("x.everstep") == {}
    assert main(["eval", "x.everstep"]) == 2
    assert "env_cls=gymnasium:CartPole-v1" in capsys.readouterr().err
    command = ["eval", "x.everstep", "env_cls=everstep.DiscreteDummyEnv", "horizon=4"]
    assert main([*command, "--episodes", "2"]) == 0


def test_what_no_file_can_hold_is_left_out(here: Path) -> None:
    """Objects of the program, and classes of the script itself."""
    env = DiscreteDummyEnv(4, 8)
    policy = Policy(env.observation_spec, env.action_spec)
    for made_for in (
        {"env_cls": "gymnasium:CartPole-v1", "env_kwargs": {"x": object()}},
        {"env_cls": "gymnasium:CartPole-v1", "env_kwargs": {"x": float("nan")}},
        {"env_cls": "gymnasium:CartPole-v1", "env_kwargs": {"x": (1, 2)}},
        {"env_cls": "__main__.MyEnv"},
    ):
        policy.made_for = made_for
        policy.save("x.everstep")
        assert Policy.load("x.everstep").made_for == {}


@pytest.mark.parametrize(
    "env",
    [
        "os.system",
        ["gymnasium:CartPole-v1"],
        {"env_kwargs": {}},
        {"env_cls": 3},
        {"env_cls": "x:y", "env_kwargs": [1]},
        {"env_cls": "x:y", "run_dir": "/tmp"},
    ],
)
def test_an_environment_that_is_none_is_refused(here: Path, env: Any) -> None:
    own: Env = DiscreteDummyEnv(4, 8)
    Policy(own.observation_spec, own.action_spec).save("x.everstep")
    save_file("x.everstep", {**load_file("x.everstep"), "env": env})
    for read in (Policy.load, load_policy, env_of):
        with pytest.raises(CheckpointError, match=r"x\.everstep: its `env` is no environment"):
            read("x.everstep")


def test_files_of_before_load(here: Path) -> None:
    env = DiscreteDummyEnv(4, 8)
    policy = Policy(env.observation_spec, env.action_spec)
    policy.save("x.everstep")
    older = {key: x for key, x in load_file("x.everstep").items() if key != "env"}
    save_file("older", older)
    assert same_weights(Policy.load("older"), policy)


@pytest.mark.slow
def test_an_export_of_a_file_never_replaces_it(here: Path) -> None:
    """Whatever the file's name ends in, also in that of the format."""
    policy = Policy(DiscreteDummyEnv(1).observation_spec, DiscreteDummyEnv(1).action_spec)
    made = {"x.pt2": "x.pt2.pt2", "policy": "policy.pt2", "x.y.everstep": "x.y.pt2"}
    for name, out in made.items():
        policy.save(name)
        before = Path(name).read_bytes()
        assert main(["export", name, "--format", "torch-export"]) == 0
        assert Path(name).read_bytes() == before
        assert Path(out).is_file()
