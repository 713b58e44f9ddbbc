"""Final observations that an environment's reset in the same env step overwrites."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from everstep.errors import EnvError

from .independence import shares
from .kept_ends import copied

#: Where the search for an environment's arrays ends: attributes of attributes, and objects.
_MOST_LEVELS, _MOST_OBJECTS = 5, 20_000


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
        env: Environment of many rows that resets itself in the same env step.
        name: Its name in errors.
        instead: Another way out than a copy, for errors.

    """

    #: Ends at which a leaf in memory that the environment holds equals the reset's, to refuse it.
    most_equal = 4

    def __init__(self, env: Any, name: None | str = None, instead: str = "") -> None:
        self._env, self._name = env, str(env) if name is None else name
        self._way_out = f"Let it put a copy there before it resets{instead}."
        #: What the environment returns beside observations, and may hold, too.
        self.infos: Any = None
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
        names: Sequence[str],
        returned: Sequence[Any],
        found: Sequence[Sequence[Any]],
    ) -> tuple[Any, Any]:
        """Two masks of rows: final observations that count as lost, and all that are in doubt.

        Final observations are in doubt if they lie in memory that is written to, and equal those
        after the reset. Call it after they were read. Tensors are compared only if their memory is
        suspicious, because comparing them waits for the device.

        Args:
            obs: Leaves of the observation, all arrays or all tensors.
            final: Leaves of the final observations.
            ends: Rows that have one, bool `[num_envs]`.
            names: Names of final observations in errors, such as `final_obs['camera']`.
            returned: Leaves of the observation as the environment returned them.
            found: Of each leaf, the final observations as its infos have them, one a row or a
                batch; empty if they have none.

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
                    raise self._error(names[i])
        for i, (leaves, there) in enumerate(zip(found, returned, strict=True)):
            memory = self._suspicious(i, obs[i], final[i], ends, leaves, there)
            if memory:
                unsure = unsure | self._judge(i, obs[i], before.get(i), ends, memory, names[i])
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
                self._is_held[address or 0] = any(
                    shares(leaf, x) for x in _reachable(self._env, self.infos)
                )
            if self._is_held[address or 0]:
                return "held"
        return ""

    def doubt(self, rows: list[int]) -> EnvError:
        """The error of rows whose final observations may be overwritten, and cannot be marked."""
        return EnvError(
            f"{self._name} may have overwritten the final observations of rows {rows}: they equal "
            "those after the reset in the same env step, and lie in memory that it holds. Integer "
            f"observations cannot mark them as lost. {self._way_out}"
        )

    def _error(self, name: str) -> EnvError:
        return EnvError(
            f"{self._name} writes into final observations that it has returned: `{name}` in its "
            "infos lies in memory that the reset in the same env step overwrites. "
            f"{self._way_out}"
        )


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return bool(((one == other) | ((one != one) & (other != other))).all())
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _rows_that_differ(one: Any, other: Any) -> Any:
    """Rows bool `[num_envs]` in which two leaves are not the same; NaN equals NaN."""
    return ((one != other) & ~((one != one) & (other != other))).reshape(len(one), -1).any(-1)


def _is_space(value: Any) -> bool:
    return type(value).__module__.startswith("gymnasium.spaces")


def _memory_of(leaf: Any) -> int:
    """Address of the memory that an array or a tensor is a view of; 0 for other values."""
    if isinstance(leaf, torch.Tensor):
        return leaf.untyped_storage().data_ptr()
    while isinstance(getattr(leaf, "base", None), np.ndarray):
        leaf = leaf.base
    return leaf.ctypes.data if isinstance(leaf, np.ndarray) else 0


def _reachable(env: Any, infos: Any) -> Iterator[Any]:
    """Arrays and tensors that an environment holds, in whatever it is made of but its infos."""
    seen = {id(infos)}
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
        elif not isinstance(value, type) and not _is_space(value):
            waiting += [(x, depth + 1) for x in getattr(value, "__dict__", {}).values()]
