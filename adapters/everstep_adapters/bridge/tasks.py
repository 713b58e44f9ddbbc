"""A task in another Python, with the members that it has there, for the adapter of such tasks.

`IsaacGymEnv` wraps it as it wraps a task of its own process: how it is reset, how its episodes end
and what its rows are, is decided there.
"""

import functools
import mmap
import os
import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from everstep.errors import AdapterError, EnvError

from . import server
from .connection import Connection, shared_memory, versions_of
from .specs import space_from

#: Bytes of the first memory; it grows with what is sent.
_FIRST = 3 * 2**20

#: What reading a message of another form than it must have raises.
_MALFORMED = (KeyError, IndexError, AttributeError, TypeError, ValueError, OverflowError)


class RemoteTask:
    """The members of a task that a server hosts.

    Tensors of floating-point numbers and of uint8 are views of shared memory, which the answer
    after the next one overwrites; others are copies, because they may be used as indices.
    Buffers that are changed here are written to the task's before its next call.

    Args:
        connection: Connection to its server, which is closed with the task.
        found: What the server says of it.
        after: Bytes that came after that.

    Raises:
        AdapterError: If the server describes no task.

    """

    #: Device of its tensors, wherever the task has them.
    device = rl_device = "cpu"

    #: Whether its calls of `reset_idx` are told to a function that replaces it.
    _is_replaying = False

    def __init__(self, connection: Connection, found: dict[str, Any], after: bytes) -> None:
        self._connection, self._sent = connection, server.Arena()
        self._buffer: Any = b""
        self._buffers: dict[str, torch.Tensor] = {}
        self._known: dict[str, tuple[int, int]] = {}
        self.extras_names: Sequence[str] = ()
        try:
            self.num_envs = int(found["num_envs"])
            self._methods = frozenset(map(str, found["methods"]))
            for name, space in dict(found["spaces"]).items():
                known = space.get("kind") == "Other"
                setattr(self, name, str(space["text"]) if known else space_from(space))
            self.cfg = SimpleNamespace(**{k: bool(x) for k, x in dict(found["config"]).items()})
            for name, value in self._decoded(found["facts"], after).items():
                if name in server.FACTS:
                    setattr(self, name, value)
            self.unwrapped = SimpleNamespace() if found["is_wrapper"] else self
            self._take_buffers(self._decoded(found["buffers"], after))
        except _MALFORMED as error:
            raise AdapterError(f"The server described no task ({error}).") from None
        self._versions = versions_of(found)
        self._grow(_FIRST)

    @classmethod
    def of(
        cls, connection: Connection, found: dict[str, Any], after: bytes, num_envs: int
    ) -> "RemoteTask":
        """A task of a class with the name that it has there; see the class."""
        name = found.get("task")
        if not isinstance(name, str) or not name.isidentifier() or found["num_envs"] != num_envs:
            raise AdapterError(f"The server described no task of {num_envs} rows ({name!r}).")
        kind: type[RemoteTask] = type(name, (cls,), {})
        return kind(connection, found, after)

    def __getattr__(self, name: str) -> Any:
        """A method or a buffer of the task."""
        own = self.__dict__
        if name in own.get("_buffers", ()):
            return own["_buffers"][name]
        if name == "reset_idx" and name in own.get("_methods", ()):
            return self._reset_idx
        if name == "seed" or (name in own.get("_methods", ()) and name in server.METHODS):
            return functools.partial(self._call, name)
        if name in ("obs_buf", "states_buf"):
            return self._call("get", name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Replace a buffer, or set an attribute of this object."""
        if name in server.BUFFERS and name in self.__dict__.get("_buffers", ()):
            self._buffers[name] = value
        else:
            object.__setattr__(self, name, value)

    def _reset_idx(self, env_ids: torch.Tensor, *args: Any) -> Any:
        return None if self._is_replaying else self._call("reset_idx", env_ids, *args)

    def _call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of the task."""
        changed = [
            name for name, x in self._buffers.items() if self._known[name] != (id(x), x._version)
        ]
        body, after = self._encode(method, arguments, changed)
        if self._sent.needed * server.Task.PARTS > len(self._buffer):
            self._grow(4 * self._sent.needed)
            body, after = self._encode(method, arguments, changed)
        found, after = self._connection.split(self._connection.ask(server.CALL, body, data=after))
        try:
            needed = int(found.pop("needed"))
            answer = self._decoded(found, after)
            returned, buffers = answer["returned"], answer["buffers"]
            self._replay(answer["resets"])
            self._take_buffers(buffers)
        except (
            KeyError,
            IndexError,
            AttributeError,
            TypeError,
            ValueError,
            OverflowError,
        ) as error:
            self._connection.close()
            raise EnvError(
                f"The server of {type(self).__name__} sent no result of `{method}` ({error})."
            ) from None
        if needed * server.Task.PARTS > len(self._buffer):
            self._grow(2 * server.Task.PARTS * min(needed, server.LARGEST))
        return returned

    def _encode(
        self, method: str, arguments: Sequence[Any], changed: Sequence[str]
    ) -> tuple[dict[str, Any], bytes]:
        sent = self._sent
        sent.clear()
        body = {
            "method": method,
            "args": [sent.encode(x) for x in arguments],
            "set": [[name, sent.encode(self._buffers[name])] for name in changed],
            "listen": "reset_idx" in self.__dict__,
            "extras": list(self.extras_names),
        }
        return body, sent.after

    def _decoded(self, tree: Any, after: bytes) -> Any:
        return server.decoded(tree, self._buffer, after, _tensor)

    def _replay(self, resets: Sequence[Any]) -> None:
        """Tell whoever has replaced `reset_idx` of the task's own calls of it."""
        self._is_replaying = True
        try:
            for ids, clocks in resets:
                next(iter(self._buffers.values()))[ids] = clocks
                self.reset_idx(ids)
        finally:
            self._is_replaying = False

    def _take_buffers(self, found: dict[str, Any]) -> None:
        for name, value in found.items():
            if name not in server.BUFFERS or value.shape != (self.num_envs,):
                raise ValueError(f"the buffer {name}")
            own = self._buffers.get(name)
            if own is None or own.dtype != value.dtype:
                self._buffers[name] = own = value.clone()
            else:
                own.copy_(value)
            self._known[name] = (id(own), own._version)

    def _grow(self, size: int) -> None:
        """Share more memory with the server, if it can: arrays come after the message, else."""
        if self._connection.carries:
            return
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor, self._buffer = shared_memory(size)
        try:
            self._connection.ask(server.MAP, {"bytes": size, "layout": {}}, descriptor=descriptor)
        finally:
            os.close(descriptor)
        self._sent = server.Arena(self._buffer, 0, size // server.Task.PARTS // 64 * 64)

    def __str__(self) -> str:
        return f"{type(self).__name__} in {self._connection.python} ({self._versions})"

    def close(self) -> None:
        """End the server."""
        self._connection.close()


def _tensor(array: "np.ndarray[Any, Any]") -> torch.Tensor:
    if array.dtype.kind == "b":  # PyTorch trusts that a bool is 0 or 1
        return torch.from_numpy(array.view(np.uint8) != 0)
    is_number = array.dtype.kind == "f" or array.dtype == np.uint8
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    with warnings.catch_warnings():  # of memory that is not writable, which nobody writes to
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array if is_number else array.copy())
