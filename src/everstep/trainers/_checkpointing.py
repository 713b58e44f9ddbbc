"""Checkpoints of a run: one directory each under `checkpoints`, complete from the moment it exists.

A checkpoint is written under a temporary name and renamed when it is on the disk, so a process that
ends at any moment leaves complete ones only. Files are never replaced: older checkpoints are
removed after the new one stands.
"""

import contextlib
import logging
import math
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.checkpoints import check_state, load_state, save_file, save_state
from ..core.files import sync_directory
from ..core.interrupts import call_all, text_of
from ..core.restoring import copied
from ..errors import CheckpointError, ConfigError

#: Train steps of a checkpoint, and how many with the same number are older.
_NAME = re.compile(r"(\d{10,})(?:-(\d+))?")

_log = logging.getLogger(__name__)


class Interval:
    """Time between two checkpoints, in train steps or seconds.

    Args:
        every: Train steps; a time such as `"30s"`, `"10m"` or `"2h"`; or `"end"` for never.

    Raises:
        ConfigError: If it is none of these.

    """

    def __init__(self, every: int | str) -> None:
        self._steps = self._seconds = math.inf
        number = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", every) if isinstance(every, str) else None
        if number is not None and float(number[1]) > 0:
            self._seconds = float(number[1]) * {"s": 1, "m": 60, "h": 3600}[number[2]]
        elif isinstance(every, int) and not isinstance(every, bool) and every > 0:
            self._steps = every
        elif every != "end":
            raise ConfigError(
                "`checkpoint_every` must be a number of train steps, a time such as '30s', '10m' "
                f"or '2h', or 'end'; got {every!r}."
            )
        self._last = -math.inf if math.isfinite(self._seconds) else 0.0

    def is_over(self, steps: int) -> bool:
        """Whether a checkpoint is due after `steps` train steps; if so, the next one begins.

        A time is over at the first call: a run that is killed early can go on, too.
        """
        over = steps % self._steps == 0 or time.monotonic() - self._last >= self._seconds
        if over:
            self._last = time.monotonic()
        return over


def checkpoints_of(run_dir: Path) -> list[Path]:
    """Checkpoints of a run, newest first; last is `checkpoint`, the only one of older versions."""
    directory = run_dir / "checkpoints"
    names = os.listdir(directory) if directory.is_dir() else []
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    matches.sort(key=lambda match: (int(match[1]), int(match[2] or 0)), reverse=True)
    older = run_dir / "checkpoint"
    return [directory / match[0] for match in matches] + ([older] if older.is_dir() else [])


def load_newest(run_dir: Path) -> tuple[Path, Any]:
    """The newest checkpoint of a run that is not damaged, and its state.

    Each damaged one that is newer is named in a warning.

    Raises:
        CheckpointError: If there is none.

    """
    found = checkpoints_of(run_dir)
    if not found:
        raise CheckpointError(
            f"{run_dir}: no checkpoint in it: the run ended before its first one was written."
        )
    errors: list[CheckpointError] = []
    for path in found:
        try:
            state = load_state(path, within=run_dir)
        except CheckpointError as error:
            errors.append(error)
            continue
        for damage in errors:
            _log.warning("%s The checkpoint before it is used: %s.", damage, path)
        return path, state
    raise errors[0]


def set_aside(run_dir: Path, used: Path) -> None:
    """Rename damaged checkpoints that are newer than the one that a run goes on from."""
    for path in checkpoints_of(run_dir):
        if path == used:
            return
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"damaged-{path.name}-{secrets.token_hex(4)}"))


class Checkpoints:
    """Writer of the checkpoints and the policy of one run, in a thread or at once.

    Args:
        run_dir: Directory of the run.
        keep_last: Number of checkpoints to keep.

    """

    #: The newest checkpoint that was written, or is being written.
    newest: None | Path = None

    def __init__(self, run_dir: Path, keep_last: int) -> None:
        self._run_dir = run_dir
        self._keep_last = keep_last
        self._thread: None | threading.Thread = None
        self._warned = False

    def write(self, steps: int, state: Any, policy: Any) -> Path:
        """Write a checkpoint and the policy; the checkpoint's directory.

        Args:
            steps: Train steps so far, which name it.
            state: The state.
            policy: The policy's state.

        Raises:
            OSError: Names the file that could not be written; what was there before is unchanged.

        """
        self.wait()
        path = self._choose(steps)
        self._write(path, state, policy)
        return path

    def write_in_background(
        self, steps: int, state: Any, policy: Any, *others: Callable[[], object]
    ) -> Path:
        """Copy the states, write them in a thread, and return the checkpoint's directory to be.

        Waits for the one before. A failure is logged as a warning once, and training continues.

        Args:
            steps: Train steps so far.
            state: The state.
            policy: The policy's state.
            others: Called in the thread before the checkpoint is written.

        Raises:
            CheckpointError: If the state cannot be saved, and there is no earlier checkpoint.

        """
        self.wait()
        if not checkpoints_of(self._run_dir):
            check_state(state)
        path, state, policy = self._choose(steps), copied(state), copied(policy)

        def write() -> None:
            try:
                call_all(*others, lambda: self._write(path, state, policy))
                self._warned = False
            except BaseException as error:  # nobody else would say it
                self._warn(path, error)

        self._thread = threading.Thread(target=write, name="everstep-checkpoint", daemon=True)
        self._thread.start()
        return path

    def wait(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def is_complete(self) -> bool:
        """Whether the newest checkpoint stands."""
        return self.newest is None or self.newest.is_dir()

    def _choose(self, steps: int) -> Path:
        """A name that no checkpoint has."""
        directory, name = self._run_dir / "checkpoints", f"{steps:010d}"
        directory.mkdir(parents=True, exist_ok=True)
        matches = [_NAME.fullmatch(path.name) for path in checkpoints_of(self._run_dir)]
        taken = [int(x[2] or 0) for x in matches if x is not None and x[1] == name]
        self.newest = directory / (f"{name}-{max(taken) + 1}" if taken else name)
        return self.newest

    def _write(self, path: Path, state: Any, policy: Any) -> None:
        temporary = path.with_name(f".{path.name}.tmp")
        for leftover in path.parent.glob(".*.tmp"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            save_state(temporary, state)
            temporary.rename(path)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, Exception):  # a full disk may have room for the policy alone
                with contextlib.suppress(Exception):
                    save_file(self._run_dir / "policy", policy)
            raise
        sync_directory(path.parent)
        save_file(self._run_dir / "policy", policy)
        for old in checkpoints_of(self._run_dir)[self._keep_last :]:
            _remove(old)

    def _warn(self, path: Path, error: BaseException) -> None:
        if not self._warned:
            _log.warning(
                "%s could not be written: %s. Training continues, and the next checkpoint is "
                "tried as usual.",
                path,
                text_of(error),
            )
        self._warned = True


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint; first its name, so that it is never an incomplete one."""
    hidden = checkpoint.with_name(f".{checkpoint.name}.tmp")
    with contextlib.suppress(OSError):  # the next one retries
        checkpoint.rename(hidden)
        shutil.rmtree(hidden)
