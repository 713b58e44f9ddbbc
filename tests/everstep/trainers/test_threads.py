"""Threads of PyTorch in a training from Python: one for small networks, or as the program says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.trainers._threads import usable_processors

SCRIPT = """
import sys, torch
{before}
import everstep
from everstep.callbacks import Callback
class Seen(Callback):
    def on_train_step(self, stats): self.threads = torch.get_num_threads()
start = torch.get_num_threads()
seen = Seen()
sizes = dict(num_envs=2, horizon=8, run_dir=None, progress=False, device="cpu")
trainer = everstep.Trainer(everstep.DiscreteDummyEnv, callbacks=[seen], {options} **sizes)
trainer.run(total_env_steps=16)
trainer.run(total_env_steps=32)
print(start, seen.threads, torch.get_num_threads())
"""

LARGE = "model_config={'hiddens': [2048, 2048]}, num_sgd_iters=1,"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "options", "variables", "threads"),
    [
        ("", "", {}, 1),
        ("torch.set_num_threads(3)", "", {}, 3),
        ("", "", {"OMP_NUM_THREADS": "2"}, 2),
        ("", LARGE, {}, None),
    ],
    ids=["small", "chosen in the program", "chosen outside", "large"],
)
def test_a_small_network_takes_one_thread_unless_the_program_has_chosen(
    before: str, options: str, variables: dict[str, str], threads: None | int
) -> None:
    environ = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS",)} | variables
    script = SCRIPT.format(before=before, options=options)
    run = [sys.executable, "-c", script]
    out = subprocess.run(run, env=environ, check=True, capture_output=True, text=True).stdout
    start, during, after = map(int, out.split())
    assert during == (start if threads is None else threads)
    assert after == start


#: Groups of the process, files of quotas, and the processors that they allow of 64.
QUOTAS: dict[str, tuple[str, dict[str, str], int]] = {
    "none": ("0::/\n", {}, 64),
    "no limit": ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
    "of the container": ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
    "of a service": ("0::/a/b\n", {"a/b/cpu.max": "300000 100000", "a/cpu.max": "max 100000"}, 3),
    "of its parent": ("0::/a/b\n", {"a/b/cpu.max": "max 1", "a/cpu.max": "500000 100000"}, 5),
    "not mounted": ("0::/host/path\n", {"cpu.max": "400000 100000"}, 4),
    "in part": ("0::/\n", {"cpu.max": "250000 100000"}, 2),
    "less than one": ("0::/\n", {"cpu.max": "50000 100000"}, 1),
    "of version 1": (
        "4:memory:/x\n2:cpu,cpuacct:/y\n",
        {"cpu/y/cpu.cfs_quota_us": "700000", "cpu/y/cpu.cfs_period_us": "100000"},
        7,
    ),
    "none of version 1": (
        "2:cpu,cpuacct:/\n",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        64,
    ),
    "unreadable": ("0:\n", {"cpu.max": "what"}, 64),
    "more than there are": ("0::/\n", {"cpu.max": "9900000 100000"}, 64),
}


@pytest.mark.parametrize("case", list(QUOTAS))
def test_a_quota_of_processors_is_seen(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, files, expected = QUOTAS[case]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    for name, text in {"proc/self/cgroup": groups, **_below("sys/fs/cgroup", files)}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_processors(tmp_path) == expected


def _below(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


def test_it_may_use_the_processors_of_its_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert usable_processors() == 1


SHARE = """
import torch, everstep
from everstep.callbacks import Callback
from everstep.trainers import _threads
_threads.usable_processors = lambda: 1
start = torch.get_num_threads()
class Seen(Callback):
    def on_train_step(self, stats): self.threads = torch.get_num_threads()
seen = Seen()
trainer = everstep.Trainer(
    everstep.DiscreteDummyEnv, callbacks=[seen], num_envs=2, horizon=8, num_sgd_iters=1,
    model_config={"hiddens": [2048, 2048]}, run_dir=None, progress=False, device="cpu",
)
trainer.run(total_env_steps=16)
print(seen.threads, torch.get_num_threads() == start)
"""


@pytest.mark.slow
def test_a_large_network_takes_no_more_threads_than_processors_it_may_use() -> None:
    environ = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS",)}
    run = [sys.executable, "-c", SHARE]
    out = subprocess.run(run, env=environ, check=True, capture_output=True, text=True).stdout
    assert out.split() == ["1", "True"]
