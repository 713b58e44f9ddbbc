"""Final observations in the infos of vector environments, and the modes that they contradict."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.vector import AsyncVectorEnv

from everstep.errors import AdapterError, EnvError

from ..common.handoff import to_numpy
from ..common.hooks import Hook
from ..common.kept_ends import InWorker, copied, keep_ends
from ..common.layers import layers
from ..common.overwrites import OverwriteCheck
from .modes import AnyVectorEnv
from .rows import BoolArray, Leaf, Row, pick
from .specs import where

#: Where environments store the observation before a reset in their infos.
FINAL_KEYS = ("final_obs", "final_observation", "terminal_observation")


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
    overwrites: None | OverwriteCheck,
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
        returned = as_returned([x.path for x in row.obs], observation, infos if is_end else {})
        unsure, live = overwrites.look(obs, final, available, *returned)
        needed = live & row.truncated & ~row.terminated
        if np.count_nonzero(needed) and not any(x.dtype.kind == "f" for x in final):
            raise overwrites.doubt(np.flatnonzero(needed).tolist())
        available = available & ~unsure
    lost = done & ~available & row.truncated & ~row.terminated
    if np.count_nonzero(lost):
        _mark_lost(row, lost)


def as_returned(
    paths: Sequence[tuple[Any, ...]], observation: Any, infos: dict[str, Any]
) -> tuple[list[str], list[Any], list[list[Any]]]:
    """Names, leaves and final leaves of what an environment returned; see `OverwriteCheck.look`.

    Args:
        paths: Indices to the leaves.
        observation: What the environment returned.
        infos: Its infos; final observations in them are one a row, or a batch.

    """
    key = final_key(infos)
    names = [where(key or FINAL_KEYS[0], path) for path in paths]
    if key is None:
        return names, [], []
    every = infos[key]
    rows = [x for x in every if x is not None] if is_one_a_row(every) else [every]
    there = [pick(observation, path, "obs") for path in paths]
    return names, there, [[pick(row, path, key) for row in rows] for path in paths]


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


def keep_final(env: AnyVectorEnv) -> None | OverwriteCheck:
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
    return (
        None if singles else OverwriteCheck(env, instead=", or use the mode NEXT_STEP or DISABLED")
    )


class Unwrapped(Hook):
    """`step` of a batch in wrappers, which keeps copies of what they may change in place."""

    #: Observations and final ones of the last vector step; None if they are not looked at.
    inner: None | tuple[Any, Any] = None

    #: Vector steps that are still looked at, and such that end episodes.
    steps = ends = 8

    def __call__(self, *args: Any) -> Any:
        """The result of `step`."""
        returned = self.original(*args)
        key = final_key(returned[-1])
        is_looked_at = self.steps or key is not None
        self.inner = (copied(returned[0]), copied(returned[-1].get(key))) if is_looked_at else None
        self.steps, self.ends = max(0, self.steps - 1), self.ends - (key is not None)
        if not self.ends:
            self.remove()
        return returned


class WrapperCheck:
    """Look for wrappers of a batch that change its observations, and not the final ones.

    A wrapper is an error where it has changed every number of the observations other than 0, and
    none of the final ones. One that changes some, such as those beyond a limit, may be right.

    Args:
        env: Vector environment in wrappers, which resets itself in the same env step.

    """

    def __init__(self, env: AnyVectorEnv) -> None:
        self._env, self._unwrapped = env, Unwrapped(env.unwrapped, "step")
        #: Of each leaf, whether numbers of observations were changed: all, none, or some.
        self._changed: dict[int, set[bool]] = {}

    @classmethod
    def of(cls, env: AnyVectorEnv) -> "None | WrapperCheck":
        """A check where there are wrappers of the user's own; else None."""
        found = [x for x in layers(env) if x is not env.unwrapped]
        is_own = any(not type(x).__module__.startswith("gymnasium.") for x in found)
        return cls(env) if is_own else None

    def look(self, row: Row, observation: Any, infos: dict[str, Any]) -> None:
        """Look at what the wrappers made of a vector step.

        Raises:
            EnvError: If final observations are none of the observations that policies see.

        """
        if self._unwrapped.inner is None:
            return
        (observed, final), self._unwrapped.inner = self._unwrapped.inner, None
        try:
            for i, leaf in enumerate(row.obs):
                pair = pick(observation, leaf.path, "obs"), pick(observed, leaf.path, "obs")
                self._changed[i] = self._changed.get(i, set()) | _changed(*pair)
            paths = [leaf.path for leaf in row.obs]
            names, _, outer = as_returned(paths, observation, infos)
            inner = as_returned(paths, observed, {FINAL_KEYS[0]: final})[2]
        except EnvError:  # of another structure
            return
        for i, rows in enumerate(zip(outer, inner, strict=False)):
            kinds = [_changed(x, y) for x, y in zip(*rows, strict=False)]
            if self._changed[i] == {True} and set().union(*kinds) == {False}:
                raise EnvError(
                    f"A wrapper of {self._env} changes its observations, and not the final ones in "
                    f"its infos, `{names[i]}`, whose values would be of other observations. Wrap "
                    "each environment in place of the batch, or use the mode NEXT_STEP or DISABLED."
                )


def _changed(outer: Any, inner: Any) -> set[bool]:
    """Whether numbers other than 0 differ: of all, of none, of some, or nothing to compare."""
    one, other = to_numpy(outer), to_numpy(inner)
    if one.shape != other.shape or one.dtype.kind == "O":
        return set()
    return set((one != other)[other != 0].tolist())
