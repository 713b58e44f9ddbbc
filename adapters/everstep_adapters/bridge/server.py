"""Server of environments for an Everstep in another Python; started by `BridgeEnv`, by path.

It runs in Python 3.6 or newer and imports the standard library and NumPy only, beside what it
hosts. Nothing of Everstep is imported, and nothing is unpickled: messages are a header of fixed
size and JSON, and arrays lie in memory that both processes share.

A message is `_HEADER` (magic, protocol version, kind, bytes of the payload) and its payload. The
client sends `OPEN` (what to host), `MAP` (the memory's file descriptor, and where each array lies
in it), then any number of `RESET`, `STEP`, `RENDER`; or, of a task, of `CALL`, and of `LEND`, with
memory of a CUDA device. The server answers each with `DONE` or `FAILED`. When the client's end of
the socket is closed, the server closes what it hosts and ends.

For clients on other machines, `python server.py --listen HOST:PORT --key FILE` serves each
connection in a process of its own. Both sides prove that they have the key (`authenticate`), and
messages carry the rows that lie in shared memory otherwise.

Whatever is hosted becomes a `Host`: a batch of rows that are reset in the env step that ends them
(SAME_STEP of Gymnasium), or, for vector environments of Gymnasium 1.0 and newer, in the mode that
they declare.
"""

import array
import base64
import contextlib
import hmac
import importlib
import importlib.util
import inspect
import json
import mmap
import numbers
import os
import random
import select
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
OPEN, MAP, RESET, STEP, RENDER, CLOSE, DONE, FAILED, CALL, STATE, RESTORE, LEND = range(1, 13)

#: Bytes of the largest payload: of a frame, or of a space with different bounds for each element.
LARGEST = 2**28

#: Bytes of the largest memory of a server on another machine.
LARGEST_MEMORY = 2**34

#: Clients on other machines that a server has at once; more are turned away.
MOST_CLIENTS = 64

#: Seconds that each side has to prove to the other, on another machine, that it has the key.
PROVING = 10.0

#: Seconds for which the next message is looked for before the process sleeps until it comes, if
#: the last one came within them: else others have use for the processor.
SPINNING = 200e-6


class Refused(Exception):
    """Something is not hosted; the message names a way out."""


_LOADED = []


def cuda_module():
    """The module of the file `cuda.py` beside this one; None where this file was copied alone."""
    if not _LOADED and __package__:
        _LOADED.append(importlib.import_module(".cuda", __package__))
    elif not _LOADED:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cuda.py")
        spec = importlib.util.spec_from_file_location("_everstep_bridge_cuda", path)
        found = importlib.util.module_from_spec(spec) if os.path.exists(path) else None
        if found is not None:
            spec.loader.exec_module(found)
        _LOADED.append(found)
    return _LOADED[0]


# ---- messages ---------------------------------------------------------------------------------


class Channel:
    """Messages over a socket.

    Args:
        connection: The socket.
        spinning: Seconds for which the next message is looked for before the process sleeps.
        carries: Whether messages carry the rows, as no memory is shared.

    """

    def __init__(self, connection, spinning=SPINNING, carries=False):
        self.carries = carries
        self._socket = connection
        self._process = os.getpid()
        self._spinning = self._spins = spinning
        self._yield = getattr(os, "sched_yield", None)
        #: File descriptors that came with the last message.
        self.received = []

    def send(self, kind, body=None, data=None):
        """Send a message: JSON, and bytes after it."""
        if os.getpid() != self._process:  # forked by an environment, which did not end it
            os._exit(1)
        text = b"" if body is None else json.dumps(body).encode()
        if data is not None:
            text = struct.pack("<I", len(text)) + text + data
        self._socket.sendall(_HEADER.pack(_MAGIC, PROTOCOL, kind, len(text)) + text)

    def receive(self):
        """Kind and payload of the next message; `(None, b"")` once the other end is closed."""
        begun = time.perf_counter()
        head = self._take(_HEADER.size)
        if head is None:
            return None, b""
        is_soon = time.perf_counter() - begun < self._spinning
        self._spins = self._spinning if is_soon else 0.0
        magic, protocol, kind, size = _HEADER.unpack(head)
        if magic != _MAGIC or protocol != PROTOCOL or size > LARGEST:
            raise Refused(
                f"a message of {magic!r}, protocol {protocol}, {size} bytes is not of this "
                f"bridge, whose protocol is {PROTOCOL}"
            )
        payload = self._take(size) if size else b""
        return (None, b"") if payload is None else (kind, payload)

    def map(self, size):
        """Memory of the file descriptor that came with the last message, or this process's own."""
        if self.carries:
            if size > LARGEST_MEMORY:
                raise Refused("{} bytes of memory were asked for".format(size))
            return mmap.mmap(-1, max(size, 1))
        descriptors, self.received = self.received, []
        try:
            if len(descriptors) != 1:
                raise Refused("{} file descriptors came, not one".format(len(descriptors)))
            return mmap.mmap(descriptors[0], size)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def drop(self):
        """Close file descriptors that came and were not asked for."""
        while self.received:
            os.close(self.received.pop())

    def _take(self, size):
        """Bytes of that number; None if the other end is closed."""
        parts, left = [], size
        limit = time.perf_counter() + self._spins
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
            except (ConnectionResetError, TimeoutError):
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
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise Refused("a Box of the dtype {} cannot cross; return another".format(dtype))
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
        steps: Env steps of an episode at most; None if no limit is known.
        warning: What a reset was asked for and has no effect; None for nothing.
        has_state: Whether `state` and `restore` work.
        takes: Kinds of messages that it takes now.

    """

    takes = frozenset((MAP,))
    has_state = False

    mode = "SAME_STEP"
    final = True
    resets_rows = False
    kind = ""
    limit = "the environment's own"
    steps = None
    render_mode = None
    warning = None

    def attach(self, memory):
        """Take the arrays of the shared memory."""
        self.memory, self._process = memory, os.getpid()
        self.takes = frozenset((MAP, RESET, STEP, RENDER, STATE, RESTORE))

    def own(self, returned):
        """The argument, which the environment returned, to be written into the shared memory.

        A process that the environment forked and did not end must not write there: it is ended.
        """
        if os.getpid() != self._process:
            os._exit(1)
        return returned

    def write_row(self, i, observation, leaves):
        """Write one row's observation."""
        for (path, shape, dtype), out in zip(self._leaves, leaves):
            out[i] = _fitting(_at(observation, path), shape, dtype, path)

    def write_rows(self, observations, leaves):
        """Write the observations of all rows, a batch."""
        for (path, shape, dtype), out in zip(self._leaves, leaves):
            out[...] = _fitting(_at(observations, path), (self.num_envs, *shape), dtype, path)

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
        return self.own(env.reset(**arguments))

    def state(self):
        """The state of what is hosted, from which it continues exactly."""
        raise Refused(f"{self.kind} does not offer its state")

    def restore(self, state):
        """Continue from a state of `state`."""
        raise Refused(f"{self.kind} does not offer its state")

    def render(self):
        """A frame of the first row."""
        raise Refused(f"{self.kind} does not render")

    def close(self):
        """Close what is hosted."""


def _fitting(value, shape, dtype, path):
    """The value, which must have that shape, and numbers that the dtype has.

    NumPy would broadcast others, or cast them to other numbers, in silence.
    """
    if np.shape(value) != shape:
        raise Refused(
            f"{_where(path)} has the shape {list(np.shape(value))}; its space has {list(shape)}"
        )
    if getattr(value, "dtype", None) is dtype:
        return value
    array = np.asarray(value)
    own = array.dtype
    if dtype.kind == "b" and own == np.uint8:
        return array != 0
    if dtype.kind in "iu" and own.kind in "iu" and array.size:  # integers would wrap
        ends = np.iinfo(dtype)
        if ends.min <= int(array.min()) and int(array.max()) <= ends.max:
            return array
        shown = "values from {} to {}".format(array.min(), array.max())
    elif np.can_cast(own, dtype, "same_kind"):
        return array
    else:
        shown = "the dtype {}".format(own)
    raise Refused(f"{_where(path)} has {shown}, which do not fit the dtype of its space, {dtype}")


def _where(path):
    return ".".join(map(str, path)) or "the observation"


def _reward(value):
    """A reward, which must be one number: NumPy would make a number of None or of a text."""
    if type(value) in _NUMBERS:
        return value
    return _rewards(value, 1)[0]


def _rewards(values, count):
    """Rewards of `count` rows."""
    rewards = np.asarray(values)
    if rewards.size != count or rewards.dtype.kind not in "biuf":
        kind = "one number" if count == 1 else "{} numbers".format(count)
        raise ValueError("`reward` must be {}; got {:.200}".format(kind, repr(values)))
    return rewards.reshape(count)


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
            self.steps = _steps_of(self.envs)
            self._limits = [_own_limit(env) for env in self.envs]
            self.envs = [
                env if limit is None else limit.env for env, limit in zip(self.envs, self._limits)
            ]
            self.describe(self.envs[0].observation_space, self.envs[0].action_space)
        except BaseException:
            self.close()
            raise
        self._elapsed = [0] * num_envs
        self.has_state = all(_offers_state(env) for env in self.envs)
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
        plain = self.action["kind"] == "Discrete"
        actions = memory.actions[()].tolist() if plain else map(self._action, range(self.num_envs))
        for i, (env, action) in enumerate(zip(self.envs, actions)):
            returned = self.own(env.step(action))
            if len(returned) == 5:
                obs, reward, terminated, truncated, info = returned
            else:
                obs, reward, done, info = returned
                done = _flags(done, "done")
                truncated = done and bool(info.get("TimeLimit.truncated", False))
                terminated = done and not truncated
            if self._limits[i] is not None:
                self._elapsed[i] += 1
                truncated = bool(truncated) or self._elapsed[i] >= self._limits[i].steps
            memory.rewards[i] = _reward(reward)
            terminated, truncated = _flags(terminated, "terminated"), _flags(truncated, "truncated")
            memory.terminated[i], memory.truncated[i] = terminated, truncated
            ended = terminated or truncated
            memory.has_final[i] = ended
            if info:
                infos = _add_info(infos, i, info, self.num_envs)
            if ended:
                self.write_row(i, obs, memory.final)
                obs = self._reset(i)
            self.write_row(i, obs, memory.obs)
        return infos

    def state(self):
        """See `Host.state`."""
        return {"rows": [_state_of(env) for env in self.envs], "elapsed": list(self._elapsed)}

    def restore(self, state):
        """See `Host.restore`."""
        rows, elapsed = _checked(state, rows=list, elapsed=list)
        if len(rows) != self.num_envs or len(elapsed) != self.num_envs:
            raise Refused("the state is of {} rows".format(len(rows)))
        if not all(isinstance(x, int) for x in elapsed):
            raise Refused("the state has the env steps {:.200}".format(repr(elapsed)))
        for env, row in zip(self.envs, rows):
            _restore(env, row)
        self._elapsed = elapsed

    def _action(self, i):
        leaves = self.memory.actions

        def leaf(path, kind):
            value = leaves[path][i]
            return int(value) if kind == "Discrete" else np.array(value)

        return _nested(self.action, leaf)

    def render(self):
        """A frame of the first row."""
        env = self.envs[0]
        if not hasattr(env, "render"):
            return super(SingleEnvs, self).render()
        if _takes(env, "render", "mode") and self.render_mode is None:
            return env.render(mode="rgb_array")
        return env.render()

    def close(self):
        """Close what is hosted."""
        for env in self.envs:
            getattr(env, "close", lambda: None)()


#: What gym's wrappers count, by their names; those that an environment lacks are left out.
_WRAPPERS = {
    "TimeLimit": ("_elapsed_steps",),
    "OrderEnforcing": ("_has_reset",),
    "PassiveEnvChecker": ("checked_reset", "checked_step", "checked_render", "close_called"),
}


def _layers_of(env):
    """The known wrappers around an environment, outermost first, and what they wrap.

    A wrapper is known if `_WRAPPERS` lists its counts.
    """
    layers = []
    while type(env).__name__ in _WRAPPERS and "env" in vars(env):
        layers.append(env)
        env = env.env
    return layers, env


def _offers_state(env):
    """Whether what the known wrappers hold has `state_dict` and `load_state_dict` itself."""
    inner = _layers_of(env)[1]
    return all(hasattr(type(inner), name) for name in ("state_dict", "load_state_dict"))


def _state_of(env):
    layers, inner = _layers_of(env)
    counts = [
        {name: vars(x)[name] for name in _WRAPPERS[type(x).__name__] if name in vars(x)}
        for x in layers
    ]
    return {"layers": counts, "own": inner.state_dict()}


def _restore(env, state):
    layers, inner = _layers_of(env)
    found, own = _checked(state, layers=list, own=dict)
    if len(layers) != len(found) or not all(isinstance(counts, dict) for counts in found):
        raise Refused("the state is of {} wrappers".format(len(found)))
    inner.load_state_dict(own)
    for layer, counts in zip(layers, found):
        for name in set(counts) & set(_WRAPPERS[type(layer).__name__]):
            setattr(layer, name, counts[name])


class _Limit:
    """An old `TimeLimit`, which does not say that it ended an episode: the server counts."""

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


def _steps_of(envs):
    """Env steps of an episode at most; None if an environment has no limit that is known.

    It is known by the `spec`, by a `TimeLimit` or by MiniGrid's `max_steps`; it is the least.
    """
    longest = 0
    for env in envs:
        found = []
        with contextlib.suppress(Exception):  # of the environment's own code
            found.append(getattr(env.spec, "max_episode_steps", None))
        for _ in range(100):  # wrappers
            own = getattr(env, "__dict__", {})
            if type(env).__name__ == "TimeLimit":
                found.append(own.get("_max_episode_steps"))
            elif any(x.__name__ == "MiniGridEnv" for x in type(env).__mro__):
                found.append(own.get("max_steps"))
            env = own.get("env")
        known = [int(x) for x in found if isinstance(x, numbers.Integral) and x > 0]
        if not known:
            return None
        longest = max(longest, min(known))
    return longest


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
        rows = getattr(env, "envs", None)
        self.steps = _steps_of(rows if isinstance(rows, list) and rows else [env])
        self.has_state = _offers_state(env)
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

    def state(self):
        """See `Host.state`."""
        return _state_of(self.env)

    def restore(self, state):
        """See `Host.restore`."""
        _restore(self.env, state)

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
        returned = self.own(self.env.step(self._actions()))
        if len(returned) == 5:
            obs, rewards, terminated, truncated, infos = returned
        else:
            obs, rewards, done, infos = returned
            done = _flags(done, "done", self.num_envs)
            truncated = done & _each(infos, "TimeLimit.truncated", self.num_envs)
            terminated = done & ~truncated
        memory.rewards[...] = _rewards(rewards, self.num_envs)
        memory.terminated[...] = _flags(terminated, "terminated", self.num_envs)
        memory.truncated[...] = _flags(truncated, "truncated", self.num_envs)
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
        return _columns(infos, self.num_envs)

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
        self.has_state = self._is_procgen
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

    def state(self):
        """See `Host.state`."""
        rows = self.env.callmethod("get_state")
        return {"rows": [np.frombuffer(x, np.uint8) for x in rows], "is_new": self._is_new}

    def restore(self, state):
        """See `Host.restore`."""
        (rows,) = _checked(state, rows=list)
        if len(rows) != self.num_envs or not all(isinstance(x, np.ndarray) for x in rows):
            raise Refused("the state is of {} rows".format(len(rows)))
        self.env.callmethod("set_state", [x.tobytes() for x in rows])
        self._is_new = bool(state.get("is_new"))

    def _remake(self, *seed):
        self.close()
        self.env = self._make(*seed)

    def step(self):
        """Step all rows; the numbers of their infos, None without any."""
        memory = self.memory
        leaves = memory.actions
        self.env.act(_nested(self.action, lambda path, kind: np.array(leaves[path])))
        self._is_new = False
        rewards, obs, first = self.own(self.env.observe())
        memory.rewards[...] = _rewards(rewards, self.num_envs)
        memory.terminated[...] = first
        memory.truncated[...] = False
        memory.has_final[...] = False
        self.write_rows(obs, memory.obs)
        infos = self.env.get_info()
        if self._is_procgen:  # seeds are no metrics
            infos = [{"prev_level_complete": x.get("prev_level_complete", 0)} for x in infos]
        return _columns(infos, self.num_envs)

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


def _flags(value, name, count=None):
    """Flags of `count` rows, or a single one; None and texts are neither true nor false."""
    if count is None and (value is True or value is False):
        return value
    flags = np.asarray(value)
    is_number = flags.dtype.kind in "biuf" and flags.size == (count or 1)
    if not is_number or not ((flags == 0) | (flags == 1)).all():
        raise ValueError("`{}` must be True or False; got {:.200}".format(name, repr(value)))
    flags = flags.astype(bool).reshape(-1)
    return flags if count else bool(flags[0])


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


#: Types of numbers.
_NUMBERS = frozenset((bool, int, float)) | {np.dtype(x).type for x in "?bhilqBHILQefd"}


def _columns(infos, num_envs):
    """The numbers of the rows' infos: a list a name, None where one is missing."""
    found, names = {}, infos[0].keys()
    # Most environments have the same numbers in each row: a sixth of the time.
    if not _LEFT_OUT.isdisjoint(names) or any(len(x) != len(names) for x in infos):
        return _scattered(infos, num_envs)
    for name in names:
        column = [x.get(name) for x in infos]
        is_name = type(name) is str and name[:1] != "_"
        if not is_name or not _NUMBERS.issuperset(map(type, column)):
            return _scattered(infos, num_envs)
        found[name] = list(map(float, column))
    return found or None


def _scattered(infos, num_envs):
    found = None
    for i, info in enumerate(infos):
        if info:
            found = _add_info(found, i, info, num_envs)
    return found


def _add_info(infos, i, info, num_envs):
    """Add the numbers of a row's info to those of all rows: a list a name, None where missing."""
    for name, value in info.items():
        if not isinstance(name, str) or name[:1] == "_" or name in _LEFT_OUT:
            continue  # `_name` is where batches say which rows have a `name`
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size == 1):
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


# ---- tasks ------------------------------------------------------------------------------------


class Arena:
    """Arrays in shared memory, for one message at a time; those that do not fit come after it.

    Args:
        buffer: The memory.
        start, end: The part of it to write to.

    """

    #: Whether what cannot cross is refused; else mappings lose it.
    is_whole = False

    #: Where arrays on a CUDA device are copied to, a `cuda.Part`; None: to the host's memory.
    device = None

    #: Copies arrays from the device to the host's memory, a `DeviceReader`; None: their library.
    reader = None

    def __init__(self, buffer=b"", start=0, end=0):
        self._buffer, self._start, self._end = buffer, start, end
        self.clear()

    def clear(self):
        """Begin the next message."""
        self._used, self._after = self._start, []
        self._after_size = 0

    @property
    def after(self):
        """Bytes of the arrays that did not fit."""
        return b"".join(self._after)

    @property
    def needed(self):
        """Bytes of all arrays of the message."""
        return self._used - self._start + self._after_size

    def encode(self, value):
        """JSON of a tree of mappings, sequences, numbers, strings and arrays."""
        if value is None or isinstance(value, (bool, int, str)):
            return {"v": value}
        if isinstance(value, float):
            return {"f": value.hex()}  # exact, also if it is no finite number
        if is_array(value):
            place = None
            if self.device is not None and on_device(value):
                place = self.device.place(device_array(value))
            return {"a": self._place(value)} if place is None else {"g": place}
        if isinstance(value, (list, tuple)):
            kind = "l" if isinstance(value, list) else "t"
            return {kind: [self.encode(x) for x in value]}
        if hasattr(value, "keys"):
            pairs = [(key, value[key]) for key in value.keys()]  # noqa: SIM118  a TensorDict's own order
            if not self.is_whole:
                pairs = [(str(key), x) for key, x in pairs if _crosses(x)]
            elif not all(isinstance(key, str) for key, _ in pairs):
                raise Refused("a state has keys that are no strings, which cannot cross")
            return {"d": [[key, self.encode(x)] for key, x in pairs]}
        raise Refused("a {} cannot cross".format(type(value).__name__))

    def _place(self, value):
        if self.reader is not None and on_device(value):
            return self._fetch(device_array(value))
        x = array_of(value)
        size = -(-x.nbytes // 64) * 64
        if 0 < size <= self._end - self._used:  # memory without bytes cannot be written
            at = self._used
            self._used += size
            out = np.frombuffer(self._buffer, x.dtype, x.size, at).reshape(x.shape)
            out[...] = x
            return [x.dtype.str, list(x.shape), at]
        return self._append(x)

    def _append(self, x):
        at = -1 - self._after_size
        data = np.ascontiguousarray(x).tobytes()
        self._after.append(data)
        self._after_size += len(data)
        return [x.dtype.str, list(x.shape), at]

    def _fetch(self, x):
        """Place an array of a device; it is there after `reader.finish`."""
        size = -(-x.nbytes // 64) * 64
        if self._used + size > self._end:
            return self._append(self.reader.download(x))
        at = self._used
        self._used += size
        self.reader.fetch(np.frombuffer(self._buffer, np.uint8, x.nbytes, at), x)
        return [x.typestr, list(x.shape), at]


#: Dtypes that cross, as NumPy writes them.
_DTYPES = frozenset(
    np.dtype(x).str for x in ["?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", "f", "d"]
)


def decoded(tree, buffer, after, leaf, on_device=None, depth=0):
    """The value of `Arena.encode`'s JSON.

    Args:
        tree: The JSON.
        buffer: The shared memory.
        after: Bytes that came after the message.
        leaf: What to make of each array, a view of one of them.
        on_device: What to make of an array in shared memory of a device, by its dtype, shape and
            first byte; None where there is none.
        depth: Levels above this one.

    Raises:
        ValueError, TypeError, KeyError: If it is not of this form, or an array lies elsewhere.

    """
    if depth > 16 or len(tree) != 1:
        raise ValueError("not a value")
    ((kind, value),) = tree.items()
    if kind == "v" and (value is None or isinstance(value, (bool, int, str))):
        return value
    if kind == "f":
        return float.fromhex(value)
    if kind in ("l", "t"):
        found = [decoded(x, buffer, after, leaf, on_device, depth + 1) for x in value]
        return found if kind == "l" else tuple(found)
    if kind == "d":
        return {str(k): decoded(x, buffer, after, leaf, on_device, depth + 1) for k, x in value}
    if kind != "a" and (kind != "g" or on_device is None):
        raise ValueError("not a value")
    name, shape, at = value
    if name not in _DTYPES:
        raise ValueError("an array of {!r}".format(name))
    dtype, count = np.dtype(name), 1
    for size in shape:
        count *= int(size)
        if size < 0 or count * max(dtype.itemsize, 1) > LARGEST:
            raise ValueError("an array of the shape {}".format(shape))
    if kind == "g":
        return on_device(dtype.str, shape, at)
    where, at = (buffer, at) if at >= 0 else (after, -1 - at)
    if at + count * dtype.itemsize > len(where):
        raise ValueError("an array beyond the memory")
    return leaf(np.frombuffer(where, dtype, count, at).reshape(shape))


def is_array(value):
    """Whether this is an array of NumPy, a tensor of PyTorch, or an array on a CUDA device."""
    if isinstance(value, (np.ndarray, np.generic)) or is_tensor(value):
        return True
    return hasattr(type(value), "__cuda_array_interface__")


def is_tensor(value):
    """Whether this is a tensor of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def on_device(value):
    """Whether this is an array or a tensor on a CUDA device."""
    if is_tensor(value):
        return bool(value.is_cuda)
    return hasattr(type(value), "__cuda_array_interface__")


def array_of(value):
    """An array of NumPy from one or from a tensor, on whichever device."""
    if is_tensor(value):
        return value.detach().cpu().numpy()
    if on_device(value):
        array = device_array(value)
        return DeviceReader(cuda_module().Device.of_array(array)).download(array)
    return np.asarray(value)


def device_array(value):
    """The `cuda.Array` of an array or a tensor on a device."""
    cuda = cuda_module()
    return cuda.array_of_tensor(value) if is_tensor(value) else cuda.array_of_interface(value)


def cuda_error():
    """The class of errors of the driver."""
    return cuda_module().DriverError if cuda_module() is not None else Refused


class DeviceReader:
    """Copies of arrays on a CUDA device to the host, and back, through the driver.

    Args:
        device: A `cuda.Device`.

    """

    def __init__(self, device):
        self._device, self._streams, self._pinned = device, set(), None

    def pin(self, buffer):
        """Let the device write to the memory itself, which is the buffer's only use then."""
        self.unpin()
        address = np.frombuffer(buffer, np.uint8).ctypes.data
        try:
            self._device.pin(address, len(buffer))
        except cuda_module().DriverError:  # copies take longer
            return
        self._pinned = address, buffer

    def unpin(self):
        """Undo `pin`, before the memory is unmapped."""
        if self._pinned is not None:
            self._device.unpin(self._pinned[0])
        self._pinned = None

    def fetch(self, out, array):
        """Begin a copy, which is done after `finish`."""
        self._streams.add(array.stream)
        self._device.fetch(out.ctypes.data, array.pointer, array.nbytes, array.stream)

    def finish(self):
        """Wait for the copies."""
        while self._streams:
            self._device.finish(self._streams.pop())

    def download(self, array):
        """A new array of NumPy."""
        found = np.empty(array.shape, np.dtype(array.typestr))
        self.fetch(found, array)
        self.finish()
        return found

    def upload(self, x, stream):
        """A new array of the device, which any library can view."""
        array = self.empty(x.dtype.str, x.shape, stream)
        x = np.ascontiguousarray(x)
        self._device.upload(array.pointer, x.ctypes.data, x.nbytes, stream)
        return array

    def empty(self, typestr, shape, stream):
        """A new array of the device."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(typestr).itemsize
        memory = cuda_module().Memory.allocate(self._device, size)
        return cuda_module().Array(memory.pointer, typestr, shape, stream, memory)


def _crosses(value):
    """Whether a value is one that `Arena.encode` takes."""
    simple = value is None or isinstance(value, (bool, int, float, str, list, tuple))
    return simple or is_array(value) or hasattr(value, "keys")


def _of_rows(env, *names):
    """Whether all attributes of these names are arrays of one number a row."""
    return all(
        is_array(getattr(env, name, None)) and tuple(getattr(env, name).shape) == (env.num_envs,)
        for name in names
    )


def is_task(env):
    """Whether an object has the interface of IsaacGymEnvs, legged_gym, rsl_rl or Isaac Lab."""
    is_other = any(
        x.__module__.startswith(("gym.vector", "gymnasium.vector")) for x in type(env).__mro__
    )
    if is_other or not isinstance(getattr(env, "num_envs", None), int):
        return False
    return _of_rows(env, "progress_buf", "reset_buf") or _of_rows(env, "episode_length_buf")


def _called(function, *arguments, **kwargs):
    """The result of a function or a method of what is hosted.

    Raises:
        Refused: If it does not take these arguments.

    """
    try:
        return function(*arguments, **kwargs)
    except TypeError as error:
        if error.__traceback__.tb_next is None:  # it was not entered
            raise Refused(str(error)) from None
        raise


#: Buffers of one number a row, which cross with each answer.
BUFFERS = (
    "progress_buf",
    "episode_length_buf",
    "reset_buf",
    "time_out_buf",
    "_terminate_buf",
    "reset_terminated",
    "reset_time_outs",
)

#: Methods of a task that the client calls.
METHODS = (
    "step",
    "reset",
    "reset_idx",
    "reset_done",
    "zero_actions",
    "compute_observations",
    "_compute_observations",
    "get_state",
    "get_observations",
    "render",
    "state_dict",
    "load_state_dict",
)

#: Numbers and arrays that a task may have, which do not change.
FACTS = (
    "max_episode_length",
    "_max_episode_length",
    "num_actions",
    "num_acts",
    "num_states",
    "clip_obs",
)

#: Entries of a config that say how a task of Isaac Lab ends episodes.
CONFIG = ("is_finite_horizon", "compute_final_obs", "auto_reset")

#: Entries of `extras` that cross; and any that the client names.
EXTRAS = (
    "time_outs",
    "terminate",
    "final_obs",
    "final_observation",
    "terminal_obs",
    "terminal_observation",
    "log",
    "episode",
)


class Task:
    """A task with IsaacGym's interfaces: its methods are called, and its buffers read, for a
    client that holds them to be its own.

    What its rows mean, and when it is reset, the client knows from them.

    Args:
        env: The task.

    """

    #: One answer's arrays are still read while the next one is written.
    PARTS = 3

    #: Kinds of messages that it takes.
    takes = frozenset((MAP, CALL, LEND))

    own = Host.own

    def __init__(self, env):
        self.env, self.num_envs = env, int(env.num_envs)
        self._link = self._reader = None
        #: Why arrays on a device cannot be copied by the driver; empty if they can, or are none.
        self._refusal = ""
        if on_device(self._clock()):
            try:
                self._reader = DeviceReader(self._device())
            except cuda_error() as error:
                self._refusal = str(error)
        self.attach(b"")

    def _clock(self):
        return next(iter(self._buffers().values()))

    def _device(self):
        if cuda_module() is None:
            raise cuda_error()("cuda.py is not beside {}".format(__file__))
        return cuda_module().Device.of_array(device_array(self._clock()))

    def attach(self, buffer):
        """Take the shared memory: a third for calls, and one for each of two answers."""
        self._process = os.getpid()
        part = len(buffer) // self.PARTS // 64 * 64
        self._buffer = buffer
        self._arenas = [Arena(buffer, part, 2 * part), Arena(buffer, 2 * part, 3 * part)]
        for arena in self._arenas:
            arena.reader = self._reader
        if self._reader is not None and self._link is None and len(buffer):
            self._reader.pin(buffer)
        self._attach_device()

    def borrow(self, body):
        """Take memory of the device that the client lends, and say by which event to wait.

        Where that cannot be, the answer says why, and arrays go through the host's memory.
        """
        size, memory, event = _checked(body, bytes=int, memory=str, event=str)
        if self._reader is None:
            raise Refused("the task's arrays are on no device that the driver knows")
        cuda, link = cuda_module(), self._link
        try:
            device = self._device()
            borrowed = cuda.Memory.borrow(device, bytes.fromhex(memory), size)
            if link is None:
                link = cuda.Link(device, borrowed)
                link.connect(bytes.fromhex(event))
            else:
                link.memory.close()
                link.memory = borrowed
            answer = {"event": link.handle.hex()}
        except ValueError as error:
            raise Refused("memory was lent with {}".format(error)) from None
        except cuda.DriverError as error:
            if link is not None and link is not self._link:
                link.close()
            return {"refused": str(error)}
        self._link = link
        self._reader.unpin()
        self._attach_device()
        return answer

    def _attach_device(self):
        if self._link is not None:
            for i, arena in enumerate(self._arenas):
                arena.device = cuda_module().Part(self._link, i + 1, self.PARTS)

    def introduction(self):
        """Facts of the task that the client needs."""
        env = self.env
        spaces = {}
        for name in ("act_space", "action_space", "single_action_space"):
            space = getattr(env, name, None)
            if type(space).__name__ == "Box":
                spaces[name] = space_of(space)
            elif space is not None:
                spaces[name] = {"kind": "Other", "text": str(space)}
        inner = getattr(env, "unwrapped", env)
        found = {}
        for config in (getattr(x, "cfg", None) for x in (inner, env)):
            found.update({x: getattr(config, x) for x in CONFIG if hasattr(config, x)})
        methods = [x for x in METHODS if callable(getattr(env, x, None))]
        arena = Arena()
        facts = {x: getattr(env, x) for x in FACTS if hasattr(env, x)}
        body = {
            "task": type(env).__name__,
            "num_envs": self.num_envs,
            "spaces": spaces,
            "config": {key: value for key, value in found.items() if isinstance(value, bool)},
            "methods": methods,
            "is_wrapper": inner is not env,
            "facts": arena.encode(facts),
            "buffers": arena.encode(self._buffers()),
        }
        if on_device(self._clock()):
            known = self._reader is not None
            body["device"] = {"uuid": self._device().uuid} if known else {"refused": self._refusal}
        return body, arena.after

    def _buffers(self):
        return {x: getattr(self.env, x) for x in BUFFERS if _of_rows(self.env, x)}

    def call(self, payload):
        """The answer to a client's call: JSON, and bytes after it."""
        link = self._link
        if link is None:
            return self._call(payload, None)
        stream = device_array(self._clock()).stream
        link.wait(stream)
        try:
            return self._call(payload, stream)
        finally:
            link.record(stream)

    def _call(self, payload, stream):
        body, after = _split(payload)
        given = lambda *array: self._given_there(stream, *array)  # noqa: E731
        on = None if stream is None else given
        take = lambda tree: decoded(tree, self._buffer, after, self._given, on)  # noqa: E731
        name, given, trees, more = _checked(body, method=str, set=list, args=list, extras=list)
        with _reading():
            given = [(str(attribute), take(tree)) for attribute, tree in given]
            arguments = [take(x) for x in trees]
            names = EXTRAS + tuple(map(str, more))
        for attribute, value in given:
            self._set(attribute, value)
        resets = []
        if name == "seed":
            if not (len(arguments) == 1 and isinstance(arguments[0], int)):
                raise Refused("a seed must be a number")
            returned = self._seed(*arguments)
        elif name == "get":
            if arguments not in (["obs_buf"], ["states_buf"]):
                raise Refused("the attribute {:.200} does not cross".format(repr(arguments)))
            returned = getattr(self.env, arguments[0], None)
        elif name in METHODS and callable(getattr(self.env, name, None)):
            method = getattr(self.env, name)
            if name == "zero_actions" or not body.get("listen"):
                returned = _called(method, *arguments)
            else:
                returned = self._listening(method, arguments, resets)
        else:
            raise Refused("the method {:.200} does not cross".format(name))
        if name == "step":
            if isinstance(returned, (list, tuple)) and returned and hasattr(returned[-1], "keys"):
                extras = returned[-1]
                returned = (*returned[:-1], {x: extras[x] for x in names if x in extras})
        elif not _crosses(returned):
            returned = None
        self.own(returned)
        self._arenas.reverse()
        arena = self._arenas[0]
        arena.clear()
        if arena.device is not None:
            arena.device.clear(stream)
        arena.is_whole = name == "state_dict"
        found = {"returned": returned, "buffers": self._buffers(), "resets": resets}
        body = dict(arena.encode(found), needed=arena.needed)
        if self._reader is not None:
            self._reader.finish()
        if arena.device is not None:
            body["needed_there"] = arena.device.needed
        return body, arena.after

    def _given(self, x):
        """An array of the client as the task has them: new memory."""
        clock = self._clock()
        if is_tensor(clock):
            return sys.modules["torch"].from_numpy(x.copy()).to(clock.device)
        return self._reader.upload(x, device_array(clock).stream) if self._reader else x.copy()

    def _given_there(self, stream, typestr, shape, at):
        """An array of the client in the device's memory, as the task has them: new memory."""
        cuda, clock = cuda_module(), self._clock()
        view = self._link.memory.view(typestr, shape, at, stream)
        if is_tensor(clock):
            torch = sys.modules["torch"]
            dtype = torch.from_numpy(np.empty(0, typestr)).dtype
            found = torch.empty(view.shape, dtype=dtype, device=clock.device)
            target = found.data_ptr()
        else:
            found = self._reader.empty(typestr, view.shape, stream)
            target = found.pointer
        cuda.copy_on(self._link.device, stream, target, view)
        return found

    def _set(self, name, value):
        """Write a buffer that the client has changed."""
        if name not in BUFFERS:
            raise Refused("the attribute {} does not cross".format(name))
        buffer = self._buffers().get(name)
        if tuple(np.shape(value)) != (self.num_envs,) or buffer is None:
            raise Refused("the buffer {} is none of {} numbers".format(name, self.num_envs))
        if name == "episode_length_buf":  # a property in some, which rsl_rl allows to assign
            setattr(self.env, name, value)
        elif on_device(buffer) and not is_tensor(buffer):
            own, given = device_array(buffer), device_array(value)
            if (own.typestr, own.shape) != (given.typestr, given.shape):
                raise Refused("the buffer {} has other numbers".format(name))
            cuda_module().copy_on(self._device(), own.stream, own.pointer, given)
        else:
            buffer[...] = value

    def _seed(self, seed):
        """Seed the task, if it can be, or the generators of this process, which are its own."""
        if callable(getattr(self.env, "seed", None)):
            self.env.seed(seed)
            return
        random.seed(seed)
        np.random.seed(seed % 2**32)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed)

    def _listening(self, method, arguments, resets):
        """Call a method, and note the rows and their clocks at each call of `reset_idx` in it."""
        own = getattr(self.env, "reset_idx", None)
        is_set = "reset_idx" in getattr(self.env, "__dict__", {})
        owner = self.env if is_set else getattr(own, "__self__", None)
        if owner is None:
            return _called(method, *arguments)
        was_own = getattr(owner, "__dict__", {}).get("reset_idx")

        def listen(env_ids, *args, **kwargs):
            clock = array_of(self._clock())
            ids = array_of(env_ids)
            resets.append([ids.copy(), clock[ids].copy()])
            return own(env_ids, *args, **kwargs)

        owner.reset_idx = listen
        try:
            return _called(method, *arguments)
        finally:
            if was_own is None:
                del owner.reset_idx
            else:
                owner.reset_idx = was_own

    def close(self):
        """Close what is hosted."""
        link, self._link = self._link, None
        if link is not None:
            link.memory.close()
            link.disconnect()
            link.close()
        if self._reader is not None:
            self._reader.unpin()
        getattr(self.env, "close", lambda: None)()


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
    if not 1 <= num_envs <= 2**20:
        raise Refused("{} rows were asked for".format(num_envs))
    library, _, name = entry.partition(":")
    if not library or not name:
        raise Refused(f"the entry {entry!r} must be written library:name or module:function")
    if library in ("gym", "gymnasium"):
        module = _module(library)
        if library == "gym" and _version(module) < (0, 25):  # there `render` has the mode
            kwargs = {key: value for key, value in kwargs.items() if key != "render_mode"}
        return SingleEnvs(lambda: module.make(name, **kwargs), num_envs)
    if library == "isaacgymenvs":
        _module("isaacgym")  # before anything that imports PyTorch
        given = {"seed": 0, "sim_device": "cuda:0", "headless": True, "force_render": False}
        given["rl_device"] = kwargs.get("sim_device", given["sim_device"])
        given.update(kwargs)
        return Task(_module(library).make(task=name, num_envs=num_envs, **given))
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
    given = dict(kwargs, num_envs=num_envs) if takes_number else kwargs
    first = _called(function, **given)
    if is_task(first):
        host = Task(first)
    elif hasattr(first, "observe") and hasattr(first, "act"):
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


def _version(module):
    """The first two numbers of a module's version."""
    return tuple(map(int, module.__version__.split(".")[:2]))


def _batch_of(env):
    module = type(env).__module__.split(".")[0]
    bases = [cls.__module__ for cls in type(env).__mro__]
    is_gymnasium = any(x.startswith("gymnasium.vector") for x in bases) or module == "gymnasium"
    if is_gymnasium and _version(importlib.import_module("gymnasium"))[0] >= 1:
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
            if start < 0 or start + size > len(buffer):
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

    def result_arrays(self, rows=slice(None)):
        """Arrays of the result of a reset or an env step, but for the final observations."""
        arrays = [*self.obs, self.rewards, self.terminated, self.truncated, self.has_final]
        return [x[rows] for x in arrays]

    def result(self):
        """Bytes of the result; final observations are those of the rows that have one."""
        final = [x[self.has_final] for x in self.final]
        return b"".join([x.tobytes() for x in self.result_arrays() + final])

    def take_result(self, data, rows):
        """Write the bytes of `result` to some rows.

        Raises:
            Refused: If they are of another size.

        """
        left = take(self.result_arrays(rows), data)
        has_final = self.has_final[rows].view(np.uint8) != 0
        parts = [np.empty((int(has_final.sum()), *x.shape[1:]), x.dtype) for x in self.final]
        if take(parts, left):
            raise Refused("a result has more bytes than its arrays")
        for x, part in zip(self.final, parts):
            x.flags.writeable = True
            x[rows][has_final] = part
            x.flags.writeable = False


def take(arrays, data):
    """Fill arrays from the first bytes, and return the others.

    Raises:
        Refused: If there are too few.

    """
    at = 0
    for x in arrays:
        if at + x.nbytes > len(data):
            raise Refused("a message has fewer bytes than its arrays")
        x[...] = np.frombuffer(data, x.dtype, x.size, at).reshape(x.shape)
        at += x.nbytes
    return data[at:]


# ---- the process ------------------------------------------------------------------------------


#: Kinds of the first message.
_FIRST = frozenset((OPEN,))


def serve(channel):
    """Answer messages until the other end is closed; whether it said so before."""
    host = None
    try:
        while True:
            try:
                kind, payload = channel.receive()
            except Refused as error:  # what follows cannot be told apart
                channel.send(FAILED, _failure(error))
                return False
            if kind is None or kind == CLOSE:
                return kind == CLOSE
            try:
                if kind not in (_FIRST if host is None else host.takes):
                    raise Refused("a message of the kind {} is not due".format(kind))
                if kind == STEP:
                    if channel.carries:
                        take(host.memory.actions.values(), _split(payload)[1])
                        channel.send(DONE, host.step() or {}, host.memory.result())
                    else:
                        channel.send(DONE, host.step())
                    continue
                if kind == RESTORE:
                    tree, after = _split(payload)
                    with _reading():
                        state = decoded(tree, b"", after, np.copy)
                    host.restore(state)
                    channel.send(DONE)
                    continue
                if kind == CALL:
                    channel.send(DONE, *host.call(payload))
                    continue
                body, after = _split(payload) if channel.carries else (_parsed(payload), b"")
                if kind == OPEN:
                    host = host_of(*_checked(body, entry=str, kwargs=dict, num_envs=int))
                    is_task = isinstance(host, Task)
                    found, after = host.introduction() if is_task else (_introduction(host), b"")
                    channel.send(DONE, dict(found, **_versions()), after)
                elif kind == MAP:
                    size, layout = _checked(body, bytes=int, layout=dict)
                    buffer = channel.map(size)
                    is_task = isinstance(host, Task)
                    with _reading():
                        memory = buffer if is_task else Memory(buffer, layout, host)
                    host.attach(memory)
                    channel.send(DONE)
                elif kind == LEND:
                    channel.send(DONE, host.borrow(body))
                elif kind == RESET:
                    seed, options = _checked(body, seed=(int, type(None)), options=dict)
                    if channel.carries:
                        take([host.memory.mask], after)
                    warning = host.reset(seed, host.memory.mask, options)
                    found = warning and {"warning": warning}
                    if channel.carries:
                        channel.send(DONE, found or {}, host.memory.result())
                    else:
                        channel.send(DONE, found)
                elif kind == STATE:
                    arena = Arena()
                    arena.is_whole = True
                    channel.send(DONE, arena.encode(host.state()), arena.after)
                elif kind == RENDER:
                    frame = host.render()
                    if frame is None:
                        raise Refused(
                            "{} renders no frame; make it with render_mode='rgb_array', which "
                            "`render` returns".format(host.kind)
                        )
                    frame = np.ascontiguousarray(frame, dtype=np.uint8)
                    channel.send(DONE, {"shape": list(frame.shape)}, frame.tobytes())
            except BaseException as error:  # `sys.exit` in what is hosted ends it, not the server
                channel.send(FAILED, _failure(error))
    except (BrokenPipeError, ConnectionResetError):  # nobody reads the answer
        return False
    finally:
        channel.drop()
        if host is not None:
            host.close()


#: Errors that reading a message of another form raises.
_MALFORMED = (LookupError, AttributeError, TypeError, ValueError, ArithmeticError)
_MALFORMED += (RecursionError, struct.error)


@contextlib.contextmanager
def _reading():
    """A context in which a message is read, whose form may be another one.

    Raises:
        Refused: If it is.

    """
    try:
        yield
    except _MALFORMED as error:
        text = "{}: {}".format(type(error).__name__, error)[:200]
        raise Refused("a message is not of the form of this bridge ({})".format(text)) from None


def _split(payload):
    """The JSON object of a message that begins with its size, and the bytes after it."""
    with _reading():
        (size,) = struct.unpack_from("<I", payload)
    return _parsed(payload[4 : 4 + size]), payload[4 + size :]


def _parsed(payload):
    """The JSON object of a message; an empty one if it has none."""
    with _reading():
        body = json.loads(payload.decode()) if payload else {}
    if not isinstance(body, dict):
        raise Refused("a message has JSON that is no object")
    return body


def _checked(body, **kinds):
    """Entries of a message or a state, which must be of these types; integers are 0 or more.

    Raises:
        Refused: If one is missing or of another type.

    """
    if not isinstance(body, dict):
        raise Refused("{:.200} is no mapping of {}".format(repr(body), ", ".join(kinds)))
    for name, kind in kinds.items():
        value = body.get(name, ())
        if not isinstance(value, kind) or isinstance(value, bool):
            raise Refused("a message has the {} {!r}".format(name, value)[:200])
        if isinstance(value, int) and not 0 <= value < 2**63:
            rule = "it must be 0 or more, and less than 2**63"
            raise Refused("a message has the {} {:g}; {}".format(name, value, rule))
    return [body[name] for name in kinds]


def _introduction(host):
    return {
        "num_envs": host.num_envs,
        "observation": host.observation,
        "action": host.action,
        "mode": host.mode,
        "final": host.final,
        "resets_rows": host.resets_rows,
        "has_state": host.has_state,
        "kind": host.kind,
        "limit": host.limit,
        "steps": host.steps,
        "render_mode": host.render_mode if isinstance(host.render_mode, str) else None,
    }


def _versions():
    """Versions of Python, and of the imported packages that environments are made of."""
    names = ("numpy", "gym", "gymnasium", "gym3", "procgen", "torch", "stable_baselines3")
    names += ("isaacgym", "isaacgymenvs")
    found = {}
    for name in names:
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", "?")).strip()
    return {"python": "{}.{}.{}".format(*sys.version_info[:3]), "packages": found}


#: Characters of the longest text of an error: it has to be one message.
LONGEST = 2**16


def _failure(error):
    is_refusal = isinstance(error, Refused)
    try:
        message = str(error)[:LONGEST]
    except Exception:
        message = "its text cannot be had"
    failure = {
        "refused": is_refusal,
        "type": type(error).__name__,
        "message": message,
        "traceback": "" if is_refusal else traceback.format_exc()[-LONGEST:],
    }
    return dict(failure, **_versions())


def _end_with_parent(parent):
    """End this process soon after its parent has ended, also while an environment computes."""

    def watch():
        while os.getppid() == parent:
            time.sleep(1.0)
        _end_group()

    thread = threading.Thread(target=watch)
    thread.daemon = True
    thread.start()


def _end_with_client(connection):
    """End this process if the other machine has closed the connection, also while it computes."""

    def watch():
        closed = select.poll()
        closed.register(connection, 0x2000)  # POLLRDHUP; hang-ups and errors are always told
        closed.poll()
        time.sleep(2.0)  # what was said before the end: that it ends, and the environment closes
        _end_group()

    thread = threading.Thread(target=watch)
    thread.daemon = True
    thread.start()


def _end_group():
    """End this process and those that the environment has started and left."""
    group = os.getpgrp()
    if os.fork() == 0:
        os.setsid()  # outside of the group
        os.closerange(0, 1024)  # Python's tracker of shared memory works once nobody holds its pipe
        try:
            end_all(group, os.environ.get(MARK, ""), 1.0)
        finally:
            os._exit(0)
    os._exit(1)


#: Environment variable of a server, and of what it starts: its value names the server.
MARK = "EVERSTEP_BRIDGE"


def end_all(group, mark, patience):
    """End a group of processes, and those that left it and have the mark.

    First comes a signal that Python's tracker of shared memory ignores: it unlinks what is left.

    Args:
        group: Number of the group.
        mark: Value of the variable `MARK` of these processes; empty for none.
        patience: Seconds that they have for it.

    """
    end = time.monotonic() + patience
    number = signal.SIGTERM
    while _told(number, group, mark):
        if number == signal.SIGKILL:
            return
        number = 0 if time.monotonic() < end else signal.SIGKILL
        time.sleep(0.01)


def _told(number, group, mark):
    """Send a signal, and return whether there is a process to get it."""
    is_told = False
    for send, to in [(os.killpg, group)] + [(os.kill, pid) for pid in _marked(mark)]:
        try:
            send(to, number)
            is_told = True
        except (ProcessLookupError, PermissionError):  # it has ended, or is another user's now
            pass
    return is_told


def _marked(mark):
    """Other processes that have the mark; one that has ended has no variables."""
    text, found = "{}={}\0".format(MARK, mark).encode(), []
    for name in os.listdir("/proc") if mark else ():
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open("/proc/{}/environ".format(name), "rb") as file:
                    if text in file.read():
                        found.append(int(name))
            except OSError:  # it has ended, or is another user's
                pass
    return found


# ---- clients on other machines ----------------------------------------------------------------


def key_of(path):
    """The content of a key file, which its owner alone may read.

    Raises:
        Refused: If it is too short, others may read it, or it cannot be read.

    """
    try:
        with open(path, "rb") as file:
            mode, key = os.fstat(file.fileno()).st_mode, file.read(4096).strip()
    except OSError as error:
        raise Refused(f"the key {path} cannot be read ({error.strerror})") from None
    if mode & 0o077:
        raise Refused(f"others may read the key {path}: chmod 600 {path}")
    if len(key) < 16:
        raise Refused(f"the key {path} has {len(key)} bytes; it must have 16 or more")
    return key


def authenticate(connection, key, *, is_server):
    """Prove to the other end that this one has the key, and let it prove the same.

    Each sends 32 random bytes, and answers the other's with a HMAC of both; the client's comes
    first. Nothing else is read before. All of it may take `PROVING`; then the socket is blocking.

    Raises:
        Refused: If it has not, not in time, or is no end of a bridge.

    """
    end = time.monotonic() + PROVING
    connection.settimeout(PROVING)  # what is sent before the first answer

    def exactly(size):
        data = b""
        while len(data) < size:
            # What is left of the whole: bytes may come one by one.
            connection.settimeout(max(end - time.monotonic(), 1e-3))
            try:
                more = connection.recv(size - len(data))
            except socket.timeout:
                raise Refused(
                    f"the other end has not shown within {PROVING:g} s that it has the key"
                ) from None
            if not more:
                raise Refused("the other end has closed the connection: its key may be another one")
            data += more
        return data

    def proof(role):
        return hmac.new(key, role + b"".join(nonces), "sha256").digest()

    own = os.urandom(32)
    connection.sendall(_MAGIC + struct.pack("<H", PROTOCOL) + own)
    greeting = exactly(38)
    if greeting[:4] != _MAGIC:
        raise Refused(f"what answers is no end of a bridge ({greeting[:4]!r})")
    (protocol,) = struct.unpack("<H", greeting[4:6])
    if protocol != PROTOCOL:
        raise Refused(f"the other end speaks protocol {protocol}, and this one {PROTOCOL}")
    nonces = (own, greeting[6:]) if is_server else (greeting[6:], own)
    if not is_server:
        connection.sendall(proof(b"client"))
    if not hmac.compare_digest(exactly(32), proof(b"client" if is_server else b"server")):
        raise Refused("the other end has another key")
    if is_server:
        connection.sendall(proof(b"server"))
    connection.settimeout(None)


def prepare(connection):
    """Let a connection send small messages at once, and end if the other machine is lost."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def address_of(text):
    """Host and port of `HOST:PORT`.

    Raises:
        Refused: If it is not of this form.

    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise Refused(f"the address {text!r} must be written HOST:PORT")
    return host.strip("[]"), int(port)


def accepted(address, key_path):
    """Listen for ever; each connection that has the key is returned in a process of its own.

    A key file that is not there is made.
    """
    if not os.path.exists(key_path):
        descriptor = os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(os.urandom(32).hex() + "\n")
        print(f"made the key {key_path}: copy it to the clients", flush=True)
    key, (host, port) = key_of(key_path), address_of(address)
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(place)
    listener.listen(MOST_CLIENTS)
    listener.settimeout(1.0)
    print("listening on {}:{}".format(*listener.getsockname()[:2]), flush=True)
    clients = set()
    while True:
        clients = {pid for pid in clients if os.waitpid(pid, os.WNOHANG) == (0, 0)}
        try:
            connection, client = listener.accept()
        except socket.timeout:
            continue
        if len(clients) >= MOST_CLIENTS:
            print("turned away {}: {} are there".format(client[0], MOST_CLIENTS), flush=True)
            connection.close()
            continue
        pid = os.fork()
        if pid:
            connection.close()
            clients.add(pid)
            continue
        listener.close()
        os.setsid()  # a group, to end it whole
        os.environ[MARK] = os.urandom(16).hex()  # of what it starts
        try:
            prepare(connection)
            authenticate(connection, key, is_server=True)
        except (Refused, OSError) as error:
            print(f"turned away {client[0]}: {error}", flush=True)
            os._exit(1)
        return connection


#: Libraries whose environments can be hosted; Isaac Gym's must be imported before PyTorch.
LIBRARIES = ("isaacgym", "isaacgymenvs", "legged_gym", "rsl_rl")
LIBRARIES += ("gymnasium", "gym", "gym3", "procgen", "stable_baselines3", "stable_baselines")


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
    """Serve the socket whose file descriptor is the first argument.

    `--check`: see `hostable`; `--listen HOST:PORT --key FILE`: see `accepted`.
    """
    if sys.argv[1:] == ["--check"]:
        print(json.dumps(hostable()))
        return
    is_remote = sys.argv[1:2] == ["--listen"]
    if is_remote and (len(sys.argv) != 5 or sys.argv[3] != "--key"):
        sys.exit("usage: server.py --listen HOST:PORT --key FILE")
    if is_remote:
        parent = os.getpid()
        try:
            connection = accepted(sys.argv[2], sys.argv[4])
        except (Refused, OSError) as error:
            sys.exit(f"server.py: {error}")
        except KeyboardInterrupt:
            return
    else:
        parent = int(sys.argv[2])
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=int(sys.argv[1]))
    del sys.argv[1:]  # what is hosted may read options of its own, as Isaac Gym's tasks do
    _end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the client's, which then ends this
    # The folder of this file is not where the user's modules are.
    sys.path[:] = [
        x for x in sys.path if os.path.abspath(x) != os.path.dirname(os.path.abspath(__file__))
    ]
    sys.path.append(os.getcwd())
    connection.setblocking(True)
    if is_remote:
        _end_with_client(connection)
    if not serve(Channel(connection, carries=is_remote)):
        _end_group()  # a client that says that it ends does that itself


if __name__ == "__main__":
    main()
