"""Final observations in the infos of vector environments, and the modes that they contradict."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import SyncVectorEnv
from torch.utils._pytree import tree_leaves

from everstep.errors import EnvError

from ..common.handoff import to_numpy
from .modes import AnyVectorEnv
from .rows import BoolArray, Leaf, Row

#: Where environments store the observation before a reset in their infos.
FINAL_KEYS = ("final_obs", "final_observation", "terminal_observation")


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


class ReuseCheck:
    """Check for environments that write into observations which they have returned.

    The reset in the env step that ends an episode would overwrite its final observation. A
    `SyncVectorEnv` stores what its environments returned, so it can be checked; others cannot.

    Args:
        env: Vector environment that resets itself in the same env step.

    """

    def __init__(self, env: AnyVectorEnv) -> None:
        self._env = env
        self._sync = env.unwrapped if isinstance(env.unwrapped, SyncVectorEnv) else None
        self._copies: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []

    def start(self) -> None:
        """Store the observations of a reset of all rows, and copies of them."""
        returned = tree_leaves(getattr(self._sync, "_env_obs", []))
        # Arrays of other libraries, such as JAX's, cannot be written to.
        self._copies = [(x, x.copy()) for x in returned if isinstance(x, np.ndarray)]

    def check(self) -> None:
        """Compare them, in the env step after a reset.

        Raises:
            EnvError: If an observation has changed.

        """
        copies, self._copies = self._copies, []
        if any(array.tobytes() != copy.tobytes() for array, copy in copies):
            raise EnvError(
                f"{self._env} writes into observations that it has returned, so the reset in the "
                "env step that ends an episode overwrites the final observation. Let it return "
                "copies, or use the mode NEXT_STEP or DISABLED."
            )
