"""The command line: exit codes, what is printed where, and what is left on disk."""

import argparse
import json
import math
import os
import pkgutil
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from everstep import Policy, __version__, cli
from everstep.__main__ import main, parse
from everstep.cli import commands, load_command
from everstep.cli._arguments import env_steps
from everstep.config import dump, load
from everstep.core.installation import install_command
from everstep.loggers import read_metrics

# SQLAlchemy 2.1 deprecates a loader strategy that MLflow's store uses.
pytestmark = pytest.mark.filterwarnings("ignore:.*noload:DeprecationWarning")

TINY = {"env_cls": "everstep.env.DiscreteDummyEnv", "num_envs": 2, "horizon": 4}
MANY = {"num_envs": 50_000, "horizon": 1, "num_sgd_iters": 1, "model_config": {"hiddens": [2]}}
CARTPOLE = {"env_cls": "gymnasium:CartPole-v1", "num_envs": 2, "horizon": 16}

#: Environments and a model of the user's own, beside the configuration file.
MY_ENV = '''
import torch
from everstep.env import DiscreteDummyEnv
from everstep.models import DefaultDiscreteModel

class MyEnv(DiscreteDummyEnv):
    """The reward of an env step is 1 in the first environment, 2 in the second, and so on."""

    def step(self, action):
        outcome = super().step(action)
        outcome["rewards"] = 1.0 + torch.arange(self.num_envs).unsqueeze(-1)
        return outcome

class FailsLater(DiscreteDummyEnv):
    count = 0

    def step(self, action):
        self.count += 1
        if self.count == 10:
            raise ZeroDivisionError("the wheel came off")
        return super().step(action)

class FailsAtOnce(DiscreteDummyEnv):
    def __init__(self, *args, **kwargs):
        raise ZeroDivisionError("no licence")

class NoShape(DiscreteDummyEnv):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.observation_spec = self.observation_spec[0]

class MyModel(DefaultDiscreteModel):
    pass
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory, as a path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield tmp_path
    sys.modules.pop("my_env", None)


@pytest.fixture
def store(here, empty_store):
    """A store of MLflow in `runs`."""
    (here / "runs").mkdir()
    shutil.copy(empty_store, here / "runs")


@pytest.fixture
def train(here, capsys, request):
    """Train on `config` with further arguments: exit code, standard output, standard error."""

    def train(config, *arguments, track=False):
        (here / "train.yaml").write_text(config if isinstance(config, str) else dump(config))
        flags = [] if track else ["--no-mlflow"]
        if track:
            request.getfixturevalue("store")
        code = main(["train", "-f", "train.yaml", *flags, *arguments])
        return code, *capsys.readouterr()

    return train


@pytest.fixture
def evaluate(here, capsys):
    def evaluate(*arguments):
        code = main(["eval", *map(str, arguments)])
        return code, *capsys.readouterr()

    return evaluate


def only_run(here):
    [run_dir] = [path.parent for path in (here / "runs").glob("*/config.yaml")]
    return run_dir


def run_everstep(*arguments, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "everstep", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        **options,
    )


# ---- the command itself --------------------------------------------------------------------------


def test_help_and_version_do_not_wait_for_pytorch():
    program = (
        "import sys; from everstep.__main__ import main\n"
        "for words in (['--help'], ['train', '--help'], ['--version'], ['train', '--nothing']):\n"
        "    try: main(words)\n"
        "    except SystemExit: pass\n"
        "sys.exit(sorted({'torch', 'mlflow', 'gymnasium', 'pydantic'} & set(sys.modules)) or 0)"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert f"everstep {__version__}" in process.stdout


def test_every_module_is_a_command_and_other_packages_add_theirs():
    modules = {module.name for module in pkgutil.iter_modules(cli.__path__)}
    own = {name for name in modules if not name.startswith("_")}
    added = {"bench", "recipes", "reproduce", "tune"}
    assert set(commands()) == own | added
    assert all(load_command(name).__name__ == f"everstep_lab.commands.{name}" for name in added)


def test_a_command_of_another_package_that_is_broken_breaks_no_other(monkeypatch, capsys):
    point = EntryPoint("broken", "nowhere_at_all.command", cli.GROUP)
    monkeypatch.setattr(cli, "_added", lambda: {"broken": point})
    assert parse(["doctor"]).command == "doctor"
    with pytest.raises(SystemExit, match="0"):
        parse(["--help"])
    assert "cannot be loaded: ModuleNotFoundError" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        parse(["broken"])
    assert "'broken' cannot be loaded: ModuleNotFoundError" in capsys.readouterr().err


def test_a_command_imports_itself_alone():
    code = (
        "import sys; from everstep.__main__ import parse; parse(['eval', 'run']); "
        "print(sorted(x.partition('.cli.')[2] for x in sys.modules if '.cli.' in x))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'eval'" in found.stdout
    assert "'train'" not in found.stdout


def test_the_module_is_the_command():
    process = run_everstep("--help")
    assert process.returncode == 0
    assert process.stdout.startswith("usage: everstep ")
    assert all(command in process.stdout for command in ("train", "eval", "export", "doctor"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["trian"],
        ["train", "CartPole-v1", "--steps", "many"],
        ["train", "-f"],
        ["train", "-f", "a.yaml", "--max-step", "x"],
        ["train", "-f", "a.yaml", "--max-steps", "0"],
        ["train", "-f", "a.yaml", "--max-steps", "many"],
        ["train", "-f", "a.yaml", "--seed", "-1"],
        ["train", "-f", "a.yaml", "--steps-per-eval", "0"],
        ["train", "-f", "a.yaml", "gamma=1", "--unknown"],
        ["eval"],
        ["eval", "x", "--episodes", "0"],
        ["export"],
        ["doctor", "what"],
    ],
)
def test_a_wrong_command_line_ends_with_its_usage(here, capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: everstep" in capsys.readouterr().err
    assert list(here.iterdir()) == []


# ---- train ------------------------------------------------------------------------------------


def test_training_leaves_a_run_and_says_where(train, here):
    code, out, err = train(TINY | {"total_env_steps": 40})
    assert code == 0, err
    run_dir = only_run(here)
    assert run_dir.name == "DiscreteDummyEnv-0001"
    assert {path.name for path in run_dir.iterdir()} == {
        *("config.yaml", "history.jsonl", "metrics.jsonl", ".metrics.jsonl.lock"),
        *("policy", "checkpoints"),
    }
    metrics = read_metrics(run_dir / "metrics.jsonl")
    assert metrics[-1]["env/steps"] == 40
    assert out.startswith("Run     runs/DiscreteDummyEnv-0001\n")
    assert "Trained 40 env steps" in out
    assert "everstep eval runs/DiscreteDummyEnv-0001" in out
    assert "mlflow ui" not in out
    assert "env_steps=40" in err
    config = load(run_dir / "config.yaml").values
    assert config["num_envs"] == 2
    assert config["total_env_steps"] == 40
    assert config["gamma"] == 0.95


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("config", "arguments", "steps"),
    [
        ({}, ["--max-steps", "3"], 3),
        (MANY, [], 2),
        (MANY | {"stop": []}, [], 2),
        ({"total_env_steps": 16}, [], 2),
        ({"total_env_steps": 16}, ["--max-steps", "1"], 1),
        ({"total_env_steps": 16}, ["--max-steps", "7"], 2),
        ({"stop": [{"HitsUpperBound": {"key": "env/steps", "bound": 24}}]}, [], 3),
        ({"total_env_steps": 1e6}, ["total_env_steps=8"], 1),
    ],
)
def test_the_budget(train, here, config, arguments, steps):
    code, _, err = train(TINY | config, *arguments)
    assert code == 0, err
    assert read_metrics(only_run(here) / "metrics.jsonl")[-1]["algorithm/steps"] == steps


def test_assignments_stand_before_and_behind_options(train, here):
    code, _, err = train(
        TINY, "gamma=0.5", "--max-steps", "1", "optimizer_config.lr=3e-4", "seed=7"
    )
    assert code == 0, err
    config = load(only_run(here) / "config.yaml").values
    assert (config["gamma"], config["optimizer_config"], config["seed"]) == (0.5, {"lr": 3e-4}, 7)


def test_a_seed_makes_the_same_training(train, here):
    names = ("returns/mean", "losses/policy", "losses/vf", "monitors/kl_div")
    found = []
    for seed in ("3", "3", "4"):
        code, _, err = train(CARTPOLE, "--max-steps", "3", "--seed", seed, "--run-dir", "a/b")
        assert code == 0, err
        run_dir = (here / "a/b").rename(here / f"run{len(found)}")
        metrics = read_metrics(run_dir / "metrics.jsonl")
        found.append([[line[name] for name in names] for line in metrics])
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert not (here / "runs").exists()


@pytest.mark.filterwarnings("ignore:.*type hint:UserWarning")  # MLflow's, of its own
@pytest.mark.parametrize("track", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_policy_is_saved_elsewhere_too(train, here, track):
    import mlflow

    code, out, err = train(TINY, "--max-steps", "1", "--save", "out/mine", track=track)
    assert code == 0, err
    assert "out/mine/policy" in out
    assert "out/mine/model" in out
    assert (here / "out/mine/policy").read_bytes() == (only_run(here) / "policy").read_bytes()
    policy = Policy.load(here / "out/mine/policy")
    obs = policy.observation_spec.rand([3, 2])
    model = mlflow.pyfunc.load_model("out/mine/model")
    with torch.no_grad():
        expected = policy.act((obs.flatten(0, 1),), (), deterministic=True)
    frame = model.predict({"obs": obs.numpy()})
    assert frame["actions"].tolist() == expected.actions[0].tolist()
    needed = (here / "out/mine/model/requirements.txt").read_text().splitlines()
    assert needed[0] == f"everstep=={__version__}"
    metadata = model.metadata.metadata or {}
    assert metadata.get("run_name") == ("DiscreteDummyEnv-0001" if track else None)


def test_a_model_in_the_way_is_told_before_the_training(train, here):
    (here / "out/model").mkdir(parents=True)
    code, out, err = train(TINY, "--max-steps", "1", "--save", "out")
    assert (code, out) == (2, "")
    assert err == ("--save out: out/model exists already: name another directory, or remove it\n")
    assert not (here / "runs").exists()


#: What rl8 documents as a configuration, its name replaced.
DOCUMENTED = """\
env_cls: everstep.env.DiscreteDummyEnv
algorithm_config:
    horizon: 8
    gamma: 1
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("config", "resolved"),
    [
        (DOCUMENTED, {}),
        (DOCUMENTED + "recurrent: true\n", {"recurrent": True}),
        (DOCUMENTED + "    horizons_per_env_reset: 2\n", {"horizons_per_env_reset": 2}),
    ],
)
@pytest.mark.usefixtures("store")
def test_a_configuration_of_rl8_and_all_its_flags(here, capsys, config, resolved):
    (here / "config.yaml").write_text(config)
    code = main(
        [
            *("train", "--file", "config.yaml", "--experiment-name", "mine", "--max-steps", "5"),
            *("--save", "saved", "--steps-per-eval", "2", "num_envs=4"),
        ]
    )
    assert code == 0, capsys.readouterr().err
    run_dir = only_run(here)
    written = load(run_dir / "config.yaml").values
    assert written | {"horizon": 8, "gamma": 1} | resolved == written
    lines = read_metrics(run_dir / "metrics.jsonl")
    assert lines[-1]["algorithm/steps"] == 5
    assert sum("eval/returns/mean" in line for line in lines) == 2
    assert {path.name for path in (here / "saved").iterdir()} == {"policy", "model"}
    assert tracked(here) == [("mine", run_dir.name, "FINISHED")]


def test_evaluations_on_the_way(train, here):
    arguments = ["--max-steps", "4", "--steps-per-eval", "2", "eval_episodes=3"]
    code, out, err = train(CARTPOLE, *arguments)
    assert code == 0, err
    metrics = read_metrics(only_run(here) / "metrics.jsonl")
    assert [line["eval/episodes/count"] for line in metrics if "eval/episodes/count" in line] == [3]
    assert "evaluation" in out


def test_the_run_is_tracked_and_the_way_to_its_curves_is_shown(train, here):
    code, out, err = train(TINY, "--max-steps", "2", "--experiment-name", "mine", track=True)
    assert code == 0, err
    assert f"mlflow ui --backend-store-uri sqlite:///{here}/runs/mlflow.db" in out
    assert tracked(here) == [("mine", "DiscreteDummyEnv-0001", "FINISHED")]
    assert in_store(here, "select value from params where key = 'native'") == [("True",)]


def tracked(here):
    """Experiment, name and status of every run in the store."""
    return in_store(
        here,
        "select experiments.name, runs.name, runs.status from runs join experiments "
        "on runs.experiment_id = experiments.experiment_id",
    )


def in_store(here, query):
    store = sqlite3.connect(here / "runs" / "mlflow.db")
    try:
        return store.execute(query).fetchall()
    finally:
        store.close()


@pytest.mark.slow
def test_modules_in_the_current_directory_are_found(train, here):
    (here / "my_env.py").write_text(MY_ENV)
    before = list(sys.path)
    config = TINY | {"env_cls": "my_env.MyEnv", "model_cls": "my_env.MyModel"}
    code, _, err = train(config, "--max-steps", "1")
    assert code == 0, err
    assert only_run(here).name == "MyEnv-0001"
    assert sys.path == before


def test_modules_beside_the_file_are_found(here, tmp_path_factory):
    package = tmp_path_factory.mktemp("elsewhere") / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "envs.py").write_text(MY_ENV)
    config = TINY | {"env_cls": "my_package.envs.MyEnv"}
    (package / "train.yaml").write_text(dump(config))
    before = list(sys.path)
    try:
        arguments = ["train", "-f", str(package / "train.yaml"), "--max-steps", "1", "--no-mlflow"]
        assert main(arguments) == 0
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
            del sys.modules[name]
    assert only_run(here).name == "MyEnv-0001"
    assert sys.path == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole/train", "memory/repeat_first", "algotrading/views"])
def test_examples_train_from_any_directory(name, tmp_path):
    file = Path(__file__).parents[3] / "examples" / f"{name}.yaml"
    command = [sys.executable, "-m", "everstep", "train", "-f", str(file), "--no-mlflow"]
    sizes = ["--max-steps", "1", "num_envs=16", "horizon=16", "sgd_minibatch_size=16"]
    done = subprocess.run(
        [*command, *sizes],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("config", "arguments", "problems"),
    [
        (
            "env_cls: everstep.env.DiscreteDummyEnv\ngama: 0.9\nnum_envs: 0\n",
            ["clip_param=3", "--seed", "3"],
            [
                "train.yaml:2: gama: unknown key (did you mean gamma?)",
                "train.yaml:3: num_envs: expected int > 0 or 'auto'; got 0",
                "command line: clip_param=3: expected float in (0, 1); got 3",
            ],
        ),
        ("env_cls: [", [], ["train.yaml:1: not valid YAML: "]),
        ("", [], ["train.yaml:1: expected a mapping"]),
        (TINY, ["x"], ["command line: x: expected key=value"]),
        (
            TINY,
            ["--run-dir", "train.yaml"],
            ['command line: run_dir="train.yaml": train.yaml is not a dir'],
        ),
        (TINY | {"sgd_minibatch_size": 3}, [], ["train.yaml:4: sgd_minibatch_size: must divide"]),
        ({"env_cls": "gymnasium:Nope-v0"}, [], ["train.yaml:1: env_cls: Gymnasium cannot make"]),
        (TINY | {"env_cls": "my_env.NoShape"}, [], ["everstep: `observation_spec` has an empty"]),
    ],
)
def test_nothing_is_written_where_the_configuration_is_bad(
    train, here, config, arguments, problems
):
    (here / "my_env.py").write_text(MY_ENV)
    code, out, err = train(config, *arguments)
    assert code == 2
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == len(problems)
    assert all(line.startswith(start) for line, start in zip(lines, problems, strict=True))
    assert {path.name for path in here.iterdir()} <= {"train.yaml", "my_env.py", "__pycache__"}


#: A registered environment, and one that is not, of the user's own.
MY_GYM = """
import gymnasium as gym
import numpy as np

class Walk(gym.Env):
    observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.x = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.x += 1
        return np.full(1, self.x, np.float32), 1.0, self.x == 3, False, {}

gym.register("Walk-v0", Walk)
"""


@pytest.fixture
def everstep(here, capsys):
    """Run a command: exit code, standard output, standard error."""

    def run(*arguments):
        code = main(list(arguments))
        return code, *capsys.readouterr()

    return run


def metrics_of(run_dir):
    """Statistics that do not depend on the machine."""
    left_out = ("profiling/", "memory/", "time")
    records = read_metrics(run_dir / "metrics.jsonl")
    return [{k: v for k, v in r.items() if not k.startswith(left_out)} for r in records]


def test_one_line_trains(everstep, here):
    small = ["num_envs=2", "horizon=16"]
    code, out, err = everstep("train", "CartPole-v1", *small, "--steps", "50", "--no-mlflow")
    assert code == 0, err
    assert out.startswith("Run     runs/gymnasium-CartPole-v1-0001\n")
    config = load(only_run(here) / "config.yaml").values
    assert (config["env_cls"], config["total_env_steps"]) == ("gymnasium:CartPole-v1", 50)


@pytest.mark.slow
def test_the_default_budget_is_said_first(everstep, here):
    code, out, err = everstep("train", "CartPole-v1", "num_envs=64", "horizon=2048", "--no-mlflow")
    assert code == 0, err
    assert out.startswith("Budget  100,000 env steps, the default; change it with --steps 1M\nRun ")
    assert load(only_run(here) / "config.yaml").values["total_env_steps"] == 100_000


def test_the_default_budget_of_a_file_is_the_same(train, here):
    code, out, err = train(TINY | MANY)
    assert code == 0, err
    assert out.startswith("Budget  100,000 env steps, the default; change it with --steps 1M\nRun ")
    assert load(only_run(here) / "config.yaml").values["total_env_steps"] == 100_000


def test_a_limit_of_train_steps_is_no_default_budget(train, here):
    code, out, err = train(TINY, "--max-steps", "2")
    assert code == 0, err
    assert out.startswith("Run ")
    assert "total_env_steps" not in load(only_run(here) / "config.yaml").values


def test_the_budget_of_a_file_can_be_overridden(train, here):
    code, out, _ = train(TINY | {"total_env_steps": 4_000}, "--steps", "40")
    assert code == 0
    assert "Trained 40 env steps" in out
    assert "Budget" not in out


@pytest.mark.parametrize(
    ("text", "count"),
    [("50_000", 50_000), ("50k", 50_000), ("1M", 10**6), ("1e6", 10**6), ("1.5m", 1_500_000)],
)
def test_env_steps_are_written_in_several_ways(text, count):
    assert env_steps(text) == count


@pytest.mark.parametrize("text", ["0", "1.5", "-3", "1e-3", "k", "1G", "inf", ""])
def test_what_is_no_number_of_env_steps(text):
    with pytest.raises(argparse.ArgumentTypeError, match="such as 50_000, 50k, 1M or 1e6; got"):
        env_steps(text)


@pytest.mark.usefixtures("without_ale")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train"],
            "no environment. Name one: everstep train CartPole-v1, or a file: everstep tra",
        ),
        (["init"], "no environment. Name one: everstep init CartPole-v1."),
        (
            ["train", "CartPole-v1", "-f", "a.yaml"],
            "CartPole-v1: expected key=value, such as gamma",
        ),
        (
            ["train", "CartPole-v1", "x"],
            "x: expected key=value, such as gamma=0.99; the environment",
        ),
        (["train", "Cartpole-v1"], "Cartpole-v1: An environment is written 'prefix:name'"),
        (["init", "ALE/Pong-v5"], "ALE/Pong-v5: An environment is written 'prefix:name'"),
        (["train", "CartPole-v1", "gama=1"], "gama=1: unknown key (did you mean gamma?)"),
        (
            ["train", "CartPole-v1", "optimizer_config.lr=abc"],
            "optimizer_config.lr=abc: lr must be a number; got 'abc'",
        ),
    ],
)
def test_errors_of_the_command_line_are_blamed_on_it(everstep, here, arguments, message):
    code, out, err = everstep(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"command line: {message}")
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("env", ["my_gym.Walk", "gymnasium:my_gym:Walk-v0"])
def test_an_environment_of_ones_own_module(everstep, here, env):
    (here / "my_gym.py").write_text(MY_GYM)
    try:
        code, out, err = everstep("train", env, "num_envs=2", "--steps", "40", "--no-mlflow")
        assert code == 0, err
        code, out, err = everstep("eval", str(only_run(here)), "--episodes", "4")
        assert "episode length  3.0" in out, err
    finally:
        sys.modules.pop("my_gym", None)
        gymnasium.registry.pop("Walk-v0", None)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--recurrent"]])
def test_an_initial_file_trains_as_the_line_does(everstep, here, flags):
    code, out, err = everstep("init", "CartPole-v1", *flags, "--steps", "3k", "seed=3")
    assert (code, err) == (0, "")
    (here / "train.yaml").write_text(out)
    values = load(here / "train.yaml").values
    assert (values["num_envs"], values["device"], values["total_env_steps"]) == (8, "auto", 3000)
    lines = out.splitlines()
    keys = [i for i, line in enumerate(lines) if re.match(r"#?\w+:( |$)", line)]
    assert len(keys) > 40
    assert all(lines[i - 1].startswith("# ") for i in keys)  # each has a comment
    assert max(map(len, lines)) <= 100
    assert "# Discount of the next env step's reward.\ngamma: " in out
    assert [path.name for path in here.iterdir()] == ["train.yaml"]
    rest = ("num_sgd_iters=1", "--no-mlflow", "--run-dir")
    code, _, err = everstep("train", "-f", "train.yaml", *rest, "file")
    assert code == 0, err
    line = [*(["recurrent=true"] if flags else []), "--steps", "3k", "--seed", "3"]
    code, _, err = everstep("train", "CartPole-v1", *line, *rest, "line")
    assert code == 0, err
    assert metrics_of(here / "file") == metrics_of(here / "line")


def test_what_is_off_in_an_initial_file_can_be_switched_on(everstep, here):
    _, out, _ = everstep("init", "CartPole-v1")
    uncommented = re.sub(r"(?m)^#(\w+:)", r"\1", out)
    (here / "train.yaml").write_text(uncommented)
    code, _, err = everstep("train", "-f", "train.yaml", "--steps", "10", "--no-mlflow")
    assert code == 0, err


def test_a_missing_file(here, capsys):
    assert main(["train", "-f", "nowhere.yaml"]) == 2
    assert capsys.readouterr().err == "nowhere.yaml: cannot be read: No such file or directory.\n"
    assert list(here.iterdir()) == []


def test_training_that_fails_says_so_and_leaves_the_traceback(train, here):
    (here / "my_env.py").write_text(MY_ENV)
    code, _, err = train(TINY | {"env_cls": "my_env.FailsLater"}, track=True)
    assert code == 1
    assert "everstep: training failed: ZeroDivisionError: the wheel came off" in err
    assert "Traceback" not in err
    text = (only_run(here) / "traceback.txt").read_text()
    assert text.startswith("Traceback")
    assert "the wheel came off" in text
    assert len(read_metrics(only_run(here) / "metrics.jsonl")) == 2
    assert [run[-1] for run in tracked(here)] == ["FAILED"]


def test_an_error_in_the_users_constructor_is_shown_whole(train, here):
    (here / "my_env.py").write_text(MY_ENV)
    with pytest.raises(ZeroDivisionError, match="no licence"):
        train(TINY | {"env_cls": "my_env.FailsAtOnce"})
    assert not (here / "runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_training_is_saved_and_closed(here, number, code):
    (here / "train.yaml").write_text(dump(CARTPOLE | {"total_env_steps": 10**12}))
    process = subprocess.Popen(
        [sys.executable, "-m", "everstep", "train", "-f", "train.yaml", "--run-dir", "runs/it"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        metrics = here / "runs/it/metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, err
    assert err.rstrip().endswith("Interrupted. Go on with: everstep resume runs/it")
    assert "Traceback" not in err
    assert (here / "runs/it/policy").exists()
    assert len(list((here / "runs/it/checkpoints").iterdir())) in (1, 2)
    assert [run[-1] for run in tracked(here)] == ["KILLED"]
    assert read_metrics(metrics)


# ---- eval -------------------------------------------------------------------------------------


@pytest.fixture
def my_run(train, here):
    """The directory of a run on `MyEnv`, whose return is horizon · (index + 1)."""
    (here / "my_env.py").write_text(MY_ENV)
    config = TINY | {"env_cls": "my_env.MyEnv", "model_cls": "my_env.MyModel", "seed": 5}
    code, _, err = train(config, "--max-steps", "1", "--run-dir", "my run")
    assert code == 0, err
    return here / "my run"


@pytest.mark.slow
def test_an_evaluation_is_printed(evaluate, my_run):
    code, out, err = evaluate(my_run, "--episodes", "4", "--num-envs", "4")
    assert code == 0, err
    assert out.splitlines() == [
        f"{my_run}: 4 rollouts, most likely actions, seed 2147483642",
        "  rollout return  10.0 ± 4.5",  # its episodes do not end
        "  95 % of mean    1.8 to 18.2",  # 10 ± 3.182 · 5.164 / √4
        "  min, max        4.0, 16.0",
        "  rollout length  4.0",
    ]


@pytest.mark.slow
def test_an_evaluation_for_machines(evaluate, my_run):
    code, out, err = evaluate(
        my_run, "--episodes", "4", "--num-envs", "2", "--json", "--stochastic", "--seed", "9"
    )
    assert code == 0, err
    result = json.loads(out)
    low, high = result.pop("episodes/return_mean_interval")
    half = 3.1824 * math.sqrt(16 / 3) / 2  # of 4, 4, 8, 8
    assert (low, high) == pytest.approx((6.0 - half, 6.0 + half), rel=1e-4)
    assert result == {
        "run_dir": str(my_run),
        "episodic": False,
        "seed": 9,
        "deterministic": False,
        "episodes/count": 4,
        "episodes/return_mean": 6.0,
        "episodes/return_std": 2.0,
        "episodes/return_min": 4.0,
        "episodes/return_max": 8.0,
        "episodes/length_mean": 4.0,
    }


@pytest.mark.slow
def test_evaluations_with_the_same_seed_agree(train, evaluate, here):
    code, _, err = train(CARTPOLE, "--max-steps", "1", "--run-dir", "run")
    assert code == 0, err
    seeds = ("3", "3", "4")
    outputs = [
        evaluate("run", "--episodes", "5", "--stochastic", "--json", "--seed", seed)[1]
        for seed in seeds
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0] != outputs[2]
    limited = evaluate("run", "env_kwargs.max_episode_steps=3", "--episodes", "5", "--json")
    assert json.loads(limited[1])["episodes/length_mean"] == 3.0


@pytest.mark.slow
def test_what_is_no_run_is_said(evaluate, my_run, here):
    assert evaluate("nowhere")[::2] == (
        2,
        "nowhere: not the directory of a run: no config.yaml in it. "
        "Name the one that `everstep train` prints.\n",
    )
    code, _, err = evaluate(".")
    assert code == 2
    assert "It contains runs, such as my run." in err
    (my_run / "policy").unlink()
    assert evaluate(my_run)[2].startswith(f"{my_run}: no policy in it")
    (my_run / "policy").write_bytes(b"not a policy")
    code, out, err = evaluate(my_run)
    assert (code, out) == (2, "")
    assert err.startswith("everstep: ")
    (my_run / "config.yaml").write_text("env_cls: DiscreteDummyEnv\n")
    code, _, err = evaluate(my_run)
    assert code == 2
    assert "config.yaml:1: env_cls: expected a dotted path" in err
    assert f"everstep eval '{my_run}' env_cls=gymnasium:CartPole-v1" in err


@pytest.mark.slow
def test_a_single_episode_has_no_interval(evaluate, my_run):
    assert "95 %" not in evaluate(my_run, "--episodes", "1")[1]
    result = json.loads(evaluate(my_run, "--episodes", "1", "--json")[1])
    assert result["episodes/return_mean_interval"] is None


# ---- export -----------------------------------------------------------------------------------


@pytest.fixture
def run_export(here, capsys):
    def run_export(*arguments):
        code = main(["export", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run_export


@pytest.mark.slow
def test_each_word_that_is_no_key_is_told_once(run_export, my_run):
    code, _, err = run_export(my_run, "out", "b", "gamma=1")
    assert code == 2
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert "command line: b: expected key=value" in lines[1]
    assert "gamma=1: unknown key" in lines[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*type hint:UserWarning")  # MLflow's, of its own
def test_a_run_is_exported(run_export, my_run, here):
    import mlflow

    code, out, err = run_export(my_run, "served/it")
    assert code == 0, err
    model, parity, serve = out.splitlines()
    assert model == "Model   served/it"
    assert re.fullmatch(r"Parity  largest difference \S+ on 1,027 observations", parity)
    assert serve == "Serve   mlflow models serve -m served/it --env-manager local"
    model = mlflow.pyfunc.load_model("served/it")
    policy = Policy.load(my_run / "policy", model_cls=sys.modules["my_env"].MyModel)
    obs = policy.observation_spec.rand([3])
    with torch.no_grad():
        expected = policy.act((obs,), (), deterministic=True)
    found = model.predict({"obs": obs.numpy()})
    np.testing.assert_allclose(found["values"], expected.values, rtol=1e-5)


def test_what_cannot_be_exported_is_said(run_export, my_run, here):
    assert run_export("nowhere", "out")[::2] == (
        2,
        "nowhere: not the directory of a run: no config.yaml in it. "
        "Name the one that `everstep train` prints.\n",
    )
    (here / "there").mkdir()
    code, out, err = run_export(my_run, "there")
    assert (code, out) == (2, "")
    assert err.startswith("everstep: there exists already")


# ---- doctor -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("native")
def test_the_doctor_finds_what_is_there(here, capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["everstep"] == __version__
    assert set(report["versions"]) > {"python", "torch", "torchrl", "tensordict", "gymnasium"}
    assert "broken" not in report["versions"].values()
    assert report["devices"][0] == "cpu"
    assert ("gloo" in report["processes"]) is torch.distributed.is_gloo_available()
    assert report["adapters"]["gymnasium"] == "ok"
    assert report["extras"]["ui"] in ("ok", install_command("ui"))
    assert report["runs"] == str(here / "runs")
    assert report["native_library"] is True
    assert report["native"] is True
    assert report["problems"] == []
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "\nnative      on\nnative training on a CPU: yes\n" in out
    assert f"\nprocesses   {', '.join(report['processes'])}\n" in out
    assert "\nNo problems found." in out
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_the_doctor_names_why_the_training_of_a_file_is_not_native(here, capsys):
    (here / "train.yaml").write_text(
        dump(TINY | {"model_config": {"activation_fn": "log_sigmoid"}})
    )
    assert main(["doctor", "-f", "train.yaml", "--json"]) == 0
    reason = json.loads(capsys.readouterr().out)["native"]
    assert "LogSigmoid" in reason
    assert main(["doctor", "-f", "train.yaml"]) == 0
    assert f"\nnative training on a CPU: no: {reason}\n" in capsys.readouterr().out
    (here / "train.yaml").write_text(dump(TINY))
    assert main(["doctor", "--file", "train.yaml"]) == 0
    assert "\nnative training on a CPU: yes\n" in capsys.readouterr().out
    (here / "train.yaml").write_text(dump(TINY | {"gama": 1}))
    assert main(["doctor", "-f", "train.yaml"]) == 2
    assert "train.yaml:4: gama: unknown key" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["train.yaml"]


def test_the_doctor_sees_where_runs_cannot_be_written(here, capsys):
    (here / "runs").write_text("a file")
    assert main(["doctor"]) == 1
    assert f"PROBLEM     {here}/runs is not a writable directory" in capsys.readouterr().out


@pytest.mark.slow
def test_the_doctor_survives_packages_that_do_not_fit_together(here):
    (here / "torchrl").mkdir()
    (here / "torchrl/__init__.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    process = run_everstep("doctor", cwd=here, env={"PYTHONPATH": str(here)})
    assert process.returncode == 1, process.stderr
    assert "torchrl     broken" in process.stdout
    assert "undefined symbol" in process.stdout
    assert "pip install --upgrade torch torchrl tensordict" in process.stdout
    assert "Traceback" not in process.stderr
