"""Server of environments for an Everstep in another Python; started by `BridgeEnv`, by path.

It runs in Python 3.6 or newer and imports the standard library and NumPy only, beside what it
hosts. Nothing of Everstep is imported, and nothing is unpickled: messages are a header of fixed
size and JSON, and arrays lie in memory that both processes share.

A message is `_HEADER` (magic, protocol version, kind, bytes of the payload) and its payload. The
client sends `OPEN` (what to host), `MAP` (the memory's file descriptor, and where each array lies
in it), then any number of `RESET`, `STEP`, `RENDER`; the server answers each with `DONE` or
`FAILED`. When the client's end of the socket is closed, the server closes what it hosts and ends.

Whatever is hosted becomes a `Host`: a batch of rows that are reset in the env step that ends them
(SAME_STEP of Gymnasium), or, for vector environments of Gymnasium 1.0 and newer, in the mode that
they declare.
"""

import array
import base64
import importlib
import inspect
import json
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback

import numpy as np

PROTOCOL = 1
_MAGIC = b"EVST"
_HEADER = struct.Struct("<4sHHQ")
OPEN, MAP, RESET, STEP, RENDER, CLOSE, DONE, FAILED = range(1, 9)

#: Bytes of the largest payload: of a frame, or of a space with different bounds for each element.
LARGEST = 2**28

#: Seconds for which the next message is looked for before the process sleeps until it comes.
SPINNING = 200e-6


class Refused(Exception):
    """Something is not hosted; the message names a way out."""


# ---- messages ---------------------------------------------------------------------------------


class Channel:
    """Messages over a socket.

    Args:
        connection: The socket.
        spinning: Seconds for which the next message is looked for before the process sleeps.

    """

    def __init__(self, connection, spinning=SPINNING):
        self._socket = connection
        self._spinning = spinning
        self._yield = getattr(os, "sched_yield", None)
        #: File descriptors that came with the last message.
        self.received = []

    def send(self, kind, body=None, data=b""):
        """Send a message: JSON, and bytes after it."""
        text = b"" if body is None else json.dumps(body).encode()
        if data:
            text = struct.pack("<I", len(text)) + text + data
        self._socket.sendall(_HEADER.pack(_MAGIC, PROTOCOL, kind, len(text)) + text)

    def receive(self):
        """Kind and payload of the next message; `(None, b"")` once the other end is closed."""
        head = self._take(_HEADER.size)
        if head is None:
            return None, b""
        magic, protocol, kind, size = _HEADER.unpack(head)
        if magic != _MAGIC or protocol != PROTOCOL or size > LARGEST:
            raise Refused(
                f"a message of {magic!r}, protocol {protocol}, {size} bytes is not of this "
                f"bridge, whose protocol is {PROTOCOL}"
            )
        payload = self._take(size) if size else b""
        return (None, b"") if payload is None else (kind, payload)

    def _take(self, size):
        """Bytes of that number; None if the other end is closed."""
        parts, left = [], size
        limit = time.perf_counter() + self._spinning
        while left:
            wait = self._yield is not None and not parts and time.perf_counter() < limit
            flags = socket.MSG_DONTWAIT if wait else 0
            try:
                data, ancillary, _, _ = self._socket.recvmsg(
                    min(left, 2**20), socket.CMSG_SPACE(16), flags
                )
            except BlockingIOError:
                self._yield()
                continue
            except ConnectionResetError:
                return None
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    found = array.array("i")
                    found.frombytes(content[: len(content) - len(content) % found.itemsize])
                    self.received += list(found)
            if not data:
                return None
            parts.append(data)
            left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)


# ---- spaces -----------------------------------------------------------------------------------


def space_of(space):
    """JSON of a space of gym, Gymnasium or gym3.

    Raises:
        Refused: If its values are not arrays of fixed shapes.

    """
    name = type(space).__name__
    if name == "Box":
        return _box(space.shape, space.dtype, space.low, space.high)
    if name == "Discrete":
        start = int(getattr(space, "start", 0))
        dtype = np.dtype(getattr(space, "dtype", None) or np.int64)
        return {"kind": name, "n": int(space.n), "start": start, "dtype": dtype.str}
    if name == "MultiDiscrete":
        dtype = np.dtype(getattr(space, "dtype", None) or np.int64)
        start = getattr(space, "start", None)
        return {
            "kind": name,
            "nvec": np.asarray(space.nvec).tolist(),
            "start": None if start is None else np.asarray(start).tolist(),
            "dtype": dtype.str,
        }
    if name == "MultiBinary":
        shape = space.n if isinstance(space.n, (list, tuple, np.ndarray)) else [space.n]
        return {"kind": name, "shape": [int(x) for x in shape]}
    if name == "Dict":
        items = [[key, space_of(each)] for key, each in space.spaces.items()]
        for key, _ in items:
            if not isinstance(key, str):
                raise Refused(f"a Dict space has the key {key!r}; keys must be strings")
        return {"kind": name, "spaces": items}
    if name == "Tuple":
        return {"kind": name, "spaces": [space_of(each) for each in space.spaces]}
    if name == "DictType":  # of gym3
        return {"kind": "Dict", "spaces": [[k, space_of(x)] for k, x in space.items()]}
    if name == "TensorType":
        return _tensor_type(space)
    raise Refused(
        f"the space {space} has no arrays of a fixed shape: Box, Discrete, MultiDiscrete, "
        "MultiBinary, Dict and Tuple of them can cross. Wrap the environment so that it has one"
    )


def _box(shape, dtype, low, high):
    dtype = np.dtype(dtype)
    return {
        "kind": "Box",
        "shape": [int(x) for x in shape],
        "dtype": dtype.str,
        "low": _bound(low, shape, dtype),
        "high": _bound(high, shape, dtype),
    }


def _bound(bound, shape, dtype):
    """One number if all are equal, else the bytes of all of them."""
    full = np.broadcast_to(np.asarray(bound, dtype=dtype), tuple(shape))
    if full.size and (full == full.flat[0]).all():
        return full.flat[0].item()
    return base64.b64encode(np.ascontiguousarray(full).tobytes()).decode()


def _tensor_type(space):
    """A tensor of gym3: of integers below `n`, or of real numbers."""
    element, shape = space.eltype, tuple(space.shape)
    if type(element).__name__ == "Discrete":
        dtype = np.dtype(getattr(element, "dtype_name", "int64"))
        if not shape:
            return {"kind": "Discrete", "n": int(element.n), "start": 0, "dtype": dtype.str}
        return _box(shape, dtype, 0, min(int(element.n) - 1, int(np.iinfo(dtype).max)))
    dtype = np.dtype(getattr(element, "dtype_name", "float32"))
    return _box(shape, dtype, -np.inf, np.inf)


def leaves_of(space, path=()):
    """Path, shape and dtype of each array of a space's JSON, in order."""
    kind = space["kind"]
    if kind == "Dict":
        return [x for key, each in space["spaces"] for x in leaves_of(each, (*path, key))]
    if kind == "Tuple":
        pairs = enumerate(space["spaces"])
        return [x for i, each in pairs for x in leaves_of(each, (*path, i))]
    if kind == "Discrete":
        return [(path, (), np.dtype(space["dtype"]))]
    if kind == "MultiDiscrete":
        return [(path, np.shape(space["nvec"]), np.dtype(space["dtype"]))]
    if kind == "MultiBinary":
        return [(path, tuple(space["shape"]), np.dtype("int8"))]
    return [(path, tuple(space["shape"]), np.dtype(space["dtype"]))]


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def _nested(space, leaf):
    """A value of a space's JSON from `leaf`, which gives each array by its path."""

    def build(each, path):
        kind = each["kind"]
        if kind == "Dict":
            return {key: build(x, (*path, key)) for key, x in each["spaces"]}
        if kind == "Tuple":
            return tuple(build(x, (*path, i)) for i, x in enumerate(each["spaces"]))
        return leaf(path, kind)

    return build(space, ())


# ---- hosts ------------------------------------------------------------------------------------


class Host:
    """Rows of an environment; subclasses implement `reset`, `step`, `render` and `close`.

    Attributes:
        num_envs: Number of rows.
        observation, action: JSON of a row's spaces.
        mode: When rows are reset, as Gymnasium names it.
        final: Whether final observations are known.
        resets_rows: Whether single rows can be reset.
        kind: What is hosted, in words.
        limit: What ends episodes by a clock, in words.
        warning: What a reset was asked for and has no effect; None for nothing.

    """

    mode = "SAME_STEP"
    final = True
    resets_rows = False
    kind = ""
    limit = "the environment's own"
    render_mode = None
    warning = None

    def attach(self, memory):
        """Take the arrays of the shared memory."""
        self.memory = memory

    def write_row(self, i, observation, leaves):
        """Write one row's observation."""
        for (path, shape, _), out in zip(self._leaves, leaves):
            out[i] = _fitting(_at(observation, path), shape, path)

    def write_rows(self, observations, leaves):
        """Write the observations of all rows, a batch."""
        for (path, shape, _), out in zip(self._leaves, leaves):
            out[...] = _fitting(_at(observations, path), (self.num_envs, *shape), path)

    def describe(self, single_observation, single_action):
        """Set the spaces, and what follows from them."""
        self.observation, self.action = space_of(single_observation), space_of(single_action)
        self._leaves = leaves_of(self.observation)

    def begin(self, env, seed, options):
        """The result of an environment's `reset`, of whichever version of gym or Gymnasium."""
        arguments = {}
        if seed is not None and _takes(env, "reset", "seed"):
            arguments["seed"] = seed
        elif seed is not None and hasattr(env, "seed"):
            env.seed(seed)
        elif seed is not None:
            self.warning = f"{env} has neither `seed` nor `reset(seed=…)`: its seed has no effect"
        if options and _takes(env, "reset", "options"):
            arguments["options"] = options
        elif options:
            self.warning = f"{env} takes no `options`, which have no effect"
        return env.reset(**arguments)

    def render(self):
        """A frame of the first row."""
        raise Refused(f"{self.kind} does not render")

    def close(self):
        """Close what is hosted."""


def _fitting(value, shape, path):
    """The value, which must have that shape: NumPy would broadcast others in silence."""
    if np.shape(value) != shape:
        where = ".".join(map(str, path)) or "the observation"
        raise Refused(f"{where} has the shape {list(np.shape(value))}; its space has {list(shape)}")
    return value


class SingleEnvs(Host):
    """Copies of an environment with gym's or Gymnasium's interface, stepped one by one.

    Args:
        make: Makes one.
        num_envs: Number of copies.

    """

    resets_rows = True

    def __init__(self, make, num_envs):
        self.envs = []
        try:
            for _ in range(num_envs):
                self.envs.append(make())
            if len(set(map(id, self.envs))) != num_envs:
                raise Refused("the function returns the same environment each time it is called")
            self.kind = f"{num_envs} x {self.envs[0]}"
            self.num_envs = num_envs
            self._limits = [_own_limit(env) for env in self.envs]
            self.envs = [
                env if limit is None else limit.env for env, limit in zip(self.envs, self._limits)
            ]
            self.describe(self.envs[0].observation_space, self.envs[0].action_space)
        except BaseException:
            self.close()
            raise
        self._elapsed = [0] * num_envs
        self.render_mode = getattr(self.envs[0], "render_mode", None)
        if self._limits[0] is not None:
            self.limit = f"{self._limits[0].steps} env steps, counted by the server"

    def reset(self, seed, rows, options):
        """Reset the rows that are true in `rows`; row i gets `seed + i`."""
        for i in np.flatnonzero(rows).tolist():
            own = None if seed is None else seed + i
            self.write_row(i, self._reset(i, own, options), self.memory.obs)
        return self.warning

    def _reset(self, i, seed=None, options=None):
        env = self.envs[i]
        self._elapsed[i] = 0
        returned = self.begin(env, seed, options)
        return returned[0] if _is_pair(returned, env) else returned

    def step(self):
        """Step all rows; the numbers of their infos, None without any."""
        memory, infos = self.memory, None
        for i, env in enumerate(self.envs):
            returned = env.step(self._action(i))
            if len(returned) == 5:
                obs, reward, terminated, truncated, info = returned
            else:
                obs, reward, done, info = returned
                truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
                terminated = done and not truncated
            if self._limits[i] is not None:
                self._elapsed[i] += 1
                truncated = bool(truncated) or self._elapsed[i] >= self._limits[i].steps
            memory.rewards[i] = reward
            memory.terminated[i], memory.truncated[i] = bool(terminated), bool(truncated)
            ended = bool(terminated) or bool(truncated)
            memory.has_final[i] = ended
            if info:
                infos = _add_info(infos, i, info, self.num_envs)
            if ended:
                self.write_row(i, obs, memory.final)
                obs = self._reset(i)
            self.write_row(i, obs, memory.obs)
        return infos

    def _action(self, i):
        leaves = self.memory.actions

        def leaf(path, kind):
            value = leaves[path][i]
            return int(value) if kind == "Discrete" else np.array(value)

        return _nested(self.action, leaf)

    def render(self):
        """A frame of the first row."""
        env = self.envs[0]
        if _takes(env, "render", "mode") and self.render_mode is None:
            return env.render(mode="rgb_array")
        return env.render()

    def close(self):
        """Close what is hosted."""
        for env in self.envs:
            getattr(env, "close", lambda: None)()


class _Limit:
    """A `TimeLimit` that does not tell its ends from the environment's: the server counts then."""

    def __init__(self, env, steps):
        self.env, self.steps = env, steps


def _own_limit(env):
    """The limit of gym's outermost `TimeLimit` before 0.13, which says nothing in its infos."""
    if type(env).__name__ != "TimeLimit" or not type(env).__module__.startswith("gym."):
        return None
    try:
        source = inspect.getsource(type(env))
    except (OSError, TypeError):
        return None
    if "TimeLimit.truncated" in source or "truncated" in source:
        return None
    steps = getattr(env, "_max_episode_steps", None)
    return None if steps is None else _Limit(env.env, int(steps))


class OldVectorEnv(Host):
    """A batch that resets its rows itself and returns `done`: of stable-baselines, baselines, or
    `gym.vector` before 0.26; or, with two flags, of `gym.vector` 0.26 and Gymnasium 0.x.

    Args:
        env: The batch.

    """

    def __init__(self, env):
        self.env, self.num_envs = env, int(env.num_envs)
        self.kind = str(env)
        single = hasattr(env, "single_observation_space")
        self.describe(
            env.single_observation_space if single else env.observation_space,
            env.single_action_space if single else env.action_space,
        )
        self._is_gym = single
        self.render_mode = getattr(env, "render_mode", None)

    def reset(self, seed, rows, options):
        """Reset the rows that are true in `rows`."""
        if not rows.all():
            raise Refused(f"{self.kind} resets all rows or none")
        returned = self.begin(self.env, seed, options)
        is_pair = isinstance(returned, tuple) and len(returned) == 2
        is_pair = (
            is_pair
            and self.observation["kind"] != "Tuple"
            and isinstance(returned[1], (dict, list))
        )
        self.write_rows(self._batch(returned[0] if is_pair else returned), self.memory.obs)
        return self.warning

    def _batch(self, obs):
        """Observations as a batch of each array; some `VecEnv`s return a tuple for a `Tuple`."""
        return obs

    def _actions(self):
        leaves = self.memory.actions
        batched = _nested(self.action, lambda path, kind: np.array(leaves[path]))
        if self.action["kind"] in ("Dict", "Tuple") and self._is_gym:
            rows = range(self.num_envs)
            return tuple(
                _nested(self.action, lambda p, k, i=i: _scalar(leaves[p][i], k)) for i in rows
            )
        return batched

    def step(self):
        """Step all rows; the numbers of their infos, None without any."""
        memory = self.memory
        returned = self.env.step(self._actions())
        if len(returned) == 5:
            obs, rewards, terminated, truncated, infos = returned
        else:
            obs, rewards, done, infos = returned
            done = np.asarray(done, dtype=bool)
            truncated = done & _each(infos, "TimeLimit.truncated", self.num_envs)
            terminated = done & ~truncated
        memory.rewards[...] = np.asarray(rewards, dtype=np.float64).reshape(self.num_envs)
        memory.terminated[...] = np.asarray(terminated, dtype=bool)
        memory.truncated[...] = np.asarray(truncated, dtype=bool)
        ended = memory.terminated | memory.truncated
        self.write_rows(self._batch(obs), memory.obs)
        memory.has_final[...] = False
        if ended.any():
            for i in np.flatnonzero(ended).tolist():
                final = _final_of(infos, i)
                if final is not None:
                    self.write_row(i, final, memory.final)
                    memory.has_final[i] = True
        if isinstance(infos, dict):
            return _clean_batch(infos, self.num_envs)
        found = None
        for i, info in enumerate(infos):
            if info:
                found = _add_info(found, i, info, self.num_envs)
        return found

    def render(self):
        """A frame of the first row."""
        if _takes(self.env, "render", "mode") and self.render_mode is None:
            return self.env.render(mode="rgb_array")
        return self.env.render()

    def close(self):
        """Close what is hosted."""
        self.env.close()


class VectorEnv(OldVectorEnv):
    """A `gymnasium.vector.VectorEnv` of Gymnasium 1.0 or newer, in the mode that it declares."""

    def __init__(self, env):
        super(VectorEnv, self).__init__(env)
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        self.mode = getattr(mode, "name", None) or ("NEXT_STEP" if mode is None else str(mode))
        if self.mode not in ("NEXT_STEP", "SAME_STEP"):
            raise Refused(
                f"{self.kind} is in the mode {self.mode}; make it with NEXT_STEP or SAME_STEP"
            )
        self.final = self.mode == "SAME_STEP"


class Gym3Env(Host):
    """An environment of gym3, such as Procgen: rows are reset at once, their last frame is lost.

    Its episodes end without saying whether a clock ended them, so every end is a termination. gym3
    has no resets: all rows begin anew in a new environment, or, of Procgen, by the action -1.

    Args:
        make: Makes one, with a seed or without.
        takes_seed: Whether `make` takes one.

    """

    final = False
    limit = "the environment's own; its ends count as terminations, because it does not tell them"

    def __init__(self, make, takes_seed):
        self._make, self._takes_seed = make, takes_seed
        self.env = make()
        self.num_envs = int(self.env.num)
        self.kind = f"{type(self.env).__name__} of gym3"
        self._is_procgen = type(self.env).__module__.startswith("procgen")
        self._is_new = True
        self.describe(self.env.ob_space, self.env.ac_space)

    def reset(self, seed, rows, options):
        """Begin new episodes in all rows; a warning if the seed has no effect."""
        if not rows.all():
            raise Refused(f"{self.kind} resets all rows or none")
        warning = None
        if seed is not None and not self._takes_seed:
            warning = f"{self.kind} keeps the seed that it was made with"
        if seed is not None and self._takes_seed:
            self._remake(seed % 2**31)
        elif not self._is_new and self._is_procgen:
            self.env.act(np.full(self.num_envs, -1, dtype=np.int32))
        elif not self._is_new:
            self._remake()
        self._is_new = True
        _, obs, first = self.env.observe()
        if not np.all(first):
            raise Refused(f"{self.kind} did not begin new episodes in all rows")
        self.write_rows(obs, self.memory.obs)
        return warning

    def _remake(self, *seed):
        self.close()
        self.env = self._make(*seed)

    def step(self):
        """Step all rows; the numbers of their infos, None without any."""
        memory = self.memory
        leaves = memory.actions
        self.env.act(_nested(self.action, lambda path, kind: np.array(leaves[path])))
        self._is_new = False
        rewards, obs, first = self.env.observe()
        memory.rewards[...] = rewards
        memory.terminated[...] = first
        memory.truncated[...] = False
        memory.has_final[...] = False
        self.write_rows(obs, memory.obs)
        infos = None
        for i, info in enumerate(self.env.get_info()):
            if info:
                infos = _add_info(infos, i, info, self.num_envs)
        return infos

    def close(self):
        """Close what is hosted."""
        getattr(self.env, "close", lambda: None)()


def _scalar(value, kind):
    return int(value) if kind == "Discrete" else np.array(value)


def _takes(env, method, name):
    """Whether a method of an environment, or of the one in its wrappers, takes an argument."""
    while True:
        try:
            parameters = inspect.signature(getattr(env, method)).parameters
        except (TypeError, ValueError, AttributeError):
            return False
        if name in parameters:
            return True
        passes_on = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
        inner = env.__dict__.get("env") if hasattr(env, "__dict__") else None
        if not passes_on or inner is None:
            return False
        env = inner


def _is_pair(returned, env):
    """Whether a reset returned an observation and an info, rather than an observation alone."""
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
        return False
    return type(env.observation_space).__name__ != "Tuple" or not env.observation_space.contains(
        returned
    )


def _each(infos, name, num_envs):
    """A flag of each row, from infos that are a dict of arrays or one dict a row."""
    if isinstance(infos, dict):
        found = infos.get(name)
        return np.zeros(num_envs, bool) if found is None else np.asarray(found, dtype=bool)
    return np.array([bool(info.get(name, False)) for info in infos], dtype=bool)


_FINAL_KEYS = ("final_obs", "final_observation", "terminal_observation")


def _final_of(infos, i):
    """The final observation of a row; None if it is lost."""
    for key in _FINAL_KEYS:
        if isinstance(infos, dict):
            found = infos.get(key)
            if found is not None:
                return found[i]
        elif infos[i].get(key) is not None:
            return infos[i][key]
    return None


_LEFT_OUT = frozenset((*_FINAL_KEYS, "TimeLimit.truncated"))


def _add_info(infos, i, info, num_envs):
    """Add the numbers of a row's info to those of all rows: a list a name, None where missing."""
    for name, value in info.items():
        if not isinstance(name, str) or name in _LEFT_OUT:
            continue
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
            value = value.item()
        if isinstance(value, (bool, int, float)):
            infos = {} if infos is None else infos
            infos.setdefault(name, [None] * num_envs)[i] = float(value)
        elif isinstance(value, dict):
            inner = _add_info(None, i, value, num_envs)
            for key, column in (inner or {}).items():
                infos = {} if infos is None else infos
                infos.setdefault(name + "/" + key, [None] * num_envs)[i] = column[i]
    return infos


def _clean_batch(infos, num_envs):
    """The numbers of batched infos: a list a name, None in rows that its mask leaves out."""
    found = {}
    for name, value in infos.items():
        if not isinstance(name, str) or name.startswith("_") or name in _LEFT_OUT:
            continue
        numbers = np.asarray(value) if not isinstance(value, dict) else None
        if numbers is None or numbers.shape != (num_envs,) or numbers.dtype.kind not in "biuf":
            continue
        mask = infos.get("_" + name)
        mask = np.ones(num_envs, bool) if mask is None else np.asarray(mask, dtype=bool)
        found[name] = [float(x) if ok else None for x, ok in zip(numbers, mask)]
    return found or None


# ---- from a name to a host --------------------------------------------------------------------


def host_of(entry, kwargs, num_envs):
    """The host of what an entry names.

    Args:
        entry: `gym:ID`, `gymnasium:ID`, `procgen:NAME`, or `module:function`.
        kwargs: Arguments of the environment or the function.
        num_envs: Number of rows.

    Raises:
        Refused: If it names nothing that can be hosted.

    """
    library, _, name = entry.partition(":")
    if not library or not name:
        raise Refused(f"the entry {entry!r} must be written library:name or module:function")
    if library in ("gym", "gymnasium"):
        make = _module(library).make
        return SingleEnvs(lambda: make(name, **kwargs), num_envs)
    if library == "procgen":
        make = _module("procgen").ProcgenGym3Env

        def make_procgen(*seed):
            own = {"rand_seed": seed[0]} if seed else {}
            return make(num=num_envs, env_name=name, **dict(kwargs, **own))

        return Gym3Env(make_procgen, takes_seed="rand_seed" not in kwargs)
    function = _module(library)
    for part in name.split("."):
        function = getattr(function, part, None)
        if function is None:
            raise Refused(f"the module {library} has no {name}")
    if not callable(function):
        raise Refused(f"{entry} is not a function or class that makes an environment")
    try:
        takes_number = "num_envs" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        takes_number = False
    first = function(num_envs=num_envs, **kwargs) if takes_number else function(**kwargs)
    if hasattr(first, "observe") and hasattr(first, "act"):
        given = dict(kwargs, num_envs=num_envs) if takes_number else kwargs
        made = [first]
        host = Gym3Env(lambda: made.pop() if made else function(**given), takes_seed=False)
    elif hasattr(first, "num_envs") and hasattr(first, "step"):
        host = _batch_of(first)
    elif hasattr(first, "step") and hasattr(first, "reset"):
        made = [first]
        return SingleEnvs(lambda: made.pop() if made else function(**kwargs), num_envs)
    else:
        raise Refused(f"{entry} returned {first!r}, which is no environment")
    if host.num_envs != num_envs:
        host.close()
        raise Refused(
            f"{entry} returned {host.num_envs} rows; {num_envs} were asked for. Let it take "
            "`num_envs`"
        )
    return host


def _batch_of(env):
    module = type(env).__module__.split(".")[0]
    bases = [cls.__module__ for cls in type(env).__mro__]
    if any(x.startswith("gymnasium.vector") for x in bases) or module == "gymnasium":
        version = importlib.import_module("gymnasium").__version__
        if int(version.split(".")[0]) >= 1:
            return VectorEnv(env)
    return OldVectorEnv(env)


def _module(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if getattr(error, "name", None) != name:
            raise
        raise Refused(
            f"{sys.executable} has no module {name}: {sys.executable} -m pip install {name}"
        ) from None


# ---- shared memory ----------------------------------------------------------------------------


class Memory:
    """Arrays in the memory that both processes share.

    Args:
        buffer: The memory.
        layout: JSON of where each array lies.
        host: Whose rows they are.

    """

    def __init__(self, buffer, layout, host):
        def view(entry, shape, dtype):
            start, size = int(entry), int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            if start < 0 or start % 64 or start + size > len(buffer):
                raise Refused("the layout has an array beyond the memory")
            flat = np.frombuffer(
                buffer, dtype=dtype, count=int(np.prod(shape, dtype=np.int64)), offset=start
            )
            return flat.reshape(shape)

        rows = (host.num_envs,)
        obs, acts = leaves_of(host.observation), leaves_of(host.action)
        self.obs = [view(at, rows + s, d) for at, (_, s, d) in zip(layout["obs"], obs)]
        self.final = [view(at, rows + s, d) for at, (_, s, d) in zip(layout["final"], obs)]
        actions = [view(at, rows + s, d) for at, (_, s, d) in zip(layout["actions"], acts)]
        self.actions = {path: each for (path, _, _), each in zip(acts, actions)}
        self.rewards = view(layout["rewards"], rows, np.dtype(np.float64))
        flags = np.dtype(np.bool_)
        self.terminated = view(layout["terminated"], rows, flags)
        self.truncated = view(layout["truncated"], rows, flags)
        self.has_final = view(layout["has_final"], rows, flags)
        self.mask = view(layout["mask"], rows, flags)


# ---- the process ------------------------------------------------------------------------------


def serve(channel):
    """Answer messages until the other end is closed."""
    host = None
    try:
        while True:
            kind, payload = channel.receive()
            if kind is None or kind == CLOSE:
                return
            try:
                if kind == STEP:
                    channel.send(DONE, host.step())
                    continue
                body = json.loads(payload.decode()) if payload else {}
                if kind == OPEN:
                    host = host_of(body["entry"], body["kwargs"], body["num_envs"])
                    channel.send(DONE, _introduction(host))
                elif kind == MAP:
                    descriptor = channel.received.pop()
                    buffer = mmap.mmap(descriptor, int(body["bytes"]))
                    os.close(descriptor)
                    host.attach(Memory(buffer, body["layout"], host))
                    channel.send(DONE)
                elif kind == RESET:
                    warning = host.reset(body["seed"], host.memory.mask, body["options"])
                    channel.send(DONE, warning and {"warning": warning})
                elif kind == RENDER:
                    frame = np.ascontiguousarray(host.render(), dtype=np.uint8)
                    channel.send(DONE, {"shape": list(frame.shape)}, frame.tobytes())
                else:
                    raise Refused(f"a message of the kind {kind} is not of this bridge")
            except Exception as error:
                channel.send(FAILED, _failure(error))
    finally:
        if host is not None:
            host.close()


def _introduction(host):
    return {
        "num_envs": host.num_envs,
        "observation": host.observation,
        "action": host.action,
        "mode": host.mode,
        "final": host.final,
        "resets_rows": host.resets_rows,
        "kind": host.kind,
        "limit": host.limit,
        "render_mode": host.render_mode if isinstance(host.render_mode, str) else None,
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "packages": _packages(),
    }


def _packages():
    """Versions of the packages that environments are made of, among those that were imported."""
    names = ("numpy", "gym", "gymnasium", "gym3", "procgen", "torch", "stable_baselines3")
    found = {}
    for name in names:
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", "?")).strip()
    return found


def _failure(error):
    is_refusal = isinstance(error, Refused)
    return {
        "refused": is_refusal,
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "" if is_refusal else traceback.format_exc(),
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "packages": _packages(),
    }


def _end_with_parent(parent):
    """End this process soon after its parent has ended, also while an environment computes."""

    def watch():
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    thread = threading.Thread(target=watch)
    thread.daemon = True
    thread.start()


#: Libraries whose environments can be hosted.
LIBRARIES = ("gymnasium", "gym", "gym3", "procgen", "stable_baselines3", "stable_baselines")


def hostable():
    """Versions of this Python, NumPy, and each library that can be hosted; why not of others."""
    found = {"python": ".".join(map(str, sys.version_info[:3])), "numpy": np.__version__}
    for name in LIBRARIES:
        try:
            module = importlib.import_module(name)
            found[name] = str(getattr(module, "__version__", "installed")).strip()
        except ImportError as error:
            missing = getattr(error, "name", None) == name
            found[name] = "not installed" if missing else f"cannot be imported: {error}"
        except Exception as error:  # a library that does not fit its dependencies raises anything
            found[name] = f"cannot be imported: {type(error).__name__}: {error}"
    return found


def main():
    """Serve the socket whose file descriptor is the first argument; `--check`: see `hostable`."""
    if sys.argv[1:] == ["--check"]:
        print(json.dumps(hostable()))
        return
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    _end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the client's, which then ends this
    # The folder of this file is not where the user's modules are.
    sys.path[:] = [
        x for x in sys.path if os.path.abspath(x) != os.path.dirname(os.path.abspath(__file__))
    ]
    sys.path.append(os.getcwd())
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=descriptor)
    connection.setblocking(True)
    serve(Channel(connection))


if __name__ == "__main__":
    main()
