"""Files that are written whole or not at all, and files that grow by whole lines.

Everything that Everstep writes goes through here, so that a process that ends at any moment, a full
disk or an interrupt leaves the old file or the new one, never a part.
"""

import contextlib
import errno
import glob
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

#: Seconds after which an unfinished file is taken for one of a process that was killed.
_ABANDONED = 600.0

#: Bytes of a line that is read: those of Everstep's files have some thousand.
MAX_LINE = 2**20


def foreign_path(path: str | os.PathLike[str]) -> str:
    """Why a path is one of another system or of a shell; empty if it is not.

    It would be one name here, and `~` a directory of that name.
    """
    text = os.fspath(path)
    if os.name != "nt" and ("\\" in text or re.match("[A-Za-z]:/", text)):
        return "it is written as a path of Windows, and here would be one name; write it with /"
    if text.startswith("~"):
        home = os.path.expanduser(text)
        return f"~ is a home for shells only; write {home}, or use `os.path.expanduser`"
    return ""


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Context that yields the place for a new file or directory, which then takes the path's place.

    It is flushed to the disk and renamed when the block ends, with permissions and owner of the
    file that it replaces; a link is replaced, not what it points to. If anything is raised,
    interrupts included, the new file is removed and the old one is as it was. Pipes and devices,
    such as `/dev/stdout`, are written directly; a pipe that nobody reads is refused.

    Args:
        path: The file; its directory must exist. The temporary name beside it has the same suffix.

    Raises:
        OSError: Names the file if it could not be written: the disk is full, the directory is
            read-only, or an existing file is.

    """
    path = Path(path)
    before = _status(path)
    if before is not None and not stat.S_ISREG(before.st_mode) and not path.is_dir():
        with _reader_of(path, before):
            yield path
        return
    if before is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    name = path.name[:100]  # file systems allow names of 255 bytes
    temporary = path.with_name(f".{name}.{secrets.token_hex(8)}.tmp{path.suffix}")
    try:
        yield temporary
        if not temporary.is_dir():
            _sync(temporary)
            if before is not None:
                os.chmod(temporary, stat.S_IMODE(before.st_mode))
                with contextlib.suppress(OSError, AttributeError):  # root alone may; not on Windows
                    os.chown(temporary, before.st_uid, before.st_gid)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            _remove(temporary)
        ours = isinstance(error, OSError) and error.filename in (None, str(temporary), temporary)
        if isinstance(error, OSError) and ours and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_directory(path.parent)
    remove_abandoned(path.parent, f".{glob.escape(name)}.*.tmp{glob.escape(path.suffix)}")


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file, whole or not at all; text is UTF-8. See `replacing`."""
    with replacing(path) as place, open(place, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def remove_abandoned(directory: Path, pattern: str) -> None:
    """Remove files that a process that was killed has left: none has changed for ten minutes."""
    for path in directory.glob(pattern):
        with contextlib.suppress(OSError):  # it may be open elsewhere; the next write retries
            if time.time() - path.stat().st_mtime > _ABANDONED:
                _remove(path)


def sync_directory(directory: Path) -> None:
    """Flush the names of a directory to the disk."""
    if os.name == "nt":  # directories cannot be opened there
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not supported by some network file systems
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: str | os.PathLike[str], line: str) -> None:
    """Append a line to a file, whole or not at all; it is on the disk when this returns.

    A last line that an earlier process did not finish is removed first. Processes that append at
    once take turns. The file and its directory are made if they are missing.

    Raises:
        OSError: Names the file if that cannot be done; it is as it was.

    """
    from filelock import FileLock

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")), open_lines(path) as file:
        drop_torn_line(file, lambda last: False)
        write_at(file, file.seek(0, os.SEEK_END), line.encode() + b"\n", path)
        os.fsync(file.fileno())


def open_lines(path: Path) -> IO[bytes]:
    """A file of lines, opened to read and write, unbuffered; made if it is missing.

    Not to append: what is written must be able to be written again to the same place.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
    return open(path, "r+b", buffering=0, opener=lambda name, _: os.open(name, flags, 0o666))


def write_at(file: IO[bytes], place: int, content: bytes, path: Path) -> None:
    """Write to the end of a file, whole or not at all: if anything is raised, it ends at `place`.

    Writing the same again does not change the file.
    """
    descriptor = file.fileno()
    written = 0
    try:
        os.lseek(descriptor, place, os.SEEK_SET)
        while written < len(content):  # a nearly full disk writes a part and then fails
            written += os.write(descriptor, content[written:])
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, place)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def drop_torn_line(file: IO[bytes], is_whole: Callable[[bytes], bool]) -> bytes:
    """Repair the end of a file of lines, and return its last line.

    What follows the last end of a line is removed, unless it `is_whole` but for that end.

    Raises:
        OSError: If it is longer than any line, so that this is another file, or a damaged one.

    """
    size = file.seek(0, os.SEEK_END)
    end = _line_end(file, size)
    if end < 0:
        reason = f"has no end of a line in its last {MAX_LINE:,} bytes; cut them off"
        raise OSError(errno.EFBIG, reason, str(file.name))
    file.seek(end)
    torn = file.read(size - end)
    if torn and is_whole(torn):
        write_at(file, size, b"\n", Path(str(file.name)))
        return torn
    os.ftruncate(file.fileno(), end)
    start = max(_line_end(file, end - 1), end - MAX_LINE)
    file.seek(start)
    return file.read(end - start)


def _line_end(file: IO[bytes], end: int) -> int:
    """Position after the last end of a line before `end`; 0 if there is none, -1 if it is far."""
    least = end - MAX_LINE
    while end > 0:
        if end < least:
            return -1
        start = max(0, end - 65536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


@contextlib.contextmanager
def _reader_of(path: Path, status: os.stat_result) -> Iterator[None]:
    """Context in which a pipe has a reader: without one, opening it would wait for ever."""
    if not stat.S_ISFIFO(status.st_mode):
        yield
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        reason = "is a pipe that nobody reads" if error.errno == errno.ENXIO else error.strerror
        raise OSError(error.errno, reason, str(path)) from None
    try:
        yield  # closed after it is written: the reader would see an end before
    finally:
        os.close(descriptor)


def _status(path: Path) -> None | os.stat_result:
    with contextlib.suppress(FileNotFoundError):
        return path.stat()
    return None


def _sync(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
