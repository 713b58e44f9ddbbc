"""Windows over past observations.

A `ViewRequirement` is the number of past rows that a model needs beside the present one. The
functions here work on batches `[B, T, …]`. Windows share memory until they are flattened into one
batch dimension, which copies them.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

import torch
from tensordict import TensorDict

from .data import DataKeys

#: A view of every row of a batch `[B, T]`, or of the last one.
ViewKind = Literal["last", "all"]

#: Key of a TensorDict.
Key = str | tuple[str, ...]

#: Names of the methods of `ViewRequirement`.
ViewMethod = Literal["rolling_window", "padded_rolling_window"]


class View(Protocol):
    """Windows of `size` rows over the time dimension."""

    @staticmethod
    def apply_all(x: torch.Tensor | TensorDict, size: int, /) -> torch.Tensor | TensorDict:
        """The windows that end in each row of `x` `[B, T, …]`, `[B', size, …]` with B' ≤ B·T."""
        ...

    @staticmethod
    def apply_last(x: torch.Tensor | TensorDict, size: int, /) -> torch.Tensor | TensorDict:
        """The window that ends in the last row of `x` `[B, T, …]`, `[B, size, …]`."""
        ...

    @staticmethod
    def drop_size(size: int, /) -> int:
        """Rows at the beginning of a sequence without a full window."""
        ...


def pad_last_sequence(x: torch.Tensor, size: int, /) -> TensorDict:
    """The last `size` rows of `x`, padded at the front if `x` has fewer.

    Args:
        x: `[B, T, …]`.
        size: Rows of the result.

    Returns:
        Batch `[B, size]` of `inputs` (zeros where padded) and `padding_mask` (True there).

    """
    return _padded(x[:, -size:], max(0, size - x.shape[1]))


def pad_whole_sequence(x: torch.Tensor, size: int, /) -> TensorDict:
    """`x`, padded at the front with the `size - 1` rows that the first row's window lacks.

    Args:
        x: `[B, T, …]`.
        size: Rows per window.

    Returns:
        Batch `[B, T + size - 1]` of `inputs` (zeros where padded) and `padding_mask` (True there).

    """
    return _padded(x, size - 1)


def _padded(x: torch.Tensor, pad: int) -> TensorDict:
    batch, length, *features = x.shape
    mask = torch.zeros(batch, pad + length, dtype=torch.bool, device=x.device)
    mask[:, :pad] = True
    inputs = torch.cat([x.new_zeros(batch, pad, *features), x], 1) if pad else x
    return TensorDict(
        {DataKeys.INPUTS: inputs, DataKeys.PADDING_MASK: mask},
        batch_size=[batch, pad + length],
        device=x.device,
    )


def rolling_window(x: torch.Tensor, size: int, /, *, step: int = 1) -> torch.Tensor:
    """Windows over the time dimension, without a copy.

    Args:
        x: `[B, T, …]`.
        size: Rows per window.
        step: Rows from one window to the next.

    Returns:
        `[B, (T - size) // step + 1, size, …]`.

    Raises:
        ValueError: If a window is longer than the sequences.

    """
    if size > x.shape[1]:
        raise ValueError(
            f"`size` must be at most the sequences' length ({x.shape[1]} rows); got {size}. "
            "Padded windows may be longer."
        )
    return x.unfold(1, size, step).movedim(-1, 2)


def _flat(x: Any) -> Any:
    """`[B, T, …]` as `[B·T, …]`."""
    return x.flatten(0, 1) if isinstance(x, torch.Tensor) else x.reshape(-1)


def _each_tensor(
    x: torch.Tensor | TensorDict, function: Callable[[torch.Tensor], Any], length: int
) -> Any:
    """`function` of a tensor, or of each tensor in a batch `[B, T]`; a batch `[B, length]` then."""
    if isinstance(x, torch.Tensor):
        return function(x)
    return x.apply(function, batch_size=[x.shape[0], length])


class RollingWindow:
    """Windows without padding; the first `size - 1` rows of a sequence have none."""

    @staticmethod
    def apply_all(x: torch.Tensor | TensorDict, size: int, /) -> torch.Tensor | TensorDict:
        """All windows of `x` `[B, T, …]`, `[B · (T - size + 1), size, …]`."""
        length = x.shape[1] - size + 1
        return _flat(_each_tensor(x, lambda leaf: rolling_window(leaf, size), length))

    @staticmethod
    def apply_last(x: torch.Tensor | TensorDict, size: int, /) -> torch.Tensor | TensorDict:
        """The last `size` rows of `x` `[B, T, …]`, or all if it has fewer."""
        return x[:, -size:]

    @staticmethod
    def drop_size(size: int, /) -> int:
        """Rows without a window: `size - 1`."""
        return size - 1


class PaddedRollingWindow:
    """Windows of every row; rows before the first are zero and marked as padding."""

    @staticmethod
    def apply_all(x: torch.Tensor | TensorDict, size: int, /) -> TensorDict:
        """The window of every row of `x` `[B, T, …]`, batch `[B · T]`.

        Every tensor becomes a mapping of `inputs` `[B · T, size, …]` and `padding_mask`.
        """
        length = x.shape[1] + size - 1
        padded = _each_tensor(x, lambda leaf: pad_whole_sequence(leaf, size), length)
        return cast(TensorDict, RollingWindow.apply_all(padded, size))

    @staticmethod
    def apply_last(x: torch.Tensor | TensorDict, size: int, /) -> TensorDict:
        """The window of the last row of `x` `[B, T, …]`, batch `[B, size]`.

        Every tensor becomes a mapping of `inputs` and `padding_mask`.
        """
        return cast(TensorDict, _each_tensor(x, lambda leaf: pad_last_sequence(leaf, size), size))

    @staticmethod
    def drop_size(size: int, /) -> int:
        """Rows without a window: none."""
        return 0


#: Views by the names of `ViewRequirement`'s methods.
VIEWS: dict[str, type[View]] = {
    "rolling_window": RollingWindow,
    "padded_rolling_window": PaddedRollingWindow,
}


class ViewRequirement:
    """Number of past rows of one key that a model needs.

    Args:
        shift: Past rows beside the present one; 0 for the present one alone.
        method: `"padded_rolling_window"` pads windows that reach before an episode's first row,
            and marks the padding. `"rolling_window"` does not mark it, and the rows of such windows
            are not learned from.

    Raises:
        ValueError: If `shift` is negative or the method unknown.

    """

    #: View that makes the windows.
    method: type[View]

    #: Past rows beside the present one.
    shift: int

    def __init__(self, *, shift: int = 0, method: ViewMethod = "padded_rolling_window") -> None:
        if shift < 0:
            raise ValueError(f"`shift` must be at least 0 rows; got {shift}.")
        if method not in VIEWS:
            raise ValueError(f"`method` must be one of {', '.join(VIEWS)}; got {method!r}.")
        self.shift = shift
        self.method = VIEWS[method]

    def apply_all(self, key: Key, batch: TensorDict, /) -> torch.Tensor | TensorDict:
        """The view of every row.

        Args:
            key: Key of the batch.
            batch: Batch `[B, T]`.

        Returns:
            `[B', shift + 1, …]` with B' ≤ B·T; `[B·T, …]` if `shift` is 0.

        """
        item = batch[key]
        return self.method.apply_all(item, self.shift + 1) if self.shift else _flat(item)

    def apply_last(self, key: Key, batch: TensorDict, /) -> torch.Tensor | TensorDict:
        """The view of the last row.

        Args:
            key: Key of the batch.
            batch: Batch `[B, T]`.

        Returns:
            `[B, shift + 1, …]`; `[B, …]` if `shift` is 0.

        """
        item = batch[key]
        return self.method.apply_last(item, self.shift + 1) if self.shift else item[:, -1]

    @property
    def drop_size(self) -> int:
        """Rows at the beginning of an episode that are not learned from."""
        return self.method.drop_size(self.shift + 1)
