"""`everstep train --processes N`, and what `torchrun` starts: one run of several processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from everstep.cli import _processes
from everstep.errors import EverstepError
from everstep.trainers._checkpointing import checkpoints_of

pytestmark = pytest.mark.slow

EVERSTEP = [sys.executable, "-m", "everstep"]

FAILING = """
import os
import time

from everstep import DiscreteDummyEnv


class Failing(DiscreteDummyEnv):
    steps = 0

    def step(self, action):
        self.steps += 1
        if os.environ.get("RANK") == "1" and self.steps == 40:
            {failure}
        return super().step(action)
"""


def everstep(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EVERSTEP, *words],
        cwd=directory,
        env={**environment(), "EVERSTEP_TIMEOUT": "5"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def environment() -> dict[str, str]:
    root = str(Path(__file__).parents[3])
    paths = [x for x in os.environ.get("PYTHONPATH", "").split(os.pathsep) if x not in ("", ".")]
    absolute = [str(Path(x) if os.path.isabs(x) else Path(root) / x) for x in paths]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(absolute)}


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_processes_train_one_run_and_it_is_resumed(tmp_path: Path) -> None:
    """Sizes and totals are those of the whole; one process more or less goes on, too."""
    words = ["train", "CartPole-v1", "--processes", "2", "--run-dir", "run", "--no-mlflow"]
    keys = ["seed=1", "num_envs=4", "horizon=32", "num_sgd_iters=1"]
    trained = everstep(tmp_path, *words, "--steps", "1k", *keys)
    assert trained.returncode == 0, trained.stderr
    run_dir = tmp_path / "run"
    assert trained.stdout.count("Run     run") == 1
    records = lines(run_dir)
    assert all(x["env/steps"] <= 128 * (i + 1) for i, x in enumerate(records))
    assert records[-1]["env/steps"] >= 1000
    assert "num_envs: 4" in (run_dir / "config.yaml").read_text()
    for processes, steps in (("2", "1500"), ("1", "2000")):
        words = ["resume", "run", "--no-mlflow", "--processes", processes, "--steps", steps]
        resumed = everstep(tmp_path, *words)
        assert resumed.returncode == 0, resumed.stderr
        totals = [x["env/steps"] for x in lines(run_dir)]
        assert totals == sorted(set(totals))
        assert totals[-1] >= int(steps)


@pytest.mark.long
def test_sigterm_saves_once_and_ends_all(tmp_path: Path) -> None:
    words = ["train", "CartPole-v1", "--processes", "2", "--run-dir", "run", "--no-mlflow"]
    keys = ["seed=1", "num_envs=4", "horizon=32", "num_sgd_iters=1"]
    process = subprocess.Popen(
        [*EVERSTEP, *words, "--steps", "1e9", *keys],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run_dir = tmp_path / "run"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (run_dir / "metrics.jsonl").exists() and (run_dir / "metrics.jsonl").stat().st_size:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert len(checkpoints_of(run_dir)) >= 1
    assert (run_dir / "policy").exists()


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("raise RuntimeError('the simulator has crashed')", "the simulator has crashed"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                ("os._exit(7)", "rank 1 ended with exit code 7"),
                (
                    "row = super().step(action); row['rewards'][0] = float('nan'); return row",
                    "finite",
                ),
                ("time.sleep(1e6)", "rank 1: the environment hangs: its `step`"),
            )
        ),
    ],
    ids=["raises", "dies", "NaN", "hangs"],
)
def test_a_rank_that_fails_ends_all_with_its_message(
    tmp_path: Path, failure: str, message: str
) -> None:
    (tmp_path / "failing.py").write_text(FAILING.format(failure=failure), encoding="utf-8")
    words = ["train", "failing.Failing", "--processes", "2", "--run-dir", "run", "--no-mlflow"]
    ended = everstep(tmp_path, *words, "--steps", "1e9", "num_envs=4", "horizon=8")
    assert ended.returncode not in (0, 2)
    assert message in ended.stderr
    assert "gloo" not in ended.stderr or failure.startswith("os._exit")


def test_sizes_that_do_not_divide_are_refused_before_anything_starts(tmp_path: Path) -> None:
    words = ["train", "CartPole-v1", "--processes", "2", "--run-dir", "run", "--no-mlflow"]
    refused = everstep(tmp_path, *words, "--steps", "1k", "num_envs=5")
    assert refused.returncode == 2
    assert refused.stderr.count("num_envs=5: is of all processes together") == 1
    assert "multiple of their number (2); got 5. Try 4 or 6" in refused.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.long
def test_a_mistake_in_the_configuration_is_not_tried_again(tmp_path: Path) -> None:
    """The processes that the launcher starts again end before they read anything."""
    words = ["train", "CartPole-v1", "--processes", "2", "--run-dir", "run", "--resume", "auto"]
    refused = everstep(tmp_path, *words, "--max-restarts", "2", "--steps", "1k", "num_envs=5")
    assert refused.returncode == 2
    assert refused.stderr.count("is of all processes together") == 1


def names_of_start(store: Any, ranks: Iterable[int], size: int) -> list[str]:
    """The name of a start that each of these ranks finds."""
    with ThreadPoolExecutor(size) as pool:
        return [*pool.map(lambda rank: _processes.name_of_start(store, rank, size), ranks)]


def test_each_start_has_a_name_of_its_own() -> None:
    """Also where the store has names of starts of which all processes, or some, have ended."""
    store = HashStore()
    first, second = (set(names_of_start(store, order, 3)) for order in ([2, 1, 0], [0, 1, 2]))
    assert len(first) == len(second) == len(first | second) - 1 == 1
    for rank in (1, 2):
        store.set(f"everstep/name/{rank}", "of one that ended before all had started")
    third = set(names_of_start(store, [0, 2, 1], 3))
    assert len(third) == 1
    assert not third & (first | second)


def test_a_process_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_processes, "_PATIENCE", timedelta(seconds=0.2))
    for rank in (0, 1):
        with pytest.raises(
            EverstepError, match=f"Rank {rank} has waited for 0:00:00.2.* for all 2"
        ):
            _processes.name_of_start(HashStore(), rank, 2)


KILLED = """
with open("started", "a") as file:
    print(os.environ["RANK"], file=file)
if open("started").read().split().count("1") == 1:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.long
def test_the_launchers_of_two_machines_start_all_again(tmp_path: Path) -> None:
    """They keep their store, and each counts only the restarts that its own processes caused."""
    failure = KILLED.strip().replace("\n", "\n            ")
    (tmp_path / "failing.py").write_text(FAILING.format(failure=failure), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    launcher += ["--max-restarts=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}"]
    words = ["train", "failing.Failing", "--run-dir", "run", "--resume", "auto", "--no-mlflow"]
    command = [*launcher, "-m", "everstep", *words, "--steps", "1k", "num_envs=4", "horizon=8"]
    machines = [
        subprocess.Popen(
            [*command, "checkpoint_every=1"],
            cwd=tmp_path,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        errors = [machine.communicate(timeout=240)[1] for machine in machines]
    finally:
        for machine in machines:
            machine.terminate()  # which ends its processes, too
            machine.wait(60)
    assert [machine.returncode for machine in machines] == [0, 0], "\n".join(errors)
    assert (tmp_path / "started").read_text().split().count("1") == 2
    totals = [x["env/steps"] for x in lines(tmp_path / "run")]
    assert totals == sorted(set(totals))
    assert totals[-1] >= 1000


THREADS = """
import pathlib

from everstep.cli._processes import connected

with connected():
    import everstep.trainers.config
for task in pathlib.Path("/proc/self/task").iterdir():
    assert "gloo" not in (task / "comm").read_text()
"""


def launch(directory: Path, script: str) -> None:
    """Run a script in two processes of `torchrun`."""
    (directory / "script.py").write_text(script)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launched = subprocess.run(
        [*launcher, "script.py"], cwd=directory, env=environment(), capture_output=True, text=True
    )
    assert launched.returncode == 0, launched.stderr


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="/proc lists threads on Linux")
def test_threads_of_the_connection_end_with_it(tmp_path: Path) -> None:
    """One that is still there when Python ends may end the process with SIGABRT."""
    launch(tmp_path, THREADS)


BOUND = """
import os
import pathlib

from everstep.cli._processes import connected

with connected():
    cores = " ".join(map(str, os.sched_getaffinity(0)))
    pathlib.Path("cores-" + os.environ["RANK"]).write_text(cores)
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs Linux and two cores",
)
def test_processes_that_are_connected_share_no_core(tmp_path: Path) -> None:
    launch(tmp_path, BOUND)
    one, other = (set((tmp_path / f"cores-{rank}").read_text().split()) for rank in (0, 1))
    assert not one & other
    assert {int(core) for core in one | other} == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("size", "allowed", "want"),
    [
        (2, range(8), [{0, 4, 1, 5}, {2, 6, 3, 7}]),  # of the same cores, whose numbers are 4 apart
        (3, range(8), [{0, 4}, {1, 5, 2}, {6, 3, 7}]),
        (2, [1, 5], [{1}, {5}]),
        (4, [0, 1, 2], []),  # fewer than processes
        (1, range(8), []),
    ],
)
def test_processes_have_equal_shares_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, size: int, allowed: Any, want: list[set[int]]
) -> None:
    bound: list[set[int]] = []
    monkeypatch.setattr(_processes, "_place", lambda core: (core % 4, core))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: bound.append(set(cores)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(size))
    for rank in range(size):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        _processes.bind()
    assert bound == want


def test_processes_that_a_launcher_bound_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {os.getpid(): {0, 1}, 0: {0, 1}, os.getppid(): set(range(8))}
    monkeypatch.setattr(os, "sched_getaffinity", own.__getitem__)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("it was bound again"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    _processes.bind()
