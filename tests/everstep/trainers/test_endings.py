"""Every train step is one line of the record, and every end of a run is a whole one."""

import contextlib
import itertools
import math
import random
import signal
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import everstep
from everstep import DiscreteDummyEnv, Trainer
from everstep.__main__ import main
from everstep.callbacks import Callback
from everstep.core.checkpoints import load_state
from everstep.core.interrupts import closing
from everstep.errors import CheckpointError, ConfigError
from everstep.loggers import read_metrics
from everstep.trainers._checkpointing import checkpoints_of
from tests.tracing import traced

SMALL: dict[str, Any] = {"num_envs": 2, "horizon": 4, "model_config": {"hiddens": [4]}}
SMALL |= {"track": False, "progress": False}
#: Env steps of a train step.
STEP = 8


def steps_of(run_dir: Path) -> list[int]:
    return [int(x["algorithm/steps"]) for x in lines_of(run_dir)]


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    lines = read_metrics(run_dir / "metrics.jsonl")
    return [x for x in lines if "algorithm/steps" in x]


class Adding(Callback):
    """Adds a statistic in the third train step.

    Args:
        change: What it does to the statistics.

    """

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change = change

    def on_train_step(self, stats: dict[str, Any]) -> None:
        if stats["algorithm/steps"] == 3:
            self.change(stats)
        stats["mine"] = 1


GOOD: dict[str, tuple[Any, Any]] = {
    "float": (1.5, 1.5),
    "bool": (True, 1),
    "large": (10**300, 10**300),
    "fraction": (Fraction(1, 4), 0.25),
    "nan": (math.nan, math.nan),
    "infinite": (-math.inf, -math.inf),
    "float32": (np.float32(0.5), 0.5),
    "float16": (np.float16(0.5), 0.5),
    "int64": (np.int64(7), 7),
    "bool_": (np.bool_(False), 0),
    "0-d": (np.array(2.5), 2.5),
    "tensor": (torch.tensor(3), 3),
    "one": (torch.ones(1, requires_grad=True), 1.0),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", [*GOOD, "ä 1/%\n\ud800", ""])
def test_numbers_of_all_kinds_are_recorded(tmp_path: Path, name: str) -> None:
    given, expected = GOOD.get(name, (1, 1))
    adding = Adding(lambda stats: stats.update({name: given}))
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, callbacks=[adding], **SMALL) as trainer:
        trainer.run(total_env_steps=6 * STEP)
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6]
    found = lines_of(tmp_path)[2][name]
    assert found == expected or (math.isnan(found) and math.isnan(expected))


BAD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "time": (lambda stats: stats.update(time=1), "cannot be named `time`"),
    "step": (lambda stats: stats.update(step=1), "cannot be named `step`"),
    "none": (lambda stats: stats.update(x=None), "`x` must be a number; got builtins.NoneType"),
    "text": (lambda stats: stats.update(x="1"), "`x` must be a number; got builtins.str"),
    "complex": (lambda stats: stats.update(x=1j), "`x` must be a number"),
    "nested": (lambda stats: stats.update(x={"y": 1}), "`x` must be a number"),
    "array": (lambda stats: stats.update(x=np.ones(2)), r"ndarray of shape \(2,\)"),
    "empty": (lambda stats: stats.update(x=torch.ones(0)), r"Tensor of shape \(0,\)"),
    "huge": (lambda stats: stats.update(x=10**400), "`x` is too large"),
    "key": (lambda stats: stats.update({1: 1}), "must be a string; got 1"),
    "replaced": (
        lambda stats: stats.update({"env/steps": 0}),
        "`env/steps` is a statistic",
    ),
    "removed": (lambda stats: stats.pop("losses/vf"), "`losses/vf` cannot be removed"),
    "cleared": (lambda stats: stats.clear(), "cannot be removed"),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("hook", ["on_train_step", "on_evaluation"])
def test_what_is_no_statistic_is_refused_by_name_of_the_callback(
    tmp_path: Path, name: str, hook: str
) -> None:
    change, message = BAD[name]
    if hook == "on_evaluation" and name in ("replaced", "removed"):
        pytest.skip("of train steps")

    class Bad(Callback):
        def on_train_step(self, stats: dict[str, Any]) -> None:
            if stats["algorithm/steps"] == 3 and hook == "on_train_step":
                stats["good"] = 2
                change(stats)

        def on_evaluation(self, stats: dict[str, Any]) -> None:
            if self.trainer.state["algorithm/steps"] == 3 and hook == "on_evaluation":
                change(stats)

    options = SMALL | {"eval_env": DiscreteDummyEnv(2, 4), "eval_episodes": 1}
    if hook == "on_train_step":
        options = SMALL
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, callbacks=[Bad()], **options) as trainer:
        with pytest.raises(ConfigError, match=rf"`callbacks`: .*Bad\.{hook}: .*{message}"):
            trainer.run(
                total_env_steps=6 * STEP, steps_per_eval=1 if hook == "on_evaluation" else None
            )
        assert steps_of(tmp_path) == [1, 2, 3]
        if hook == "on_train_step" and name != "cleared":
            assert lines_of(tmp_path)[2]["good"] == 2
        trainer.callbacks.members = ()
        trainer.run(total_env_steps=6 * STEP)
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_statistics_that_are_kept_are_a_copy(tmp_path: Path) -> None:
    class Keeping(Callback):
        def on_start(self, trainer: Any) -> None:
            self.kept = dict[str, Any]()

        def on_train_step(self, stats: dict[str, Any]) -> None:
            self.kept["time"] = None
            self.kept = stats

    class Changing:
        def log_params(self, params: Any) -> None:
            params.clear()

        def log_metrics(self, metrics: Any, *, step: int) -> None:
            metrics.clear()
            metrics["time"] = None

        def close(self, status: str = "") -> None:
            pass

    logger = Recorder()
    options = SMALL | {"loggers": [Changing(), logger], "callbacks": [Keeping(), Keeping()]}
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, **options) as trainer:
        trainer.run(total_env_steps=6 * STEP)
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6] == logger.steps
    assert all(line["losses/vf"] is not None for line in lines_of(tmp_path))


# ---- loggers that fail ------------------------------------------------------------------------


class Recorder:
    """A logger that fails when it is told to.

    Args:
        fails: Whether a call fails: the number of the attempt, and the train step.

    """

    def __init__(self, fails: Callable[[int, int], bool] = lambda attempt, step: False) -> None:
        self.fails = fails
        self.error: Exception = ConnectionError("no route to host")
        self.attempts = 0
        self.steps: list[int] = []
        self.closed: list[str] = []

    def log_params(self, params: Mapping[str, Any]) -> None:
        pass

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        self.attempts += 1
        if self.fails(self.attempts, int(metrics["algorithm/steps"])):
            raise self.error
        self.steps.append(int(metrics["algorithm/steps"]))

    def close(self, status: str = "FINISHED") -> None:
        self.closed.append(status)


FAILURES: dict[str, tuple[Callable[[int, int], bool], list[int], str]] = {
    "once": (lambda attempt, step: attempt == 2, [*range(1, 9)], "failed 1 times; all 9"),
    "first": (lambda attempt, step: attempt == 1, [*range(1, 9)], "failed 1 times; all 9"),
    "last": (lambda attempt, step: attempt == 8, [*range(1, 9)], "failed 1 times; all 9"),
    "for long": (lambda attempt, step: 2 < attempt < 6, [*range(1, 9)], "all 9 calls"),
    "always": (lambda attempt, step: True, [], "lacks 8 of 9 calls; the last error was Connection"),
    "from then on": (lambda attempt, step: step > 4, [1, 2, 3, 4], "lacks 4 of 9 calls"),
    "one call": (lambda attempt, step: step == 3, [1, 2, 4, 5, 6, 7, 8], "lacks 1 of 9 calls"),
    "two calls": (lambda attempt, step: step in (3, 6), [1, 2, 4, 5, 7, 8], "lacks 2 of 9 calls"),
    "last call": (lambda attempt, step: step == 8, [*range(1, 8)], "lacks 1 of 9 calls"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", FAILURES)
def test_a_logger_that_fails_gets_everything_in_order_or_it_is_counted(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    fails, expected, message = FAILURES[kind]
    logger, other = Recorder(fails), Recorder()
    if "call" in kind:
        logger.error = RuntimeError("not this one")
    options = SMALL | {"loggers": [logger, other]}
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, **options) as trainer:
        trainer.run(total_env_steps=8 * STEP)
    assert logger.steps == expected
    assert other.steps == steps_of(tmp_path) == [*range(1, 9)]
    assert logger.closed == other.closed == ["FINISHED"]
    first, last = (x.getMessage() for x in caplog.records if "Recorder" in x.getMessage())
    assert f"{type(logger.error).__name__}: {logger.error}. Training continues" in first
    assert message in last


@pytest.mark.parametrize("seed", range(8))
def test_drawn_failures_cost_no_call_and_no_order(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    until = rng.randrange(30)
    logger = Recorder(lambda attempt, step: attempt < until and attempt % 3 and rng.random() < 0.8)
    group = everstep.loggers.LoggerGroup([logger])
    for step in range(1, 31):
        group.log_metrics({"algorithm/steps": step}, step=step)
    group.close()
    assert logger.steps == [*range(1, 31)]


# ---- every train step is one line -------------------------------------------------------------


class Raising(Callback):
    """Raises once in a hook, at a train step.

    Args:
        hook: The hook.
        step: The train step.
        error: What it raises.

    """

    def __init__(self, hook: str, step: int, error: BaseException) -> None:
        self.hook, self.step, self.error = hook, step, error
        self.called: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda argument=None: self._call(name, argument)

    def _call(self, name: str, argument: Any) -> None:
        self.called.append(name)
        if name == "on_start":
            self.trainer = argument
        if name == self.hook and self.trainer.state["algorithm/steps"] >= self.step:
            self.step = 10**9
            raise self.error


@pytest.mark.few(1)
@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_a_callback_that_raises_costs_no_line(
    tmp_path: Path, step: int, error: BaseException
) -> None:
    callbacks = [Raising("on_train_step", step, error)]
    options = SMALL | {"callbacks": callbacks, "checkpoint_every": 1}
    for resume in (False, True):
        with Trainer(DiscreteDummyEnv, run_dir=tmp_path, resume=resume, **options) as trainer:
            if resume:
                trainer.run(total_env_steps=6 * STEP)
            else:
                with pytest.raises(type(error)):
                    trainer.run(total_env_steps=6 * STEP)
                assert steps_of(tmp_path) == [*range(1, step + 1)]
    assert steps_of(tmp_path) == [*range(1, 7)]


class Signalling:
    """Sends signals to this process at lines of our code, and counts the lines.

    Args:
        every: Lines between two signals; None for none.
        first: Lines before the first one.

    """

    FILES = ("_base.py", "_saving.py", "_files.py", "_checkpointing.py", "base.py", "jsonl.py")
    FILES += ("callbacks.py", "files.py", "interrupts.py", "_signals.py")

    def __init__(self, first: int = 0) -> None:
        self.first, self.lines = first, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if "everstep" not in name or not name.endswith(self.FILES) or "algorithms" in name:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.first:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_an_interrupt_at_any_line_costs_and_doubles_no_line(tmp_path: Path, seed: int) -> None:
    """In a loop of the program's own, where Ctrl-C raises at once."""
    rng, expected = random.Random(seed), 0
    logger = Recorder()
    trainer = Trainer(DiscreteDummyEnv, run_dir=tmp_path, loggers=[logger], **SMALL)
    trainer.step()
    counting = Signalling()
    with traced(counting):
        trainer.step()
    for _ in range(40):
        first = rng.randrange(1, counting.lines)
        with contextlib.suppress(KeyboardInterrupt), traced(Signalling(first)):
            while True:
                trainer.step()
    expected = trainer.state["algorithm/steps"]
    trainer.save()
    trainer.close()
    assert steps_of(tmp_path) == [*range(1, expected + 1)]
    assert logger.steps == sorted(set(logger.steps))
    [newest, *_] = checkpoints_of(tmp_path)
    assert load_state(newest)["trainer"]["algorithm/steps"] == expected
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, resume=True, **SMALL) as again:
        again.step()
    assert steps_of(tmp_path) == [*range(1, expected + 2)]


# ---- every end is a whole one -----------------------------------------------------------------


class Failing(Exception):
    """Raised by a part of a run's end."""


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(16))
def test_an_end_is_whole_in_each_order_of_failures(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    kinds = [Failing, OSError, KeyboardInterrupt, SystemExit, CheckpointError]

    def drawn(name: str, chance: float) -> None | BaseException:
        return rng.choice(kinds)(name) if rng.random() < chance else None

    begun = rng.choice(["on_start", "on_train_step", "condition", "env", None])
    callbacks = [Raising("on_end", -1, e) for e in (drawn("end 1", 0.5), drawn("end 2", 0.5)) if e]
    quiet = Raising("", 0, Failing())
    first = drawn("first", 1.0) if begun else None
    if begun in ("on_start", "on_train_step"):
        assert first is not None
        callbacks.append(Raising(begun, 0 if begun == "on_start" else 2, first))
    rng.shuffle(callbacks)
    callbacks.append(quiet)
    logger, closing = Recorder(), Recorder()
    closing_error = drawn("close", 0.4)
    trainer = Trainer(
        DiscreteDummyEnv, run_dir=tmp_path, callbacks=callbacks, loggers=[closing, logger], **SMALL
    )
    save_error = drawn("save", 0.4)
    if save_error is not None:
        monkeypatch.setattr(trainer, "_run_state", _raiser(save_error))
    if closing_error is not None:
        monkeypatch.setattr(closing, "close", _raiser(closing_error))
    if begun == "env":
        monkeypatch.setattr(trainer.algorithm, "collect", _raiser(first))
    condition = _raiser(first) if begun == "condition" else lambda stats: False
    ends = [x.error for x in callbacks if x.hook == "on_end"]
    # The first checkpoint of the loop is due after the first train step.
    expected = [*([first] if begun else []), *([] if begun else [save_error]), *ends, save_error]
    expected = [x for x in expected if x is not None]
    caught: None | BaseException = None
    try:
        trainer.run(total_env_steps=3 * STEP, stop_conditions=[condition])
    except BaseException as error:
        caught = error
    if begun == "on_train_step" and save_error is not None:
        assert caught in (first, save_error)
    else:
        assert caught is (expected[0] if expected else None)
    assert all(x.called.count("on_end") == 1 for x in callbacks)
    interrupted = caught is not None and not isinstance(caught, Exception)
    status = "FINISHED" if caught is None else "KILLED" if interrupted else "FAILED"
    caught = None
    try:
        trainer.close()
    except BaseException as error:
        caught = error
    assert caught is (None if isinstance(closing_error, Exception) else closing_error)
    assert logger.closed == [status]
    state = trainer.state["algorithm/steps"]
    assert steps_of(tmp_path) == [*range(1, state + 1)] == logger.steps
    if save_error is None:
        [newest, *_] = checkpoints_of(tmp_path)
        assert load_state(newest)["trainer"]["algorithm/steps"] == state
    Trainer(DiscreteDummyEnv, run_dir=tmp_path / "other", **SMALL).close()


def _raiser(error: None | BaseException) -> Callable[..., Any]:
    def fail(*arguments: Any, **options: Any) -> None:
        assert error is not None
        raise error

    return fail


def test_the_best_policy_is_written_after_a_write_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everstep.trainers import _files

    fails = itertools.count()

    def save_file(path: Path, state: Any) -> None:
        if path.parent.name == "best" and next(fails) == 0:
            raise OSError(28, "No space left on device", str(path))
        original(path, state)

    original = _files.save_file
    monkeypatch.setattr(_files, "save_file", save_file)
    adding = Adding(lambda stats: stats.update(high=5.0))
    options = SMALL | {"best": "high", "checkpoint_every": 1, "callbacks": [adding]}
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, **options) as trainer:
        trainer.run(total_env_steps=6 * STEP)
    assert next(fails) == 2
    assert '"value": 5.0' in (tmp_path / "best" / "best.json").read_text()
    everstep.Policy.load(tmp_path / "best" / "policy")


def test_a_best_policy_at_the_train_step_of_a_checkpoint_is_written(tmp_path: Path) -> None:
    options = SMALL | {"best": "eval/returns/mean", "eval_env": DiscreteDummyEnv(2, 4)}
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, eval_episodes=1, **options) as trainer:
        trainer.step()
        trainer.save()
        stats = trainer.eval()
        trainer.run_arguments = {}
        trainer._files._best_key = next(iter(stats))
        trainer.eval()
        trainer.save()
    assert (tmp_path / "best" / "policy").is_file()


# ---- states of environments -------------------------------------------------------------------


class Held(DiscreteDummyEnv):
    """An environment with a state that `held` makes."""

    held: Callable[[int], Any] = staticmethod(lambda step: None)
    steps = 0
    loaded: Any = None

    def step(self, action: Any) -> Any:
        type(self).steps += 1
        return super().step(action)

    def state_dict(self) -> dict[str, Any]:
        return {"held": [0, type(self).held(type(self).steps)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        type(self).loaded = state["held"][1]


@pytest.fixture
def held() -> type[Held]:
    """The environment's class, as new."""
    Held.held, Held.steps, Held.loaded = staticmethod(lambda step: None), 0, None
    return Held


def test_states_with_numpy_are_saved_as_they_were(tmp_path: Path, held: type[Held]) -> None:
    array = np.zeros(3, np.uint16)

    def reused(step: int) -> Any:
        array[:] = step
        return [array, np.float32(step), np.random.default_rng(1).bit_generator.state, b"\x00"]

    held.held = staticmethod(reused)
    options = SMALL | {"checkpoint_every": 1}
    with Trainer(held, run_dir=tmp_path, **options) as trainer:
        trainer.run(total_env_steps=6 * STEP)
    assert len(checkpoints_of(tmp_path)) == 2
    for path in checkpoints_of(tmp_path):
        state = load_state(path)
        vector_steps = 4 * state["trainer"]["algorithm/steps"]
        found, number, *_ = state["algorithm"]["env"]["held"][1]
        assert (found.dtype, found.tolist()) == (np.uint16, [vector_steps] * 3)
        assert (type(number), number) == (np.float32, vector_steps)
    with Trainer(held, run_dir=tmp_path, resume=True, **options):
        assert held.loaded[0].tolist() == [24, 24, 24]
        np.testing.assert_equal(held.loaded[2], np.random.default_rng(1).bit_generator.state)


def test_a_state_that_cannot_be_saved_ends_a_run_without_a_checkpoint(
    tmp_path: Path, held: type[Held]
) -> None:
    held.held = staticmethod(lambda step: {"generator": object()})
    place = r"`state\['algorithm'\]\['env'\]\['held'\]\[1\]\['generator'\]` cannot be saved"
    trainer = Trainer(held, run_dir=tmp_path, **SMALL)
    with pytest.raises(CheckpointError, match=place + r".*it is a builtins\.object"):
        trainer.run(total_env_steps=6 * STEP)
    assert steps_of(tmp_path) == [1]
    everstep.Policy.load(tmp_path / "policy")
    trainer.close()


def test_a_state_that_cannot_be_saved_later_is_said_at_once_and_the_run_goes_on(
    tmp_path: Path, held: type[Held], caplog: pytest.LogCaptureFixture
) -> None:
    held.held = staticmethod(lambda step: object() if 8 <= step < 16 else step)
    options = SMALL | {"checkpoint_every": 1}
    with Trainer(held, run_dir=tmp_path, **options) as trainer:
        trainer.run(total_env_steps=6 * STEP)
    [message] = [x.getMessage() for x in caplog.records if "could not be written" in x.getMessage()]
    assert "['held'][1]` cannot be saved: it is a builtins.object" in message
    assert steps_of(tmp_path) == [*range(1, 7)]
    found = [load_state(x)["trainer"]["algorithm/steps"] for x in checkpoints_of(tmp_path)]
    assert found == [6, 5]


def test_a_failed_save_keeps_every_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everstep.trainers import _checkpointing

    options = SMALL | {"checkpoint_every": 1, "keep_last": 4}
    with Trainer(DiscreteDummyEnv, run_dir=tmp_path, **options) as trainer:
        trainer.run(total_env_steps=4 * STEP)
        before = checkpoints_of(tmp_path)
        for error in (OSError(28, "full"), OSError(5, "broken"), RuntimeError("other")):
            monkeypatch.setattr(_checkpointing, "save_state", _raiser(error))
            with pytest.raises(type(error)):
                trainer.save_checkpoint()
            assert checkpoints_of(tmp_path) == before
    assert len(before) == 4


# ---- environments are closed ------------------------------------------------------------------


class Closing(DiscreteDummyEnv):
    """Counts its closings; steps and closings fail as they are told."""

    closed: ClassVar[list[str]] = []
    fails: tuple[str, ...] = ()

    def step(self, action: Any) -> Any:
        if "step" in self.fails:
            raise RuntimeError("the arm is stuck")
        return super().step(action)

    def close(self) -> None:
        type(self).closed.append(type(self).__name__)
        if "close" in self.fails:
            raise OSError("the port is busy")


FILE = f"""\
env_cls: {__name__}.Closing
num_envs: 2
horizon: 4
seed: 0
total_env_steps: 16
"""


@pytest.mark.parametrize(
    "fails",
    [
        ("step", "close"),
        *(pytest.param(x, marks=pytest.mark.slow) for x in ((), ("close",), ("step",))),
    ],
)
def test_the_command_closes_environments_once_and_names_the_first_error(
    fails: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text(FILE)
    monkeypatch.setattr(Closing, "closed", [])
    monkeypatch.setattr(Closing, "fails", fails)
    code = main(["train", "-f", "train.yaml", "run_dir=run"])
    assert Closing.closed == ["Closing"]
    assert code == bool(fails)
    shown = capsys.readouterr().err
    assert ("the arm is stuck" in shown) == ("step" in fails)
    assert ("training failed: OSError: the port is busy" in shown) == (fails == ("close",))
    logged = [x.getMessage() for x in caplog.records if "Closing.close failed" in x.getMessage()]
    assert len(logged) == (fails == ("step", "close"))
    assert all("OSError: the port is busy" in x for x in logged)
    if fails == ("close",):
        assert lines_of(tmp_path / "run")[-1]["algorithm/steps"] == 2


@pytest.mark.parametrize("error", [None, ValueError("first"), KeyboardInterrupt()])
def test_everything_is_closed_once_whatever_raises(
    error: None | BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    closed = []

    class Owner:
        def __init__(self, name: str, *, fails: bool) -> None:
            self.name, self.fails = name, fails

        def close(self) -> None:
            closed.append(self.name)
            if self.fails:
                raise OSError(self.name)

    owners = [Owner("a", fails=True), Owner("b", fails=False), Owner("c", fails=True)]

    def work() -> None:
        with closing(*owners, owners[0]):
            if error is not None:
                raise error

    with pytest.raises((OSError, ValueError, KeyboardInterrupt)) as raised:
        work()
    assert closed == ["a", "b", "c"]
    if error is None:
        assert str(raised.value) == "a"
    else:
        assert raised.value is error
    assert len(caplog.records) == (1 if error is None else 2)


def test_an_error_of_a_trainers_block_is_the_one_that_is_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(status: str) -> None:
        raise OSError("the tracker's disk is full")

    trainer = Trainer(DiscreteDummyEnv, run_dir=None, **SMALL)
    monkeypatch.setattr(trainer.logger, "close", fail)
    with pytest.raises(ValueError, match="mine"), trainer:
        raise ValueError("mine")
    assert "the tracker's disk is full" in caplog.text
