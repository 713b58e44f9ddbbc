"""The files of a run that change while it lasts: statistics, checkpoints, and the best policy."""

import json
import logging
import math
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.checkpoints import save_file
from ..core.files import write_file
from ..core.interrupts import call_all
from ..core.restoring import copied
from ..data import TrainerState
from ..loggers import JsonlLogger
from ..loggers.history import HISTORY, History
from ._checkpointing import Checkpoints, Interval, load_newest, set_aside
from ._signals import Signals

if TYPE_CHECKING:  # imports TorchRL and TensorDict, which takes two seconds
    from ..policies import GenericPolicyBase

_log = logging.getLogger(__name__)


class RunFiles:
    """Files of one run.

    Args:
        run_dir: Directory of the run, created if missing.
        checkpoint_every: See `GenericTrainerBase`.
        keep_last: See `GenericTrainerBase`.
        best: See `GenericTrainerBase`.

    Raises:
        ConfigError: If another process writes to them, or an argument breaks a rule.

    """

    #: Train steps at the newest checkpoint; -1 if there is none.
    saved: int = -1

    def __init__(
        self, run_dir: Path, checkpoint_every: int | str, keep_last: int, best: None | str
    ) -> None:
        self._interval = Interval(checkpoint_every)
        self._best_key = best
        self._best: dict[str, Any] = {}
        #: Result and policy that are to be written to `best`.
        self._new_best: None | tuple[dict[str, Any], dict[str, Any]] = None
        run_dir.mkdir(parents=True, exist_ok=True)
        self._run_dir, self._process = run_dir, os.getpid()
        self._checkpoints = Checkpoints(run_dir, keep_last)
        self.history = History(run_dir / HISTORY)
        self.metrics = JsonlLogger(run_dir / "metrics.jsonl")
        weakref.finalize(self, self.metrics.close)  # for scripts that never call `close`

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that writes them."""
        return os.getpid() != self._process

    def is_due(self, state: TrainerState, signals: Signals) -> bool:
        """Whether to write a checkpoint now."""
        steps = state["algorithm/steps"]
        wanted = signals.take_checkpoint_request()
        return ((steps > 0 and self._interval.is_over(steps)) or wanted) and steps != self.saved

    def note(
        self, stats: Mapping[str, Any], state: TrainerState, policy: "GenericPolicyBase[Any]"
    ) -> None:
        """Keep a copy of the policy if it is the best so far; the next checkpoint writes it.

        Args:
            stats: Statistics that were logged.
            state: Totals of the trainer.
            policy: The policy of now.

        """
        from ..policies import policy_state

        value = stats.get(self._best_key or "")
        if value is not None and value > self._best.get("value", -math.inf):
            self._best = {"key": self._best_key, "value": float(value), **state}
            self._new_best = self._best, copied(policy_state(policy))

    def save(
        self,
        state: TrainerState,
        full_state: dict[str, Any],
        policy: "GenericPolicyBase[Any]",
    ) -> None | Path:
        """Write a checkpoint and the policy; the checkpoint's directory, None if it exists.

        Args:
            state: Totals of the trainer.
            full_state: The state.
            policy: The policy.

        """
        from ..policies import policy_state

        self._checkpoints.wait()
        steps = state["algorithm/steps"]
        if steps == self.saved and self._checkpoints.is_complete():
            call_all(self.metrics.sync, self._write_best)
            return None
        content = self._with_record(full_state)
        written: list[Path] = []
        call_all(
            self.metrics.sync,
            self._write_best,
            lambda: written.append(self._checkpoints.write(steps, content, policy_state(policy))),
        )
        self.saved = steps
        return written[0]

    def save_policies(self, policy: "GenericPolicyBase[Any]") -> None:
        """Write the policy, and the best one; errors are logged, as another one is being raised."""
        from ..policies import policy_state

        writers: list[Callable[[], object]] = [
            lambda: save_file(self._run_dir / "policy", policy_state(policy)),
            self._write_best,
        ]
        for write in writers:
            try:
                write()
            except Exception as error:
                _log.error("The policy could not be written: %s", error)

    def save_in_background(
        self, state: TrainerState, full_state: dict[str, Any], policy: "GenericPolicyBase[Any]"
    ) -> Path:
        """Write a copy of the state and of the policy in a thread; the checkpoint's directory.

        Raises:
            CheckpointError: If the state cannot be saved, and there is no earlier checkpoint.

        """
        from ..policies import policy_state

        path = self._checkpoints.write_in_background(
            state["algorithm/steps"],
            self._with_record(full_state),
            policy_state(policy),
            self.metrics.sync,
            self._write_best,
        )
        self.saved = state["algorithm/steps"]
        return path

    def wait(self) -> None:
        """Wait for the checkpoint that is being written."""
        self._checkpoints.wait()

    def load(self) -> tuple[Path, dict[str, Any]]:
        """The newest checkpoint of the run, and its state."""
        return load_newest(self._run_dir)

    def continue_from(self, path: Path, state: Mapping[str, Any], totals: TrainerState) -> None:
        """Continue the files from a checkpoint: later lines and damaged checkpoints go.

        Args:
            path: The checkpoint.
            state: Its state.
            totals: Totals of the trainer in it.

        """
        set_aside(self._run_dir, path)
        self.metrics.cut(state.get("metrics_size", -1), totals["env/steps"])
        best = state.get("best") or {}
        self._best = best if best.get("key") == self._best_key else {}
        self.saved = totals["algorithm/steps"]

    def _with_record(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "metrics_size": self.metrics.size, "best": self._best}

    def _write_best(self) -> None:
        """Write the best policy if there is a new one, which is kept until it is written."""
        best = self._new_best  # another one may come meanwhile
        if best is not None:
            result, policy = best
            save_file(self._run_dir / "best" / "policy", policy)
            write_file(self._run_dir / "best" / "best.json", json.dumps(result, indent=1) + "\n")
            if self._new_best is best:
                self._new_best = None
