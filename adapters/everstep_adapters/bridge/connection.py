"""Connections to servers in other Pythons: their processes, messages, and memory."""

import fcntl
import json
import mmap
import os
import select
import socket
import struct
import subprocess
import time
import uuid
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from everstep.errors import AdapterError, EnvError

from ..common.handles import Handle
from . import server

#: Seconds that the interpreter and the environment have to start.
STARTING = 120.0

#: Seconds that a server which was asked to end has for it.
ENDING = 2.0

#: Seconds between looks at whether the server still runs, while a message is waited for.
_LOOK = 0.2

#: Linux's `F_ADD_SEALS`, and seals against another size and other seals: the server could shrink
#: memory that this process reads, which would kill it.
_ADD_SEALS, _FIXED_SIZE = 1033, 0x1 | 0x2 | 0x4


#: What a client is a handle of.
HOSTED = "a process of another Python, which has the environment"


class Connection(Handle):
    """Messages to a server, and its process.

    Each message has one answer. An answer that was interrupted half-way ends the connection; one
    that nobody read is read and dropped before the next message.

    Args:
        connection: The socket.
        python: Path of the server's interpreter, for errors.
        timeout: Seconds that an answer may take; None for no limit.
        process: The server's process; None if it is not this one's child.
        mark: Value of the variable `server.MARK` of that process.

    """

    #: See `Handle`.
    handle_of = HOSTED

    #: Whether an answer is still to come.
    _is_due = False

    #: Seconds for which the next message is looked for before the process sleeps.
    _spins = server.SPINNING

    #: Whether the server is on another machine: messages carry the rows, as no memory is shared.
    carries = False

    #: What the server may use until it has ended; it lives as long as this.
    lent: Any = None

    #: Whether the server has answered: it runs, then.
    _has_answered = False

    def __init__(
        self,
        connection: socket.socket,
        python: str,
        timeout: None | float,
        process: "None | subprocess.Popen[bytes]" = None,
        mark: str = "",
    ) -> None:
        self.python, self.timeout, self.process = python, timeout, process
        self._socket, self._owner = connection, os.getpid()
        self._ready = select.poll()  # `select` has 1,024 files
        self._ready.register(connection, select.POLLIN)
        self._end = weakref.finalize(self, _end, process, connection, self._owner, mark)

    @classmethod
    def start(
        cls, python: str, timeout: None | float, env: None | Mapping[str, str] = None
    ) -> "Connection":
        """A connection to a new server.

        What it prints goes to the standard error of this process, whose output may be data.

        Args:
            python: Path of the interpreter that runs it.
            timeout: Seconds that an answer may take; None for no limit.
            env: Environment variables of the process, added to those of this one.

        Raises:
            AdapterError: If the interpreter cannot be started.

        """
        own, other = socket.socketpair()
        mark = uuid.uuid4().hex
        command = [python, "-u", server.__file__, str(other.fileno()), str(os.getpid())]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[other.fileno()],
                env={**_environment(), **(env or {}), server.MARK: mark},
                start_new_session=True,  # Ctrl-C is for this process; and a group, to end it whole
            )
        except OSError as error:
            own.close()
            raise AdapterError(
                f"`python` must be an interpreter; {python!r} cannot be started "
                f"({error.strerror}). Name the one of the other environment, such as "
                "/envs/py38/bin/python."
            ) from None
        finally:
            other.close()
        return cls(own, python, timeout, process, mark)

    @classmethod
    def to(cls, address: str, key: str | os.PathLike[str], timeout: None | float) -> "Connection":
        """A connection to a server that listens.

        Args:
            address: `HOST:PORT`.
            key: Path of the key file.
            timeout: Seconds that an answer may take; None for no limit.

        Raises:
            AdapterError: If none listens there, or it has another key.

        """
        connection = None
        try:
            secret = server.key_of(os.fspath(key))
            connection = socket.create_connection(server.address_of(address), server.PROVING)
            server.prepare(connection)
            server.authenticate(connection, secret, is_server=False)
        except (server.Refused, OSError) as error:
            if connection is not None:
                connection.close()
            raise AdapterError(
                f"The server at {address} cannot be used: {error}. Start it there with `python "
                "server.py --listen HOST:PORT --key FILE`, and give `key`, a copy of that file."
            ) from None
        if timeout is not None:  # a server that hangs reads nothing
            whole = int(min(timeout, 2**31))
            limit = struct.pack("ll", whole, int(timeout % 1 * 1e6) or 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        own = cls(connection, address, timeout)
        own.carries = True
        return own

    def ask(
        self,
        kind: int,
        body: None | dict[str, Any] = None,
        *,
        descriptor: None | int = None,
        data: None | bytes = None,
        timeout: None | float = None,
    ) -> bytes:
        """The payload of the server's answer to a message.

        Raises:
            EnvError: If it failed, ended, did not answer in time, or answered something else.

        """
        self.send(kind, body, descriptor, data)
        return self.answer(timeout)

    def send(
        self,
        kind: int,
        body: None | dict[str, Any] = None,
        descriptor: None | int = None,
        data: None | bytes = None,
    ) -> None:
        """Send a message."""
        if os.getpid() != self._owner:
            raise EnvError(
                f"The server of the environment, {self.python}, is that of the process "
                f"{self._owner}; this one was forked from it. Make a new environment here."
            )
        if self._is_due:
            with suppress(AdapterError, EnvError):
                self.answer()
        payload = b"" if body is None else json.dumps(body).encode()
        if data is None and self.carries:
            data = b""
        if data is not None:
            payload = struct.pack("<I", len(payload)) + payload + data
        message = server._HEADER.pack(server._MAGIC, server.PROTOCOL, kind, len(payload)) + payload
        try:
            if descriptor is None:
                self._socket.sendall(message)
            else:
                socket.send_fds(self._socket, [message], [descriptor])
        except OSError:
            self.fail(f"ended before its answer ({self._status()})")
        self._is_due = True

    def answer(self, timeout: None | float = None) -> bytes:
        """The payload of the server's next message; see `ask`."""
        try:
            kind, payload = self._message(timeout)
        except BaseException:
            self.close()  # the rest of the message would be taken for the next one
            raise
        self._is_due, self._has_answered = False, True
        if kind == server.FAILED:
            raise _error_of(self.parse(payload), self.python)
        return payload

    def _message(self, timeout: None | float) -> tuple[int, bytes]:
        """Kind and payload of the server's next message."""
        limit = self.timeout if timeout is None else timeout
        end = None if limit is None else time.monotonic() + limit
        self._limit = limit
        begun = time.perf_counter()
        head = self._take(server._HEADER.size, end)
        is_soon = time.perf_counter() - begun < server.SPINNING
        self._spins = server.SPINNING if is_soon else 0.0
        magic, protocol, kind, size = server._HEADER.unpack(head)
        if magic != server._MAGIC or kind not in (server.DONE, server.FAILED):
            self.fail(f"answered what is no message of this bridge ({head[:16]!r})")
        if protocol != server.PROTOCOL:
            self.fail(f"speaks protocol {protocol}, and this Everstep {server.PROTOCOL}")
        if size > server.LARGEST:
            self.fail(f"sent a message of {size} bytes; the largest is {server.LARGEST}")
        return kind, self._take(size, end) if size else b""

    def split(self, payload: bytes) -> tuple[dict[str, Any], bytes]:
        """The JSON of a payload that begins with its size, and the bytes after it."""
        (size,) = struct.unpack_from("<I", payload.ljust(4))
        return self.parse(payload[4 : 4 + size]), payload[4 + size :]

    def parse(self, payload: bytes) -> dict[str, Any]:
        """The JSON of a payload, an object."""
        try:
            found = json.loads(payload)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.fail(f"sent a payload that is no JSON object ({payload[:80]!r})")
        return found

    def _take(self, size: int, end: None | float) -> bytes:
        parts: list[bytes] = []
        left = size
        spinning = time.perf_counter() + self._spins
        while left:
            if not parts and time.perf_counter() < spinning:
                try:
                    data = self._socket.recv(left, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    os.sched_yield()
                    continue
                except ConnectionResetError:  # what it sent before comes after this
                    continue
                except OSError as error:
                    self.fail(f"is lost ({error.strerror})")
            else:
                data = self._wait(left, end)
            if not data:
                self.fail(f"ended ({self._status()})")
            parts.append(data)
            left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wait(self, size: int, end: None | float) -> bytes:
        """Some bytes, for which this process sleeps; none if the server has ended."""
        while True:
            left = _LOOK if end is None else min(_LOOK, max(0.0, end - time.monotonic()))
            ready = self._ready.poll(1000 * left)
            if end is not None and time.monotonic() >= end:  # also if it comes byte by byte
                self.fail(f"did not answer within {self._limit:g} s, and was ended")
            if ready:
                try:
                    return self._socket.recv(min(size, 2**20))
                except ConnectionResetError:
                    continue
                except OSError as error:
                    self.fail(f"is lost ({error.strerror})")
            # A process that it started may hold the socket.
            if self.process is not None and self.process.poll() is not None:
                return b""

    def _status(self) -> str:
        if self.process is None:
            return "its connection was closed"
        try:
            code = self.process.wait(ENDING)
        except subprocess.TimeoutExpired:
            return "its connection was closed"
        return f"killed by signal {-code}" if code < 0 else f"exit status {code}"

    def fail(self, what: str) -> NoReturn:
        """End the connection, and raise an error that says why."""
        self.close()
        advice = "Make a new environment."
        if self.process is not None and not self._has_answered:
            advice = f"`everstep doctor --python {self.python}` says what it can host."
        raise EnvError(
            f"The server of the environment, {self.python}, {what}. What it printed says why. "
            f"{advice}"
        )

    def close(self) -> None:
        """End the server, which closes its environment first, once."""
        self._is_due = False
        self._end()


def _environment() -> dict[str, str]:
    """Environment variables without those that choose modules for the Python of this process."""
    left_out = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    return {k: value for k, value in os.environ.items() if k not in left_out}


def _end(
    process: "None | subprocess.Popen[bytes]", connection: socket.socket, owner: int, mark: str
) -> None:
    """Close the connection, wait for the server, and end it and what it has started.

    A fork of the process that started it only closes its copy of the connection.
    """
    if os.getpid() == owner:
        with suppress(OSError):
            goodbye = server._HEADER.pack(server._MAGIC, server.PROTOCOL, server.CLOSE, 0)
            connection.send(goodbye, socket.MSG_DONTWAIT)
    connection.close()  # the server closes its environment and ends
    if process is None or os.getpid() != owner:
        return
    try:
        process.wait(ENDING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    server.end_all(process.pid, mark, ENDING)


def _error_of(failure: Mapping[str, Any], python: str) -> Exception:
    """The error of a server's failure, with its traceback."""
    text = {key: str(failure.get(key, "")) for key in ("type", "message", "traceback")}
    if failure.get("refused"):
        return AdapterError(f"{python}: {text['message']}.")
    where = f"In {python} ({versions_of(failure)}):\n{text['traceback'].rstrip()}"
    return EnvError(f"{text['type']}: {text['message']}. {where}")


def versions_of(answer: Mapping[str, Any]) -> str:
    """Versions of the server's Python and packages, from an answer that has them."""
    packages = answer.get("packages")
    known = packages.items() if isinstance(packages, dict) else ()
    return ", ".join([f"Python {answer.get('python')}", *(f"{k} {v}" for k, v in known)])


def examine(python: str) -> dict[str, str]:
    """Versions of an interpreter, and of the libraries that it can host, or why it cannot.

    Raises:
        AdapterError: If it cannot run the server.

    """
    command = [python, str(Path(server.__file__)), "--check"]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=STARTING, env=_environment()
        )
        found = json.loads(ran.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AdapterError(f"{python} cannot be started: {error}.") from None
    except (IndexError, ValueError):
        reason = ran.stderr.strip().splitlines()[-1:] or [f"exit status {ran.returncode}"]
        raise AdapterError(
            f"{python} cannot run the server, which needs Python 3.6 or newer and NumPy "
            f"({reason[0]}): {python} -m pip install numpy"
        ) from None
    return {str(name): str(version) for name, version in found.items()}


def shared_memory(size: int) -> tuple[int, mmap.mmap]:
    """Memory of a fixed size to share with servers, and its file descriptor, which is to be closed.

    It has no name: nothing is left when all processes have ended, however they did.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    descriptor = os.memfd_create("everstep-bridge", flags)
    try:
        os.truncate(descriptor, size)
        fcntl.fcntl(descriptor, _ADD_SEALS, _FIXED_SIZE)
        return descriptor, mmap.mmap(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
