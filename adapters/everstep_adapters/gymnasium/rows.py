"""Memory of the rows that `step` returns, and the reading of host arrays into it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from everstep.data import DataKeys
from everstep.errors import EnvError

from ..common.first_calls import VECTOR_REWARDS
from ..common.handoff import BufferEntry, TransferBuffer, to_numpy
from ..common.returned import check_range
from ..common.rounding import RoundingWatch
from .specs import Part, where

BoolArray = npt.NDArray[np.bool_]

#: Flags in the order of their memory.
FLAG_ORDER = (DataKeys.FIRST, DataKeys.VALID, DataKeys.TERMINATED, DataKeys.TRUNCATED)


def pick(observation: Any, path: Sequence[Any], name: str) -> Any:
    """The value at the indices `path` of an observation.

    Raises:
        EnvError: If there is none.

    """
    try:
        for index in path:
            observation = observation[index]
    except (LookupError, TypeError) as error:
        raise EnvError(f"`{name}` is missing in what the environment returned.") from error
    return observation


def copy_into(array: npt.NDArray[Any], value: Any, name: str) -> None:
    """Copy `value`, which an environment returned as `name`, into `array`.

    Raises:
        EnvError: If the shape is not the array's, or the dtype cannot become the array's.

    """
    if (
        type(value) is np.ndarray
        and value.shape == array.shape
        and value.dtype.kind == array.dtype.kind
        and (value.dtype == array.dtype or value.dtype.kind == "f")
    ):
        array[...] = value  # on small batches twice as fast as `copyto`
        return
    values = to_numpy(value)
    check_shape(values.shape, array.shape, name)  # NumPy would broadcast
    array[...] = fitting(values, array.dtype, name)


def fitting(values: npt.NDArray[Any], dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    """The values in `dtype`, the same array if it has it.

    Raises:
        EnvError: If their kind of dtype cannot become that one, or if it has not all of them:
            integers would wrap.

    """
    if values.dtype == dtype:
        return values
    if dtype.kind == "b" and values.dtype == np.uint8:  # flags of SuperSuit
        is_set: npt.NDArray[Any] = values != 0
        return is_set
    is_integer = values.dtype.kind in "iu" and dtype.kind in "iu"
    if is_integer and not np.can_cast(values.dtype, dtype):
        check_range(values, dtype, name)
        return values.astype(dtype)
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise EnvError(f"`{name}` must have a dtype that fits {dtype}; got {values.dtype}.")
    return values.astype(dtype)


def check_shape(shape: Sequence[int], expected: Sequence[int], name: str) -> None:
    """Check the shape of what an environment returned as `name`.

    Raises:
        EnvError: If it is another.

    """
    if tuple(shape) != tuple(expected):
        advice = ""
        if name == DataKeys.REWARDS and len(shape) == 2:
            advice = f" {VECTOR_REWARDS}" if shape[1] > 1 else " Return `rewards[:, 0]`."
        raise EnvError(
            f"`{name}` must have shape {tuple(expected)}, as the environment's spaces say; "
            f"got {tuple(shape)}.{advice}"
        )


@dataclass(frozen=True)
class Leaf:
    """One tensor of a batch of observations, and its place in what environments return."""

    #: Name in errors, such as `obs['camera']`.
    name: str

    #: Indices to it in the environment's observation, outermost first.
    path: tuple[Any, ...]

    #: First value of the space; subtracted, since categories count from 0.
    start: None | npt.NDArray[Any]

    #: Host memory, `[num_envs, *space.shape]`.
    array: npt.NDArray[Any]

    #: Looks at the first batches; None where nothing is rounded.
    watch: None | RoundingWatch = None

    def read(self, batch: Any) -> None:
        """Read every row from a batch of observations."""
        is_plain = not self.path and self.start is None
        values = batch if is_plain else self._pick(batch)
        copy_into(self.array, values, self.name)
        if self.watch is not None:
            self._look(values)

    def read_rows(self, batch: Any, rows: BoolArray) -> None:
        """Read the rows of a batch of observations where `rows` `[num_envs]` is True."""
        values = to_numpy(self._pick(batch))
        check_shape(values.shape, self.array.shape, self.name)
        self.array[rows] = fitting(values[rows], self.array.dtype, self.name)
        self._look(values[rows])

    def read_row(self, observation: Any, i: int) -> None:
        """Read row `i` from the observation of one environment."""
        value = self._pick(observation)
        copy_into(self.array[i, ...], value, self.name)

    def _look(self, values: Any) -> None:
        if self.watch is not None and self.watch.left:
            array = to_numpy(values)
            self.watch.look(array)

    def equals(self, batch: Any, rows: BoolArray) -> bool:
        """Whether a batch of observations and the array hold the same in `rows`."""
        values = to_numpy(self._pick(batch))[rows].astype(self.array.dtype)
        return np.array_equal(values, self.array[rows], equal_nan=self.array.dtype.kind == "f")

    def _pick(self, observation: Any) -> Any:
        value = pick(observation, self.path, self.name)
        return value if self.start is None else to_numpy(value) - self.start


@dataclass(frozen=True)
class Row:
    """The host's arrays of one row, which is all environments in one vector step."""

    #: Leaves of the observation that is acted on next.
    obs: list[Leaf]

    #: Leaves of the observation before a reset; empty if that is not an episode key.
    final: list[Leaf]

    #: Rewards and flags, `[num_envs]`; `valid` is all True if it is not an episode key.
    rewards: npt.NDArray[Any]
    terminated: BoolArray
    truncated: BoolArray
    first: BoolArray
    valid: BoolArray

    #: Looks at the first rewards; None where they are not rounded.
    watch: None | RoundingWatch = None

    def read(self, batch: Any, rewards: Any, terminated: Any, truncated: Any) -> None:
        """Read what a vector step returned, but for its infos."""
        self.read_obs(batch)
        if self.watch is not None and self.watch.left:
            self._look(rewards)
        if (  # what nearly all return; one test costs less than three
            type(rewards) is type(terminated) is type(truncated) is np.ndarray
            and rewards.shape == terminated.shape == truncated.shape == self.rewards.shape
            and rewards.dtype.kind == "f"
            and terminated.dtype.kind == truncated.dtype.kind == "b"
        ):
            self.rewards[...] = rewards
            self.terminated[...] = terminated
            self.truncated[...] = truncated
            return
        copy_into(self.rewards, rewards, DataKeys.REWARDS)
        copy_into(self.terminated, terminated, DataKeys.TERMINATED)
        copy_into(self.truncated, truncated, DataKeys.TRUNCATED)

    def _look(self, rewards: Any) -> None:
        """Look at rewards of float64, but for those of resets, which are 0."""
        values = to_numpy(rewards)
        if (
            self.watch is not None
            and values.dtype == np.float64
            and (is_earned := values != 0).any()
        ):
            self.watch.look(values[is_earned])

    def read_obs(self, batch: Any) -> None:
        """Read the observations that are acted on next."""
        for leaf in self.obs:
            leaf.read(batch)

    def read_obs_rows(self, batch: Any, rows: BoolArray) -> None:
        """Read the observations that are acted on next, where `rows` is True."""
        for leaf in self.obs:
            leaf.read_rows(batch, rows)

    def copy_final(self) -> None:
        """Copy the observations to the final ones, before rows are reset."""
        for final, obs in zip(self.final, self.obs, strict=False):  # `final` may be empty
            np.copyto(final.array, obs.array)


class RowMemory:
    """Memory of a row: written on the host, shown on the device.

    Flags and rewards are flat on the host, `[num_envs]`, as Gymnasium has them, and `[num_envs, 1]`
    in `data`. Where host and device have memory of their own the host has two rows, in turn.

    Args:
        parts: Leaves of the observation.
        episode_keys: Episode keys that `data` holds.
        num_envs: Number of environments.
        device: Device of `data`.
        staged: See `TransferBuffer`.

    """

    #: The tensors, locked: a key that a caller replaced would be lost to every later vector step.
    data: TensorDict

    def __init__(
        self,
        parts: Sequence[Part],
        episode_keys: frozenset[str],
        num_envs: int,
        device: torch.device,
        *,
        staged: None | bool = None,
    ) -> None:
        self._arguments = parts, episode_keys, num_envs, device, staged
        names = [DataKeys.OBS, *(episode_keys & {DataKeys.FINAL_OBS})]
        flags = [flag for flag in FLAG_ORDER if flag in episode_keys]
        layout: dict[tuple[str, ...], tuple[tuple[int, ...], torch.dtype]] = {
            (name, *part.key): ((num_envs, *part.spec.shape), part.spec.dtype)
            for name in names
            for part in parts
        }
        layout[(DataKeys.REWARDS,)] = ((num_envs, 1), torch.get_default_dtype())
        block = ((len(flags), num_envs, 1), torch.bool)
        self._buffer = TransferBuffer([*layout.values(), block], device, staged=staged)
        *others, shared = self._buffer.entries
        entries = dict(zip(layout, others, strict=True))
        for i, flag in enumerate(flags):
            entries[(flag,)] = BufferEntry(
                tuple(array[i] for array in shared.arrays), shared.tensor[i]
            )

        tensors: Any = {key: entry.tensor for key, entry in entries.items()}
        self.data = TensorDict(tensors, batch_size=[num_envs], device=device, lock=True)
        watches = [
            RoundingWatch.of(
                where(DataKeys.OBS, part.path), part.space.dtype, entry.arrays[0].dtype
            )
            for part, entry in zip(parts, others, strict=False)
        ]
        dtype = entries[(DataKeys.REWARDS,)].arrays[0].dtype
        earned = RoundingWatch.of(DataKeys.REWARDS, np.float64, dtype)
        sides = range(len(shared.arrays))
        self._make = partial(_make_row, parts, watches=watches, earned=earned)
        self._rows = [self._make(entries, side) for side in sides]
        #: The row of a borrower to write instead, and how it is shown.
        self.borrowed: None | tuple[Row, TensorDict] = None

    def __reduce__(self) -> Any:  # arrays and tensors of a copy would no longer share memory
        *given, staged = self._arguments
        return partial(type(self), staged=staged), tuple(given), self._buffer.blocks()

    def __setstate__(self, blocks: Any) -> None:
        self._buffer.fill(blocks)

    def writable(self) -> Row:
        """The row to write next, when it may be written to."""
        if self.borrowed is not None:
            return self.borrowed[0]
        self._buffer.wait()
        return self._rows[self._buffer.side]

    def publish(self) -> TensorDict:
        """The written row on the device. Unchanged until the next row is written."""
        if self.borrowed is not None:
            return self.borrowed[1]
        self._buffer.publish()
        return self.data

    def borrow(self, rows: Sequence[TensorDict]) -> "None | BorrowedRows":
        """Memory of the caller's to write into, rows like `data`; None if they are not alike."""
        if len(self._rows) > 1 or _described(rows[0]) != _described(self.data):
            return None
        made = []
        for row in rows:
            tensors = row.items(include_nested=True, leaves_only=True)
            entries = {
                key if isinstance(key, tuple) else (key,): BufferEntry((x.numpy(),), x)
                for key, x in tensors
            }
            made.append((self._make(entries, 0), row))
        return BorrowedRows(self, made)

    def take_obs(self, row: Row) -> None:
        """Copy the observations of a borrowed row, which the next vector step starts from."""
        for own, leaf in zip(self._rows[0].obs, row.obs, strict=True):
            np.copyto(own.array, leaf.array)


class BorrowedRows:
    """Memory of a caller's that vector steps are written into; see `GymnasiumEnv.borrow_rows`."""

    def __init__(self, memory: RowMemory, rows: list[tuple[Row, TensorDict]]) -> None:
        self._memory, self._rows = memory, rows

    def use(self, t: int) -> None:
        """Let the vector steps that follow be written into row `t`."""
        self._memory.borrowed = self._rows[t]

    def give_back(self) -> None:
        """Let the vector steps that follow be written into the environment's own memory."""
        borrowed, self._memory.borrowed = self._memory.borrowed, None
        if borrowed is not None:
            self._memory.take_obs(borrowed[0])


def _described(data: TensorDict) -> dict[Any, Any]:
    """Shape, dtype and device of each tensor."""
    tensors = data.items(include_nested=True, leaves_only=True)
    return {key: (x.shape, x.dtype, x.device) for key, x in tensors}


def _make_row(
    parts: Sequence[Part],
    entries: dict[tuple[str, ...], BufferEntry],
    side: int,
    watches: Sequence[None | RoundingWatch],
    earned: None | RoundingWatch,
) -> Row:
    def leaf(name: str, part: Part, watch: None | RoundingWatch = None) -> Leaf:
        key = (name, *part.key)
        array = entries[key].arrays[side]
        # A scalar of the space has a dimension of its own in its spec.
        array = array.reshape(len(array), *(part.space.shape or ()))
        return Leaf(where(name, part.path), part.path, part.start, array, watch)

    names = {key[0] for key in entries}
    flat = names.intersection((DataKeys.REWARDS, *FLAG_ORDER))
    columns = {name: entries[(name,)].arrays[side].reshape(-1) for name in flat}
    columns.setdefault(DataKeys.VALID, np.ones(len(columns[DataKeys.REWARDS]), np.bool_))
    final = parts if DataKeys.FINAL_OBS in names else ()
    return Row(
        obs=[leaf(DataKeys.OBS, *each) for each in zip(parts, watches, strict=True)],
        final=[leaf(DataKeys.FINAL_OBS, part) for part in final],
        watch=earned,
        **columns,
    )


def describe_copies(device: None | torch.device) -> str:
    """The copies of a vector step, for `describe`; no device: the environment has tensors."""
    if device is None:
        return "tensors as they are, 0 copies; rewards and flags are new"
    if device.type == "cpu":
        return "one copy, into host memory that the tensors share; no memory is allocated"
    return (
        f"one copy into {'pinned ' * (device.type == 'cuda')}rows of host memory, one packed "
        f"copy from cpu to {device}; actions back through one"
    )
