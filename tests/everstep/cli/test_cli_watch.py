"""`everstep watch` of a run in another process, which is killed."""

import json
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


def test_times_that_go_back_do_not_stop_the_view(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Older versions wrote the machine's clock, which may have been set back, as it is."""
    times = [100.0, 110.0, 120.0, 20.0, 30.0, 130.0]
    lines = [
        json.dumps({"step": 1000 * i, "time": t, "losses/vf": 0.5}) for i, t in enumerate(times)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "config.yaml").write_text("total_env_steps: 8000\n")
    assert main(["watch", str(tmp_path), "--once"]) == 0
    shown = capsys.readouterr().err.splitlines()[-1]
    assert "env_steps=5,000" in shown
    assert "167 env steps/s eta 0:18" in shown


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
