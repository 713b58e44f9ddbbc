"""`everstep watch` of a run in another process, which is killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everstep.__main__ import main
from everstep.loggers import read_metrics, writer_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="asks Linux who holds a lock"),
]


def test_a_run_that_was_killed_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    options = ["num_envs=4", "horizon=16", "--steps", "100M", "--no-mlflow"]
    command = [sys.executable, "-m", "everstep", "train", "CartPole-v1", *options]
    process = subprocess.Popen(
        [*command, "--run-dir", str(run_dir)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    metrics = run_dir / "metrics.jsonl"
    try:
        while not metrics.exists() or not metrics.stat().st_size:
            assert process.poll() is None
            time.sleep(0.05)
        assert writer_of(metrics) == process.pid
        assert main(["watch", str(run_dir), "--once"]) == 0
        assert "No process" not in capsys.readouterr().out
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert writer_of(metrics) == 0
    assert main(["watch", str(run_dir)]) == 0  # it ends by itself
    out = capsys.readouterr().out
    steps = read_metrics(metrics)[-1]["step"]
    assert f"No process trains in {run_dir}: it ended" in out
    assert f"after {steps:,} env steps. To go on: everstep resume {run_dir}" in out
