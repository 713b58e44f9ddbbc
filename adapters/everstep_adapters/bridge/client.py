"""A vector environment of Gymnasium whose rows are stepped by a server in another Python."""

import json
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from everstep.errors import AdapterError, EnvError

from ..common.calls import VectorCalls
from . import server
from .spaces import space_from

#: Seconds that the interpreter and the environment have to start.
STARTING = 120.0

#: Seconds that a server which was asked to end has for it.
ENDING = 2.0

#: Seconds between looks at whether the server still runs, while a message is waited for.
_LOOK = 0.2


class Connection:
    """A server process, and messages to it.

    Args:
        python: Path of the interpreter that runs it.
        timeout: Seconds that an answer may take; None for no limit.
        env: Environment variables of the process, added to those of this one.

    Raises:
        AdapterError: If the interpreter cannot be started.

    """

    def __init__(
        self, python: str, timeout: None | float, env: None | Mapping[str, str] = None
    ) -> None:
        self.python, self.timeout = python, timeout
        own, other = socket.socketpair()
        try:
            command = [
                python,
                "-u",
                str(Path(server.__file__)),
                str(other.fileno()),
                str(os.getpid()),
            ]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env={**_environment(), **(env or {})},
                start_new_session=True,  # Ctrl-C is for this process
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
        self._socket = own
        self._end = weakref.finalize(self, _end, self.process, own)

    def ask(
        self,
        kind: int,
        body: None | dict[str, Any] = None,
        *,
        descriptor: None | int = None,
        timeout: None | float = None,
    ) -> bytes:
        """The payload of the server's answer to a message.

        Raises:
            EnvError: If it failed, ended, did not answer in time, or answered something else.

        """
        self.tell(kind, body, descriptor)
        return self.answer(timeout)

    def tell(
        self, kind: int, body: None | dict[str, Any] = None, descriptor: None | int = None
    ) -> None:
        """Send a message."""
        payload = b"" if body is None else json.dumps(body).encode()
        message = server._HEADER.pack(server._MAGIC, server.PROTOCOL, kind, len(payload)) + payload
        try:
            if descriptor is None:
                self._socket.sendall(message)
            else:
                socket.send_fds(self._socket, [message], [descriptor])
        except OSError:
            self._fail(f"ended before its answer ({self._status()})")

    def answer(self, timeout: None | float = None) -> bytes:
        """The payload of the server's next message; see `ask`."""
        limit = self.timeout if timeout is None else timeout
        end = None if limit is None else time.monotonic() + limit
        head = self._take(server._HEADER.size, end)
        magic, protocol, kind, size = server._HEADER.unpack(head)
        if magic != server._MAGIC or kind not in (server.DONE, server.FAILED):
            self._fail(f"answered what is no message of this bridge ({head[:16]!r})")
        if protocol != server.PROTOCOL:
            self._fail(f"speaks protocol {protocol}, and this Everstep {server.PROTOCOL}")
        if size > server.LARGEST:
            self._fail(f"sent a message of {size} bytes; the largest is {server.LARGEST}")
        payload = self._take(size, end) if size else b""
        if kind == server.FAILED:
            raise _error_of(self.parse(payload), self.python)
        return payload

    def parse(self, payload: bytes) -> dict[str, Any]:
        """The JSON of a payload, an object."""
        try:
            found = json.loads(payload)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self._fail(f"sent a payload that is no JSON object ({payload[:80]!r})")
        return found

    def _take(self, size: int, end: None | float) -> bytes:
        parts: list[bytes] = []
        left = size
        spinning = time.perf_counter() + server.SPINNING
        while left:
            if not parts and time.perf_counter() < spinning:
                try:
                    data = self._socket.recv(left, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    os.sched_yield()
                    continue
                except ConnectionResetError:
                    data = b""
            else:
                data = self._wait(left, end)
            if not data:
                self._fail(f"ended ({self._status()})")
            parts.append(data)
            left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wait(self, size: int, end: None | float) -> bytes:
        """Some bytes, for which this process sleeps; none if the server has ended."""
        while True:
            left = _LOOK if end is None else min(_LOOK, max(0.0, end - time.monotonic()))
            ready, _, _ = select.select([self._socket], [], [], left)
            if ready:
                try:
                    return self._socket.recv(min(size, 2**20))
                except ConnectionResetError:
                    return b""
            if self.process.poll() is not None:  # a process that it started may hold the socket
                return b""
            if end is not None and time.monotonic() >= end:
                self._fail(f"did not answer within {self.timeout:g} s, and was ended")

    def _status(self) -> str:
        try:
            code = self.process.wait(ENDING)
        except subprocess.TimeoutExpired:
            return "its connection was closed"
        return f"killed by signal {-code}" if code < 0 else f"exit status {code}"

    def _fail(self, what: str) -> NoReturn:
        self.close()
        raise EnvError(
            f"The server of the environment, {self.python}, {what}. What it printed says why. "
            "Make a new environment."
        )

    def close(self) -> None:
        """End the server, which closes its environment first, once."""
        self._end()


def _environment() -> dict[str, str]:
    """Environment variables without those that choose modules for the Python of this process."""
    left_out = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    return {k: value for k, value in os.environ.items() if k not in left_out}


def _end(process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    connection.close()  # the server closes its environment and ends
    try:
        process.wait(ENDING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _error_of(failure: Mapping[str, Any], python: str) -> Exception:
    """The error of a server's failure, with its traceback."""
    text = {key: str(failure.get(key, "")) for key in ("type", "message", "traceback", "python")}
    if failure.get("refused"):
        return AdapterError(f"{python}: {text['message']}.")
    packages = failure.get("packages")
    known = packages.items() if isinstance(packages, dict) else ()
    versions = ", ".join([f"Python {text['python']}", *(f"{k} {v}" for k, v in known)])
    where = f"In {python} ({versions}):\n{text['traceback'].rstrip()}"
    return EnvError(f"{text['type']}: {text['message']}. {where}")


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


class _Layout:
    """Places of arrays in the shared memory, at multiples of 64 bytes."""

    def __init__(self) -> None:
        self.size = 0

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        start = self.size
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.size += -(-size // 64) * 64
        return start


class BridgeCalls(VectorCalls):
    """Calls to the client of a server, which steps the rows in the background."""

    halves = ("step_async", "step_wait")

    @property
    def resets_rows(self) -> bool:
        """See `VectorCalls.resets_rows`."""
        return bool(self._env.unwrapped.resets_single_rows)


class BridgeVectorEnv(VectorEnv[Any, Any, Any]):
    """Rows of an environment in another Python.

    Observations are arrays of the shared memory: the next env step overwrites them.

    Args:
        python: Path of the other interpreter.
        entry: `gym:ID`, `gymnasium:ID`, `procgen:NAME`, or `module:function`.
        num_envs: Number of rows.
        kwargs: Arguments of the environment or the function, as JSON has them.
        step_timeout: Seconds that an answer may take; None for no limit.

    Raises:
        AdapterError: If there is no such interpreter or environment, or it cannot be hosted.
        EnvError: If the environment fails while it is made.

    """

    #: The server; None if it was never started.
    _connection: Any = None

    #: Calls of an adapter to it.
    calls_cls = BridgeCalls

    #: Whether `reset(options={"reset_mask": …})` resets the masked rows only.
    resets_single_rows: bool

    def __init__(
        self,
        python: str,
        entry: str,
        num_envs: int,
        kwargs: None | Mapping[str, Any] = None,
        *,
        step_timeout: None | float = 600.0,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise AdapterError(f"The bridge shares memory as Linux does; this is {sys.platform}.")
        if step_timeout is not None and not step_timeout > 0:
            raise AdapterError(
                f"`step_timeout` must be above 0 seconds, or None; got {step_timeout}."
            )
        kwargs = dict(kwargs or {})
        try:
            json.dumps(kwargs, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise AdapterError(
                f"`kwargs` cross as JSON: numbers, strings, lists and mappings ({error}). Build "
                "other objects in a function of the other side: `entry='module:function'`."
            ) from None
        self.entry = entry
        self._connection = Connection(os.fspath(python), step_timeout)
        try:
            asked = {"entry": entry, "kwargs": kwargs, "num_envs": num_envs}
            starting = max(STARTING, step_timeout or STARTING)
            payload = self._connection.ask(server.OPEN, asked, timeout=starting)
            self._introduce(self._connection.parse(payload), num_envs)
            self._map()
        except BaseException:
            self._connection.close()
            raise

    def _introduce(self, found: dict[str, Any], num_envs: int) -> None:
        """Take what the server says of its environment."""
        self.single_observation_space = space_from(found.get("observation"))
        self.single_action_space = space_from(found.get("action"))
        if found.get("num_envs") != num_envs or found.get("mode") not in AutoresetMode.__members__:
            raise AdapterError(f"The server of {self.entry} described no environment: {found}.")
        self.num_envs = num_envs
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.render_mode = found.get("render_mode")
        self.metadata = {"autoreset_mode": AutoresetMode[found["mode"]]}
        self._has_final = bool(found.get("final"))
        self.resets_single_rows = bool(found.get("resets_rows"))
        #: What is hosted, in words, and with which versions.
        self.kind, self.limit = str(found.get("kind")), str(found.get("limit"))
        packages = found.get("packages")
        known = packages.items() if isinstance(packages, dict) else ()
        self.versions = ", ".join(
            [f"Python {found.get('python')}", *(f"{k} {v}" for k, v in known)]
        )
        self._described = {key: found[key] for key in ("observation", "action")}

    def _map(self) -> None:
        """Lay out the memory that both processes share, and tell the server."""
        layout, rows = _Layout(), (self.num_envs,)
        obs, actions = (server.leaves_of(self._described[k]) for k in ("observation", "action"))
        places: dict[str, Any] = {
            "actions": [layout.place(rows + shape, dtype) for _, shape, dtype in actions],
            "obs": [layout.place(rows + shape, dtype) for _, shape, dtype in obs],
            "final": [layout.place(rows + shape, dtype) for _, shape, dtype in obs],
            "rewards": layout.place(rows, np.dtype(np.float64)),
        }
        for name in ("terminated", "truncated", "has_final", "mask"):
            places[name] = layout.place(rows, np.dtype(np.bool_))
        # Without a name: nothing is left when both processes have ended, however they did.
        descriptor = os.memfd_create("everstep-bridge")
        try:
            os.truncate(descriptor, layout.size)
            self._buffer = mmap.mmap(descriptor, layout.size)
            body = {"bytes": layout.size, "layout": places}
            self._connection.ask(server.MAP, body, descriptor=descriptor)
        finally:
            os.close(descriptor)
        host: Any = _Described(self.num_envs, self._described)
        self._memory = server.Memory(self._buffer, places, host)
        for (
            final
        ) in self._memory.final:  # the adapter need not look whether a reset overwrites them
            final.flags.writeable = False
        self._obs = _value(self._described["observation"], self._memory.obs)
        self._final = _value(self._described["observation"], self._memory.final)
        self._actions = list(self._memory.actions.items())

    def reset(
        self, *, seed: None | int = None, options: None | dict[str, Any] = None
    ) -> tuple[Any, dict[str, Any]]:
        """Observations after resetting all rows, or those of `options["reset_mask"]`."""
        options = dict(options or {})
        self._memory.mask[...] = options.pop("reset_mask", True)
        payload = self._connection.ask(server.RESET, {"seed": seed, "options": options})
        if payload:
            warning = self._connection.parse(payload).get("warning")
            warnings.warn(f"{warning}.", RuntimeWarning, stacklevel=2)
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """An env step of every row."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begin an env step, which `step_wait` completes."""
        for path, array in self._actions:
            value = actions
            for key in path:
                value = value[key]
            array[...] = value
        self._connection.tell(server.STEP)

    def step_wait(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The result of the env step that `step_async` began."""
        payload, memory = self._connection.answer(), self._memory
        infos = self._infos(payload) if payload else {}
        if self._has_final and memory.has_final.any():
            infos |= {"final_obs": self._final, "_final_obs": memory.has_final}
        return self._obs, memory.rewards, memory.terminated, memory.truncated, infos

    def _infos(self, payload: bytes) -> dict[str, Any]:
        """Numbers of the infos, by name, with a mask of the rows that have one."""
        infos: dict[str, Any] = {}
        for name, column in self._connection.parse(payload).items():
            numbers = np.array(column, dtype=np.float64)  # None becomes NaN
            if numbers.shape != (self.num_envs,):
                raise EnvError(
                    f"The server of {self.entry} sent {numbers.shape} numbers of {name!r}."
                )
            infos[name], infos[f"_{name}"] = numbers, ~np.isnan(numbers)
        return infos

    def render(self) -> Any:
        """The frame of the first row, uint8 `[height, width, 3]`."""
        payload = self._connection.ask(server.RENDER)
        (size,) = struct.unpack_from("<I", payload)
        shape = self._connection.parse(payload[4 : 4 + size])["shape"]
        return np.frombuffer(payload, np.uint8, offset=4 + size).reshape(shape).copy()

    def close_extras(self, **kwargs: Any) -> None:
        """End the server."""
        if self._connection is not None:
            self._connection.close()

    def __str__(self) -> str:
        return f"{self.kind} in {self._connection.python} ({self.versions})"


class _Described:
    """The facts of a host that `server.Memory` needs."""

    def __init__(self, num_envs: int, described: Mapping[str, Any]) -> None:
        self.num_envs = num_envs
        self.observation, self.action = described["observation"], described["action"]


def _value(space: dict[str, Any], arrays: list[Any]) -> Any:
    """A batch of a space, of these arrays."""
    by_path = {path: x for (path, _, _), x in zip(server.leaves_of(space), arrays, strict=True)}
    return server._nested(space, lambda path, kind: by_path[path])
