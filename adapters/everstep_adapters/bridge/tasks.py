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

from ..common.handles import Handle
from . import cuda, server
from .connection import HOSTED, Connection, shared_memory, versions_of
from .specs import space_from

#: Bytes of the first memory; it grows with what is sent.
_FIRST = 3 * 2**20

#: Hand-off of a task's tensors, for `describe`.
_BY_HOST = "observations copied to shared memory, actions back"

#: What reading a message of another form than it must have raises.
_MALFORMED = (KeyError, IndexError, AttributeError, TypeError, ValueError, OverflowError)


class RemoteTask(Handle):
    """The members of a task that a server hosts.

    Tensors of floating-point numbers and of uint8 are views of shared memory, which the answer
    after the next one overwrites; others are copies, because they may be used as indices. Where
    the task's tensors are on a GPU that this process sees, that is memory of the GPU, whose uses
    follow each other in the order of the current streams (`cuda`): the host waits for none. Where
    it cannot be shared, a warning says why, once.
    Buffers that are changed here are written to the task's before its next call.

    Args:
        connection: Connection to its server, which is closed with the task.
        found: What the server says of it.
        after: Bytes that came after that.
        device: Device of what the tensors are for: those for a CPU go through its memory.

    Raises:
        AdapterError: If the server describes no task.

    """

    #: See `Handle`.
    handle_of = HOSTED

    #: Device of its tensors: of this process, wherever the task has them.
    device = rl_device = "cpu"

    #: How its tensors come here, in words.
    hand_off = _BY_HOST

    #: Memory of a device that the server shares; None where there is none.
    _link: None | cuda.Link = None

    #: Whether its calls of `reset_idx` are told to a function that replaces it.
    _is_replaying = False

    def __init__(
        self,
        connection: Connection,
        found: dict[str, Any],
        after: bytes,
        device: torch.device,
    ) -> None:
        self._connection = connection
        self._sent: Any = server.Arena()
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
        if device.type == "cuda" and found.get("device") is not None:
            self._share(found["device"])

    @classmethod
    def of(
        cls,
        connection: Connection,
        found: dict[str, Any],
        after: bytes,
        num_envs: int,
        device: torch.device,
    ) -> "RemoteTask":
        """A task of a class with the name that it has there; see the class."""
        name = found.get("task")
        if not isinstance(name, str) or not name.isidentifier() or found["num_envs"] != num_envs:
            raise AdapterError(f"The server described no task of {num_envs} rows ({name!r}).")
        kind: type[RemoteTask] = type(name, (cls,), {})
        return kind(connection, found, after, device)

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
        found, after = self._connection.split(self._ask(body, after))
        try:
            needed, needed_there = int(found.pop("needed")), int(found.pop("needed_there", 0))
            answer = self._decoded(found, after, copies=method == "state_dict")
            returned, buffers = answer["returned"], answer["buffers"]
            self._replay(answer["resets"])
            self._take_buffers(buffers)
        except _MALFORMED as error:
            self.close()
            raise EnvError(
                f"The server of {type(self).__name__} sent no result of `{method}` ({error})."
            ) from None
        if needed * server.Task.PARTS > len(self._buffer):
            self._grow(2 * server.Task.PARTS * min(needed, server.LARGEST))
        if self._link is not None:
            needed_there = max(needed_there, self._sent.device.needed)
            if needed_there * server.Task.PARTS > self._link.memory.size:
                self._lend(2 * server.Task.PARTS * min(needed_there, server.LARGEST))
        return returned

    def _ask(self, body: dict[str, Any], after: bytes) -> bytes:
        """The answer to a call. Its arrays follow what this side has put into its stream."""
        if self._link is None:
            return self._connection.ask(server.CALL, body, data=after)
        self._link.record(self._stream)
        answer = self._connection.ask(server.CALL, body, data=after)
        self._link.wait(self._stream)
        return answer

    @property
    def _stream(self) -> int:
        """PyTorch's current stream of the device of the link."""
        return torch.cuda.current_stream(self.device).cuda_stream or cuda.DEFAULT_STREAM

    def _encode(
        self, method: str, arguments: Sequence[Any], changed: Sequence[str]
    ) -> tuple[dict[str, Any], bytes]:
        sent = self._sent
        sent.clear()
        if self._link is not None:
            self._link.wait(self._stream)  # also after an answer that was an error
            sent.device.clear(self._stream)
        body = {
            "method": method,
            "args": [sent.encode(x) for x in arguments],
            "set": [[name, sent.encode(self._buffers[name])] for name in changed],
            "listen": "reset_idx" in self.__dict__,
            "extras": list(self.extras_names),
        }
        return body, sent.after

    def _decoded(self, tree: Any, after: bytes, *, copies: bool = False) -> Any:
        there = None if self._link is None else self._tensor_there

        def leaf(array: "np.ndarray[Any, Any]") -> torch.Tensor:
            return _tensor(array) if there is None else _tensor(array).to(self.device)

        def copied(function: Any) -> Any:
            return lambda *array: function(*array).clone()

        if copies:  # a state lives longer than the next answers
            return server.decoded(tree, self._buffer, after, copied(leaf), there and copied(there))
        return server.decoded(tree, self._buffer, after, leaf, there)

    def _tensor_there(self, typestr: str, shape: Sequence[int], at: int) -> torch.Tensor:
        """The tensor of an array in shared memory of the device."""
        assert self._link is not None
        is_bool = typestr == "|b1"  # PyTorch trusts that one is 0 or 1
        view = self._link.memory.view("|u1" if is_bool else typestr, shape, at, self._stream)
        tensor = torch.as_tensor(view, device=self.device)
        if is_bool:
            return tensor != 0
        return tensor if typestr[1] == "f" or typestr == "|u1" else tensor.clone()

    def _replay(self, resets: Sequence[Any]) -> None:
        """Tell whoever has replaced `reset_idx` of the task's own calls of it."""
        self._is_replaying = True
        try:
            clock = next(iter(self._buffers.values()))
            for ids, clocks in resets:
                if ids.numel() and not -1 < int(ids.min()) <= int(ids.max()) < self.num_envs:
                    raise IndexError("rows that are none")
                ids, clocks = ids.to(clock.device), clocks.to(clock.device)
                clock[ids] = clocks
                self.reset_idx(ids)
        finally:
            self._is_replaying = False

    def _take_buffers(self, found: dict[str, Any]) -> None:
        for name, value in found.items():
            if name not in server.BUFFERS or value.shape != (self.num_envs,):
                raise ValueError(f"the buffer {name}")
            own = self._buffers.get(name)
            if own is None or own.dtype != value.dtype or own.device != value.device:
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
        part = self._sent.device
        self._sent = server.Arena(self._buffer, 0, size // server.Task.PARTS // 64 * 64)
        self._sent.device = part

    def _share(self, found: Any) -> None:
        """Let tensors cross in the memory of the task's GPU, if this process sees it."""
        reason = str(found.get("refused") or "")
        if not reason:
            try:
                self._gpu = cuda.Device.of_uuid(str(found.get("uuid")))
                reason = self._lend(_FIRST)
            except cuda.DriverError as error:
                reason = str(error)
        if not reason:
            self.device = self.rl_device = f"cuda:{self._gpu.ordinal}"
            self._buffers = {name: x.to(self.device) for name, x in self._buffers.items()}
            self._known = {name: (id(x), x._version) for name, x in self._buffers.items()}
            self.hand_off = f"observations and actions stay on {self.device}, shared by the driver"
            return
        self.hand_off = f"{_BY_HOST}: memory of the GPU cannot be shared ({reason})"
        warnings.warn(
            f"Tensors of {type(self).__name__} on a GPU go through the host's memory in each "
            f"vector step, because memory of the GPU cannot be shared: {reason}.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _lend(self, size: int) -> str:
        """Lend the server memory of the device; why it does not take it, empty if it does."""
        size = -(-size // (server.Task.PARTS * cuda.ALIGNMENT)) * server.Task.PARTS * cuda.ALIGNMENT
        try:
            memory = cuda.Memory.lend(self._gpu, size)
            link = cuda.Link(self._gpu, memory) if self._link is None else self._link
        except cuda.DriverError as error:
            return str(error)
        body = {"bytes": size, "memory": memory.handle.hex(), "event": link.handle.hex()}
        # The server may use both until it has ended, or has taken others.
        before, self._connection.lent = self._connection.lent, (memory, link)
        answer = self._connection.parse(self._connection.ask(server.LEND, body))
        if "refused" in answer:
            self._connection.lent = before
            return str(answer["refused"])
        if self._link is None:
            try:
                link.connect(bytes.fromhex(answer["event"]))
            except _MALFORMED as error:
                raise AdapterError(f"The server described no event ({error}).") from None
        link.memory, self._link = memory, link
        self._sent.device = cuda.Part(link, 0, server.Task.PARTS)
        return ""

    def __str__(self) -> str:
        return f"{type(self).__name__} in {self._connection.python} ({self._versions})"

    def close(self) -> None:
        """End the server."""
        link, self._link = self._link, None
        if link is not None:
            link.disconnect()
        self._connection.close()
        if link is not None:
            link.close()
            self._connection.lent = self._sent.device = None


def _tensor(array: "np.ndarray[Any, Any]") -> torch.Tensor:
    if array.dtype.kind == "b":  # PyTorch trusts that a bool is 0 or 1
        return torch.from_numpy(array.view(np.uint8) != 0)
    is_number = array.dtype.kind == "f" or array.dtype == np.uint8
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    with warnings.catch_warnings():  # of memory that is not writable, which nobody writes to
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array if is_number else array.copy())
