"""First days as real processes in an empty folder: each mistake is answered, and nothing is left.

Scripts share one process, in which each runs as a module of its own; commands have one each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

SMALL = "num_envs=2, horizon=8, device='cpu'"

#: A script, the class of its error, and words of the error in this order.
SCRIPTS: list[tuple[str, str, tuple[str, ...]]] = [
    ("from everstep import PPO", "ImportError", ("'PPO'", "everstep.Trainer")),
    ("import everstep; everstep.A2C", "AttributeError", ("'A2C'", "objective='a2c'")),
    ("make('CartPole-v1')", "ConfigError", ("`make`", "'num_envs'", "make('CartPole-v1',")),
    ("make('CartPole-v1', n_envs=2)", "ConfigError", ("`n_envs`", "num_envs")),
    ("make('CartPole-v1', 2, max_steps=9)", "AdapterError", ("max_steps", "max_episode_steps")),
    ("make('CartPole-v1', 10**12)", "ConfigError", ("`num_envs` 1,000,000,000,000", "GiB")),
    ("Trainer('cartpole')", "AdapterError", ("'cartpole'", "'gymnasium:CartPole-v1'")),
    ("Trainer('Pong-v5')", "AdapterError", ("'Pong-v5'", "'ale:pong'")),
    ("Trainer('CartPole-v1', verbose=1)", "ConfigError", ("`verbose`", "progress=False")),
    ("Trainer('CartPole-v1', lr=lambda x: -x)", "ConfigError", ("`lr_schedule`", "`lr`", "-1")),
    ("Trainer('CartPole-v1', optimizer_cls='Adam')", "ConfigError", ("torch.optim.Adam",)),
    ("Trainer('CartPole-v1', callbacks=print)", "ConfigError", ("`callbacks`", "a list")),
    ("Trainer('CartPole-v1', eval_env='CartPole-v1')", "ConfigError", ("`eval_env`", "make(")),
    ("Trainer('CartPole-v1', total_timesteps=9)", "ConfigError", ("`run`", "total_env_steps")),
    (
        "import torch; Trainer('CartPole-v1', model_cls=torch.nn.Linear, SMALL)",
        "ConfigError",
        ("`model_cls`", "everstep.models.Model", "Linear"),
    ),
    ("Trainer('CartPole-v1', run_dir='C:\\\\x')", "ConfigError", ("`run_dir`", "of Windows")),
    ("Trainer('CartPole-v1', run_dir=None, SMALL).learn(9)", "AttributeError", ("run(total",)),
    ("Trainer('CartPole-v1', run_dir=None, SMALL).run(9)", "ConfigError", ("total_env_steps=9",)),
    ("Trainer('CartPole-v1', run_dir=None, SMALL).save('x')", "ConfigError", ("save('x')",)),
    (
        "t = Trainer('CartPole-v1', run_dir=None, SMALL)\n"
        "everstep.evaluate(t.algorithm.policy, make('CartPole-v1', 2), n_eval_episodes=2)",
        "ConfigError",
        ("`n_eval_episodes`", "episodes"),
    ),
]

RUNNER = """
import json, sys
answers = []
for script in json.loads(sys.stdin.read()):
    try:
        exec(script, {"__name__": "__main__"})
        answers.append(["", ""])
    except Exception as error:
        answers.append([type(error).__name__, str(error)])
print(json.dumps(answers))
"""

ZOO = "CartPole-v1:\n  n_envs: 8\n  n_timesteps: 100000.0\n  policy: MlpPolicy\n"

#: A command line, and words of what it says in this order.
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("no environment", "everstep train CartPole-v1"),
    "train -f zoo.yaml": ("zoo.yaml:1: CartPole-v1", "rl-zoo", "n_envs is num_envs"),
    "train CartPole-v1 num_envs=8 --processes 3": ("num_envs", "(3)", "got 8", "Try 6 or 9"),
    "play runs/x": ("a window", "no display", "everstep video runs/x"),
}


def in_order(text: str, words: tuple[str, ...]) -> bool:
    """Whether the words are in the text, one behind the other."""
    at = 0
    for word in words:
        at = text.find(word, at) + len(word)
        if at < len(word):
            return False
    return True


def environment() -> dict[str, str]:
    """Variables without a display, and without what a developer has set."""
    drop = ("DISPLAY", "WAYLAND_DISPLAY", "MLFLOW_TRACKING_URI", "PYTHONWARNINGS")
    return {name: value for name, value in os.environ.items() if name not in drop}


def test_scripts_are_answered_and_leave_nothing(tmp_path: Path) -> None:
    head = "import everstep\nfrom everstep import Trainer, make\n"
    scripts = [head + script.replace("SMALL", SMALL) for script, _, _ in SCRIPTS]
    run = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(scripts),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    answers = json.loads(run.stdout.splitlines()[-1])
    for (script, kind, words), (found, text) in zip(SCRIPTS, answers, strict=True):
        assert (found, in_order(text, words)) == (kind, True), (script, found, text)
    assert list(tmp_path.iterdir()) == []
    assert len(SCRIPTS) >= 20


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_answered_and_leave_nothing(line: str, tmp_path: Path) -> None:
    (tmp_path / "zoo.yaml").write_text(ZOO, encoding="utf-8")
    command = [sys.executable, "-m", "everstep", *line.split()]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
    )
    said = run.stdout + run.stderr
    assert run.returncode == 2, said
    assert in_order(said, COMMANDS[line]), said
    assert "Traceback" not in said
    assert "exitcode" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["zoo.yaml"]
    assert not [x for x in psutil.process_iter(["cwd"]) if x.info["cwd"] == str(tmp_path)]


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 2, "everstep: No space left where output is written. Free some"),
    ],
)
@pytest.mark.parametrize("command", ["init CartPole-v1", "doctor", "train DUMMY run_dir=run"])
def test_streams_that_are_closed_or_full(
    command: str, redirection: str, code: int, said: str, tmp_path: Path
) -> None:
    line = command.replace("DUMMY", "everstep.env.DiscreteDummyEnv num_envs=2 horizon=4")
    if command.startswith("train"):
        line += " total_env_steps=16 --no-mlflow"
    script = f"exec {sys.executable} -m everstep {line} {redirection}"
    run = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, timeout=300
    )
    error = run.stderr.decode()
    assert run.returncode == code, error
    assert said in error
    assert "Traceback" not in error
    assert "ignored" not in error
    if command.startswith("train") and code == 0:
        record = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["env/steps"] for line in record] == [8, 16]
