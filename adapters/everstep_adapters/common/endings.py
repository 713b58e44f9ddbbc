"""The law of autoreset: what a batch's rows hold where episodes end.

Row `t` of an environment holds what happened because of its action `t`, and the observation that
its next action is chosen from. When an episode has ended, the environment is reset

* in the **next step**, by itself: the row that ended shows the final observation. The row after it
  is the reset: `first` and not `valid`, its action is ignored, its reward is 0 and its other flags
  are False, whatever the environment returns.
* in the **same step**, by itself: the row that ended is also `first`. Its observation opens the
  next episode, and `final_obs` holds the one before the reset, if the environment reports it.
  Where it does not, it is **lost**: NaN where its value is needed, which it is of a truncated
  episode and not of a terminated one.
* **externally**, by whoever steps it, at once: the rows are those of the same step, and `final_obs`
  is what the step returned.

The functions are pure, for arrays of NumPy, tensors, and arrays of JAX. Flags and rewards are `[N]`
or `[N, 1]`, and leaves of observations `[N, …]`. Gymnasium's rows of NumPy follow the same law in
place, see `everstep_adapters.gymnasium.endings`.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from everstep.data import DataKeys

#: An array of any of the libraries.
Array: TypeAlias = Any

#: Episode keys that every environment with episodes has.
FLAGS = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST})


def next_step(
    pending: Array, rewards: Array, terminated: Array, truncated: Array
) -> dict[str, Array]:
    """Rewards and flags of rows, of which those `pending` were reset instead of stepped.

    The rows that are `terminated` or `truncated` in it are pending in the next one.
    """
    valid = ~pending
    return {
        DataKeys.REWARDS: _where(pending, 0, rewards),
        DataKeys.TERMINATED: terminated & valid,
        DataKeys.TRUNCATED: truncated & valid,
        DataKeys.FIRST: pending,
        DataKeys.VALID: valid,
    }


def same_step(
    ended: Array,
    terminated: Array,
    truncated: Array,
    obs: Sequence[Array],
    final: None | Sequence[Array] = None,
    has_final: None | Array = None,
) -> tuple[Array, ...]:
    """Leaves of `final_obs`, where the environment has reset the rows `ended`.

    Args:
        ended: Rows that are `terminated` or `truncated`.
        terminated: Rows that the task ended.
        truncated: Rows that a time limit ended.
        obs: Leaves of the observation that is acted on next; `final_obs` in all other rows.
        final: Leaves of the final observation, in whose other rows anything may be; None if all
            are lost.
        has_final: Rows that have a final observation, of those that ended; None if all do.

    """
    if final is not None and has_final is None:
        return tuple(select(ended, x, y) for x, y in zip(final, obs, strict=True))
    lost = truncated & ~terminated
    if final is None or has_final is None:
        return tuple(with_nan(x, lost) for x in obs)
    lost = lost & ~has_final
    pairs = zip(final, obs, strict=True)
    return tuple(select(has_final, x, with_nan(y, lost)) for x, y in pairs)


def external(
    ended: Array, obs: Sequence[Array], opening: Sequence[Array]
) -> tuple[tuple[Array, ...], Sequence[Array]]:
    """Leaves of the observation that is acted on next, and of `final_obs`.

    Args:
        ended: Rows that were reset.
        obs: Leaves of what the step returned, which the reset has not written to.
        opening: Leaves of what the reset returned, in whose other rows anything may be.

    """
    return tuple(select(ended, x, y) for x, y in zip(opening, obs, strict=True)), obs


def select(rows: Array, new: Array, old: Array) -> Array:
    """A leaf `[N, …]`, `new` in the rows that are marked and `old` in the others."""
    return _where(align(rows, old), new, old)


def with_nan(leaf: Array, rows: Array) -> Array:
    """A copy of a leaf with NaN in the rows that are marked. Integers have no NaN and stay."""
    is_tensor = isinstance(leaf, torch.Tensor)
    has_nan = leaf.is_floating_point() if is_tensor else leaf.dtype.kind == "f"
    return select(rows, torch.nan if has_nan else leaf, leaf)


def align(rows: Array, leaf: Array) -> Array:
    """Flags `[N]` or `[N, 1]` with as many dimensions as a leaf `[N, …]`."""
    return rows.reshape(-1, *(1,) * (leaf.ndim - 1))


def _where(rows: Array, new: Array, old: Array) -> Array:
    is_tensor = isinstance(old, torch.Tensor)
    return (torch if is_tensor else old.__array_namespace__()).where(rows, new, old)
