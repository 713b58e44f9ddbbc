"""Final observations in the infos of vector environments, and the modes that they contradict."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import Env, Space
from gymnasium.vector import AsyncVectorEnv

from everstep.errors import AdapterError, EnvError

from ..common.handoff import to_numpy
from ..common.independence import shares
from ..common.kept_ends import InWorker, copied, keep_ends
from .modes import AnyVectorEnv
from .rows import BoolArray, Leaf, Row, pick
from .specs import where

#: Where environments store the observation before a reset in their infos.
FINAL_KEYS = ("final_obs", "final_observation", "terminal_observation")

#: Where the search for an environment's arrays ends: attributes of attributes, and objects.
_MOST_LEVELS, _MOST_OBJECTS = 5, 20_000


def final_key(infos: dict[str, Any]) -> None | str:
    """The key of the final observations in the infos; `None` if they hold none."""
    return next((key for key in FINAL_KEYS if infos.get(key) is not None), None)


def is_one_a_row(final: Any) -> bool:
    """Whether final observations are one object a row, `None` in some, rather than a batch."""
    return isinstance(final, list) or (isinstance(final, np.ndarray) and final.dtype.kind == "O")


def read_final(
    row: Row,
    infos: dict[str, Any],
    done: BoolArray,
    observation: Any,
    overwrites: "None | OverwriteCheck",
) -> None:
    """Read the final observations of the rows `done` from the infos; NaN where one is lost.

    Args:
        row: Row with the environment's observations and flags.
        infos: The environment's infos.
        done: Rows that are done.
        observation: What the environment returned.
        overwrites: Looks for final observations that were overwritten.

    Raises:
        EnvError: If one was overwritten; or is lost, or may be overwritten, and is needed, and no
            leaf can be NaN.

    """
    is_end = np.count_nonzero(done)
    available = _read(row.final, infos, done) if is_end else done
    if overwrites is not None:
        obs, final = ([x.array for x in leaves] for leaves in (row.obs, row.final))
        paths = [x.path for x in row.obs]
        infos = infos if is_end else {}
        unsure, live = overwrites.look(obs, final, available, paths, observation, infos)
        needed = live & row.truncated & ~row.terminated
        if np.count_nonzero(needed) and not any(x.dtype.kind == "f" for x in final):
            raise overwrites.doubt(np.flatnonzero(needed).tolist())
        available = available & ~unsure
    lost = done & ~available & row.truncated & ~row.terminated
    if np.count_nonzero(lost):
        _mark_lost(row, lost)


def check_no_final(env: object, mode: str, row: Row, infos: dict[str, Any]) -> None:
    """Check that an environment has not reset itself in the env step that ended an episode.

    Raises:
        EnvError: If its infos show that it has.

    """
    if holds_another(row, infos):
        raise EnvError(
            f"{env} reset itself in the env step that ended an episode: its infos hold a final "
            f"observation, and the one returned is another. Its mode was taken to be {mode}. Pass "
            "`autoreset_mode='SAME_STEP'`."
        )


def holds_another(row: Row, infos: dict[str, Any]) -> bool:
    """Whether the infos hold a final observation of a row that is done, other than its `obs`."""
    if final_key(infos) is None:
        return False
    final = [replace(leaf, array=leaf.array.copy()) for leaf in row.obs]
    _read(final, infos, row.terminated | row.truncated)
    return not all(
        np.array_equal(a.array, b.array, equal_nan=a.array.dtype.kind == "f")
        for a, b in zip(final, row.obs, strict=True)
    )


def _read(leaves: Sequence[Leaf], infos: dict[str, Any], done: BoolArray) -> BoolArray:
    """Read the final observations of the rows `done`, in whatever form. The rows that had one.

    Final observations are one object a row, or a batch with or without a mask of its rows.
    """
    key = final_key(infos)
    if key is None:
        return np.zeros_like(done)
    final = infos[key]
    if is_one_a_row(final):
        return _read_objects(leaves, final, done)
    available: BoolArray = done & to_numpy(infos.get(f"_{key}", done)).astype(np.bool_)
    for leaf in leaves:
        leaf.read_rows(final, available)
    return available


def _read_objects(leaves: Sequence[Leaf], final: Sequence[Any], done: BoolArray) -> BoolArray:
    if len(final) != len(done):
        raise EnvError(f"Final observations must be {len(done)}, one a row; got {len(final)}.")
    available: BoolArray = done & np.array([value is not None for value in final])
    for i in np.flatnonzero(available).tolist():
        for leaf in leaves:
            leaf.read_row(final[i], i)
    return available


def _mark_lost(row: Row, lost: BoolArray) -> None:
    """Put NaN into the final observations of the rows `lost`, whose values are needed."""
    floating = [leaf for leaf in row.final if leaf.array.dtype.kind == "f"]
    if not floating:
        raise EnvError(
            f"The episodes of rows {np.flatnonzero(lost).tolist()} were truncated and the infos "
            f"hold no final observation ({', '.join(FINAL_KEYS)}), which integer observations "
            "cannot mark. Use the mode NEXT_STEP or DISABLED."
        )
    for leaf in floating:
        leaf.array[lost] = np.nan


def keep_final(env: AnyVectorEnv) -> "None | OverwriteCheck":
    """Keep the observations that end episodes from the reset in the same env step.

    Those of a `SyncVectorEnv` and an `AsyncVectorEnv` are copied before it. Other classes reset
    their rows where nobody can look: their final observations are checked, by what is returned.

    Raises:
        AdapterError: If the processes run a function of the user's own that hides the environment.

    """
    base: Any = env.unwrapped
    if isinstance(base, AsyncVectorEnv):
        if not all(base.call("has_wrapper_attr", InWorker(keep_ends))):
            raise AdapterError(
                f"The `worker` of {env} has no variable `env`, so its final observations cannot be "
                "kept from the reset that follows. Name it so, or use the mode NEXT_STEP or "
                "DISABLED."
            )
        return None
    singles = [x for x in getattr(base, "envs", ()) if isinstance(x, Env)]
    for single in singles:
        keep_ends(single)
    return None if singles else OverwriteCheck(env)


class OverwriteCheck:
    """Look for final observations in a batch's infos that the reset has overwritten.

    An overwritten final observation equals the observation after the reset. Its memory is shared
    with that observation, or held by the environment. A leaf that never changes looks the same, so
    an equal leaf alone is no error:

    * In shared memory, the leaf is an error as soon as it is seen to change.
    * In memory that the environment holds, it may be equal by chance. It is an error after
      `most_equal` ends at which it had differed one vector step before; until then its rows count
      as lost. A single end at which it is not equal clears its memory.
    * Integers cannot be marked as lost. If only integers are observed, the first row whose final
      observation is needed is an error.

    Args:
        env: Vector environment that resets itself in the same env step.

    """

    #: Ends at which a leaf in memory that the environment holds equals the reset's, to refuse it.
    most_equal = 4

    def __init__(self, env: AnyVectorEnv) -> None:
        self._env = env
        #: Leaves a vector step ago, of those that are looked at; at first all are.
        self._before: None | dict[int, Any] = None
        self._changed: set[int] = set()
        #: Leaves whose final observations share memory with what is returned.
        self._shared: set[int] = set()
        self._equal_ends: dict[int, int] = {}
        #: Leaves and memory of final observations that no reset overwrites.
        self._cleared: set[tuple[int, int]] = set()
        #: Whether tensors of a storage are the environment's. An allocator reuses few addresses.
        self._is_held: dict[int, bool] = {}

    def look(
        self,
        obs: Sequence[Any],
        final: Sequence[Any],
        ends: Any,
        paths: Sequence[Sequence[Any]],
        observation: Any,
        infos: dict[str, Any],
    ) -> tuple[Any, Any]:
        """Two masks of rows: final observations that count as lost, and all that are in doubt.

        Final observations are in doubt if they lie in memory that is written to, and equal those
        after the reset. Call it after they were read. Tensors are compared only if their memory is
        suspicious, because comparing them waits for the device.

        Args:
            obs: Leaves of the observation, all arrays or all tensors.
            final: Leaves of the final observations.
            ends: Rows that have one, bool `[num_envs]`.
            paths: Indices to the leaves in what the environment returned.
            observation: What the environment returned.
            infos: Its infos, with final observations where episodes ended.

        Raises:
            EnvError: If a final observation was overwritten.

        """
        unsure = live = ends & False
        looked_at = set(range(len(obs)) if self._before is None else self._before)
        before = self._before or {}
        for i in before:
            is_cheap = isinstance(obs[i], np.ndarray) or i in self._shared
            if is_cheap and i not in self._changed and not _is_equal(obs[i], before[i]):
                self._changed.add(i)
                if i in self._shared:
                    raise self._error(where(FINAL_KEYS[0], tuple(paths[i])))
        key = final_key(infos)
        if key is not None:
            every = infos[key]
            rows = [x for x in every if x is not None] if is_one_a_row(every) else [every]
            for i, path in enumerate(paths):
                found = [pick(row, path, key) for row in rows]
                there = pick(observation, path, "obs")
                memory = self._suspicious(i, obs[i], final[i], ends, found, there)
                if memory:
                    name = where(key, tuple(path))
                    unsure = unsure | self._judge(i, obs[i], before.get(i), ends, memory, name)
                    live = ends
                    looked_at.add(i)
                elif i not in self._shared and i not in self._equal_ends:
                    looked_at.discard(i)
        self._before = {i: copied(obs[i]) for i in looked_at}
        return unsure, live

    def _suspicious(
        self, i: int, obs: Any, final: Any, ends: Any, found: Sequence[Any], returned: Any
    ) -> str:
        """Where equal final observations lie: "shared", "held", or empty for neither."""
        memories = {(i, _memory_of(leaf)) for leaf in found}
        if not memories or memories <= self._cleared:
            return ""
        is_array = isinstance(obs, np.ndarray)
        if is_array and not _is_equal(obs[ends], final[ends]):  # quicker than memory
            self._cleared |= memories if len(self._cleared) < _MOST_OBJECTS else set()
            return ""
        memory = self._live(found, returned)
        if memory and not is_array and not _is_equal(obs[ends], final[ends]):
            self._cleared |= memories
            return ""
        return memory if memory and bool(ends.any()) else ""

    def _judge(self, i: int, obs: Any, before: Any, ends: Any, memory: str, name: str) -> Any:
        """The rows of which a leaf may be overwritten.

        Raises:
            EnvError: If it is.

        """
        differs = ends if before is None else _rows_that_differ(obs, before)
        if memory == "shared":
            self._shared.add(i)
            if before is not None and (i in self._changed or bool(differs.any())):
                raise self._error(name)
            return differs & ends
        equal = differs & ends
        seen = 0 if before is None else int(equal.sum())
        self._equal_ends[i] = self._equal_ends.get(i, 0) + seen
        if self._equal_ends[i] >= self.most_equal:
            raise self._error(name)
        return equal

    def _live(self, final: Sequence[Any], returned: Any) -> str:
        """Whether leaves of final observations lie in memory that is written to later."""
        for leaf in final:
            if isinstance(leaf, np.ndarray) and not leaf.flags.writeable:
                continue
            if shares(leaf, returned):
                return "shared"
            address = _memory_of(leaf) if isinstance(leaf, torch.Tensor) else None
            if address not in self._is_held or address is None:
                self._is_held[address or 0] = any(shares(leaf, x) for x in _reachable(self._env))
            if self._is_held[address or 0]:
                return "held"
        return ""

    def doubt(self, rows: list[int]) -> EnvError:
        """The error of rows whose final observations may be overwritten, and cannot be marked."""
        return EnvError(
            f"{self._env} may have overwritten the final observations of rows {rows}: they equal "
            "those after the reset in the same env step, and lie in memory that it holds. Integer "
            "observations cannot mark them as lost. Let it put a copy into the infos before it "
            "resets, or use the mode NEXT_STEP or DISABLED."
        )

    def _error(self, name: str) -> EnvError:
        return EnvError(
            f"{self._env} writes into final observations that it has returned: `{name}` in its "
            "infos lies in memory that the reset in the same env step overwrites. Let it put a "
            "copy into the infos before it resets, or use the mode NEXT_STEP or DISABLED."
        )


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return bool(((one == other) | ((one != one) & (other != other))).all())
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _rows_that_differ(one: Any, other: Any) -> Any:
    """Rows bool `[num_envs]` in which two leaves are not the same; NaN equals NaN."""
    return ((one != other) & ~((one != one) & (other != other))).reshape(len(one), -1).any(-1)


def _memory_of(leaf: Any) -> int:
    """Address of the memory that an array or a tensor is a view of; 0 for other values."""
    if isinstance(leaf, torch.Tensor):
        return leaf.untyped_storage().data_ptr()
    while isinstance(getattr(leaf, "base", None), np.ndarray):
        leaf = leaf.base
    return leaf.ctypes.data if isinstance(leaf, np.ndarray) else 0


def _reachable(env: Any) -> Iterator[Any]:
    """Arrays and tensors that an environment holds, in whatever it is made of."""
    seen: set[int] = set()
    waiting = [(env, 0)]
    while waiting and len(seen) < _MOST_OBJECTS:
        value, depth = waiting.pop()
        if id(value) in seen or depth > _MOST_LEVELS:
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray | torch.Tensor):
            yield value
        elif isinstance(value, dict):
            waiting += [(x, depth + 1) for x in value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += [(x, depth + 1) for x in value]
        elif not isinstance(value, type | Space):
            waiting += [(x, depth + 1) for x in getattr(value, "__dict__", {}).values()]
