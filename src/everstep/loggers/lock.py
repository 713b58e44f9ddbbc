"""The lock of a run's record: one writer at a time."""

import contextlib
import errno
import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

from ..errors import ConfigError

_log = logging.getLogger(__name__)

#: Seconds that another process may hold the lock, as one does that only asks who has it.
_PATIENCE = 1.0

#: Errors of file systems that have no locks.
_NO_LOCKS = frozenset(
    getattr(errno, name)
    for name in ("ENOLCK", "ENOTSUP", "EOPNOTSUPP", "ENOSYS")
    if hasattr(errno, name)
)


class WriteLock:
    """Holds the lock of a file until `release`, or until the process ends in any way.

    The lock is on a hidden file beside it, which names its holder. It holds against other
    processes, forks and other writers of this process. It holds against other machines as far as
    the file system's locks do: those of NFS with `nolock` or `local_lock` hold on one machine only.
    If the file system has no locks at all, a warning says so.

    Args:
        path: The file; its directory must exist.

    Raises:
        ConfigError: Names the process that holds the lock.
        OSError: If the lock's file cannot be opened.

    """

    def __init__(self, path: Path) -> None:
        from filelock import Timeout

        self._file = lock_file(path)
        self._lock: Any = _file_lock(self._file)
        try:
            self._lock.acquire(timeout=_PATIENCE)
        except Timeout:
            raise ConfigError(_message(path)) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self._lock = None
            _log.warning(
                "%s: this file system has no locks (%s), so a second process that trains there "
                "would not be noticed. Start one at a time.",
                path.parent,
                error.strerror,
            )
        else:
            self._write({"pid": os.getpid(), "host": socket.gethostname()})

    def release(self) -> None:
        """Release the lock; calling it again, or in a fork, does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None and lock.is_locked:  # a fork does not hold it
            self._write({})
            lock.release()

    def _write(self, holder: dict[str, Any]) -> None:
        """Name the holder, in place: another file of the name would be another lock."""
        with contextlib.suppress(OSError), open(self._file, "r+b") as file:
            file.write(json.dumps(holder).encode())
            file.truncate()


def writer_of(path: str | os.PathLike[str]) -> None | int:
    """The process that writes to a file with a `JsonlLogger`; 0 if none does.

    None if that cannot be found out: it is on another machine, or the lock is another user's.
    """
    from filelock import Timeout

    file = lock_file(Path(path))
    if not file.exists():
        return 0
    lock = _file_lock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = _holder(file)
        return holder.get("pid") if holder.get("host") == socket.gethostname() else None
    except OSError:
        return None
    lock.release()
    return 0


def lock_file(path: Path) -> Path:
    """The file that is locked for a file."""
    return path.with_name(f".{path.name}.lock")


def _file_lock(path: Path) -> Any:
    from filelock import FileLock

    return FileLock(path, thread_local=False)  # any thread may close a trainer


def _holder(file: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_bytes())
        if isinstance(found, dict):
            return found
    return {}


def _message(path: Path) -> str:
    holder = _holder(lock_file(path))
    pid, host = holder.get("pid"), holder.get("host")
    if (pid, host) == (os.getpid(), socket.gethostname()):
        return (
            f"`run_dir`: another trainer of this process writes to {path.parent}. Call its "
            "`close()` first, or name another directory."
        )
    named = "" if pid is None else f": process {pid} on {host}"
    return (
        f"`run_dir`: another process is training in {path.parent}{named}. Stop it first, or name "
        "another directory."
    )
