"""Final observations in the infos of environments: reading them, and noticing what they betray."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from everstep.errors import EnvError

from ..common.handoff import to_numpy
from .rows import BoolArray, Leaf, Row

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

ObjectArray = npt.NDArray[np.object_]

#: Where environments leave the observation before a reset in their infos.
FINAL_KEYS = ("final_obs", "final_observation", "terminal_observation")


def read_final(row: Row, infos: dict[str, Any], done: BoolArray) -> None:
    """Take the final observations of the rows `done` from the infos; NaN where one is lost."""
    found = _take(row.final, infos, done)
    lost = done & ~found & row.truncated & ~row.terminated
    if np.count_nonzero(lost):
        _mark_lost(row, lost)


def check_no_final(env: object, mode: str, row: Row, infos: dict[str, Any]) -> None:
    """Notice an environment that resets itself at once, where its mode says that it does not.

    Raises:
        EnvError: Where it does.

    """
    if left_another(row, infos):
        raise EnvError(
            f"{env} reset itself in the env step that ended an episode: its infos hold a final "
            f"observation, and the one returned is another. Its mode was taken to be {mode}. Pass "
            "`autoreset_mode='SAME_STEP'`."
        )


def left_another(row: Row, infos: dict[str, Any]) -> bool:
    """True where the infos hold a final observation of a row that is done, and it is not `obs`."""
    if not any(key in infos for key in FINAL_KEYS):
        return False
    final = [replace(leaf, array=leaf.array.copy()) for leaf in row.obs]
    _take(final, infos, row.terminated | row.truncated)
    return not all(_same(a, b) for a, b in zip(final, row.obs, strict=True))


def _same(one: Leaf, other: Leaf) -> bool:
    return np.array_equal(one.array, other.array, equal_nan=one.array.dtype.kind == "f")


def _take(leaves: Sequence[Leaf], infos: dict[str, Any], done: BoolArray) -> BoolArray:
    """Read the final observations of the rows `done`, in whatever form. The rows that had one.

    An object array or a list holds one observation for each row, `None` where there is none;
    anything else is a batch of observations, with a mask of its rows beside it or without.
    """
    key = next((key for key in FINAL_KEYS if key in infos), FINAL_KEYS[0])
    final = infos.get(key)
    if final is None:
        return np.zeros_like(done)
    if isinstance(final, list) or (isinstance(final, np.ndarray) and final.dtype.kind == "O"):
        return _take_rows(leaves, final, done)
    found = done & to_numpy(infos.get(f"_{key}", done)).astype(np.bool_)
    for leaf in leaves:
        leaf.read_rows(final, found)
    return found


def _take_rows(
    leaves: Sequence[Leaf], final: Sequence[Any] | ObjectArray, done: BoolArray
) -> BoolArray:
    if len(final) != len(done):
        raise EnvError(f"Final observations must be {len(done)}, one a row; got {len(final)}.")
    found = np.zeros_like(done)
    for i in np.flatnonzero(done).tolist():
        if final[i] is not None:
            found[i] = True
            for leaf in leaves:
                leaf.read_row(final[i], i)
    return found


def _mark_lost(row: Row, lost: BoolArray) -> None:
    """Put NaN where the value of a final observation is wanted and the observation is lost."""
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
    """Notices environments that write into observations which they have handed out.

    The reset in the env step that ends an episode would overwrite its final observation. A
    `SyncVectorEnv` keeps what its environments returned, so there it can be seen; what other
    environments do is not known.

    Args:
        env: Vector environment that resets itself in the same env step.

    """

    def __init__(self, env: "VectorEnv[Any, Any, Any]") -> None:
        from gymnasium.vector import SyncVectorEnv

        self._env = env
        self._sync = env.unwrapped if isinstance(env.unwrapped, SyncVectorEnv) else None
        self._kept: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []

    def start(self) -> None:
        """Every row was reset: keep what was handed out, and a copy."""
        handed_out = _arrays(getattr(self._sync, "_env_obs", []))
        self._kept = [(array, array.copy()) for array in handed_out]

    def check(self) -> None:
        """In the env step after a reset, compare.

        Raises:
            EnvError: Where what was handed out has changed.

        """
        if not self._kept:
            return
        unchanged = all(array.tobytes() == copy.tobytes() for array, copy in self._kept)
        self._kept = []
        if not unchanged:
            raise EnvError(
                f"{self._env} writes into observations that it has handed out, so the reset in the "
                "env step that ends an episode overwrites the final observation. Let it return "
                "copies, or use the mode NEXT_STEP or DISABLED."
            )


def _arrays(value: Any) -> Iterator[npt.NDArray[Any]]:
    """NumPy's arrays in a value; others, such as JAX's, cannot be written to."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        yield from _arrays(list(value.values()))
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _arrays(child)
