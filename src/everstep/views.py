"""Windows over past observations: what a model sees of the time dimension.

A `ViewRequirement` says how many past rows a model wants beside the present one. The functions
here work on batches `[B, T, …]`. Windows overlap in memory until all rows' windows are put in one
dimension, which copies them.
"""

from typing import Literal, Protocol

import torch
from tensordict import TensorDict

from .data import DataKeys

#: Whether a view is made for every row of a batch `[B, T]`, or for the last one.
ViewKind = Literal["last", "all"]

#: Names of the methods of `ViewRequirement`.
ViewMethod = Literal["rolling_window", "padded_rolling_window"]


class View(Protocol):
    """A way to make windows of `size` rows over the time dimension."""

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
        """Rows at the beginning of a sequence that have no window of their own."""
        ...


def pad_last_sequence(x: torch.Tensor, size: int, /) -> TensorDict:
    """The last `size` rows of `x`, behind padding where there are fewer.

    Args:
        x: `[B, T, …]`.
        size: Rows wanted.

    Returns:
        Batch `[B, size]` of `inputs` (zeros where padded) and `padding_mask` (True there).

    """
    length = x.shape[1]
    return _padded(x[:, -size:], max(0, size - length))


def pad_whole_sequence(x: torch.Tensor, size: int, /) -> TensorDict:
    """`x` behind as much padding as its first row needs for a window of `size` rows.

    Args:
        x: `[B, T, …]`.
        size: Rows a window.

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
        size: Rows a window.
        step: Rows from one window to the next.

    Returns:
        `[B, (T - size) // step + 1, size, …]`.

    Raises:
        ValueError: Where a window is longer than the sequences.

    """
    if size > x.shape[1]:
        raise ValueError(
            f"`size` must be at most the sequences' length ({x.shape[1]} rows); got {size}. "
            "Padded windows may be longer."
        )
    return x.unfold(1, size, step).movedim(-1, 2)


class RollingWindow:
    """Windows without padding: the first `size - 1` rows of a sequence have none."""

    @staticmethod
    def apply_all(x: torch.Tensor | TensorDict, size: int, /) -> torch.Tensor | TensorDict:
        """All windows of `x` `[B, T, …]`, `[B · (T - size + 1), size, …]`."""
        if isinstance(x, torch.Tensor):
            return rolling_window(x, size).flatten(0, 1)
        batch, length = x.shape[:2]
        windows = [batch, length - size + 1]
        return x.apply(lambda leaf: rolling_window(leaf, size), batch_size=windows).reshape(-1)

    @staticmethod
    def apply_last(x: torch.Tensor | TensorDict, size: int, /) -> torch.Tensor | TensorDict:
        """The last `size` rows of `x` `[B, T, …]`; fewer where there are fewer."""
        return x[:, -size:]

    @staticmethod
    def drop_size(size: int, /) -> int:
        """Rows without a window: `size - 1`."""
        return size - 1


class PaddedRollingWindow:
    """Windows for every row; what lies before the first row is zero and marked as padding."""

    @staticmethod
    def apply_all(x: torch.Tensor | TensorDict, size: int, /) -> TensorDict:
        """The window of every row of `x` `[B, T, …]`, batch `[B · T]`.

        Every tensor becomes a mapping of `inputs` `[B · T, size, …]` and `padding_mask`.
        """
        if isinstance(x, torch.Tensor):
            padded = pad_whole_sequence(x, size)
        else:
            batch, length = x.shape[:2]
            padded = x.apply(
                lambda leaf: pad_whole_sequence(leaf, size),
                batch_size=[batch, length + size - 1],
            )
        windows = RollingWindow.apply_all(padded, size)
        assert not isinstance(windows, torch.Tensor)
        return windows

    @staticmethod
    def apply_last(x: torch.Tensor | TensorDict, size: int, /) -> TensorDict:
        """The window of the last row of `x` `[B, T, …]`, batch `[B, size]`.

        Every tensor becomes a mapping of `inputs` and `padding_mask`.
        """
        if isinstance(x, torch.Tensor):
            return pad_last_sequence(x, size)
        return x.apply(
            lambda leaf: pad_last_sequence(leaf, size),
            batch_size=[x.batch_size[0], size],
        )

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
    """How much of the past a model wants to see of one key.

    Args:
        shift: Past rows beside the present one; 0 for the present one alone.
        method: `"padded_rolling_window"` pads what lies before an episode's first row and marks
            it; `"rolling_window"` does neither, and rows whose window would reach before it are
            acted on but not learned from.

    Raises:
        ValueError: Where `shift` is negative or the method unknown.

    """

    #: Makes the windows.
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

    def apply_all(
        self, key: str | tuple[str, ...], batch: TensorDict, /
    ) -> torch.Tensor | TensorDict:
        """The view of every row.

        Args:
            key: Which element of the batch.
            batch: Batch `[B, T]`.

        Returns:
            `[B', shift + 1, …]` with B' ≤ B·T; `[B·T, …]` where `shift` is 0.

        """
        item = batch[key]
        if self.shift:
            return self.method.apply_all(item, self.shift + 1)
        return item.flatten(0, 1) if isinstance(item, torch.Tensor) else item.reshape(-1)

    def apply_last(
        self, key: str | tuple[str, ...], batch: TensorDict, /
    ) -> torch.Tensor | TensorDict:
        """The view of the last row.

        Args:
            key: Which element of the batch.
            batch: Batch `[B, T]`.

        Returns:
            `[B, shift + 1, …]`; `[B, …]` where `shift` is 0.

        """
        item = batch[key]
        return self.method.apply_last(item, self.shift + 1) if self.shift else item[:, -1]

    @property
    def drop_size(self) -> int:
        """Rows at the beginning of an episode that are not learned from."""
        return self.method.drop_size(self.shift + 1)
