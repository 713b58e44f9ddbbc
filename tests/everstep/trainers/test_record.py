"""The record of a run: it repeats the run, and says what it was made with."""

import errno
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlflow
import pytest
import torch

import everstep
from everstep import DiscreteDummyEnv, RecurrentTrainer, TrainConfig, Trainer
from everstep.conditions import And, HitsUpperBound, Plateaus
from everstep.config import load
from everstep.errors import CheckpointError, ConfigError
from everstep.loggers import read_metrics

SMALL = {"num_envs": 4, "horizon": 8, "model_config": {"hiddens": [8]}, "track": False}
SPEC = "gymnasium:CartPole-v1"


def curve(run_dir: Path) -> list[dict[str, Any]]:
    """Statistics that do not depend on the clock or the machine."""
    machine = ("profiling/", "memory/", "time")
    lines = read_metrics(run_dir / "metrics.jsonl")
    return [{k: v for k, v in line.items() if not k.startswith(machine)} for line in lines]


def weights(trainer: Any) -> list[torch.Tensor]:
    return [x.detach().clone() for x in trainer.algorithm.policy.model.parameters()]


def source(kind: str) -> Any:
    if kind == "spec":
        return everstep.factory(SPEC, max_episode_steps=10, action_bounds="clip")
    if kind == "made":
        return everstep.make(SPEC, 4, horizon=8, max_episode_steps=10)
    return DiscreteDummyEnv


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spec", "made", "class"])
@pytest.mark.parametrize("trainer_cls", [Trainer, RecurrentTrainer])
def test_a_run_without_a_seed_is_repeated_bit_for_bit(
    kind: str, trainer_cls: Any, tmp_path: Path
) -> None:
    options = SMALL | {"model_config": None} if trainer_cls is RecurrentTrainer else SMALL
    first = trainer_cls(source(kind), run_dir=tmp_path / "a", **options)
    stop = [And([HitsUpperBound("algorithm/steps", 5), Plateaus("losses/vf", patience=99)])]
    first.run(total_env_steps=4 * 8 * 3, stop_conditions=stop)
    first.close()
    config = TrainConfig.from_file(tmp_path / "a" / "config.yaml")
    second = config.build(run_dir=tmp_path / "b", track=False)
    second.run()
    second.close()
    assert config.seed is not None
    assert config.stop == [
        {
            "And": [
                {"HitsUpperBound": {"key": "algorithm/steps", "bound": 5}},
                {"Plateaus": {"key": "losses/vf", "patience": 99, "rtol": 0.001}},
            ]
        }
    ]
    assert len(curve(tmp_path / "a")) >= 3
    assert curve(tmp_path / "a") == curve(tmp_path / "b")
    assert all(map(torch.equal, weights(first), weights(second)))
    without = [text.split("# everstep")[0] for text in texts(tmp_path, "a", "b")]
    assert without[0] == without[1]


def texts(root: Path, *names: str) -> list[str]:
    return [(root / name / "config.yaml").read_text() for name in names]


@pytest.mark.slow
def test_the_command_line_repeats_a_run_from_its_record(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(
        f"env_cls: {SPEC}\nenv_kwargs: {{max_episode_steps: 10}}\nnum_envs: 4\nhorizon: 8\n"
    )
    for file, run_dir in (("train.yaml", "a"), ("a/config.yaml", "b")):
        options = ["--max-steps", "3"] if run_dir == "a" else []
        command = [sys.executable, "-m", "everstep", "train", "-f", file, "--run-dir", run_dir]
        done = subprocess.run([*command, "--no-mlflow", *options], cwd=tmp_path, text=True)
        assert done.returncode == 0
    assert len(curve(tmp_path / "a")) == 3
    assert curve(tmp_path / "a") == curve(tmp_path / "b")


@pytest.mark.slow
def test_seeds_are_drawn_only_where_a_run_is_recorded(tmp_path: Path) -> None:
    def seed(name: None | str) -> None | int:
        run_dir = None if name is None else tmp_path / name
        return Trainer(DiscreteDummyEnv, run_dir=run_dir, **SMALL).algorithm.hparams.seed

    assert seed(None) is None
    found = {seed(name) for name in "abc"}
    assert len(found) == 3
    # A program that seeds PyTorch itself is repeatable as before.
    torch.manual_seed(3)
    first = seed("d")
    torch.manual_seed(3)
    assert seed("e") == first
    config = TrainConfig(DiscreteDummyEnv, num_envs=4, horizon=8)
    recorded = [config.build(run_dir=tmp_path / name, track=False) for name in "fg"]
    assert len({trainer.algorithm.hparams.seed for trainer in recorded}) == 2
    assert config.build(run_dir=None).algorithm.hparams.seed is None
    assert config.seed is None


def test_the_record_names_what_it_cannot_repeat(tmp_path: Path) -> None:
    class Local(DiscreteDummyEnv):
        """Cannot be imported."""

    trainer = Trainer(Local, run_dir=tmp_path / "a", **SMALL)
    trainer.run(stop_conditions=[lambda stats: True])
    text = texts(tmp_path, "a")[0]
    assert "# exists in the program only, so this file cannot repeat: stop\n" in text
    assert "name it in env_cls" in text
    algorithm = everstep.AlgorithmConfig(num_envs=4, horizon=8).build(DiscreteDummyEnv(4, 8))
    Trainer(algorithm, run_dir=tmp_path / "b", track=False)
    text = texts(tmp_path, "b")[0]
    assert "name it in env_cls" in text
    assert "# without a seed, another run differs" in text
    Trainer(DiscreteDummyEnv, run_dir=tmp_path / "c", **SMALL)
    assert len([x for x in texts(tmp_path, "c")[0].splitlines() if x.startswith("#")]) == 2


# ---- one run a directory ----------------------------------------------------------------------


def test_a_directory_with_a_run_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    def never(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("made")

    Trainer(DiscreteDummyEnv, run_dir=tmp_path, **SMALL)
    before = texts(tmp_path, ".")
    message = re.escape(f"{tmp_path} holds a run already") + ".*resume=True"
    with pytest.raises(ConfigError, match=message):
        Trainer(never, run_dir=tmp_path, **SMALL)
    with pytest.raises(ConfigError, match=message):
        TrainConfig(never, num_envs=4).build(run_dir=tmp_path)
    algorithm = everstep.AlgorithmConfig(num_envs=4, horizon=8).build(DiscreteDummyEnv)
    with pytest.raises(ConfigError, match=message):
        Trainer(algorithm, run_dir=str(tmp_path))
    assert texts(tmp_path, ".") == before


def test_a_run_is_continued_in_its_directory(tmp_path: Path) -> None:
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, **SMALL) as first:
        first.run(total_env_steps=64)
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, resume=True, **SMALL) as second:
        assert all(map(torch.equal, weights(first), weights(second)))
        second.run(total_env_steps=128)
    assert [line["step"] for line in curve(tmp_path)] == [32, 64, 96, 128]
    written = load(tmp_path / "config.yaml").values
    assert written["seed"] == first.algorithm.hparams.seed == second.algorithm.hparams.seed
    assert written["total_env_steps"] == 128


def test_only_a_run_can_be_continued(tmp_path: Path) -> None:
    for run_dir in (None, "auto", tmp_path):
        with pytest.raises(ConfigError, match=r"`resume` continues the run in `run_dir`"):
            Trainer(DiscreteDummyEnv, run_dir=run_dir, resume=True, **SMALL)
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, **SMALL) as first:
        first.run(total_env_steps=32)
    text = texts(tmp_path, ".")
    other = SMALL | {"model_config": {"hiddens": [16]}}
    with pytest.raises(CheckpointError):
        Trainer(DiscreteDummyEnv, run_dir=tmp_path, resume=True, **other)
    assert texts(tmp_path, ".") == text


# ---- MLflow -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_mlflow_gets_everything_that_repeats_the_run(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    git = functools.partial(subprocess.run, check=True, capture_output=True, text=True)
    git(["git", "init", "-q"])
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    git(["git", *identity, "commit", "-q", "--allow-empty", "-m", "first"])
    head = git(["git", "rev-parse", "HEAD"]).stdout.strip()
    options = SMALL | {"track": True}
    with Trainer(everstep.factory(SPEC, max_episode_steps=10), **options) as trainer:
        trainer.run(
            total_env_steps=64, stop_conditions=[HitsUpperBound("episodes/return_mean_100", 475)]
        )
    assert trainer.mlflow is not None
    assert trainer.mlflow.run_id is not None
    client = mlflow.MlflowClient(trainer.mlflow.tracking_uri)
    run = client.get_run(trainer.mlflow.run_id)
    params, tags = run.data.params, run.data.tags
    assert params["env_cls"] == SPEC
    assert params["env_kwargs.max_episode_steps"] == "10"
    assert params["total_env_steps"] == "64"
    assert params["stop"] == (
        "[{'HitsUpperBound': {'key': 'episodes/return_mean_100', 'bound': 475}}]"
    )
    assert params["seed"] == str(trainer.algorithm.hparams.seed)
    assert float(params["lr"]) == trainer.algorithm.optimizer.defaults["lr"]
    assert tags["mlflow.source.git.commit"] == head
    assert tags["everstep.torch"] == torch.__version__
    assert {"everstep.everstep", "everstep.python", "everstep.gymnasium"} <= tags.keys()
    assert tags["everstep.device"] == "cpu"
    assert trainer.run_dir is not None
    place = client.download_artifacts(run.info.run_id, "config.yaml", str(tmp_path))
    assert Path(place).read_text() == (trainer.run_dir / "config.yaml").read_text()
    assert head in Path(place).read_text()
    # Charts begin with something that can be read.
    assert {"env/steps", "algorithm/steps", "algorithm/collects"}.isdisjoint(run.data.metrics)
    assert "losses/vf" in run.data.metrics


def test_a_directory_that_is_no_repository_has_no_commit(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", os.fspath(tmp_path.parent))
    Trainer(DiscreteDummyEnv, run_dir="run", **SMALL)
    assert "commit" not in texts(tmp_path, "run")[0].splitlines()[1]


#: A user's training in a directory of root's, from Python and from the command line.
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
PROGRAM = """
import everstep
from everstep.errors import ConfigError

def never(num_envs, horizon=None, *, device="cpu"):
    raise AssertionError("an environment was made")

for options in ({}, {"run_dir": "new"}, {"run_dir": "empty"}, {"run_dir": "run", "resume": True}):
    try:
        everstep.Trainer(never, num_envs=2, **options)
    except ConfigError as error:
        print(error)
"""


def as_nobody(cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Python, run by a user without privileges."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    command = [*AS_NOBODY, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users can read; pytest's are private."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory).resolve()
        path.chmod(0o755)
        yield path


@pytest.mark.long
@pytest.mark.skipif(not (shutil.which("setpriv") and os.geteuid() == 0), reason="needs root")
def test_a_directory_that_is_read_only_is_refused_before_an_environment_is_made(
    public: Path,
) -> None:
    (public / "empty").mkdir()
    with Trainer(DiscreteDummyEnv, run_dir=public / "run", **SMALL) as trainer:
        trainer.run(total_env_steps=8)
    (public / "run").chmod(0o777)
    before = sorted(public.rglob("*"))
    if as_nobody(public, "-c", "import everstep, torchrl.envs").returncode:
        pytest.skip("other users cannot import Everstep, or TorchRL with the libraries it finds")
    told = as_nobody(public, "-c", PROGRAM)
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert [line.split(".")[0] for line in lines] == [
        f"`run_dir`: runs cannot be written: {public} is read-only for this user",
        f"`run_dir`: new cannot be written: {public} is read-only for this user",
        f"`run_dir`: empty cannot be written: {public}/empty is read-only for this user",
        f"`run_dir`: run cannot be written: {public}/run/metrics",
    ]
    assert all("Name another directory" in line for line in lines)
    for option in ([], ["--run-dir", "new"]):
        command = ["-m", "everstep", "train", "CartPole-v1", "--steps", "8", *option]
        done = as_nobody(public, *command)
        assert done.returncode == 2
        assert done.stdout == ""
        assert "cannot be written" in done.stderr
        assert done.stderr.count("\n") == 1
    assert sorted(public.rglob("*")) == before


def test_a_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"cannot be written: {tmp_path}/file is not a directory"):
        Trainer(DiscreteDummyEnv, run_dir=tmp_path / "file" / "run", **SMALL)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**64, "18446744073709551616"),
        ([-(2**63) - 1, 3], ["-9223372036854775809", 3]),
        (float("inf"), "inf"),
        ({"x": float("nan")}, {"x": "nan"}),
        ("\ud800", "'\\ud800'"),
    ],
)
def test_what_a_file_cannot_hold_is_text_in_the_record(
    tmp_path: Path, value: Any, text: Any
) -> None:
    record = {"env_kwargs": {"size": value, "name": "a"}}
    Trainer(DiscreteDummyEnv, run_dir=tmp_path / "a", record=record, **SMALL)
    lost = "# exists in the program only, so this file cannot repeat: env_kwargs\n"
    assert lost in texts(tmp_path, "a")[0]
    document = load(tmp_path / "a" / "config.yaml")
    document.check()
    assert document.values["env_kwargs"] == {"size": text, "name": "a"}


def nested(depth: int) -> Any:
    value: Any = [1]
    for _ in range(depth - 1):
        value = {"a": value}
    return value


ENDLESS: dict[str, Any] = {}
ENDLESS["a"] = [ENDLESS]


class Roomy(DiscreteDummyEnv):
    """Takes any option."""

    closed = 0

    def __init__(self, num_envs: int, horizon: Any = None, *, device: Any, option: Any = 0) -> None:
        super().__init__(num_envs, horizon, device=device)

    def close(self) -> None:
        type(self).closed += 1


class RoomyModel(everstep.models.DefaultDiscreteModel):
    """Takes any option."""

    def __init__(self, *specs: Any, option: Any) -> None:
        super().__init__(*specs, hiddens=(8,))


def from_trainer(**arguments: Any) -> Trainer:
    return Trainer(Roomy, **(SMALL | arguments))


def from_config(**arguments: Any) -> Trainer:
    names = ("track", "record", "callbacks")
    own = {k: v for k, v in (SMALL | arguments).items() if k in names}
    given = {k: v for k, v in (SMALL | arguments).items() if k not in names}
    return TrainConfig(env_cls=Roomy, **given).build(**own)


@pytest.mark.few(4)
@pytest.mark.parametrize("make", [from_trainer, from_config])
@pytest.mark.parametrize("value", [nested(31), nested(500), ENDLESS], ids=["31", "500", "endless"])
@pytest.mark.parametrize("key", ["env_kwargs", "model_config", "record"])
def test_what_is_nested_too_deeply_is_refused_before_anything_is_written(
    make: Any, key: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Roomy, "closed", 0)
    deep: dict[str, Any] = {"model_cls": RoomyModel} if key == "model_config" else {}
    deep[key] = {"option": {"a": value} if key == "record" else value}
    with pytest.raises(
        ConfigError, match=r"^`\w+`: nested more than 32 deep.*; got \{.*\.\.\..*as text"
    ):
        make(**deep)
    assert not list(tmp_path.iterdir())
    assert Roomy.closed == (make is from_trainer)  # it was made, and nobody else has it
    deep[key] = {"option": nested(30)}
    with make(**deep) as trainer:  # one less
        assert load(trainer.run_dir / "config.yaml").values
    assert make is from_trainer or key == "record" or trainer.run_dir.parent.name == "runs"


def test_what_is_nested_too_deeply_is_refused_by_run(tmp_path: Path) -> None:
    """The trainer goes on as if nothing had been asked; the record neither."""
    with Trainer(Roomy, run_dir=tmp_path, seed=0, **SMALL) as trainer:
        before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        for name in ("env_config", "eval_env_config"):
            with pytest.raises(ConfigError, match=f"^`{name}`: nested more than 32 deep"):
                trainer.run(total_env_steps=64, **{name: {"a": ENDLESS}})
        after = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        assert after == before
        trainer.run(total_env_steps=64)
        assert trainer.state["env/steps"] == 64
    with Trainer(Roomy, run_dir=None, **SMALL) as unrecorded:
        unrecorded.run(total_env_steps=32, env_config={"a": nested(60)})


def test_who_closes_environments(tmp_path: Path) -> None:
    """`close` ends the record; environments are closed by those who have them."""
    Roomy.closed, own = 0, Roomy(4, 8, device="cpu")
    arguments = SMALL | {"run_dir": tmp_path / "a", "eval_env": own}
    with Trainer(Roomy, **arguments) as trainer:
        trainer.run(total_env_steps=32)
    trainer.close()
    trainer.close()  # once more does nothing
    assert Roomy.closed == 0
    assert trainer.algorithm.env is not own
    trainer.algorithm.collect()  # it can still be stepped
    with pytest.raises(ConfigError, match="holds a run already"):
        Trainer(own, **arguments)
    with pytest.raises(ConfigError, match="callbacks"):
        Trainer(own, run_dir=None, callbacks=[3], **SMALL)
    assert Roomy.closed == 0  # the caller's
    with pytest.raises(ConfigError, match="callbacks"):
        Trainer(Roomy, run_dir=None, callbacks=[3], **SMALL)
    assert Roomy.closed == 1  # made for a trainer that does not exist


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("loop", "loop is a link that leads nowhere"),
        ("loop/x", "loop is a link that leads nowhere"),
        ("gone", "gone is a link that leads nowhere"),
        ("gone/x", "gone is a link that leads nowhere"),
        ("file/x", "file is not a directory"),
        ("x" * 300, "cannot be a directory: File name too long"),
        ("a\0b", "cannot be a directory: embedded null byte"),
        ("system", "cannot be written: Read-only file system: system. Name another directory"),
    ],
)
def test_a_directory_that_no_run_can_have_is_refused(
    name: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only the system says so, when it is made."""
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("gone").symlink_to("nowhere")
    Path("file").touch()
    if name == "system":
        error = OSError(errno.EROFS, os.strerror(errno.EROFS))
        monkeypatch.setattr(Path, "mkdir", Mock(side_effect=error))
    before = sorted(os.listdir())
    with pytest.raises(ConfigError, match=rf"`run_dir`: .*{problem}"):
        Trainer(DiscreteDummyEnv(2), horizon=4, run_dir=name, track=False)
    assert sorted(os.listdir()) == before


def test_episodes_of_evaluations_need_an_environment_for_them() -> None:
    with pytest.raises(ConfigError, match="there is none; got 5"):
        Trainer(DiscreteDummyEnv(2), horizon=4, run_dir=None, eval_episodes=5)
    trainer = Trainer(DiscreteDummyEnv(2), horizon=4, run_dir=None, eval_env=DiscreteDummyEnv(2))
    assert trainer.eval_episodes == 100
