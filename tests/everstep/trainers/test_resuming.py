"""Runs that go on: checkpoints while they last, what may change, signals, and the best policy."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep import DiscreteDummyEnv, Policy, RecurrentTrainer, TrainConfig, Trainer
from everstep.callbacks import Callback
from everstep.core.checkpoints import load_state, save_state
from everstep.errors import CheckpointError, ConfigError
from everstep.loggers import JsonlLogger, read_metrics
from everstep.trainers import _signals
from everstep.trainers._checkpointing import Interval, checkpoints_of
from everstep.trainers._resuming import CHANGEABLE, resume
from everstep.trainers.config import _NAMES
from tests.tracing import traced

from . import exactness
from .kills import end_often

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "horizon": 8,
    "model_config": {"hiddens": [8]},
    "track": False,
    "progress": False,
    "seed": 3,
}
#: Env steps of a train step.
STEP = 32


def curve(run_dir: Path) -> list[dict[str, Any]]:
    """Statistics that do not depend on the clock or the machine."""
    machine = re.compile("(eval/)?(profiling/|memory/|time)")
    lines = read_metrics(run_dir / "metrics.jsonl")
    return [{k: v for k, v in line.items() if not machine.match(k)} for line in lines]


def trained(run_dir: Path, steps: int, **options: Any) -> Path:
    """The directory of a run of some train steps."""
    with Trainer(DiscreteDummyEnv, run_dir=run_dir, **(SMALL | options)) as trainer:
        trainer.run(total_env_steps=steps * STEP)
    return run_dir


def go_on(run_dir: Path, steps: int, **changes: Any) -> None:
    quiet = {"track": False, "progress": False}
    with Trainer.load(run_dir, total_env_steps=steps * STEP, **quiet, **changes) as trainer:
        trainer.run()


def damage(checkpoint: Path) -> None:
    """Flip a bit of every byte in the middle of the tensors."""
    [archive] = checkpoint.glob("*.npz")
    content = bytearray(archive.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 512] = [byte ^ 1 for byte in content[middle : middle + 512]]
    archive.write_bytes(content)


# ---- going on ---------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [None, pytest.param("linear", marks=pytest.mark.slow)])
def test_a_run_that_goes_on_equals_one_that_was_never_stopped(
    tmp_path: Path, schedule: Any
) -> None:
    options = {"horizons_per_env_reset": -1, "lr_schedule": schedule}
    whole = tmp_path / "whole"
    with Trainer(DiscreteDummyEnv, run_dir=whole, **SMALL, **options) as trainer:
        trainer.run(total_env_steps=5 * STEP, steps_per_eval=2)

    def stop(stats: Any, /) -> bool:
        return bool(stats["algorithm/steps"] == 2)

    with Trainer(DiscreteDummyEnv, run_dir=tmp_path / "parts", **SMALL, **options) as trainer:
        trainer.run(total_env_steps=5 * STEP, steps_per_eval=2, stop_conditions=[stop])
    go_on(tmp_path / "parts", 5, stop=None)
    assert curve(whole) == curve(tmp_path / "parts")
    assert (whole / "policy").read_bytes() == (tmp_path / "parts" / "policy").read_bytes()


@pytest.mark.slow
def test_lines_after_the_checkpoint_are_written_anew(tmp_path: Path) -> None:
    run_dir = trained(tmp_path / "run", 4, checkpoint_every=1, keep_last=3)
    expected = curve(run_dir)
    newest, before, _ = checkpoints_of(run_dir)
    damage(newest)
    go_on(run_dir, 4)
    assert curve(run_dir) == expected
    assert newest.is_dir()
    assert before.is_dir()


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, caplog: Any
) -> None:
    run_dir = trained(tmp_path, 3, checkpoint_every=1)
    newest, before = checkpoints_of(run_dir)
    damage(newest)
    trainer = Trainer.load(run_dir, track=False)
    assert trainer.state["algorithm/steps"] == 2
    [warning] = [x.getMessage() for x in caplog.records]
    assert str(newest) in warning
    assert str(before) in warning
    assert "damaged" in warning
    trainer.close()
    damage(before)
    with pytest.raises(CheckpointError, match=before.name):
        Trainer.load(run_dir, track=False)


@pytest.mark.slow
def test_a_checkpoint_of_an_older_version_is_read(tmp_path: Path) -> None:
    run_dir = trained(tmp_path, 2)
    newest, first = checkpoints_of(run_dir)
    shutil.rmtree(first)
    newest.rename(run_dir / "checkpoint")
    go_on(run_dir, 3)
    assert [x["algorithm/steps"] for x in curve(run_dir)] == [1, 2, 3]


def test_lines_are_cut_by_steps_where_the_file_was_changed(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        logger.log_metrics({"a": 0.5}, step=step)
    logger.cut(5, 2)  # not the end of a line
    assert [line["step"] for line in read_metrics(logger.path)] == [1, 2]
    logger.cut(10**6, 1)  # beyond its end
    logger.log_metrics({"a": 1}, step=7)
    assert [line["step"] for line in read_metrics(logger.path)] == [1, 7]
    logger.close()


@pytest.mark.slow
def test_the_learning_rate_of_a_run_can_change(tmp_path: Path) -> None:
    run_dir = trained(tmp_path, 1)
    go_on(run_dir, 2, lr=0.25, gamma=0.5)
    assert curve(run_dir)[-1]["coefficients/lr"] == 0.25
    trainer = Trainer.load(run_dir, track=False)
    assert trainer.algorithm.hparams.gamma == 0.5
    trainer.close()


def test_what_the_checkpoint_is_a_state_of_is_refused_by_name(tmp_path: Path) -> None:
    run_dir = trained(tmp_path, 1)
    before = (run_dir / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError) as caught:
        Trainer.load(run_dir, num_envs=8, horizon=16, gamma=0.5)
    first, second = sorted(caught.value.problems, key=len)
    assert "horizon: cannot change" in first
    assert "num_envs: cannot change" in second
    assert "was made with 4;" in second
    Trainer.load(run_dir, num_envs=4, track=False).close()  # as it was
    assert (run_dir / "metrics.jsonl").read_bytes() == before
    assert {*_NAMES, "lr", "lr_pi", "lr_v"} >= CHANGEABLE


@pytest.mark.slow
def test_a_run_is_loaded_by_its_own_kind_of_trainer(tmp_path: Path) -> None:
    options = SMALL | {"model_config": None}
    with RecurrentTrainer(DiscreteDummyEnv, run_dir=tmp_path, **options) as trainer:
        trainer.run(total_env_steps=STEP)
    with pytest.raises(ConfigError, match=r"use `RecurrentTrainer\.load`"):
        Trainer.load(tmp_path, track=False)
    RecurrentTrainer.load(tmp_path, track=False).close()


def test_only_a_run_with_a_checkpoint_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.yaml"):
        Trainer.load(tmp_path)
    Trainer(DiscreteDummyEnv, run_dir=tmp_path, **SMALL).close()
    with pytest.raises(ConfigError, match="no checkpoint in it"):
        Trainer.load(tmp_path)


@pytest.mark.slow
def test_two_processes_do_not_write_into_one_run(tmp_path: Path) -> None:
    run_dir = trained(tmp_path, 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            logger = JsonlLogger(run_dir / "metrics.jsonl")
            os.write(writer, b"x")
            time.sleep(60)
            logger.close()
        os._exit(0)
    try:
        assert os.read(reader, 1) == b"x"
        with pytest.raises(ConfigError, match="another process is training"):
            Trainer.load(run_dir, track=False)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
    Trainer.load(run_dir, track=False).close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "environment"),
    [
        ("PPO, feedforward", "TorchRL"),
        ("PPO, LSTM", "Gymnasium CartPole"),
        pytest.param("PPO, windowed transformer", "PyTorch", marks=pytest.mark.long),
        pytest.param("A2C", "IsaacGym style", marks=pytest.mark.long),
    ],
)
def test_a_new_process_continues_bit_for_bit(algorithm: str, environment: str) -> None:
    assert exactness.cell(algorithm, environment, before=(2,), real=1) == "equal"


# ---- checkpoints ------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(("keep_last", "kept"), [(1, [4]), (3, [4, 3, 2]), (9, [4, 3, 2, 1])])
def test_the_last_checkpoints_are_kept(tmp_path: Path, keep_last: int, kept: list[int]) -> None:
    trained(tmp_path, 4, checkpoint_every=1, keep_last=keep_last)
    assert [int(path.name) for path in checkpoints_of(tmp_path)] == kept
    assert not [x for x in (tmp_path / "checkpoints").iterdir() if x.name.startswith(".")]


def test_there_is_a_checkpoint_at_the_end_only(tmp_path: Path) -> None:
    trained(tmp_path, 4, checkpoint_every="end")
    assert [int(path.name) for path in checkpoints_of(tmp_path)] == [4]


def test_time_passes_between_checkpoints(monkeypatch: Any) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    interval = Interval("10m")
    found = []
    for minutes in (0, 9, 10, 19, 21, 22):
        now[0] = 100 + 60 * minutes
        found.append(interval.is_over(1))
    assert found == [True, False, True, False, True, False]


@pytest.mark.parametrize("every", ["10", "m", "10 m", "0s", 0, -1, True, 2.5, "1d"])
def test_an_interval_is_a_number_or_a_time(every: Any) -> None:
    with pytest.raises(ConfigError, match="`checkpoint_every` must be"):
        Interval(every)
    if isinstance(every, str):
        with pytest.raises(ConfigError, match="`checkpoint_every`: must be"):
            TrainConfig(DiscreteDummyEnv, checkpoint_every=every)


def interrupted_at(line: int, call: Callable[[], None]) -> bool:
    """Whether an interrupt at the n-th executed line of the library was reached in a call."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        if "everstep/core/checkpoints.py" not in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
            if count == line:
                raise KeyboardInterrupt
        return trace

    try:
        with traced(trace):
            call()
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_anywhere_in_a_save_leaves_the_old_state_or_the_new(tmp_path: Path) -> None:
    old, new = {"x": torch.zeros(2)}, {"x": torch.ones(2)}
    save_state(tmp_path, old)
    line, found = 1, set()
    while interrupted_at(line, lambda: save_state(tmp_path, new)):
        found.add(float(load_state(tmp_path)["x"][0]))
        save_state(tmp_path, old)
        line += 1
    assert line > 50
    assert found == {0.0, 1.0}


@contextlib.contextmanager
def small_files(size: int) -> Iterator[None]:
    """Context in which the system refuses larger files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_training_goes_on_while_the_disk_is_full(tmp_path: Path, caplog: Any) -> None:
    trainer = Trainer(DiscreteDummyEnv, run_dir=tmp_path, checkpoint_every=1, **SMALL)
    trainer.run(total_env_steps=STEP)
    [first] = checkpoints_of(tmp_path)
    with small_files(4096), pytest.raises(OSError, match="checkpoints") as caught:
        trainer.run(total_env_steps=3 * STEP)
    assert caught.value.filename
    messages = [x.getMessage() for x in caplog.records if "checkpoint" in x.getMessage()]
    assert len(messages) == 1
    assert "Training continues" in messages[0]
    assert trainer.state["algorithm/steps"] == 3
    assert checkpoints_of(tmp_path) == [first]
    load_state(first)
    trainer.save()  # there is room again
    assert int(checkpoints_of(tmp_path)[0].name) == 3
    trainer.close()


def test_a_run_that_is_killed_early_has_a_checkpoint(tmp_path: Path) -> None:
    class Look:
        def __getattr__(self, name: str) -> Any:
            return lambda *arguments: None

        def on_train_step(self, stats: dict[str, Any]) -> None:
            found.append([path.name for path in checkpoints_of(tmp_path)])

        def on_checkpoint(self, path: Path) -> None:
            written.append(path.name)

    found: list[list[str]] = []
    written: list[str] = []
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, callbacks=[Look()], **SMALL) as trainer:
        trainer.run(total_env_steps=3 * STEP)
    assert found[0] == []
    assert written == ["0000000001"]


def test_an_error_is_not_hidden_by_one_of_on_end(tmp_path: Path, caplog: Any) -> None:
    class Failing(Callback):
        def on_train_step(self, stats: dict[str, Any]) -> None:
            raise ValueError("the error")

        def on_end(self, status: str) -> None:
            raise RuntimeError(f"another one, {status}")

    trainer = Trainer(DiscreteDummyEnv, run_dir=tmp_path, callbacks=[Failing()], **SMALL)
    with pytest.raises(ValueError, match="the error"):
        trainer.run(total_env_steps=3 * STEP)
    [logged] = [x for x in caplog.records if "on_end" in x.getMessage()]
    assert logged.exc_info is not None
    assert "another one, FAILED" in str(logged.exc_info[1])
    trainer.close()


def test_an_end_on_a_full_disk_keeps_the_policy_and_all_checkpoints(tmp_path: Path) -> None:
    options = SMALL | {"model_config": {"hiddens": [64]}}
    trainer = Trainer(DiscreteDummyEnv, run_dir=tmp_path, checkpoint_every=1, **options)
    trainer.run(total_env_steps=3 * STEP)
    checkpoints = checkpoints_of(tmp_path)
    before = (tmp_path / "policy").read_bytes()
    with small_files(len(before)), pytest.raises(OSError, match=str(tmp_path)):
        trainer.run(total_env_steps=5 * STEP)  # a checkpoint is larger than a policy
    assert checkpoints_of(tmp_path) == checkpoints
    assert (tmp_path / "policy").read_bytes() != before
    Policy.load(tmp_path / "policy")
    trainer.close()


# ---- the best policy --------------------------------------------------------------------------


class Rising:
    """A statistic that rises, falls and rises again."""

    values: tuple[float, ...] = (1.0, 3.0, 2.0, float("nan"))

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None

    def on_start(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_step(self, stats: dict[str, Any]) -> None:
        stats["mine"] = self.values[stats["algorithm/steps"] - 1]
        self.weights.append(next(self.trainer.algorithm.policy.model.parameters()).clone())

    def state_dict(self) -> None:
        return None


def test_the_best_policy_is_the_one_of_the_best_step(tmp_path: Path) -> None:
    rising = Rising()
    options: dict[str, Any] = {"best": "mine", "callbacks": [rising], "checkpoint_every": 1}
    trained(tmp_path, 4, **options)
    best = next(Policy.load(tmp_path / "best" / "policy").model.parameters())
    assert torch.equal(best, rising.weights[1])
    assert not torch.equal(best, rising.weights[2])
    written = json.loads((tmp_path / "best" / "best.json").read_text())
    assert (written["key"], written["value"], written["algorithm/steps"]) == ("mine", 3.0, 2)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("values", "step"),
    [
        ((3.0, 3.0, 2.0), 1),
        ((1.0, 3.0, 3.0), 2),
        ((float("nan"), 2.0, 2.0), 2),
        ((-1.0, -1.0, float("nan")), 1),
    ],
)
def test_of_equal_results_the_first_one_is_the_best(
    tmp_path: Path, values: tuple[float, ...], step: int
) -> None:
    """A policy that was the best once, such as the first one to solve its task, stays it."""
    rising = Rising()
    rising.values = values
    trained(tmp_path, 3, best="mine", callbacks=[rising], checkpoint_every=1)
    best = next(Policy.load(tmp_path / "best" / "policy").model.parameters())
    assert torch.equal(best, rising.weights[step - 1])
    written = json.loads((tmp_path / "best" / "best.json").read_text())
    assert (written["value"], written["algorithm/steps"]) == (values[step - 1], step)


@pytest.mark.slow
def test_a_run_that_goes_on_remembers_its_best(tmp_path: Path) -> None:
    class Fixed(Rising):
        values = (2.0, 1.5, 3.0)

    options: dict[str, Any] = {"best": "mine", "callbacks": [Fixed()]}
    trained(tmp_path, 1, **options)
    found = []
    for steps in (2, 3):
        go_on(tmp_path, steps, callbacks=[Fixed()])
        found.append(json.loads((tmp_path / "best" / "best.json").read_text())["value"])
    assert found == [2.0, 3.0]


# ---- signals ----------------------------------------------------------------------------------


def sends(*numbers: int, at: int = 2) -> Any:
    """A condition that sends signals to this process in a train step."""

    def send(stats: Any, /) -> bool:
        if stats["algorithm/steps"] == at:
            for number in numbers:
                os.kill(os.getpid(), number)
        return False

    return send


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_a_signal_ends_the_run_between_two_train_steps(
    tmp_path: Path, number: int, code: int
) -> None:
    handler = signal.getsignal(number)
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, **SMALL) as trainer:
        with pytest.raises(KeyboardInterrupt) as caught:
            trainer.run(total_env_steps=9 * STEP, stop_conditions=[sends(number)])
        assert getattr(caught.value, "exit_code", 130) == code
        assert trainer.state["algorithm/steps"] == 2
    assert signal.getsignal(number) is handler
    assert int(checkpoints_of(tmp_path)[0].name) == 2
    go_on(tmp_path, 4, stop=None)
    assert [x["algorithm/steps"] for x in curve(tmp_path)] == [1, 2, 3, 4]


def test_a_second_sigterm_changes_nothing_and_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    twice = {"stop_conditions": [sends(signal.SIGTERM, signal.SIGTERM)]}
    with (
        Trainer(DiscreteDummyEnv, run_dir=tmp_path / "a", **SMALL) as trainer,
        pytest.raises(_signals.Terminated),
    ):
        trainer.run(total_env_steps=9 * STEP, **twice)
    assert int(checkpoints_of(tmp_path / "a")[0].name) == 2
    options = SMALL | {"checkpoint_every": 1}
    interrupts = [sends(signal.SIGINT, signal.SIGINT, at=3)]
    with (
        Trainer(DiscreteDummyEnv, run_dir=tmp_path / "b", **options) as trainer,
        pytest.raises(KeyboardInterrupt),
    ):
        trainer.run(total_env_steps=9 * STEP, stop_conditions=interrupts)
    assert int(checkpoints_of(tmp_path / "b")[0].name) == 2


def test_sigusr1_writes_a_checkpoint_and_training_goes_on(tmp_path: Path) -> None:
    options = SMALL | {"keep_last": 9, "checkpoint_every": "end"}
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, **options) as trainer:
        trainer.run(total_env_steps=4 * STEP, stop_conditions=[sends(signal.SIGUSR1)])
    assert [int(path.name) for path in checkpoints_of(tmp_path)] == [4, 2]


def test_signals_that_the_program_handles_are_its_own(tmp_path: Path) -> None:
    received = []
    before = signal.signal(signal.SIGTERM, lambda *arguments: received.append(arguments[0]))
    try:
        with Trainer(DiscreteDummyEnv, run_dir=tmp_path, **SMALL) as trainer:
            trainer.run(total_env_steps=3 * STEP, stop_conditions=[sends(signal.SIGTERM)])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
    assert trainer.state["algorithm/steps"] == 3


@pytest.mark.slow
def test_a_train_step_that_hangs_is_interrupted(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(_signals, "PATIENCE", 0.3)

    class Hangs(DiscreteDummyEnv):
        def step(self, action: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(300)
            return super().step(action)

    with Trainer(Hangs, run_dir=tmp_path, **SMALL) as trainer, pytest.raises(_signals.Terminated):
        trainer.run(total_env_steps=9 * STEP)
    assert checkpoints_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGKILL, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_a_training_that_is_killed_at_random_moments_goes_on(number: signal.Signals) -> None:
    end_often(number, 3, real=3)


@pytest.mark.slow
def test_a_class_may_be_named_by_another_path(tmp_path: Path) -> None:
    """It is recorded by its own; a package may export it from elsewhere."""
    Trainer(DiscreteDummyEnv, run_dir=tmp_path, checkpoint_every=1, **SMALL).run(total_env_steps=1)
    for name in ("everstep.DiscreteDummyEnv", "everstep.env.DiscreteDummyEnv"):
        with resume(tmp_path, [f"env_cls={name}"]) as trainer:
            assert isinstance(trainer.algorithm.env, DiscreteDummyEnv)
    with pytest.raises(ConfigError, match="cannot change in a run that is resumed"):
        resume(tmp_path, ["env_cls=everstep.ContinuousDummyEnv"])
