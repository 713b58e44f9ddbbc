"""The primary record of a run, `metrics.jsonl`: one JSON object per line.

A line reads `{"step": 2048, "time": 1700000000.0, "losses/vf": 0.5}`: env steps, seconds since the
epoch, then the statistics. JSON has no NaN and no infinities, so they are the strings `"NaN"`,
`"Infinity"` and `"-Infinity"`, which `float()`, pandas and JavaScript's `Number()` understand.
"""

import contextlib
import json
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..core.files import MAX_LINE, drop_torn_line, open_lines, write_at, write_file
from ..core.plain_files import open_plain
from ..core.validation import statistic
from ..errors import EverstepError
from .base import RunStatus
from .clock import Clock
from .lock import WriteLock, lock_file

_log = logging.getLogger(__name__)

#: Bytes of a file that are read.
_MAX_FILE = 2**32

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


_MOVED = "Its lines go on in the file that was moved, and checkpoints in the directory named above."
_REMOVED = "It is written again, whole; other files that were removed with it are gone."
_REPLACED = "Its lines go on in the file that stands there now."


class JsonlLogger:
    """Appends the statistics of each call to a file as one line, unbuffered.

    Lines that cannot be written, as on a full disk, are kept in memory and written before the next
    one that can; one warning names the file. A line is in the file whole or not at all, and once,
    also if writing it was interrupted.

    A file that is removed while it is written is written again, whole, and one that is replaced or
    moved is named in a warning.

    Times do not go back, also if the machine's clock does: lines are in the order of time.

    An existing file is continued, after an unfinished last line of an earlier process has been
    removed. Parameters are not recorded: they are in the run's configuration file.

    Args:
        path: The file; its directory must exist.

    Raises:
        ConfigError: If it has another writer, which is named.
        OSError: If the file cannot be opened.

    """

    #: The file.
    path: Path

    #: See `LoggerGroup`.
    never_waits = True

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._pending: deque[_Line] = deque()
        self._lock = WriteLock(self.path)
        try:
            with contextlib.ExitStack() as on_error:
                self._file = on_error.enter_context(open_lines(self.path))
                last = drop_torn_line(self._file, _is_record)
                on_error.pop_all()
        except BaseException:
            self._lock.release()
            raise
        self._clock = Clock(after=_time_of(last))
        self._writing = threading.RLock()  # a checkpoint's thread flushes the file
        self._process = os.getpid()
        self._is_moved = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def size(self) -> int:
        """Size of the file in bytes with the lines that are still to be written, for `cut`."""
        if self._pending:
            return self._pending[-1].place + len(self._pending[-1].content)
        return os.stat(self.path if self._file.closed else self._file.fileno()).st_size

    def cut(self, size: int, step: int) -> None:
        """Remove the lines of a run after the checkpoint that it goes on from.

        Args:
            size: The file's size at the checkpoint.
            step: Env steps at the checkpoint; later lines are removed if the file was changed.

        """
        if self._ends_line(size):
            os.ftruncate(self._file.fileno(), size)
            return
        with open_plain(self.path, limit=_MAX_FILE) as file:
            kept = [x for x in _lines(file) if not _is_later(x, step)]
        write_file(self.path, b"".join(kept))
        self._file.close()
        self._file = open_lines(self.path)

    def _ends_line(self, size: int) -> bool:
        """Whether a line ends at a size of the file."""
        if not 0 < size <= os.fstat(self._file.fileno()).st_size:
            return size == 0
        self._file.seek(size - 1)
        return self._file.read(1) == b"\n"

    def sync(self) -> None:
        """Write all lines and flush the file to the disk; does nothing after `close`.

        Raises:
            OSError: If that cannot be done.

        """
        if not self._file.closed:
            self._write_pending()
            os.fsync(self._file.fileno())

    def _follow(self) -> None:
        """Go on where the name leads if the file was removed or another one stands there.

        Raises:
            OSError: If it cannot be written anew.

        """
        found = os.fstat(self._file.fileno())
        try:
            there: None | os.stat_result = os.stat(self.path)
        except FileNotFoundError:
            there = None
        except OSError:  # as of a network that is away: the next call asks again
            return
        if there is not None and os.path.samestat(there, found):
            return
        if found.st_nlink:
            if not self._is_moved:
                self._is_moved = True
                _log.warning("%s was moved while a run writes it. %s", self.path, _MOVED)
            return
        if there is None:
            self._file.seek(0)
            content = self._file.read()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_file(self.path, content)
        self._file.close()
        self._file = open_lines(self.path)
        drop_torn_line(self._file, _is_record)
        lines, self._pending = self._pending, deque()
        for line in lines:
            self._pending.append(_Line(self.size, line.content))
        if not lock_file(self.path).exists():
            self._lock.release()
            self._lock = WriteLock(self.path)
        _log.warning(
            "%s was %s while a run writes it. %s",
            self.path,
            *(("removed", _REMOVED) if there is None else ("replaced", _REPLACED)),
        )

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record nothing: parameters are in the run's configuration file."""

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Append one line.

        Raises:
            ValueError: If a statistic is named `step` or `time`, or is no number, or the logger is
                closed; nothing is recorded then.

        """
        if self._file.closed:
            raise ValueError(f"{self.path} is closed: nothing can be recorded in it.")
        if os.getpid() != self._process:
            raise ValueError(
                f"{self.path} is written by process {self._process}, of which this is a fork."
            )
        record: dict[str, Any] = {"step": int(step), "time": self._clock()}
        for name, value in metrics.items():
            record[name] = _to_json(statistic(name, value))
        was_full = bool(self._pending)
        content = json.dumps(record, allow_nan=False).encode() + b"\n"
        try:
            with self._writing:
                try:
                    self._follow()
                finally:
                    self._pending.append(_Line(self.size, content))
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
            if os.getpid() == self._process:
                self.sync()
        except OSError as error:
            lost = f"{len(self._pending)} lines at its end could not be written"
            _log.error("%s: %s: %s.", self.path, lost, error.strerror)
        finally:
            self._file.close()
            self._lock.release()

    def _write_pending(self) -> None:
        with self._writing:
            while self._pending:  # after an interrupt a line may be written to its place again
                line = self._pending[0]
                write_at(self._file, line.place, line.content, self.path)
                self._pending.popleft()


class _Line(NamedTuple):
    """A line that is to be written."""

    #: Its first byte's position in the file.
    place: int

    #: Its bytes, with the end of the line.
    content: bytes


def read_metrics(
    path: str | Path,
    *,
    skipped: None | list[str] = None,
    within: None | str | Path = None,
) -> list[dict[str, Any]]:
    """Records of a file that `JsonlLogger` wrote, oldest first, with NaN and infinities as floats.

    An unfinished last line, of a process that is still writing or was killed, is left out. If the
    program went back to an earlier checkpoint by `load_checkpoint`, steps occur twice; the later
    record is valid.

    Args:
        path: The file.
        skipped: If given, lines that are not records are left out, and their places added to it.
        within: Directory that it must be in, links followed; None: anywhere.

    Raises:
        EverstepError: Names the first line that is not a record, unless `skipped` is given.
        OSError: If the file cannot be read, is not a plain file, or is outside of `within`.

    """
    records = []
    with open_plain(path, within=within, limit=_MAX_FILE) as file:
        for number, line in enumerate(_lines(file), start=1):
            is_record = _is_record(line)
            if not is_record and not line.endswith(b"\n"):
                break
            if skipped is not None and not is_record:
                skipped.append(f"{path}:{number}")
            else:
                records.append(_from_line(line.rstrip(b"\n"), f"{path}:{number}"))
    return records


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines of a file; of one that is too long, its beginning."""
    while line := file.readline(MAX_LINE):
        rest = line
        while len(rest) == MAX_LINE and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE)
        yield line if rest is line else line[:80] + b"\n"


def _to_json(number: float) -> float | str:
    return number if math.isfinite(number) else json.dumps(number)


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_later(line: bytes, step: int) -> bool:
    """Whether a line is a record after an env step; what is no record is somebody else's."""
    at = json.loads(line).get("step") if _is_record(line) else None
    return isinstance(at, int | float) and at > step


def _from_line(line: bytes, where: str) -> dict[str, Any]:
    if not _is_record(line):
        raise EverstepError(f"{where}: expected one JSON object; got {line[:80]!r}.")
    record: dict[str, Any] = json.loads(line)
    return {
        name: _NON_FINITE.get(value, value) if isinstance(value, str) else value
        for name, value in record.items()
    }


def _time_of(line: bytes) -> float:
    """Time of a record; 0 if the line is not one."""
    time = json.loads(line).get("time") if _is_record(line) else None
    try:
        return float(time) if isinstance(time, int | float) and math.isfinite(time) else 0.0
    except OverflowError:  # an integer beyond all floats
        return 0.0
