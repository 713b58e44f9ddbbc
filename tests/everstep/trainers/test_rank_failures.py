"""Whatever ends one rank ends all, with its number, its error and its traceback.

The ranks are connected by gloo, without a launcher that would end them. A rank that fails stays
there until the other one has ended: no connection that closes ends the waiting.
"""

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep import DiscreteDummyEnv, Trainer
from everstep.callbacks import Callback
from everstep.core.ranks import current_reducer, tell_failure
from everstep.core.ranks._collectives import Collectives
from everstep.errors import ConfigError, RankError
from everstep.models import DefaultDiscreteModel
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {"num_envs": 4, "horizon": 4, "seed": 1, "track": False, "progress": False}


class Fault:
    """An error on one rank, at the n-th call."""

    what, rank, calls = "", 0, 0

    @classmethod
    def at(cls, place: str, call: int = 6) -> None:
        if place != cls.what.partition(":")[0] or current_reducer().rank != cls.rank:
            return
        cls.calls += 1
        if cls.calls != call:
            return
        if cls.what.endswith(":SIGINT"):
            signal.raise_signal(signal.SIGINT)
        elif cls.what.endswith(":exit"):
            sys.exit(3)
        raise RuntimeError("the simulator has crashed")


class Env(DiscreteDummyEnv):
    def step(self, action: Any) -> Any:
        Fault.at("step")
        return super().step(action)


class Model(DefaultDiscreteModel):
    def forward(self, *arguments: Any) -> Any:
        Fault.at("forward")
        return super().forward(*arguments)


class FaultyLogger:
    """Loggers are called on rank 0 alone, which keeps the record."""

    rows = 0

    def log_params(self, params: Any) -> None:
        Fault.at("log_params", 1)

    def log_metrics(self, metrics: Any, *, step: int) -> None:
        Fault.at("log_metrics", 2)
        type(self).rows += 1

    def close(self, status: str = "FINISHED") -> None:
        Fault.at("close", 1)


class Faulty(Callback):
    def on_start(self, trainer: Any) -> None:
        Fault.at("on_start", 1)
        super().on_start(trainer)

    def on_train_step(self, stats: dict[str, Any]) -> None:
        Fault.at("on_train_step", 2)

    def on_evaluation(self, stats: dict[str, Any]) -> None:
        Fault.at("on_evaluation", 1)

    def on_checkpoint(self, path: Path) -> None:
        Fault.at("on_checkpoint", 1)


def program(place: str, what: str, failing: int) -> list[Any]:
    """How this rank ended, and whether the other one did while this one was there."""
    Fault.what, Fault.rank, Fault.calls = what, failing, 0
    rank, ended = current_reducer().rank, "nothing"
    saved = {"run_dir": Path(place) / "run", "checkpoint_every": 1} if "checkpoint" in what else {}
    own = {"callbacks": [Faulty()], "model_cls": Model, "loggers": [FaultyLogger()]}
    options: dict[str, Any] = {"run_dir": None, **saved, **own, **SIZES}
    try:
        with Trainer(Env, eval_env=Env(2, horizon=4), eval_episodes=2, **options) as trainer:
            trainer.run(total_env_steps=200, steps_per_eval=2)
        trainer.run(additional_env_steps=16)  # a rank that fails at its end is missed here
    except BaseException as error:
        ended = f"{type(error).__name__}: {error}"
    (Path(place) / f"ended-{rank}").touch()
    other = Path(place) / f"ended-{1 - rank}"
    for _ in range(600):
        if other.exists():
            break
        time.sleep(0.1)
    return [ended, other.exists()]


@pytest.mark.parametrize(
    ("what", "failing"),
    [
        ("step", 0),
        ("step:SIGINT", 1),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                ("step", 1),
                ("step:exit", 1),
                ("forward", 0),
                ("on_start", 1),
                ("on_train_step", 0),
                ("on_evaluation", 0),
                ("on_checkpoint", 0),
                ("log_metrics:exit", 0),
                ("close:exit", 0),
            )
        ),
    ],
)
def test_an_error_of_one_rank_ends_the_other(tmp_path: Path, what: str, failing: int) -> None:
    found = run_ranks(2, program, tmp_path / "ranks", str(tmp_path), what, failing)
    own, other = found[failing][0], found[1 - failing][0]
    kind = {"SIGINT": "KeyboardInterrupt", "exit": "SystemExit: 3"}.get(
        what.partition(":")[2], "RuntimeError: the simulator has crashed"
    )
    assert own.startswith(kind)
    reason, _, trace = other.partition("\n")
    assert reason == f"RankError: Rank {failing} failed first: {kind}"
    assert "Fault.at(" in trace  # the line that raised, on the other rank
    assert [x for _, x in found] == [True, True]


def logged(what: str) -> list[Any]:
    """Env steps of this rank, and rows of its logger, which fails once."""
    Fault.what, FaultyLogger.rows = what, 0
    options: dict[str, Any] = {"run_dir": None, "loggers": [FaultyLogger()], **SIZES}
    with Trainer(Env, **options) as trainer:
        trainer.run(total_env_steps=80)
        found = [trainer.state["env/steps"], Fault.calls]
    trainer.run(additional_env_steps=16)  # ranks are still together
    return [*found, trainer.state["env/steps"], FaultyLogger.rows]


@pytest.mark.parametrize("what", ["log_metrics", "log_params", "close"])
def test_a_logger_that_raises_stops_no_rank(tmp_path: Path, what: str) -> None:
    first, other = run_ranks(2, logged, tmp_path, what)
    assert other == [80, 0, 96, 0]
    assert first[::2] == [80, 96]
    assert first[1] >= (what != "close")
    assert first[3] >= 5  # every train step of the first run, the second one too


def stopped() -> None | str:
    """The error of rank 0, which waits for rank 1 until another thread says that it is stopped."""
    reducer = current_reducer()
    if reducer.rank:
        time.sleep(4)
        return None
    told = threading.Timer(0.5, lambda: tell_failure("is stopped", rank=1))
    told.start()
    try:
        reducer.agree("it")
    except RankError as error:
        return str(error)
    return ""


def test_a_rank_that_another_one_calls_stopped_is_not_waited_for(tmp_path: Path) -> None:
    assert run_ranks(2, stopped, tmp_path) == ["Rank 1 failed first: is stopped", None]


class Odd(Exception):
    """An error that has no copies: its constructor takes two arguments and passes on one."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place} {reason}")


def odd() -> None:
    raise Odd("here", "it broke")


def alike() -> list[Any]:
    """Errors that ranks have and catch, and where they are then."""
    rank, found = current_reducer().rank, []
    with Trainer(DiscreteDummyEnv, run_dir=None, **SIZES) as trainer:
        for _ in range(2):
            try:
                trainer.run()
            except ConfigError as error:
                found.append(type(error).__name__)
            if rank:
                time.sleep(2.5)  # the other one waits, and looks at the store meanwhile
            trainer.step()
        found.append(trainer.state["algorithm/steps"])
    for call in (odd, lambda: 1 / 0):  # errors of what rank 0 does for all
        try:
            current_reducer().from_first("odd", call)
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    try:  # an error before there is a collective is of this rank
        Collectives().gather(torch.zeros(2).to_sparse())
    except Exception as error:
        found.append(isinstance(error, RankError))
    return found


def test_errors_that_all_ranks_have_end_none(tmp_path: Path) -> None:
    first, other = run_ranks(2, alike, tmp_path)
    assert first[:3] == other[:3] == ["ConfigError", "ConfigError", 2]
    assert first[3:] == ["Odd: here it broke", "ZeroDivisionError: division by zero", False]
    assert other[3] == "EverstepError: Rank 0 failed: Odd: here it broke"
    assert other[4:] == first[4:]


SCRIPT = """
import os, signal, sys
import torch.distributed as dist
from everstep import ContinuousDummyEnv, DiscreteDummyEnv, Trainer

rank, place, failing, what = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
store = dist.TCPStore("127.0.0.1", int(sys.argv[5]), 2, is_master=rank == 0)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)

class Env(DiscreteDummyEnv):
    steps = 0
    def step(self, action):
        self.steps += 1
        if what != "after" and rank == failing and self.steps == 20:
            if what == "raise":
                raise RuntimeError("the simulator has crashed")
            os.kill(os.getpid(), getattr(signal, what))
        return super().step(action)

options = dict(num_envs=4, horizon=4, seed=1, track=False, progress=False, checkpoint_every=1)
with Trainer(Env, run_dir=place, **options) as trainer:
    trainer.run(total_env_steps=10_000 if what != "after" else 32)
    if rank == failing:
        raise RuntimeError("the simulator has crashed")
    trainer.run(total_env_steps=10_000)
"""


def start(directory: Path, failing: int, what: str) -> list[subprocess.Popen[str]]:
    """Two processes of a program, which are connected without a launcher."""
    (directory / "program.py").write_text(SCRIPT, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    words = [str(directory / "run"), str(failing), what, str(port)]
    return [
        subprocess.Popen(
            [sys.executable, str(directory / "program.py"), str(rank), *words],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.mark.parametrize(
    ("what", "failing", "reason"),
    [
        ("raise", 0, "Rank 0 failed first: RuntimeError: the simulator has crashed"),
        ("SIGKILL", 1, "Rank 1 has ended without a message"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                ("raise", 1, "Rank 1 failed first: RuntimeError: the simulator has crashed"),
                ("after", 1, "Rank 1 failed first: RuntimeError: the simulator has crashed"),
                ("SIGKILL", 0, "Rank 0"),
            )
        ),
    ],
)
def test_all_processes_of_a_program_end_and_the_run_goes_on(
    tmp_path: Path, what: str, failing: int, reason: str
) -> None:
    """Nothing is left half-written, and nobody holds the run's directory."""
    ranks = start(tmp_path, failing, what)
    try:
        errors = [process.communicate(timeout=300)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert all(process.returncode != 0 for process in ranks)
    assert f"RankError: {reason}" in errors[1 - failing]
    if what == "raise":
        assert "There:" in errors[1 - failing]
        assert 'raise RuntimeError("the simulator has crashed")' in errors[1 - failing]
    trainer = Trainer(DiscreteDummyEnv, run_dir=tmp_path / "run", resume=True, **SIZES)
    with trainer:
        before = trainer.state["env/steps"]
        trainer.run(additional_env_steps=16)
    assert before > 0
    assert trainer.state["env/steps"] == before + 16


def test_sigterm_of_one_rank_ends_all_after_the_train_step(tmp_path: Path) -> None:
    """It is answered by all of them together, and saved once."""
    ranks = start(tmp_path, 1, "SIGTERM")
    try:
        errors = [process.communicate(timeout=300)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode != 0 for process in ranks] == [True, True], "\n".join(errors)
    assert all("Terminated: SIGTERM" in error for error in errors)
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path / "run", resume=True, **SIZES) as trainer:
        assert trainer.state["env/steps"] == 4 * 20  # the end of the rollout in which it came
