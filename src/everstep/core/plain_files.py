"""Files that somebody else may have made, opened as what they claim to be.

A run directory, a policy or a configuration can come from a stranger: a file in it may be a link to
another place, a pipe that never ends, a device, or larger than the memory. Whatever reads a file of
a run opens it here.
"""

import errno
import os
import re
import stat
from pathlib import Path
from typing import IO

#: Bytes of a file that is read whole: a configuration, a small JSON document.
MAX_TEXT = 10_000_000

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

#: Characters that a terminal obeys, or that reverse the order of what follows, and halves of
#: characters, which no file and no font can hold.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def open_plain(
    path: str | Path, *, within: None | str | Path = None, limit: None | int = None
) -> IO[bytes]:
    """A regular file, opened to be read. Never waits.

    Args:
        path: The file.
        within: Directory that it must be in, links followed; None: links may lead anywhere.
        limit: Bytes that it may have at most; None: any number.

    Raises:
        OSError: If it is another kind of file, is elsewhere or too large, or cannot be opened.

    """
    real = path_within(path, within)
    # A pipe without a writer would block, a terminal would become that of this process.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    kind = stat.S_IFMT(os.stat(real).st_mode)
    if kind != stat.S_IFREG:  # before it is opened: opening a device may do something
        raise _refused(path, kind)
    flags |= getattr(os, "O_BINARY", 0)
    file = open(path, "rb", opener=lambda _, __: os.open(real, flags))  # noqa: SIM115
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        file.close()
        raise _refused(path, stat.S_IFMT(found.st_mode))
    if limit is not None and found.st_size > limit:
        file.close()
        reason = f"has {found.st_size:,} bytes; at most {limit:,} are read"
        raise OSError(errno.EFBIG, reason, str(path))
    return file


def read_plain(
    path: str | Path, *, within: None | str | Path = None, limit: int = MAX_TEXT
) -> bytes:
    """The content of a regular file; see `open_plain`."""
    with open_plain(path, within=within, limit=limit) as file:
        # Its size, not the limit: Python allocates all that is asked for before it reads.
        return file.read(min(os.fstat(file.fileno()).st_size, limit))


def path_within(path: str | Path, directory: None | str | Path) -> Path:
    """Where a path leads, which must be inside a directory, links followed.

    Raises:
        OSError: If it leads elsewhere, or to a pipe, a device or a socket.

    """
    real = Path(os.path.realpath(path))
    if directory is not None and not real.is_relative_to(os.path.realpath(directory)):
        reason = f"leads out of {directory}, to {real}; copy the file there"
        raise OSError(errno.EPERM, reason, str(path))
    if directory is not None and real.exists():
        kind = stat.S_IFMT(os.stat(real).st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            raise _refused(path, kind)
    return real


def check_directory(directory: str | Path) -> None:
    """Check that a run can be continued in a directory: nothing in it leads elsewhere.

    Raises:
        OSError: Names the entry that is a link to another place, a pipe or a device.

    """
    for name in ("", "checkpoints", "best", "videos"):
        folder = Path(directory, name)
        for entry in os.listdir(folder) if folder.is_dir() else ():
            path_within(folder / entry, directory)


def printable(text: str) -> str:
    """`text` with control characters written as escapes: a terminal would obey them."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _refused(path: str | Path, kind: int) -> OSError:
    if kind == stat.S_IFDIR:
        return IsADirectoryError(errno.EISDIR, "is a directory, not a file", str(path))
    return OSError(errno.EINVAL, f"is {_KINDS.get(kind, 'special')}, not a plain file", str(path))
