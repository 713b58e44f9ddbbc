"""The primary record of a run, `metrics.jsonl`: one JSON object per line.

A line reads `{"step": 2048, "time": 1700000000.0, "losses/vf": 0.5}`: env steps, seconds since the
epoch, then the statistics. JSON has no NaN and no infinities, so they are the strings `"NaN"`,
`"Infinity"` and `"-Infinity"`, which `float()`, pandas and JavaScript's `Number()` understand.
"""

import errno
import json
import logging
import math
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from ..errors import ConfigError, EverstepError
from .base import RunStatus
from .clock import Clock

_log = logging.getLogger(__name__)

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class JsonlLogger:
    """Appends the statistics of each call to a file as one line, unbuffered.

    Lines that cannot be written, as on a full disk, are kept in memory and written before the next
    one that can; one warning names the file.

    Times do not go back, also if the machine's clock does: lines are in the order of time.

    An existing file is continued, after an unfinished last line of an earlier process has been
    removed. Parameters are not recorded: they are in the run's configuration file.

    Args:
        path: The file; its directory must exist.

    Raises:
        ConfigError: If another process writes to the file.
        OSError: If the file cannot be opened.

    """

    #: The file.
    path: Path

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._pending: list[bytes] = []
        self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115  closed in `close`
        try:
            _lock(self._file.fileno(), self.path)
        except BaseException:
            self._file.close()
            raise
        last = _drop_torn_line(self._file)
        self._clock = Clock(after=_time_of(last))

    @property
    def size(self) -> int:
        """Size of the file in bytes with the lines that are still to be written, for `cut`."""
        return os.fstat(self._file.fileno()).st_size + sum(map(len, self._pending))

    def cut(self, size: int, step: int) -> None:
        """Remove the lines of a run after the checkpoint that it goes on from.

        Args:
            size: The file's size at the checkpoint.
            step: Env steps at the checkpoint; later lines are removed if the file was changed.

        """
        self._file.seek(0)  # opening the file once more, and closing it, would unlock it
        content = self._file.read()
        kept = content[:size]
        if len(content) < size or not (kept.endswith(b"\n") or not kept):
            lines = [x for x in content.splitlines(keepends=True) if _is_record(x)]
            kept = b"".join(x for x in lines if json.loads(x).get("step", 0) <= step)
        if kept != content[: len(kept)]:
            os.ftruncate(self._file.fileno(), 0)
            self._append(kept)
        os.ftruncate(self._file.fileno(), len(kept))

    def sync(self) -> None:
        """Write all lines and flush the file to the disk; does nothing after `close`.

        Raises:
            OSError: If that cannot be done.

        """
        if not self._file.closed:
            self._write_pending()
            os.fsync(self._file.fileno())

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record nothing: parameters are in the run's configuration file."""

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Append one line.

        Raises:
            ValueError: If a statistic is named `step` or `time`, or the logger is closed.

        """
        record: dict[str, Any] = {"step": int(step), "time": self._clock()}
        for name, value in metrics.items():
            if name in ("step", "time"):
                raise ValueError(f"A statistic cannot be named `{name}`: the record uses the name.")
            record[name] = _to_json(value)
        was_full = bool(self._pending)
        self._pending.append(json.dumps(record, allow_nan=False).encode() + b"\n")
        try:
            self._write_pending()
        except OSError as error:
            if not was_full:
                _log.warning(
                    "%s cannot be written: %s. Its lines are kept in memory until it can be; "
                    "training continues.",
                    self.path,
                    error.strerror,
                )

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Close the file; an error is logged if lines could not be written."""
        try:
            self.sync()
        except OSError as error:
            lost = f"{len(self._pending)} lines at its end could not be written"
            _log.error("%s: %s: %s.", self.path, lost, error.strerror)
        self._file.close()

    def _write_pending(self) -> None:
        while self._pending:
            self._append(self._pending[0])
            self._pending.pop(0)

    def _append(self, line: bytes) -> None:
        descriptor = self._file.fileno()
        start = os.fstat(descriptor).st_size
        written = 0
        try:
            while written < len(line):  # a nearly full disk writes a part and then fails
                written += os.write(descriptor, line[written:])
        except OSError as error:
            os.ftruncate(descriptor, start)
            raise OSError(error.errno, error.strerror, str(self.path)) from error


def _lock(descriptor: int, path: Path) -> None:
    """Lock a file for this process: no second one may write lines between ours."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):  # others: no locks on this file system
            raise ConfigError(
                f"`run_dir`: another process is training in {path.parent}. Stop it first, or name "
                "another directory."
            ) from None


def writer_of(path: str | Path) -> None | int:
    """The process that writes to a file with a `JsonlLogger`; 0 if none does.

    None if that cannot be found out: on systems other than Linux, or on another machine.
    """
    if sys.platform != "linux":
        return None
    import fcntl

    asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with open(path, "rb") as file:
            kind, _, _, _, pid = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:  # no locks on this file system
        return None
    return 0 if kind == fcntl.F_UNLCK else pid


def read_metrics(path: str | Path, *, skipped: None | list[str] = None) -> list[dict[str, Any]]:
    """Records of a file that `JsonlLogger` wrote, oldest first, with NaN and infinities as floats.

    An unfinished last line, of a process that is still writing or was killed, is left out. If a run
    was resumed from a checkpoint before its end, steps occur twice; the later record is valid.

    Args:
        path: The file.
        skipped: If given, lines that are not records are left out, and their places added to it.

    Raises:
        EverstepError: Names the first line that is not a record, unless `skipped` is given.
        OSError: If the file cannot be read.

    """
    lines = Path(path).read_bytes().split(b"\n")
    if not _is_record(lines[-1]):
        lines.pop()
    records = []
    for number, line in enumerate(lines, start=1):
        if skipped is not None and not _is_record(line):
            skipped.append(f"{path}:{number}")
        else:
            records.append(_from_line(line, f"{path}:{number}"))
    return records


def _to_json(value: Any) -> float | int | str:
    number = value if isinstance(value, int | float) else float(value)
    return number if math.isfinite(number) else json.dumps(number)


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _from_line(line: bytes, where: str) -> dict[str, Any]:
    if not _is_record(line):
        raise EverstepError(f"{where}: expected one JSON object; got {line[:80]!r}.")
    record: dict[str, Any] = json.loads(line)
    return {
        name: _NON_FINITE.get(value, value) if isinstance(value, str) else value
        for name, value in record.items()
    }


def _drop_torn_line(file: IO[bytes]) -> bytes:
    """Remove what follows the last end of a line, and return the line before it.

    Not with `mmap`, whose end unlocks the file.
    """
    end = _line_end(file, file.seek(0, os.SEEK_END))
    os.ftruncate(file.fileno(), end)
    start = _line_end(file, end - 1)
    file.seek(start)
    return file.read(end - start)


def _line_end(file: IO[bytes], end: int) -> int:
    """Position after the last end of a line before `end`; 0 if there is none."""
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _time_of(line: bytes) -> float:
    """Time of a record; 0 if the line is not one."""
    time = json.loads(line).get("time") if _is_record(line) else None
    return float(time) if isinstance(time, int | float) and math.isfinite(time) else 0.0
