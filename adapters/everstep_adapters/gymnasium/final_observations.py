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
from .spaces import where

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


def read_final(row: Row, infos: dict[str, Any], done: BoolArray) -> None:
    """Read the final observations of the rows `done` from the infos; NaN where one is lost."""
    available = _read(row.final, infos, done)
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
    """Check that a reset has not overwritten the final observations in a batch's infos.

    A final observation that was overwritten equals the one after the reset, and lies in memory
    that it shares with it or that the environment holds. Both are true of a leaf that never
    changes, too, so one of several leaves is watched until it does.

    Args:
        env: Vector environment that resets itself in the same env step.

    """

    def __init__(self, env: AnyVectorEnv) -> None:
        self._env = env
        #: Copies of leaves that may be overwritten, or never change.
        self.watched: dict[int, Any] = {}
        #: Whether tensors of a storage are the environment's. An allocator reuses few addresses.
        self._is_held: dict[int, bool] = {}

    def check_watched(self, obs: Sequence[Any], paths: Sequence[Sequence[Any]]) -> None:
        """Check that leaves which were taken for ones that never change have not.

        Args:
            obs: Leaves of the observation.
            paths: Indices to them in what the environment returned.

        Raises:
            EnvError: If one has.

        """
        for i, before in self.watched.items():
            if not _is_equal(obs[i], before):
                raise self._error(where(FINAL_KEYS[0], tuple(paths[i])))

    def check(
        self,
        obs: Sequence[Any],
        final: Sequence[Any],
        done: Any,
        paths: Sequence[Sequence[Any]],
        observation: Any,
        infos: dict[str, Any],
    ) -> None:
        """Check the final observations of the rows that are done, after they were read.

        Tensors are compared only where their memory is suspicious: that waits for the device.

        Args:
            obs: Leaves of the observation, all arrays or all tensors.
            final: Leaves of the final observations.
            done: Rows that are done, bool `[num_envs]`.
            paths: Indices to the leaves in what the environment returned.
            observation: What the environment returned.
            infos: Its infos, with final observations.

        Raises:
            EnvError: If one was overwritten.

        """
        key = final_key(infos)
        if key is None:
            return
        rows = (
            [x for x in infos[key] if x is not None] if is_one_a_row(infos[key]) else [infos[key]]
        )
        found = []
        for i, path in enumerate(paths):
            is_array = isinstance(obs[i], np.ndarray)
            if is_array and not _is_equal(obs[i][done], final[i][done]):  # quicker than memory
                continue
            leaves = [pick(row, path, key) for row in rows]
            if not self._is_live(leaves, pick(observation, path, "obs")):
                continue
            if is_array or _is_equal_in(done, obs[i], final[i]):
                found.append(i)
        if found and len(found) == len(paths):
            raise self._error(where(key, tuple(paths[0])))
        for i in found:
            self.watched.setdefault(i, copied(obs[i]))

    def _is_live(self, final: Sequence[Any], returned: Any) -> bool:
        """Whether leaves of final observations are memory that is written to later."""
        for leaf in final:
            if isinstance(leaf, np.ndarray) and not leaf.flags.writeable:
                continue
            if shares(leaf, returned):
                return True
            address = None
            if isinstance(leaf, torch.Tensor):
                address = leaf.untyped_storage().data_ptr()
            if address not in self._is_held or address is None:
                self._is_held[address or 0] = any(shares(leaf, x) for x in _reachable(self._env))
            if self._is_held[address or 0]:
                return True
        return False

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


def _is_equal_in(rows: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(rows.any()) and _is_equal(one[rows], other[rows])


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
