"""The part of a trainer that saves and restores it."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..callbacks import Callbacks
from ..core.checkpoints import load_state, save_state
from ..core.ranks import reported
from ..core.restoring import loading
from ..core.validation import explained
from ..data import TrainerState
from ..errors import CheckpointError, ConfigError
from ..loggers import MlflowLogger, QueuedLogger
from ._files import RunFiles
from ._ranks import for_rank, own_part

if TYPE_CHECKING:  # they import TorchRL and TensorDict, which takes two seconds
    from ..algorithms import GenericAlgorithmBase
    from ..env import Env

_log = logging.getLogger(__name__)

_Algorithm = TypeVar("_Algorithm", bound="GenericAlgorithmBase[Any, Any, Any]")


class SavedTrainer(Generic[_Algorithm]):
    """State of a trainer, and the files of its run."""

    #: The algorithm that is trained.
    algorithm: _Algorithm

    #: Environment of `eval`, if evaluations do not share that of the training.
    eval_env: "None | Env"

    #: Called while `run` lasts.
    callbacks: Callbacks

    #: The MLflow logger, if there is one.
    mlflow: None | MlflowLogger = None

    #: Loggers of trackers by name; `mlflow` is one of them.
    trackers: Mapping[str, QueuedLogger] = MappingProxyType({})

    #: Directory of this run's record, if there is one: None only if the argument is None, so type
    #: checkers do not ask every program to test it. It is the same in all processes.
    run_dir: Path | Any

    #: Running totals.
    state: TrainerState

    #: Files of the run, if there is a directory; of several processes, the first one has them.
    _files: None | RunFiles = None

    #: Callbacks that train steps and evaluations call: those above while `run` lasts.
    _called: Callbacks = Callbacks()

    #: Train steps after which evaluations were made last.
    _evaluated: int = 0

    #: Statistics that have not been logged yet.
    _pending: Mapping[str, Any] = MappingProxyType({})

    #: Train steps after which this trainer evaluated last; -1 if it has not.
    _last_evaluation: int = -1

    #: Seconds in loggers, and of those with trackers' threads the ones that were reported.
    _log_s: float = 0.0
    _logged_s: float = 0.0

    #: Whether `close` was called.
    _is_closed: bool = False

    #: Whether a callback asked for the end of the training.
    _is_stopping: bool = False

    @property
    def _is_forked(self) -> bool:
        """Whether another process, of which this one is a fork, writes the record of the run."""
        return self._files is not None and self._files.is_forked

    def _check_open(self) -> None:
        """Raise a ConfigError if the record of this trainer's run has ended, or is another's."""
        if self._is_forked:
            raise ConfigError(
                f"This process was forked from the one that writes {self.run_dir}. Make a trainer "
                "with a `run_dir` of its own in it; the policy is `trainer.algorithm.policy`."
            )
        if self._is_closed and self._files is not None:
            raise ConfigError(
                f"This trainer was closed, and with it the record in {self.run_dir}. To go on with "
                f"the run: `{type(self).__name__}.load({str(self.run_dir)!r})`; to play, "
                "`everstep.evaluate(trainer.algorithm.policy, env)`."
            )

    def stop(self) -> None:
        """End `run` after the present train step; for callbacks, and for other threads."""
        self._is_stopping = True

    @reported()
    @explained(
        "It writes policy and checkpoint to `run_dir`. `trainer.algorithm.policy.save({})` writes "
        "the policy elsewhere, `trainer.save_checkpoint({})` all that training continues from."
    )
    def save(self) -> None:
        """Write the policy (`policy`) and a checkpoint (in `checkpoints`) to `run_dir`.

        Nothing is written if the newest checkpoint is of the same train step.

        Raises:
            OSError: Names what could not be written; earlier checkpoints are unchanged.
            CheckpointError: Names what a checkpoint cannot hold. The policy is written.

        """
        self._check_open()
        try:
            with self.algorithm.reducer.calling("Trainer.save"):
                state = self._run_state()
        except Exception:
            if self._files is not None:  # the policy alone
                self._files.save_policies(self.algorithm.policy)
            raise
        if self._files is not None:
            path = self._files.save(self.state, state, self.algorithm.policy)
            if path is not None:
                self._called.call("on_checkpoint", path)

    @reported()
    def save_checkpoint(self, path: None | str | os.PathLike[str] = None) -> None:
        """Write a checkpoint, from which training can continue, to a directory, atomically.

        Of several processes, all must call it, and the first one writes.

        Args:
            path: The directory; if None, it is one of the run, as `save` writes it.

        Raises:
            ValueError: If `path` is None, and the trainer has no `run_dir`.

        """
        if path is not None:
            with self.algorithm.reducer.calling("Trainer.save_checkpoint"):
                state = self.state_dict()
            if not self.algorithm.reducer.rank:
                save_state(Path(path), state)
        elif self.run_dir is None:
            raise ValueError(_NO_DIRECTORY)
        else:
            if self._files is not None:
                self._files.saved = -1  # also if there is one of this train step
            self.save()

    @reported()
    def load_checkpoint(self, path: None | str | os.PathLike[str] = None) -> None:
        """Continue from a checkpoint; exactly, if the environment offers its state.

        Of several processes, all must call it, and the first one reads.

        Args:
            path: The directory; if None, the newest checkpoint of the run.

        Raises:
            CheckpointError: If it is damaged or does not fit.
            ValueError: If `path` is None, and the trainer has no `run_dir`.

        """
        if path is None and self.run_dir is None:
            raise ValueError(_NO_DIRECTORY)
        self.load_state_dict(self._read(path)[1])

    def state_dict(self) -> dict[str, Any]:
        """State of algorithm, trainer, evaluations and callbacks, for training to continue from.

        Of several processes, all must call it, and that of rank 0 is to be saved.
        """
        state = self._own_state()
        reducer, own = self.algorithm.reducer, {"callbacks": state["callbacks"]}
        sent = {**own, **own_part(state["algorithm"])} if reducer.rank else {}
        ranks = reducer.gather("Trainer.state_dict", sent)
        return {**state, "ranks": ranks[1:]}

    def _own_state(self) -> dict[str, Any]:
        """The state of this process alone."""
        env: Any = self.eval_env
        return {
            "algorithm": self.algorithm.state_dict(),
            "trainer": dict(self.state),
            "evaluated": self._evaluated,
            "annealed_to": self.algorithm.annealed_to,
            "eval_env": env.state_dict() if hasattr(env, "state_dict") else None,
            "callbacks": self.callbacks.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`, also of another number of processes.

        Raises:
            CheckpointError: If the state does not fit, in any process; nothing is changed then.

        """
        self._log_pending()  # of the training that ends here
        own = loading(self._own_state, self._load_own_state)
        with own, self.algorithm.reducer.together("Trainer.load_state_dict"):
            self._load_own_state({**state, **for_rank(state, self.algorithm)})

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of this process."""
        self.algorithm.load_state_dict(state["algorithm"])
        if state.get("annealed_to") is not None:
            self.algorithm.anneal(_count("annealed_to", state["annealed_to"], least=1))
        totals = {key: _count(key, state["trainer"][key]) for key in self.state}
        self.state = cast(TrainerState, totals)
        self._evaluated = _count("evaluated", state.get("evaluated", totals["algorithm/steps"]))
        if state.get("eval_env") is not None and hasattr(self.eval_env, "load_state_dict"):
            cast(Any, self.eval_env).load_state_dict(state["eval_env"])
        self.callbacks.load_state_dict(state.get("callbacks", ()))

    def _read(self, path: None | str | os.PathLike[str] = None) -> tuple[Path, dict[str, Any]]:
        """A checkpoint, the run's newest if there is no path, and its state, in all processes."""

        def read() -> tuple[Path, dict[str, Any]]:
            if path is None:
                return cast(RunFiles, self._files).load()
            return Path(path), load_state(Path(path))

        return self.algorithm.reducer.from_first("Trainer.load_checkpoint", read)

    def _log_pending(self) -> None:
        """Log statistics that have not been logged yet: once, also if what comes after raises."""
        raise NotImplementedError

    def _write_record(self, keys: Mapping[str, Any]) -> None:
        """Write the run's configuration, and send it and `keys` of it to the trackers."""
        raise NotImplementedError

    def _run_state(self) -> dict[str, Any]:
        self._log_pending()  # its line is part of what the checkpoint goes on from
        if self._files is not None and not (self.run_dir / "config.yaml").exists():
            self.run_dir.mkdir(parents=True, exist_ok=True)  # it was removed, or moved
            self._write_record({})  # nothing goes on without it
        ids = {name: tracker.run_id for name, tracker in self.trackers.items()}
        return {**self.state_dict(), "mlflow_run_id": ids.pop("mlflow", None), "trackers": ids}

    def _continue(self) -> dict[str, None | str]:
        """Continue from the newest checkpoint of the run; the ids of its trackers' runs."""
        path, state = self._read()
        _check_run_keys(path, state)
        self.load_state_dict(state)
        if not self.algorithm.continues:
            _log.warning(
                "%s: environments start anew, because the checkpoint does not hold their state; "
                "episodes that had not ended are in no statistic.",
                path,
            )
        if self._files is not None:
            self._files.continue_from(path, state, self.state)
        return {"mlflow": state.get("mlflow_run_id"), **state.get("trackers", {})}

    def _save_in_background(self) -> None:
        with self.algorithm.reducer.calling("Trainer.save"):
            state = self._run_state()
        if self._files is not None:
            path = self._files.save_in_background(self.state, state, self.algorithm.policy)
            self._called.call("on_checkpoint", path)


def _count(name: str, value: Any, *, least: int = 0) -> int:
    """A number of a state that counts something.

    Raises:
        CheckpointError: If it is none.

    """
    if type(value) is not int or value < least:
        raise CheckpointError(f"`{name}` of a state is a whole number from {least}; got {value!r}.")
    return value


def _check_run_keys(path: Path, state: Any) -> None:
    """Check what a checkpoint of a run has beside the trainer's state.

    Raises:
        CheckpointError: Names the key that no run has written.

    """

    def is_id(value: Any) -> bool:
        return value is None or isinstance(value, str)

    ids, best = state.get("trackers", {}), state.get("best") or {}
    is_best = isinstance(best, dict) and isinstance(best.get("value", 0.0), int | float)
    rules = {
        "metrics_size": type(state.get("metrics_size", 0)) is int,
        "best": is_best,
        "mlflow_run_id": is_id(state.get("mlflow_run_id")),
        "trackers": isinstance(ids, dict) and all(map(is_id, (*ids, *ids.values()))),
    }
    if wrong := [key for key, is_kept in rules.items() if not is_kept]:
        raise CheckpointError(f"{path}: its `{wrong[0]}` is not what a run writes.")


_NO_DIRECTORY = "This trainer has no `run_dir`: name the checkpoint's directory."
