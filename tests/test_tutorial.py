"""The tutorial: its commands, one after the other, with small budgets."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

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


def commands() -> list[str]:
    """Commands of the page after the installation, one a block."""
    found = [block.text.strip() for block in blocks(PAGE) if block.language == "sh"]
    assert all("\n" not in command for command in found)
    return found[2:]


def test_the_page_has_every_step_of_a_first_day() -> None:
    steps = [re.search(r"everstep (\w+)", command) for command in commands()]
    names = ["doctor", "check", "train", "watch", "plot", "eval", "video", "train", "resume"]
    assert [step and step[1] for step in steps] == [*names, "export", "report", "publish"]


def interrupted(arguments: list[str], run_dir: Path) -> None:
    """Run a training until it has begun, and press Ctrl-C."""
    command = [sys.executable, "-m", "everstep", *arguments]
    training = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        # A shell ignores Ctrl-C for what it runs in the background, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    metrics = run_dir / "metrics.jsonl"
    try:
        while not metrics.exists() or not metrics.stat().st_size:
            assert training.poll() is None
            time.sleep(0.05)
        training.send_signal(signal.SIGINT)
        _, shown = training.communicate(timeout=60)
    finally:
        training.kill()
    assert f"Go on with: everstep resume {run_dir}" in shown


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
        for large, small in SMALL.items():
            command = command.replace(large, small)
        words = shlex.split(command)
        arguments = words[words.index("everstep") + 1 :]
        lacking = [x for x in NEEDED.get(arguments[0], ()) if find_spec(x) is None]
        if lacking:
            missing.append(f"{arguments[0]} ({', '.join(lacking)})")
        elif words[0] == "timeout":
            interrupted(arguments, Path("runs/long"))
        else:
            if "--video" in arguments and not Path("play.gif").exists():
                arguments = arguments[: arguments.index("--video")]
            assert main(arguments) == 0, command
    for run in ("pole", "long"):
        steps = [x["step"] for x in read_metrics(f"runs/{run}/metrics.jsonl") if "losses/vf" in x]
        assert len(set(steps)) == len(steps) > 0
        assert steps[-1] >= 9000
    for file in ("README.md", "policy", "config.yaml"):
        assert Path("shared/pole", file).is_file()
    if missing:
        pytest.skip(f"all but these commands were run: {'; '.join(missing)}")
    for made in ("curves.svg", "play.gif", "runs/pole/policy.onnx", "runs/pole/report.html"):
        assert Path(made).stat().st_size > 1000
