"""A vector environment of Gymnasium whose rows are stepped by a server in another Python."""

import json
import operator
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from everstep.data import Device
from everstep.errors import AdapterError, EnvError

from ..common.calls import VectorCalls
from ..common.changes import fitting
from ..common.handles import Handle
from ..common.limits import NOTED
from . import server
from .connection import HOSTED, STARTING, Connection, shared_memory, versions_of
from .specs import space_from
from .tasks import RemoteTask


class _Place(NamedTuple):
    """Place of an array of rows: its first byte, and the bytes of a row."""

    start: int
    row: int


class _Layout:
    """Places of arrays of rows in the shared memory, at multiples of 64 bytes."""

    def __init__(self, num_envs: int) -> None:
        self.size, self._num_envs = 0, num_envs

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Place:
        row = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        found = _Place(self.size, row)
        self.size += -(-row * self._num_envs // 64) * 64
        return found


#: Modes of autoreset that a server may have.
_MODES = frozenset(("NEXT_STEP", "SAME_STEP"))


class BridgeCalls(VectorCalls):
    """Calls to the client of a server, which steps the rows in the background."""

    halves = ("step_async", "step_wait")
    handle_of = HOSTED

    @property
    def resets_rows(self) -> bool:
        """See `VectorCalls.resets_rows`."""
        return bool(self._env.unwrapped.resets_single_rows)


class BridgeVectorEnv(Handle, VectorEnv[Any, Any, Any]):
    """Rows of an environment in other Pythons: each server has some of them, in order.

    Observations are arrays of the shared memory: the next env step overwrites them.

    Args:
        connections: Connections to the servers, which are closed with the environment.
        entry: What they were asked to host.
        answers: What each says of its environment.
        num_envs: Number of rows.

    Raises:
        AdapterError: If the servers describe no such environment.

    """

    #: See `Handle`.
    handle_of = HOSTED

    #: Calls of an adapter to it.
    calls_cls = BridgeCalls

    #: Whether `reset(options={"reset_mask": …})` resets the masked rows only.
    resets_single_rows: bool

    def __init__(
        self,
        connections: Sequence[Connection],
        entry: str,
        answers: Sequence[dict[str, Any]],
        num_envs: int,
    ) -> None:
        self.entry, self._connections = entry, connections
        #: Rows of each server.
        self._rows = _shares(num_envs, len(connections))
        self._introduce(answers, [rows.stop - rows.start for rows in self._rows])
        self._map()

    def _introduce(self, answers: Sequence[dict[str, Any]], counts: Sequence[int]) -> None:
        """Take what the servers say of their environments."""
        found = answers[0]
        self.single_observation_space = space_from(found.get("observation"))
        self.single_action_space = space_from(found.get("action"))
        for answer, count in zip(answers, counts, strict=True):
            if answer.get("num_envs") != count or answer.get("mode") not in _MODES:
                raise AdapterError(f"The server of {self.entry} described no environment: {found}.")
            for key in ("observation", "action", "mode", "final", "resets_rows", "has_state"):
                if answer.get(key) != found.get(key):
                    raise AdapterError(
                        f"The servers of {self.entry} have environments that differ in {key!r}: "
                        f"{found.get(key)} and {answer.get(key)}. Use `processes: 1`."
                    )
        self.num_envs = sum(counts)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.render_mode = found.get("render_mode")
        self.metadata = {"autoreset_mode": AutoresetMode[found["mode"]]}
        self._has_final = bool(found.get("final"))
        self.resets_single_rows = bool(found.get("resets_rows"))
        #: What is hosted, in words, and with which versions.
        self.kind = " and ".join(str(answer.get("kind")) for answer in answers)
        self.limit = str(found.get("limit"))
        steps: list[Any] = [answer.get("steps") for answer in answers]
        longest = max(steps) if all(type(x) is int and x > 0 for x in steps) else None
        setattr(self, NOTED, longest)
        self.versions = versions_of(found)
        self._described = {key: found[key] for key in ("observation", "action")}

    def _map(self) -> None:
        """Lay out the memory that the processes share, and tell the servers."""
        layout, rows = _Layout(self.num_envs), self._rows
        obs, actions = (server.leaves_of(self._described[k]) for k in ("observation", "action"))
        places: dict[str, Any] = {
            "actions": [layout.place(shape, dtype) for _, shape, dtype in actions],
            "obs": [layout.place(shape, dtype) for _, shape, dtype in obs],
            "final": [layout.place(shape, dtype) for _, shape, dtype in obs],
            "rewards": layout.place((), np.dtype(np.float64)),
        }
        for name in ("terminated", "truncated", "has_final", "mask"):
            places[name] = layout.place((), np.dtype(np.bool_))
        largest = max(each.stop - each.start for each in rows) * (
            2 * sum(place.row for place in places["obs"]) + 16
        )
        if any(each.carries for each in self._connections) and largest > server.LARGEST:
            raise AdapterError(
                f"The rows of {self.entry} take {largest:,} bytes; a message can have at most "
                f"{server.LARGEST:,}. Use fewer `num_envs`, or more `processes`."
            )
        descriptor, self._buffer = shared_memory(layout.size)
        try:
            for each, own in zip(self._connections, rows, strict=True):
                body = {"bytes": layout.size, "layout": _shifted(places, own.start)}
                each.ask(server.MAP, body, descriptor=None if each.carries else descriptor)
        finally:
            os.close(descriptor)
        host: Any = _Described(self.num_envs, self._described)
        memory = self._memory = server.Memory(self._buffer, _shifted(places, 0), host)
        for final in memory.final:  # the adapter need not look whether a reset overwrites them
            final.flags.writeable = False
        self._obs = _value(self._described["observation"], memory.obs)
        self._final = _value(self._described["observation"], memory.final)
        self._actions = list(memory.actions.items())
        self._flags = memory.terminated, memory.truncated, memory.has_final

    def reset(
        self, *, seed: None | int = None, options: None | dict[str, Any] = None
    ) -> tuple[Any, dict[str, Any]]:
        """Observations after resetting all rows, or those of `options["reset_mask"]`."""
        options = dict(options or {})
        seed = None if seed is None else operator.index(seed)  # NumPy's, too
        self._memory.mask[...] = options.pop("reset_mask", True)
        for each, rows in zip(self._connections, self._rows, strict=True):
            own = None if seed is None else seed + rows.start
            mask = self._memory.mask[rows].tobytes() if each.carries else None
            each.send(server.RESET, {"seed": own, "options": options}, data=mask)
        found: dict[Any, None] = {}
        for each, rows in zip(self._connections, self._rows, strict=True):
            found[self._result(each, rows).get("warning")] = None
        for warning in filter(None, found):
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
        for each, rows in zip(self._connections, self._rows, strict=True):
            each.send(server.STEP, data=self._carried(rows) if each.carries else None)

    def step_wait(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The result of the env step that `step_async` began."""
        memory = self._memory
        infos: dict[str, Any] = {}
        for each, rows in zip(self._connections, self._rows, strict=True):
            self._add_infos(infos, self._result(each, rows), rows)
        # New memory, of zeros and ones: NumPy's masks trust that a bool is one of them.
        terminated, truncated, has_final = (x.view(np.uint8) != 0 for x in self._flags)
        if self._has_final and has_final.any():
            infos |= {"final_obs": self._final, "_final_obs": has_final}
        return self._obs, memory.rewards, terminated, truncated, infos

    def _carried(self, rows: slice) -> bytes:
        """The actions of some rows, for a server that shares no memory."""
        return b"".join([array[rows].tobytes() for _, array in self._actions])

    def _result(self, each: Connection, rows: slice) -> dict[str, Any]:
        """The answer of a server to a reset or an env step; its rows are in the memory then."""
        payload = each.answer()
        if not each.carries:
            return each.parse(payload) if payload else {}
        found, data = each.split(payload)
        try:
            self._memory.take_result(data, rows)
        except server.Refused as error:
            each.fail(f"sent no result ({error})")
        return found

    def _add_infos(self, infos: dict[str, Any], found: dict[str, Any], rows: slice) -> None:
        """Add the numbers of one server's infos, by name, with a mask of the rows that have one."""
        for name, column in found.items():
            try:
                numbers = np.array(column, dtype=np.float64)  # None becomes NaN
            except (TypeError, ValueError, OverflowError):
                numbers = np.empty(0)
            if numbers.shape != (rows.stop - rows.start,):
                raise EnvError(f"The server of {self.entry} sent no number a row of {name!r}.")
            if name not in infos:
                infos[name] = np.full(self.num_envs, np.nan)
                infos[f"_{name}"] = np.zeros(self.num_envs, np.bool_)
            infos[name][rows], infos[f"_{name}"][rows] = numbers, ~np.isnan(numbers)

    def render(self) -> Any:
        """The frame of the first row, uint8 `[height, width, 3]`."""
        first = self._connections[0]
        payload = first.ask(server.RENDER)
        try:
            found, data = first.split(payload)
            return np.frombuffer(data, np.uint8).reshape(found["shape"]).copy()
        except (KeyError, TypeError, ValueError, OverflowError):
            raise EnvError(
                f"The server of {self.entry} sent no frame ({payload[:80]!r})."
            ) from None

    def close_extras(self, **kwargs: Any) -> None:
        """End the servers."""
        for each in self._connections:
            each.close()

    def __str__(self) -> str:
        return f"{self.kind} in {self._connections[0].python} ({self.versions})"


class StatefulVectorEnv(BridgeVectorEnv):
    """Rows of environments that offer their state."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the environments, a tree of numbers, strings and tensors."""
        states = []
        for each in self._connections:
            tree, after = each.split(each.ask(server.STATE))
            try:
                states.append(server.decoded(tree, b"", after, _own_tensor))
            except (KeyError, AttributeError, TypeError, ValueError, OverflowError) as error:
                raise EnvError(f"The server of {self.entry} sent no state ({error}).") from None
        return {"servers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            CheckpointError: If it is of another number of servers, or an environment refuses it.

        """
        with fitting(self):
            for each, tree in zip(self._connections, state["servers"], strict=True):
                arena = server.Arena()
                arena.is_whole = True
                body = arena.encode(tree)
                each.ask(server.RESTORE, body, data=arena.after)


def _own_tensor(array: "np.ndarray[Any, Any]") -> Any:
    return torch.from_numpy(array.copy())


def start(
    python: str,
    entry: str,
    num_envs: int,
    kwargs: None | Mapping[str, Any] = None,
    *,
    processes: int = 1,
    step_timeout: None | float = 600.0,
    servers: Sequence[str] = (),
    key: None | str | os.PathLike[str] = None,
    device: Device = "cpu",
) -> BridgeVectorEnv | RemoteTask:
    """The environment or task of new servers, or of servers that listen.

    Args:
        python: Path of the other interpreter; empty if there are `servers`.
        entry: `gym:ID`, `gymnasium:ID`, `procgen:NAME`, `isaacgymenvs:TASK`, or `module:function`.
        num_envs: Number of rows.
        kwargs: Arguments of the environment or the function, as JSON has them.
        processes: Number of servers, or of processes of each that listens, which share the rows.
        step_timeout: Seconds, above 0, that an answer may take; None for no limit.
        servers: Addresses of servers that listen, `HOST:PORT`.
        key: Path of the key file of servers that listen.
        device: Device of what a task's tensors are for.

    Raises:
        AdapterError: If there is no such server, interpreter or environment, or it is not hosted.
        EnvError: If the environment fails while it is made.

    """
    if not sys.platform.startswith("linux"):
        raise AdapterError(f"The bridge shares memory as Linux does; this is {sys.platform}.")
    count = processes * max(1, len(servers))
    if not 1 <= count <= num_envs:
        raise AdapterError(
            f"`processes` must be between 1 and `num_envs` ({num_envs}), as each has a row at "
            f"least; got {count}."
        )
    connections: list[Connection] = []
    try:
        for i in range(count):
            if servers:
                address = servers[i // processes]
                connections.append(Connection.to(address, cast(str, key), step_timeout))
            else:
                connections.append(Connection.start(python, step_timeout))
        return opened(connections, entry, num_envs, kwargs, device)
    except BaseException:
        for each in connections:
            each.close()
        raise


def opened(
    connections: Sequence[Connection],
    entry: str,
    num_envs: int,
    kwargs: None | Mapping[str, Any] = None,
    device: Device = "cpu",
) -> BridgeVectorEnv | RemoteTask:
    """The environment or task of servers that were connected to; see `start`."""
    kwargs = as_json(kwargs)
    for each, rows in zip(connections, _shares(num_envs, len(connections)), strict=True):
        body = {"entry": entry, "kwargs": kwargs, "num_envs": rows.stop - rows.start}
        each.send(server.OPEN, body)
    answers = []
    for each in connections:
        limit = None if each.timeout is None else max(STARTING, each.timeout)
        answers.append(each.split(each.answer(limit)))
    found, after = answers[0]
    if "task" not in found:
        kind = StatefulVectorEnv if found.get("has_state") else BridgeVectorEnv
        return kind(connections, entry, [answer for answer, _ in answers], num_envs)
    if len(connections) > 1:
        raise AdapterError(f"{entry} is a task with one simulator of all rows; use `processes: 1`.")
    return RemoteTask.of(connections[0], found, after, num_envs, torch.device(device))


def as_json(kwargs: None | Mapping[str, Any]) -> dict[str, Any]:
    """Arguments, which must be what JSON has.

    Raises:
        AdapterError: If they are not.

    """
    kwargs = dict(kwargs or {})
    try:
        json.dumps(kwargs, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AdapterError(
            f"`kwargs` cross as JSON: numbers, strings, lists and mappings ({error}). Build "
            "other objects in a function of the other side: `entry='module:function'`."
        ) from None
    return kwargs


def _shares(num_envs: int, servers: int) -> list[slice]:
    """Rows of each server, as many as of any other or one more."""
    ends = [num_envs * i // servers for i in range(servers + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def _shifted(places: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Where each array begins for a server whose first row is `row`."""

    def shift(place: Any) -> Any:
        return list(map(shift, place)) if isinstance(place, list) else place.start + row * place.row

    return {name: shift(place) for name, place in places.items()}


class _Described:
    """The facts of a host that `server.Memory` needs."""

    def __init__(self, num_envs: int, described: Mapping[str, Any]) -> None:
        self.num_envs = num_envs
        self.observation, self.action = described["observation"], described["action"]


def _value(space: dict[str, Any], arrays: list[Any]) -> Any:
    """A batch of a space, of these arrays."""
    by_path = {path: x for (path, _, _), x in zip(server.leaves_of(space), arrays, strict=True)}
    return server._nested(space, lambda path, kind: by_path[path])
