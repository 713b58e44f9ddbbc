"""Environments that raise, hang, are killed or interrupted: typed errors, and no process left."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from everstep.errors import AdapterError, EnvError
from everstep_adapters import GymnasiumEnv
from tests.everstep_adapters.gymnasium.gymnasium_toys import Columns, Faulty

pytestmark = [
    pytest.mark.slow,
    # Python 3.12 and JAX warn of forks in a process that has threads, which `AsyncVectorEnv` does.
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    # Gymnasium prints what a worker raised as a warning.
    pytest.mark.filterwarnings(
        "ignore:.*(Received the following error|Traceback|Raising the last)"
    ),
    pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting"),
]

GO, FAIL = torch.tensor([[0], [0], [0]]), torch.tensor([[0], [1], [0]])


class Local(Exception):
    """Cannot be pickled: it holds a lock."""

    def __init__(self) -> None:
        super().__init__("local")
        self.lock = threading.Lock()


def explode() -> None:
    raise ValueError("the pole broke")


def explode_unsendably() -> None:
    raise Local


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


def hang() -> None:
    time.sleep(1000)


def hang_on() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang()


@pytest.fixture(autouse=True)
def interrupts_arrive() -> Iterator[None]:
    """Also where tests were started in the background, which ignores SIGINT in all processes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def processes() -> Iterator[Callable[..., AsyncVectorEnv]]:
    """Makes faulty environments of three processes; at the end none of them may be left."""
    made: list[psutil.Process] = []

    def make(fault: Callable[[], Any], **options: Any) -> AsyncVectorEnv:
        env = AsyncVectorEnv([partial(Faulty, fault)] * 3, context="fork", **options)
        made.extend(psutil.Process(process.pid) for process in env.processes)
        return env

    yield make
    left = [process for process in made if process.is_running()]
    for process in left:
        process.kill()
    assert not left


# The law: one error of ours, whatever happened; then nothing is left.


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (explode, r"AsyncVectorEnv.* failed in `step`: environment 1 raised ValueError: the pole"),
        (kill, r"AsyncVectorEnv.* failed in `step`.*environment 1 \(exit code -9\).*fewer"),
        (leave, r"AsyncVectorEnv.* failed in `step`.*environment 1 \(exit code 3\).*'sync'"),
        (hang, r"AsyncVectorEnv.* failed in `step`.*within 1 s.*`step_timeout`"),
    ],
)
def test_a_failing_process_is_an_error_that_names_it_and_ends_all(
    fault: Any, message: str, shared_memory: bool, processes: Any
) -> None:
    inner = processes(fault, shared_memory=shared_memory)
    env = GymnasiumEnv(inner, step_timeout=1 if fault is hang else 60)
    env.reset()
    env.step(GO)
    with pytest.raises(EnvError, match=message):
        env.step(FAIL)
    assert all(process.exitcode is not None for process in inner.processes)
    for call in (env.reset, partial(env.step, GO)):
        with pytest.raises(EnvError, match=r"was closed after `step` failed.*Make a new one"):
            call()
    env.close()
    env.close()


@pytest.mark.parametrize("fault", [explode, kill, hang])
def test_a_process_that_fails_in_a_reset_is_the_same_error(fault: Any, processes: Any) -> None:
    env = GymnasiumEnv(processes(fault), step_timeout=1)
    with pytest.raises(EnvError, match=r"AsyncVectorEnv.* failed in `reset`"):
        env.reset(config={"fail": True})
    env.close()


def test_wrappers_change_nothing(processes: Any) -> None:
    env = GymnasiumEnv(RecordEpisodeStatistics(processes(hang)), step_timeout=1)
    env.reset()
    with pytest.raises(EnvError, match=r"RecordEpisodeStatistics.* failed in `step`.*1 s"):
        env.step(FAIL)
    env.close()


def test_an_error_that_cannot_be_sent_is_not_waited_for(
    processes: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr("everstep_adapters.gymnasium.workers._PATIENCE", 0.2)
    env = GymnasiumEnv(processes(explode_unsendably))
    env.reset()
    with pytest.raises(EnvError, match="an environment raised an error that could not be sent"):
        env.step(FAIL)


def test_a_worker_that_ignores_the_request_to_end_is_killed(
    processes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstep_adapters.gymnasium.workers._PATIENCE", 0.3)
    inner = processes(hang_on)
    env = GymnasiumEnv(inner, step_timeout=1)
    env.reset()
    with pytest.raises(EnvError, match="did not answer"):
        env.step(FAIL)
    assert [process.exitcode for process in inner.processes] == [-15, -9, -15]


def test_workers_killed_between_env_steps_are_found_at_the_next(processes: Any) -> None:
    inner = processes(explode)
    env = GymnasiumEnv(inner)
    env.reset()
    for process in inner.processes:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    with pytest.raises(EnvError, match=r"environment 0 \(exit code -9\), 1 \(exit code -9\), 2"):
        env.step(GO)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT, signal.SIGSTOP])
def test_closing_ends_workers_that_do_not_answer(
    sign: int, processes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstep_adapters.gymnasium.workers._PATIENCE", 0.3)
    inner = processes(explode)
    env = GymnasiumEnv(inner, step_timeout=1)
    env.reset()
    os.kill(inner.processes[1].pid, sign)
    if sign != signal.SIGSTOP:
        inner.processes[1].join(timeout=30)
        assert inner.processes[1].exitcode is not None
    env.close()
    env.close()


def test_an_interrupt_passes_through_and_leaves_nothing(processes: Any) -> None:
    env = GymnasiumEnv(processes(hang))
    env.reset()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        env.step(FAIL)
    with pytest.raises(EnvError, match="interrupted"):
        env.reset()
    env.close()


def test_what_was_asked_for_and_not_fetched_does_not_keep_close_waiting(processes: Any) -> None:
    inner = processes(hang)
    env = GymnasiumEnv(inner, step_timeout=None)
    env.reset()
    inner.step_async(FAIL[:, 0].numpy())
    env.close()


def test_no_timeout_is_no_limit(processes: Any) -> None:
    env = GymnasiumEnv(processes(partial(time.sleep, 0.4)), step_timeout=0.2)
    env = GymnasiumEnv(env.env, step_timeout=None)  # the last one counts
    env.reset()
    assert env.step(FAIL)["rewards"].tolist() == [[1.0], [1.0], [1.0]]
    env.close()


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_timeout_is_positive(timeout: float) -> None:
    with pytest.raises(AdapterError, match="`step_timeout` of GymnasiumEnv: expected float > 0"):
        GymnasiumEnv(SyncVectorEnv([partial(Faulty, explode)]), step_timeout=timeout)


# In one process.


def test_what_an_environment_of_this_process_raises_is_named() -> None:
    env = GymnasiumEnv(SyncVectorEnv([partial(Faulty, explode)] * 3))
    env.reset()
    with pytest.raises(
        EnvError, match=r"SyncVectorEnv.* failed in `step`: ValueError: the pole"
    ) as e:
        env.step(FAIL)
    assert isinstance(e.value.__cause__, ValueError)
    with pytest.raises(EnvError, match=r"SyncVectorEnv.* failed in `reset`: ValueError"):
        env.reset(config={"fail": True})
    env.reset()
    env.step(GO)  # it may be tried again
    env.close()
    env.close()
    with pytest.raises(EnvError, match=r"was closed\. Make a new one"):
        env.step(GO)


def test_our_own_errors_pass_through() -> None:
    class Picky(Columns):
        def step(self, actions: Any) -> Any:
            raise EnvError("mine")

    env = GymnasiumEnv(Picky(), autoreset_mode="NEXT_STEP")
    env.reset()
    with pytest.raises(EnvError, match=r"^mine$"):
        env.step(GO)


@pytest.mark.parametrize(
    "returned",
    [
        lambda env: (np.zeros((3, 5), np.float32), env.rewards, env.truncated, env.truncated, {}),
        lambda env: (np.zeros((3, 2), "<U3"), env.rewards, env.truncated, env.truncated, {}),
        lambda env: (env.buffer.T, env.rewards, env.truncated, env.truncated),
        lambda env: None,
    ],
    ids=["shape", "dtype", "four values", "nothing"],
)
def test_what_does_not_fit_is_an_error_of_the_environment(returned: Any) -> None:
    inner = Columns()
    env = GymnasiumEnv(inner, autoreset_mode="NEXT_STEP")
    env.reset()
    inner.step = lambda _: returned(inner)
    with pytest.raises(EnvError):
        env.step(GO)


# Starting.

STARTED_AT_IMPORT = """
import multiprocessing
import everstep
multiprocessing.set_start_method("spawn")  # as on macOS and Windows
everstep.make("gymnasium:CartPole-v1", 1, vectorization_mode="async")
"""


@pytest.mark.slow
def test_workers_that_fail_to_start_are_explained(tmp_path: Path) -> None:
    script = tmp_path / "at_import.py"
    script.write_text(STARTED_AT_IMPORT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "AdapterError" in done.stderr.splitlines()[-1]
    assert "__main__" in done.stderr.splitlines()[-1]


def test_a_constructor_that_raises_is_named() -> None:
    gymnasium.register("Unmade-v0", entry_point=lambda **_: explode())
    try:
        for mode in ("sync", "async"):
            with pytest.raises(AdapterError, match=r"cannot make 'Unmade-v0': .*the pole broke"):
                GymnasiumEnv.make("Unmade-v0", 2, vectorization_mode=mode)
    finally:
        del gymnasium.registry["Unmade-v0"]


def test_an_error_without_a_message_is_named_by_its_line() -> None:
    class Bare(gymnasium.Env[Any, Any]):
        def __init__(self) -> None:
            raise AssertionError

    with pytest.raises(AdapterError, match=r"AssertionError: raise AssertionError \(.*, line \d"):
        GymnasiumEnv.make(Bare, 1)


def test_a_block_closes_its_environment_and_lets_errors_pass() -> None:
    with GymnasiumEnv(SyncVectorEnv([partial(Faulty, explode)] * 3)) as env:
        assert isinstance(env, GymnasiumEnv)
        env.reset()
    with pytest.raises(EnvError, match="was closed"):
        env.reset()
    env = GymnasiumEnv(SyncVectorEnv([partial(Faulty, explode)] * 3))
    with pytest.raises(ZeroDivisionError), env:
        raise ZeroDivisionError
    assert env.env.closed
