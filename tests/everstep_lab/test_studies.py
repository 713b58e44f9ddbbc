"""The documented commands of the studies run, in their smallest sizes."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import everstep_lab.studies

#: Arguments of each, with a size that takes seconds.
SIZES = {
    "adapter_overhead": "--pairs 2",
    "bonus_cost": "--rounds 1",
    "bridge_cost": "CartPole-v1 --blocks 2",
    "checkpoint_cost": "",
    "jax_overhead": "gymnax:CartPole-v1 --pairs 2",
    "limit": "cpu-recurrent-cartpole --rounds 1 --set work.num_envs=4 work.horizon=32",
    "memory": "",
    "page_faults": "--updates 1 --rounds 1 --threads 1",
    "ranks": "cartpole --pairs 1 --rounds 1",
    "recurrent": "--rounds 1 CartPole",
    "scaling": "--quick --out .",
    "soak": "--minutes 0.02 --samples 3",
    "threads": "cpu-recurrent-default --pairs 1 --set work.num_envs=16 measure.block_s=0.01",
    "trackers": "--rounds 1 --steps 2",
    "view_cost": "",
}


def test_each_study_is_run_below() -> None:
    [folder] = everstep_lab.studies.__path__
    assert {path.stem for path in Path(folder).glob("[a-z]*.py")} == set(SIZES)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name == "ranks" else pytest.mark.long)
        for name in SIZES
    ],
)
def test_a_study_prints_its_table(name: str, tmp_path: Path) -> None:
    if name == "jax_overhead":
        pytest.importorskip("gymnax")
    if name == "scaling":
        pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", f"everstep_lab.studies.{name}", *SIZES[name].split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=550)
    # Three samples of a soak are too few to judge, which its exit status says.
    assert done.returncode == (name == "soak"), done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_how_things_grow_is_measured_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scaling = importlib.import_module("everstep_lab.studies.scaling")
    points = {}
    for num_envs in (4, 8):
        size = {"num_envs": num_envs, "horizon": 8, "width": 8, "minibatch": 16}
        points[num_envs] = scaling.measure(size, "cpu", 1, 0.0)
    small, large = points.values()
    assert large["rollout_bytes"] == 2 * small["rollout_bytes"]
    assert all(point["peak_bytes"] > point["rollout_bytes"] for point in points.values())
    scaling.draw("num_envs", points, tmp_path / "grows.png")
    assert (tmp_path / "grows.png").read_bytes().startswith(b"\x89PNG")


def test_page_faults_of_an_update_are_counted() -> None:
    module = importlib.import_module("everstep_lab.studies.page_faults")
    ((milliseconds, faults),) = module.updates(1, torch.get_num_threads(), num_envs=4)
    assert milliseconds > 0
    assert faults >= 0
