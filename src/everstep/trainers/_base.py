"""Base of trainers: the training loop, evaluations, stop conditions and the record of a run."""

import contextlib
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from typing_extensions import Self

from ..callbacks import Callbacks
from ..conditions import Condition, check_stopping, keys_of, own_statistics, unknown_statistic
from ..config import dotted_name, plain
from ..core.files import write_file
from ..core.interrupts import call_all, uninterrupted
from ..core.ranks import report, reported
from ..core.synonyms import METHODS
from ..core.validation import Count, PositiveInt, explained, statistic
from ..data import EvalCollectStats, TrainStats
from ..errors import ConfigError
from ..loggers import (
    Logger,
    LoggerGroup,
    MlflowLogger,
    RunStatus,
    TrackedRun,
    chosen,
    create_run_dir,
    open_trackers,
    own_loggers,
)
from ..loggers.lock import lock_file
from ._ending import end_of, schedule_end
from ._evaluations import (
    EVAL_EPISODES,
    NEEDS_EVAL_ENV,
    check_eval_env,
    check_evaluations,
    evaluate_apart,
    evaluate_shared,
    seed_eval_env,
)
from ._files import RunFiles
from ._idle import idle_in_run
from ._record import (
    RUN_KEYS,
    RUNS,
    check_depth,
    check_run_dir,
    config_text,
    config_values,
    env_name,
    made_with,
    making_run_dir,
    params_of,
    run_keys,
    saving_keys,
)
from ._saving import SavedTrainer
from ._signals import Signals
from ._threads import chosen_threads
from ._view import ProgressView

if TYPE_CHECKING:  # they import TorchRL and TensorDict, which takes two seconds
    from ..algorithms import GenericAlgorithmBase
    from ..env import Env

_log = logging.getLogger(__name__)

#: Rule of what is passed to resets.
_CONFIG = None | dict[str, Any]

_Algorithm = TypeVar("_Algorithm", bound="GenericAlgorithmBase[Any, Any, Any]")


class GenericTrainerBase(SavedTrainer[_Algorithm]):
    """Base of trainers: trains one algorithm.

    Args:
        algorithm: The algorithm to train.
        run_dir: Directory of this run's record: `config.yaml`, `metrics.jsonl`, the policy and a
            checkpoint. `"auto"` makes a new one under `runs/`; None writes nothing anywhere.
        run_name: Name of the run, and of the directory that `"auto"` makes.
        experiment_name: MLflow experiment, and project of Weights & Biases. None: the one that
            MLflow is configured to use, else one named after the environment.
        track: Whether there is an MLflow run: the caller's if one is active, else a new one.
        loggers: Further loggers of parameters and statistics. Names of trackers, `"mlflow"`,
            `"tensorboard"` and `"wandb"`, or mappings of one to its options, replace MLflow.
        eval_env: Environment of `eval`, which `seed` seeds too. None: evaluations share the
            training environment, and can only start when it is due for a reset.
        eval_episodes: Complete episodes per evaluation on `eval_env`; None: 100.
        record: Further keys of `config.yaml`, beside the resolved hyperparameters.
        run_arguments: Default arguments of `run`.
        resume: Whether to continue the run in `run_dir`: its newest checkpoint is loaded, its
            `metrics.jsonl` is continued from there, and so is its MLflow run. `load` also builds
            the trainer as the run's `config.yaml` says.
        checkpoint_every: Train steps between checkpoints while `run` lasts; a time such as `"30s"`,
            `"10m"` or `"2h"`; or `"end"`, for one at the end only.
        keep_last: Number of checkpoints to keep.
        best: Name of a statistic; when it has a new maximum, the policy is also saved to `best/`.
        callbacks: Objects that are called while `run` lasts; see `everstep.callbacks`.
        progress: Whether `run` shows its progress on standard error: a live view on a terminal and
            in a notebook, a line every ten seconds elsewhere.

    Raises:
        ConfigError: If `run_dir` holds a run and `resume` is False.
        CheckpointError: If the checkpoint of the run to continue is damaged or does not fit.

    """

    #: Default arguments of `run`.
    run_arguments: dict[str, Any]

    #: Receives parameters and statistics.
    logger: LoggerGroup

    #: Shows progress while `run` lasts.
    view: ProgressView

    #: Config of the algorithm where this stretch of the training began; None outside of `run`.
    _stretch: Any = None

    #: Whether `run` ended at a limit of its own, rather than because somebody asked for it.
    _has_ended_itself: bool = False

    #: How the last call of `run` ended, with its callbacks and its last checkpoint.
    _status: RunStatus = "FINISHED"

    #: Whether the run is that of another process, and no train step was made since.
    _is_resumed: bool = False

    #: Statistics of the last train step.
    _last: Mapping[str, Any] = MappingProxyType({})

    #: Names of what was no statistic.
    _refused: frozenset[Any] = frozenset()

    #: Whether the trainer is made: what the run was set up with stays from then on.
    _is_wired: bool = False

    def __init__(
        self,
        algorithm: _Algorithm,
        /,
        *,
        run_dir: None | str | os.PathLike[str] = "auto",
        run_name: None | str = None,
        experiment_name: None | str = None,
        track: bool = True,
        loggers: Sequence[Logger | str | Mapping[str, Any]] = (),
        eval_env: "None | Env" = None,
        eval_episodes: None | int = None,
        record: None | Mapping[str, Any] = None,
        run_arguments: None | Mapping[str, Any] = None,
        resume: bool = False,
        checkpoint_every: int | str = "1m",
        keep_last: int = 2,
        best: None | str = None,
        callbacks: Sequence[Any] = (),
        progress: bool = True,
    ) -> None:
        from ..env.registry import describe_env

        check_eval_env(algorithm, eval_env, eval_episodes)
        self.callbacks = Callbacks(callbacks)  # refused before a directory is made
        self.algorithm = algorithm
        self.run_arguments = dict(run_arguments or {})
        if strange := sorted({*self.run_arguments} - {*RUN_KEYS}):
            raise ConfigError(
                f"`run_arguments` are arguments of `run`: {', '.join(RUN_KEYS)}; got {strange[0]}."
            )
        seed_eval_env(eval_env, algorithm)
        self.eval_env = eval_env
        self.eval_episodes = EVAL_EPISODES if eval_episodes is None else eval_episodes
        self.state = {"algorithm/collects": 0, "algorithm/steps": 0, "env/steps": 0}
        self._is_recorded = run_dir is not None
        shared = {"eval_env": "None" if eval_env is None else "given", "best": str(best)}
        algorithm.reducer.check_alike("Trainer", shared)
        check_run_dir(run_dir, resume=resume)
        is_first = not algorithm.reducer.rank  # of several processes; it keeps the record
        if not is_first:
            loggers, progress = (), False
        named_trackers = chosen(loggers, track=track)
        sinks = own_loggers(loggers)
        self._record = {**describe_env(algorithm.env), **(record or {})}
        if eval_env is not None:
            self._record = {"eval_episodes": self.eval_episodes, **self._record}
        if algorithm.policy.is_recurrent:
            self._record["recurrent"] = True
        named = self._record.get("env_cls") or env_name(algorithm.env)
        env_cls = named if isinstance(named, str) else dotted_name(named)
        if not algorithm.policy.made_for and self._record.get("env_cls"):
            own = {"env_cls": env_cls, "env_kwargs": self._record.get("env_kwargs")}
            algorithm.policy.made_for = own
        name = run_name or env_cls
        self._record |= saving_keys(checkpoint_every, keep_last, best, callbacks, loggers)
        if run_dir is not None:
            # Before a directory is made.
            check_depth(config_values(algorithm, self._record) | run_keys(self.run_arguments))
        existed = run_dir not in (None, "auto") and os.path.lexists(run_dir)
        if run_dir == "auto":
            with making_run_dir(RUNS):
                run_dir = algorithm.reducer.from_first(
                    "Trainer", lambda: create_run_dir(RUNS, name)
                )
        self.run_dir = None if run_dir is None else Path(run_dir)
        with self._left_as_it_was(is_new=is_first and not resume and not existed, resume=resume):
            with algorithm.reducer.together("Trainer"):
                if self.run_dir is not None and is_first:
                    with making_run_dir(self.run_dir):
                        self._files = RunFiles(self.run_dir, checkpoint_every, keep_last, best)
            continued = self._continue() if resume else {}
            self._is_resumed = resume
            if self.run_dir is not None and self._files is not None:
                run = TrackedRun(
                    self.run_dir,
                    run_name or self.run_dir.name,
                    name,
                    experiment_name,
                    step=self.state["env/steps"] if resume else None,
                )
                self.trackers = open_trackers(named_trackers, run, continued)
                self.mlflow = cast(None | MlflowLogger, self.trackers.get("mlflow"))
                sinks = [self._files.metrics, *sinks, *self.trackers.values()]
            self.logger = LoggerGroup(cast(Sequence[Logger], sinks))
            self.view = ProgressView(progress)
            self.logger.log_params(params_of(algorithm, env_cls))
            self._write_record({k: v for k, v in self._record.items() if v is not None})
        self._is_wired = True

    @contextlib.contextmanager
    def _left_as_it_was(self, *, is_new: bool, resume: bool) -> Iterator[None]:
        """Context in which a trainer is made; an error leaves no directory and no tracker's run.

        Args:
            is_new: Whether the directory is made for this run.
            resume: Whether the directory has a run, of which nothing is removed.

        """
        try:
            yield
        except BaseException as error:
            sinks: list[Logger] = [*self.trackers.values()]
            sinks += [] if self._files is None else [self._files.metrics]
            closing = [partial(sink.close, "FAILED") for sink in sinks]
            with contextlib.suppress(BaseException):  # the first error is the one to raise
                call_all(*closing, first=error)
            if self._files is not None and is_new:  # it has the lock
                shutil.rmtree(self._files.metrics.path.parent, ignore_errors=True)
            elif self._files is not None and not resume:
                for path in (self._files.metrics.path, lock_file(self._files.metrics.path)):
                    path.unlink(missing_ok=True)
            raise

    def _write_record(self, keys: Mapping[str, Any]) -> None:
        """Write `config.yaml`, and send it and `keys` of it to the trackers."""
        if self._files is None or self.run_dir is None:
            return
        from ._trust import remember  # imports adapters

        text = config_text(self.algorithm, self._record, len(self._files.history.stretches))
        remember(self.run_dir, text)
        write_file(self.run_dir / "config.yaml", text)
        for tracker in self.trackers.values():
            tracker.log_tags(made_with(self.algorithm))
            tracker.log_params(plain(keys))
            tracker.log_text("config.yaml", text)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, unless files and loggers of the run go on with the one that it has."""
        if self._is_wired and name in _WIRED:
            raise FrozenInstanceError(
                f"`{type(self).__name__}.{name}` cannot be set: the run was set up with the one "
                f"that it has. Instead, {_WIRED[name]}."
            )
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name):
            """The error of an attribute that other libraries' trainers have, with ours."""
            ours = f": call or use `{METHODS[name]}`" if name in METHODS else ""
            message = f"{type(self).__name__!r} object has no attribute {name!r}{ours}"
            raise AttributeError(message, name=name, obj=self)

    @property
    def envs(self) -> list[Any]:
        """The training environment, and that of evaluations if there is one."""
        return [self.algorithm.env, *([] if self.eval_env is None else [self.eval_env])]

    def __repr__(self) -> str:
        done = ", ".join(f"{key.replace('/', '_')}={n:,}" for key, n in self.state.items())
        run_dir = None if self.run_dir is None else str(self.run_dir)
        return f"{type(self).__name__}({self.algorithm!r}, {done}, run_dir={run_dir!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            report(error)
        call_all(partial(self.close, None if error is None else _status_of(error)), first=error)

    # ---- training -----------------------------------------------------------------------------

    @reported()
    @explained(
        "Write `run(total_env_steps={})`.",
        env_config=_CONFIG,
        eval_env_config=_CONFIG,
        steps_per_eval=None | PositiveInt,
    )
    def run(
        self,
        *,
        env_config: None | dict[str, Any] = None,
        eval_env_config: None | dict[str, Any] = None,
        steps_per_eval: None | int = None,
        stop_conditions: None | list[Condition] = None,
        total_env_steps: None | float = None,
        additional_env_steps: None | float = None,
    ) -> TrainStats:
        """Train until a budget or a condition is met, and return the last train step's statistics.

        A trainer that has reached the budget, a condition on its totals (`"env/steps"`,
        `"algorithm/steps"`) or the end of a schedule that ends in 0 trains nothing, and a warning
        says how to train further. Linear schedules reach 0 at the budget: at a larger one, later.

        At the end, also when it is interrupted or fails, the policy and a checkpoint are written to
        `run_dir`. With the hyperparameter `test_every`, every `test_every` updates are followed by
        an evaluation of `num_test_episodes` complete episodes on `eval_env`.

        Args:
            env_config: Passed to resets of the environment in train steps.
            eval_env_config: Passed to resets in evaluations; `env_config` if None, unless the
                shared environment is never reset.
            steps_per_eval: Train steps between evaluations; None for no evaluations.
            stop_conditions: Conditions, called after every train step; one is enough to stop.
            total_env_steps: Env steps of all environments after which to stop, counted from the
                trainer's first. `float("inf")`: train until a condition is met or `run` is
                interrupted. Schedules that end in 0 end the training, too.
            additional_env_steps: The same, counted from now.

        Raises:
            ConfigError: If there is neither a budget nor a condition, a budget is not positive or
                given twice, or `stop_conditions` is not a list of conditions.
            ValueError: If the environment is shared and an evaluation could not use
                `eval_env_config`, `steps_per_eval` is not a multiple of
                `horizons_per_env_reset`, or `test_every` is set.

        """
        self._check_open()
        given = {
            "env_config": env_config,
            "eval_env_config": eval_env_config,
            "steps_per_eval": steps_per_eval,
            "stop_conditions": stop_conditions,
            "total_env_steps": total_env_steps,
        }
        arguments = self.run_arguments | {k: v for k, v in given.items() if v is not None}
        if additional_env_steps is not None:
            check_stopping(additional_env_steps, (), name="additional_env_steps")
            if total_env_steps is not None:
                raise ConfigError(
                    "`additional_env_steps` counts from now and `total_env_steps` from the "
                    f"trainer's first; got {additional_env_steps} and {total_env_steps}. Drop one."
                )
            arguments["total_env_steps"] = self.state["env/steps"] + additional_env_steps
        check_stopping(arguments.get("total_env_steps"), arguments.get("stop_conditions", ()))
        check_evaluations(
            self.algorithm,
            shared=self.eval_env is None,
            steps_per_eval=arguments.get("steps_per_eval"),
            eval_env_config=arguments.get("eval_env_config"),
        )
        if arguments.get("total_env_steps") is None and not arguments.get("stop_conditions"):
            raise ConfigError(_NO_BUDGET)
        keys = run_keys(arguments)
        if self._is_recorded:
            check_depth(keys)
        best = str(self._record.get("best") or "").startswith("eval/")
        evaluates = arguments.get("steps_per_eval") or self.algorithm.hparams.test_every or best
        if eval_env_config and not evaluates:
            raise ConfigError(
                "`eval_env_config` has no effect: this run makes no evaluations; got "
                f"{eval_env_config!r}. Set `steps_per_eval`, or drop it."
            )
        self.algorithm.reducer.check_alike(
            "Trainer.run",
            {
                "total_env_steps": str(arguments.get("total_env_steps")),
                "stop_conditions": str(plain(arguments.get("stop_conditions") or [])),
                "steps_per_eval": str(arguments.get("steps_per_eval")),
            },
        )
        self._name_idle(arguments)
        if end := self._reach(arguments):
            now = self.state["env/steps"]
            is_within = now < (arguments.get("total_env_steps") or now)  # a schedule is in the way
            further = _OTHER_SCHEDULE if is_within else _MORE_STEPS
            self._say(f"Already at {now:,} env steps ({end}): nothing is trained. {further}")
            return cast(TrainStats, {**self.state, **self._last})
        self._record |= keys
        self._note_stretch("run")
        self._write_record(keys)
        stats, error = cast(TrainStats, {}), None
        with Signals(is_active=self._is_recorded) as signals:
            try:
                self.callbacks.call("on_start", self)
                with (
                    chosen_threads(self.algorithm),
                    self.view.shown(
                        self.algorithm.params,
                        arguments,
                        self.logger.loggers,
                        self.state["env/steps"],
                    ),
                    self._calling_back(),
                ):
                    stats = self._loop(signals, **arguments)
                    self.algorithm.reducer.agree("Trainer.run")  # that no rank's last step failed
            except BaseException as raised:
                error = raised
            signals.settle()
            self._end(signals, error)
        return stats

    def _end(self, signals: Signals, error: None | BaseException) -> None:
        """End a run: all of it, whatever a part of it raises; the first error is raised.

        Args:
            signals: Signals of the run.
            error: What ended it; None if it reached its end, or a signal asked for it.

        """
        if self._is_forked:  # the other process ends the run
            call_all(first=error)
            return
        status = "KILLED" if error is None and signals.wants_stop() else _status_of(error)
        ended = status if self._has_ended_itself else "STOPPED"
        # Of several processes, the others do not know of an error: their last checkpoint remains.
        reducer = self.algorithm.reducer
        saves = error is None or (reducer.size == 1 and not signals.is_urgent)
        try:
            with reducer.together("Trainer.run") if error is None else contextlib.nullcontext():
                call_all(
                    self._log_pending,
                    *(partial(member.on_end, status) for member in self.callbacks.members),
                    *([self.save] if saves else []),
                    first=error,
                )
        except BaseException as raised:
            self._status = _status_of(raised)
            raise
        self._end_stretch(ended)
        self._status = status
        signals.raise_stop()

    @contextlib.contextmanager
    def _calling_back(self) -> Iterator[None]:
        """Context in which train steps and evaluations call the callbacks."""
        self._called, self._is_stopping = self.callbacks, False
        self._has_ended_itself = False
        try:
            yield
        finally:
            self._called, self._stretch = Callbacks(), None

    def _loop(
        self,
        signals: Signals,
        *,
        env_config: None | dict[str, Any] = None,
        eval_env_config: None | dict[str, Any] = None,
        steps_per_eval: None | int = None,
        stop_conditions: Sequence[Condition] = (),
        total_env_steps: None | float = None,
    ) -> TrainStats:
        never_reset = self.eval_env is None and self.algorithm.horizons_per_env_reset < 0
        config = eval_env_config or (None if never_reset else env_config)
        budget = math.inf if total_env_steps is None else total_env_steps
        stats, interrupted = cast(TrainStats, {}), False
        while True:
            due = self._files is not None and self._files.is_due(self.state, signals)
            stop, due = signals.agree(self.algorithm.reducer, self._is_stopping, due)
            if stop:
                interrupted = signals.wants_stop()  # in all processes
                break
            self._eval_if_due(steps_per_eval, config)
            if due:
                self._save_in_background()
            stats = self.step(env_config=env_config)
            # Every condition sees every train step: some of them count.
            met = [condition(stats) for condition in stop_conditions]
            self._has_ended_itself = any(met)
            self._is_stopping |= self._has_ended_itself
            if self.state["env/steps"] >= budget or schedule_end(self.algorithm) is not None:
                self._has_ended_itself = True
                break
        if not interrupted and self._needs_evaluation():
            self.eval(env_config=config)
        return stats

    def _reach(self, arguments: Mapping[str, Any]) -> str:
        """Set the budget; the limit that is reached, empty if none is.

        What another budget changes in what was followed already is said.
        """
        total = arguments.get("total_env_steps") or math.inf
        algorithm, now = self.algorithm, self.state["env/steps"]
        if now < total < math.inf:
            before, rate = algorithm.annealed_to, _rates(algorithm)
            algorithm.anneal(int(total))
            end, changed = algorithm.schedule_end, before is not None and before != int(total)
            after = _rates(algorithm)
            if changed and after != rate and algorithm.annealed_to is not None:
                self._say(
                    f"The budget is now {int(total):,} env steps instead of {before:,}, "
                    f"which changes {rate} to {after} at {now:,} env steps."
                )
            if end is not None and now < end < int(total):
                self._say(
                    f"A schedule ends in 0 at {end:,} env steps, so training ends there, before "
                    f"its budget of {int(total):,}."
                )
        return end_of(algorithm, self.state, arguments)

    def _note_stretch(self, by: str) -> None:
        """Write down that a stretch of the training begins, and with which settings."""
        self._stretch = self.algorithm.config
        if self._files is None:
            return
        restorable = all(hasattr(env, "state_dict") for env in self.envs)
        stretch = {
            **{key: self.state[key] for key in ("env/steps", "algorithm/steps")},
            "by": by,
            "resumed": self._is_resumed,
            "restorable": restorable,
            "processes": self.algorithm.reducer.size,
            "settings": plain(config_values(self.algorithm, self._record)),
        }
        exact = self.algorithm.continues and restorable
        self._files.history.begin(stretch, goes_on=exact or not self._is_resumed)
        self._is_resumed = False

    def _end_stretch(self, status: str) -> None:
        """Write down how the stretch ended, and settings that the program has changed in it."""
        if self._files is not None:
            self._files.history.end(status)
            if self._files.history.stretches[-1]["by"] == "program":
                self._write_record({})

    def _name_idle(self, arguments: Mapping[str, Any]) -> None:
        """Warn of what has no effect in this run, as a statistic that it never has."""
        conditions = arguments.get("stop_conditions", ())
        every = arguments.get("steps_per_eval")
        for message in idle_in_run(self.algorithm, self.state["env/steps"], arguments):
            self._say(message)
        best, tests = str(self._record.get("best") or ""), self.algorithm.hparams.test_every
        if best.startswith("eval/") and self.eval_env is None and not (every or tests):
            self._say(
                f"`best`: {best} is of evaluations, and this run makes none, so nothing is saved "
                "to best/. Give the trainer an `eval_env`, or `run` the argument `steps_per_eval`."
            )
        own = own_statistics(dict(self.algorithm.hparams))
        for key in () if self.callbacks.members else [x for c in conditions for x in keys_of(c)]:
            if key not in self._last and (problem := unknown_statistic(key, own=own)):
                self._say(f"`stop_conditions`: {problem}, so the condition is never met.")

    def _say(self, message: str) -> None:
        """Log a warning, of several processes once."""
        if not self.algorithm.reducer.rank:
            _log.warning("%s", message)

    def _needs_evaluation(self) -> bool:
        """Whether the best policy is chosen by evaluations and the last update has had none."""
        chosen = str(self._record.get("best") or "").startswith("eval/")
        steps = self.state["algorithm/steps"]
        return chosen and self.eval_env is not None and self._last_evaluation != steps > 0

    def _eval_if_due(self, every: None | int, env_config: None | dict[str, Any]) -> None:
        """Make the evaluations that follow the last train step, unless they were made."""
        steps, hparams = self.state["algorithm/steps"], self.algorithm.hparams
        if steps == self._evaluated:
            return
        if every and steps % every == 0:
            self.eval(env_config=env_config)
        if hparams.test_every and steps % hparams.test_every == 0:
            self.eval(env_config=env_config, episodes=hparams.num_test_episodes)
        self._evaluated = steps

    @reported()
    @explained("Write `step()`; `run(total_env_steps={})` makes many.", env_config=_CONFIG)
    def step(self, *, env_config: None | dict[str, Any] = None) -> TrainStats:
        """Collect one rollout, update the policy with it, and return the statistics of both.

        Args:
            env_config: Passed to the environment's reset, if one is due.

        Raises:
            ConfigError: If the schedule of the learning rate or of `clip_param` has ended in 0.

        """
        self._check_open()
        self._log_pending()
        if (end := schedule_end(self.algorithm)) is not None:
            raise ConfigError(
                f"A schedule has ended in 0 at {end:,} env steps, and this trainer is at "
                f"{self.state['env/steps']:,}, so a train step would learn nothing. Call "
                "`run(additional_env_steps=…)`, which lets linear schedules end later, or "
                "`algorithm.update_algorithm_parameter('lr_schedule', None)` for a constant rate."
            )
        if self._stretch is not self.algorithm.config:  # by hand, or hyperparameters were changed
            self._note_stretch("step" if self._stretch is None else "program")
        memory_stats = self.algorithm.memory_stats()
        with self.algorithm.reducer.calling("Trainer.step"):
            collect_stats = self.algorithm.collect(env_config=env_config)
            self.state["algorithm/collects"] += 1
            step_stats = self.algorithm.step()
        with uninterrupted():  # from here on the train step counts, and has a line
            self.state["algorithm/steps"] += 1
            self.state["env/steps"] += collect_stats["env/steps"]
            took = {"profiling/log_ms": self._logging_ms()}
            stats = {**memory_stats, **collect_stats, **step_stats, **took, **self.state}
            self._last = self._pending = stats
        try:
            self._called.add_statistics("on_train_step", stats)
        finally:
            self._log_pending()
        return cast(TrainStats, stats)

    # ---- evaluation ---------------------------------------------------------------------------

    @reported()
    @explained(
        "Write `eval(episodes={})`.",
        env_config=_CONFIG,
        deterministic=bool,
        episodes=None | Count,
    )
    def eval(
        self,
        *,
        env_config: None | dict[str, Any] = None,
        deterministic: bool = True,
        episodes: None | int = None,
    ) -> EvalCollectStats:
        """Evaluate the policy, and return the statistics under `"eval/"`.

        On `eval_env`, an evaluation plays complete episodes. On the shared training environment, it
        collects `horizons_per_env_reset` rollouts and can only start when a reset is due.

        Args:
            env_config: Passed to the environment's reset.
            deterministic: Whether actions are the distribution's mode rather than samples.
            episodes: Number of episodes on `eval_env`; `eval_episodes` if None.

        Raises:
            RuntimeError: If the shared environment is not due for a reset.
            ValueError: If `env_config` is given but the shared environment is never reset, or
                `episodes` is given and there is no `eval_env`.

        """
        self._check_open()
        self._log_pending()
        if self.eval_env is None and episodes is not None:
            raise ValueError(f"`episodes` {NEEDS_EVAL_ENV}")
        played = self.eval_episodes if episodes is None else episodes
        shared = {"deterministic": str(deterministic), "episodes": str(played)}
        with self.algorithm.reducer.calling("Trainer.eval", shared):
            result = self._evaluate(played, env_config, deterministic=deterministic)
        self._last_evaluation = self.state["algorithm/steps"]
        self._pending = stats = {f"eval/{key}": value for key, value in result.items()}
        try:
            self._called.add_statistics("on_evaluation", stats)
        finally:
            self._log_pending()
        return cast(EvalCollectStats, stats)

    def _evaluate(
        self, episodes: int, env_config: None | dict[str, Any], *, deterministic: bool
    ) -> dict[str, float]:
        """Statistics of an evaluation."""
        if (env := self.eval_env) is not None:
            return self.algorithm.reducer.from_first(
                "Trainer.eval",
                lambda: evaluate_apart(
                    self.algorithm,
                    env,
                    episodes=episodes,
                    deterministic=deterministic,
                    env_config=env_config,
                ),
            )
        collects = self.state["algorithm/collects"]
        result, more = evaluate_shared(
            self.algorithm, collects, env_config, deterministic=deterministic
        )
        self.state["algorithm/collects"] = collects + more
        return result

    # ---- the record ---------------------------------------------------------------------------

    def _logging_ms(self) -> float:
        """Milliseconds of loggers since the last call, with those of trackers' threads."""
        threads = sum(tracker.processor_seconds for tracker in self.trackers.values())
        before, self._logged_s = self._logged_s, threads + self._log_s
        return 1000 * (self._logged_s - before)

    def _recordable(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        """The statistics without what is none, so that the others are recorded. It is named once.

        Callbacks may have put it into `state`.
        """
        kept = {}
        for name, value in stats.items():
            try:
                kept[name] = statistic(name, value)
            except ValueError as error:
                if name not in self._refused:
                    self._say(f"{error}. It is not recorded.")
                self._refused = self._refused | {name}
        return kept

    def _log_pending(self) -> None:
        """Log statistics that have not been logged yet: once, also if what comes after raises."""
        if self._is_forked:
            return
        start = time.perf_counter()
        with uninterrupted():
            stats, self._pending = self._recordable(self._pending), {}
            if stats:
                self.logger.put_metrics(stats, step=self.state["env/steps"])
                if self._files is not None:
                    self._files.note(stats, self.state, self.algorithm.policy)
        if stats:
            self.logger.deliver()
            self.view.log_metrics(stats, step=self.state["env/steps"])
            self._log_s += time.perf_counter() - start

    @reported()
    def close(self, status: None | RunStatus = None) -> None:
        """Flush and close the loggers, and end trackers' runs that are this trainer's own.

        Environments stay open, `trainer.algorithm.env` and `trainer.eval_env`: close them when
        nothing steps them any more. Calling it again does nothing.

        Args:
            status: How the run ended, for loggers; None: as the last call of `run` did.

        """
        if self._is_forked:
            return
        self._is_closed = True
        writing = [] if self._files is None else [self._files.wait]
        call_all(self._log_pending, *writing, lambda: self.logger.close(status or self._status))


def _status_of(error: None | BaseException) -> RunStatus:
    """How a run ended that raised an error, or none."""
    if error is None:
        return "FINISHED"
    return "FAILED" if isinstance(error, Exception) else "KILLED"


def _rates(algorithm: Any) -> str:
    """Learning rate, `clip_param` and epochs of now, as far as they may change."""
    rate, config = float(algorithm.optimizer.param_groups[0]["lr"]), algorithm.config
    rates = [f"learning rate {rate:.3g}"] if config.lr_schedule is not None else []
    if config.clip_param_schedule is not None:
        rates.append(f"clip_param {algorithm.clip_scheduler.coeff:.3g}")
    if isinstance(config.num_sgd_iters, list):
        rates.append(f"{algorithm.num_epochs} epochs")
    return " and ".join(rates)


#: What to do instead of replacing a part of a trainer.
_WIRED = {
    "algorithm": "make a trainer of the other algorithm",
    "callbacks": "pass `callbacks=[…]` when the trainer is made",
    "eval_env": "pass `eval_env=…` when the trainer is made",
    "logger": "pass `loggers=[…]` when the trainer is made",
    "run_dir": "pass `run_dir=…` when the trainer is made",
}

_MORE_STEPS = (
    "To train further: `run(additional_env_steps=…)`, a larger `total_env_steps`, or "
    "`everstep resume RUN_DIR --additional-steps N`."
)

_OTHER_SCHEDULE = (
    "To train further, change the schedule: "
    "`algorithm.update_algorithm_parameter('lr_schedule', None)` (or 'clip_param_schedule'), or "
    "`everstep resume RUN_DIR lr_schedule=null`; of a function of the budget, a larger budget is "
    "enough."
)

_NO_BUDGET = (
    "`run` must know when to stop: give it `total_env_steps=100_000`, or a condition, such as "
    "`stop_conditions=[HitsUpperBound('episodes/return_mean_100', 475)]`, or "
    "`total_env_steps=float('inf')` to train until it is interrupted."
)
