"""The tutorial: its commands, one after the other, with small budgets.

Here, and in a new environment with what the page installs: that needs packages and some minutes.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from everstep.__main__ import main
from everstep.loggers import read_metrics
from tests.test_docs import DOCS, blocks

PAGE = DOCS / "tutorial.md"

#: Modules that commands need, and that not every environment has.
NEEDED = {
    "plot": ("matplotlib",),
    "report": ("matplotlib",),
    "video": ("pygame", "PIL"),
    "export": ("onnx", "onnxscript", "onnxruntime"),
}

#: Budgets of the page, and of the test.
SMALL = {"80k": "9k", "steps_per_eval=20": "steps_per_eval=1", "100k": "9k"}


#: What an installation from a copy of the repository needs of it.
PACKAGE = (
    *("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "constraints.txt"),
    *("src", "adapters"),
)


def installation() -> list[str]:
    """Commands of the page that make the environment and activate it."""
    return [block.text.strip() for block in blocks(PAGE) if block.language == "sh"][:2]


def commands() -> list[str]:
    """Commands of the page after the installation, one a block, with small budgets."""
    found = [block.text.strip() for block in blocks(PAGE) if block.language == "sh"]
    assert all("\n" not in command for command in found)
    for large, small in SMALL.items():
        found = [command.replace(large, small) for command in found]
    return found[2:]


def test_the_page_has_every_step_of_a_first_day() -> None:
    steps = [re.search(r"everstep (\w+)", command) for command in commands()]
    names = ["doctor", "check", "train", "watch", "plot", "eval", "video", "train", "resume"]
    assert [step and step[1] for step in steps] == [*names, "export", "report", "publish"]


def interrupted(command: list[str], cwd: Path, **options: Any) -> None:
    """Run a training until it has begun, and press Ctrl-C."""
    training = subprocess.Popen(
        command,
        cwd=cwd,
        stderr=subprocess.PIPE,
        text=True,
        # A shell ignores Ctrl-C for what it runs in the background, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **options,
    )
    metrics = cwd / "runs/long/metrics.jsonl"
    try:
        while not metrics.exists() or not metrics.stat().st_size:
            assert training.poll() is None
            time.sleep(0.05)
        training.send_signal(signal.SIGINT)
        _, shown = training.communicate(timeout=300)
    finally:
        training.kill()
    assert "Go on with: everstep resume runs/long" in shown


def check_results(cwd: Path) -> None:
    """Check that no train step is missing or double, and that the budget was used."""
    for run in ("pole", "long"):
        records = read_metrics(cwd / "runs" / run / "metrics.jsonl")
        steps = [record["step"] for record in records if "losses/vf" in record]
        assert len(set(steps)) == len(steps) > 0
        assert steps[-1] >= 9000
    for file in ("README.md", "policy", "config.yaml"):
        assert Path(cwd, "shared/pole", file).is_file()


def check_files(cwd: Path) -> None:
    """Check that there is what commands with further libraries make."""
    for made in ("curves.svg", "play.gif", "runs/pole/policy.onnx", "runs/pole/report.html"):
        assert (cwd / made).stat().st_size > 1000


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.filterwarnings("ignore:.*type hint:UserWarning")  # MLflow's, of its own
def test_every_command_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("runs").mkdir()
    Path("runs/mlflow.db").write_bytes(empty_store.read_bytes())
    python_path = os.pathsep.join(str(PAGE.parents[1] / name) for name in ("src", "adapters"))
    monkeypatch.setenv("PYTHONPATH", python_path)
    missing = []
    for command in commands():
        words = shlex.split(command)
        arguments = words[words.index("everstep") + 1 :]
        lacking = [x for x in NEEDED.get(arguments[0], ()) if find_spec(x) is None]
        if lacking:
            missing.append(f"{arguments[0]} ({', '.join(lacking)})")
        elif words[0] == "timeout":
            interrupted([sys.executable, "-m", "everstep", *arguments], tmp_path)
        else:
            if "--video" in arguments and not Path("play.gif").exists():
                arguments = arguments[: arguments.index("--video")]
            assert main(arguments) == 0, command
    check_results(tmp_path)
    if missing:
        pytest.skip(f"all but these commands were run: {'; '.join(missing)}")
    check_files(tmp_path)


def can_install(directory: Path) -> bool:
    """Whether pip finds packages."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(directory)]
    return not subprocess.run([*command, "setuptools"], capture_output=True).returncode


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="the page is for a POSIX shell")
def test_the_page_from_a_fresh_environment(tmp_path: Path) -> None:
    if not can_install(tmp_path / "probe"):
        pytest.skip("pip cannot download packages")
    cwd = tmp_path / "copy"
    cwd.mkdir()
    for name in PACKAGE:
        source = PAGE.parents[1] / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, cwd / name)
    path = os.pathsep.join([str(Path(sys.base_prefix, "bin")), os.environ["PATH"]])
    outer = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    environment = {name: x for name, x in os.environ.items() if name not in outer}
    options: dict[str, Any] = {"env": {**environment, "PATH": path, "OMP_NUM_THREADS": "1"}}
    install, activate = installation()
    for command in (install, *(f"{activate} && {command}" for command in commands())):
        if "timeout" in command:
            command = re.sub(r"&& timeout \S+ \d+ everstep", "&& exec everstep", command)
            interrupted(["bash", "-euc", command], cwd, **options)
            continue
        done = subprocess.run(
            ["bash", "-euc", command], cwd=cwd, capture_output=True, text=True, **options
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    check_results(cwd)
    check_files(cwd)
