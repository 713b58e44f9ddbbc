"""The memory of what an adapter's `step` returns, and how host arrays are read into it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from everstep.data import DataKeys
from everstep.errors import EnvError

from ..common.handoff import Slab, Slot, to_numpy
from .spaces import Part, where

BoolArray = npt.NDArray[np.bool_]

#: Flags in the order in which they lie in memory.
FLAGS = (DataKeys.FIRST, DataKeys.VALID, DataKeys.TERMINATED, DataKeys.TRUNCATED)


def pick(observation: Any, path: Sequence[Any], name: str) -> Any:
    """What the indices `path` lead to in an observation.

    Raises:
        EnvError: Where there is nothing.

    """
    try:
        for index in path:
            observation = observation[index]
    except (LookupError, TypeError) as error:
        raise EnvError(f"`{name}` is missing in what the environment returned.") from error
    return observation


def copy_into(array: npt.NDArray[Any], value: Any, name: str) -> None:
    """Copy what an environment returned as `name` into `array`, whatever its memory order.

    Raises:
        EnvError: Where the shape is not the array's, or the dtype cannot become the array's.

    """
    if (
        type(value) is np.ndarray
        and value.shape == array.shape
        and value.dtype.kind == array.dtype.kind
    ):
        array[...] = value  # on small batches twice as fast as `copyto`
    else:
        _convert_into(array, to_numpy(value), name)


def _convert_into(array: npt.NDArray[Any], values: npt.NDArray[Any], name: str) -> None:
    if values.shape != array.shape:  # NumPy would broadcast
        raise _wrong_shape(values, array.shape, name)
    try:
        np.copyto(array, values)
    except TypeError as error:
        raise EnvError(
            f"`{name}` must have a dtype that fits {array.dtype}; got {values.dtype}."
        ) from error


def _wrong_shape(values: npt.NDArray[Any], shape: tuple[int, ...], name: str) -> EnvError:
    return EnvError(
        f"`{name}` must have shape {shape}, as the environment's spaces say; got {values.shape}."
    )


@dataclass(frozen=True)
class Leaf:
    """One tensor of a batch of observations, and the way to it in what environments return."""

    #: What errors call it, such as `obs['camera']`.
    name: str

    #: Indices to it in the environment's observation, outermost first.
    path: tuple[Any, ...]

    #: What the space's values start at; subtracted, as categories count from 0.
    start: None | npt.NDArray[Any]

    #: Host memory, `[num_envs, *space.shape]`.
    array: npt.NDArray[Any]

    def read(self, batch: Any) -> None:
        """Take every row from a batch of observations."""
        is_plain = not self.path and self.start is None
        copy_into(self.array, batch if is_plain else self._pick(batch), self.name)

    def read_rows(self, batch: Any, rows: BoolArray) -> None:
        """Take the rows of a batch of observations where `rows` `[num_envs]` is True."""
        values = to_numpy(self._pick(batch))
        if values.shape != self.array.shape:
            raise _wrong_shape(values, self.array.shape, self.name)
        self.array[rows] = values[rows]

    def read_row(self, observation: Any, i: int) -> None:
        """Take row `i` from the observation of one environment."""
        copy_into(self.array[i, ...], self._pick(observation), self.name)

    def equals(self, batch: Any, rows: BoolArray) -> bool:
        """True where a batch of observations holds what the array holds in `rows`."""
        values = to_numpy(self._pick(batch))[rows].astype(self.array.dtype)
        return np.array_equal(values, self.array[rows], equal_nan=self.array.dtype.kind == "f")

    def _pick(self, observation: Any) -> Any:
        value = pick(observation, self.path, self.name)
        return value if self.start is None else to_numpy(value) - self.start


class Face(NamedTuple):
    """The arrays of one side of a row's memory."""

    obs: list[Leaf]
    final: list[Leaf]
    rewards: npt.NDArray[Any]
    terminated: BoolArray
    truncated: BoolArray
    first: BoolArray
    valid: BoolArray


class Row:
    """What `step` returns for a batch of environments: written on the host, shown on the device.

    Flags and rewards are flat on the host, `[num_envs]`, as Gymnasium has them, and `[num_envs, 1]`
    in `data`. All arrays change sides with `publish`, where host and device have memory of their
    own: take them from the row in every env step.

    Args:
        parts: Leaves of the observation.
        episode_keys: Episode keys that `data` holds.
        num_envs: Number of rows.
        device: Device of `data`.
        staged: See `Slab`.

    """

    #: Whether host and device have memory of their own.
    is_staged: bool

    #: The tensors, locked: a key that a caller replaced would be lost to every later env step.
    data: TensorDict

    #: Leaves of the observation that is acted on next.
    obs: list[Leaf]

    #: Leaves of the observation before a reset; empty where that is not an episode key.
    final: list[Leaf]

    #: Rewards and flags, `[num_envs]`.
    rewards: npt.NDArray[Any]
    terminated: BoolArray
    truncated: BoolArray
    first: BoolArray
    valid: BoolArray

    def __init__(
        self,
        parts: Sequence[Part],
        episode_keys: frozenset[str],
        num_envs: int,
        device: torch.device,
        *,
        staged: None | bool = None,
    ) -> None:
        names = [DataKeys.OBS, *(episode_keys & {DataKeys.FINAL_OBS})]
        flags = [flag for flag in FLAGS if flag in episode_keys]
        layout: dict[tuple[str, ...], tuple[tuple[int, ...], torch.dtype]] = {
            (name, *part.key): ((num_envs, *part.spec.shape), part.spec.dtype)
            for name in names
            for part in parts
        }
        layout[(DataKeys.REWARDS,)] = ((num_envs, 1), torch.get_default_dtype())
        block = ((len(flags), num_envs, 1), torch.bool)
        self._slab = Slab([*layout.values(), block], device, staged=staged)
        *others, shared = self._slab.slots
        self.is_staged = len(shared.arrays) > 1
        slots = dict(zip(layout, others, strict=True))
        for i, flag in enumerate(flags):
            slots[(flag,)] = Slot(tuple(array[i] for array in shared.arrays), shared.tensor[i])

        self.data = TensorDict({}, batch_size=[num_envs], device=device)
        for key, slot in slots.items():
            self.data.set(key, slot.tensor)
        self.data.lock_()
        self._faces = [_face(parts, slots, side, num_envs) for side in range(len(shared.arrays))]
        self._turn()

    def _turn(self) -> None:
        """Show the side that may be written."""
        face = self._faces[self._slab.side]
        self.obs, self.final, self.rewards, *flags = face
        self.terminated, self.truncated, self.first, self.valid = flags

    def read(self, batch: Any, rewards: Any, terminated: Any, truncated: Any) -> None:
        """Take what an env step returned, but for its infos. Waits until that may be written."""
        if self.is_staged:
            self._slab.wait()
        for leaf in self.obs:
            leaf.read(batch)
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

    def read_obs(self, batch: Any) -> None:
        """Take the observations that are acted on next."""
        for leaf in self.obs:
            leaf.read(batch)

    def read_obs_rows(self, batch: Any, rows: BoolArray) -> None:
        """Take the observations that are acted on next, where `rows` is True."""
        for leaf in self.obs:
            leaf.read_rows(batch, rows)

    def keep_final(self) -> None:
        """Copy the observations to the final ones, before rows are reset."""
        for final, obs in zip(self.final, self.obs, strict=False):  # `final` may be empty
            np.copyto(final.array, obs.array)

    def wait(self) -> None:
        """Return when the row may be written to."""
        self._slab.wait()

    def publish(self) -> TensorDict:
        """The row on its device. Unchanged until the next one is written."""
        if self.is_staged:
            self._slab.publish()
            self._turn()
        return self.data


def _face(
    parts: Sequence[Part], slots: dict[tuple[str, ...], Slot], side: int, num_envs: int
) -> Face:
    """The arrays of one side; `valid` is all True where it is not an episode key."""

    def flat(name: str) -> npt.NDArray[Any]:
        return slots[(name,)].arrays[side].reshape(num_envs)

    all_valid = np.ones(num_envs, dtype=np.bool_)
    return Face(
        _leaves(DataKeys.OBS, parts, slots, side),
        _leaves(DataKeys.FINAL_OBS, parts, slots, side),
        flat(DataKeys.REWARDS),
        flat(DataKeys.TERMINATED),
        flat(DataKeys.TRUNCATED),
        flat(DataKeys.FIRST),
        flat(DataKeys.VALID) if (DataKeys.VALID,) in slots else all_valid,
    )


def _leaves(
    name: str, parts: Sequence[Part], slots: dict[tuple[str, ...], Slot], side: int
) -> list[Leaf]:
    return [
        Leaf(where(name, part.path), part.path, start_of(part), _as_space(slot.arrays[side], part))
        for part in parts
        if (slot := slots.get((name, *part.key))) is not None
    ]


def _as_space(array: npt.NDArray[Any], part: Part) -> npt.NDArray[Any]:
    """`[num_envs, *space.shape]`: a scalar of the space has a dimension of its own in its spec."""
    return array.reshape(len(array), *(part.space.shape or ()))


def start_of(part: Part) -> None | npt.NDArray[Any]:
    """What the space's values start at; `None` where they start at 0."""
    start = np.asarray(getattr(part.space, "start", 0))
    return start if start.any() else None
