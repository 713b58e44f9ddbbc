"""Means of the numbers that environments report beside rewards, such as their infos.

Nothing waits for a device, and host arrays are only copied in a vector step: means are computed
when they are read, or when the copies have become many.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from .handoff import to_numpy

Array = npt.NDArray[Any]

#: Infos that are no metrics: final observations, ids, clocks and frame counters, flags that are
#: reported as ends of episodes, seeds, and what policies observe.
EXCLUDED = frozenset(
    {
        *("final_obs", "final_observation", "terminal_observation", "final_info"),
        *("env_id", "players", "seed", "np_random_seed", "elapsed_step", "step_count"),
        *("frame_number", "episode_frame_number", "terminated", "truncated"),
        *("TimeLimit.truncated", "action_mask"),
    }
)

#: Infos that say how an episode went: only their values in rows that end one count.
AT_ENDS = frozenset({"is_success", "success", "episode_reward"})

#: Numbers of a host metric that are kept before they are added up.
_MOST = 65536


class HostMean:
    """Mean of a metric whose rows are host arrays.

    Args:
        num_envs: Number of rows.
        device: Not used.

    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._shape, self._most = (num_envs,), max(1, _MOST // num_envs)
        self._values: list[Array] = []
        self._masks: tuple[list[None | Array], list[None | Array]] = [], []
        self._sum, self._count = 0.0, 0

    @staticmethod
    def to_rows(flags: Any, device: torch.device) -> Array:
        """Flags of rows as bool `[num_envs]`, in memory of their own."""
        is_bool = type(flags) is np.ndarray and flags.dtype.kind == "b"
        # `np.array` takes longer
        return flags.copy() if is_bool else np.array(to_numpy(flags), np.bool_)

    def add(self, value: Any, mask: None | Array, valid: None | Array) -> None:
        """Add a vector step's values; only rows that are True in `mask` and `valid` count.

        Values that are no number a row are ignored.
        """
        if not (type(value) is np.ndarray and value.shape == self._shape):
            value = self._column(value)
        if value.dtype.kind not in "biuf":
            return
        self._values.append(value.copy())  # environments may write into what they returned
        self._masks[0].append(mask)
        self._masks[1].append(valid)
        if len(self._values) == self._most:
            self._add_up()

    def _column(self, value: Any) -> Array:
        """A value as an array `[num_envs]`, of strings if it is no number a row."""
        array = to_numpy(value) if _may_be_numbers(value) else np.empty(0)
        if array.ndim == 0:
            return np.broadcast_to(array, self._shape)
        is_column = array.shape in (self._shape, (*self._shape, 1))
        return array.reshape(-1) if is_column else np.empty(0, np.str_)

    def _add_up(self) -> None:
        # `np.array` of a list of arrays takes longer
        values = np.concatenate(self._values, dtype=np.float64)
        counted = np.isfinite(values)
        for masks in self._masks:
            if any(mask is not None for mask in masks):
                every = np.ones(self._shape, np.bool_)
                counted &= np.concatenate([every if mask is None else mask for mask in masks])
            masks.clear()
        self._values.clear()
        self._sum += float(values[counted].sum())
        self._count += int(np.count_nonzero(counted))

    def pop(self) -> None | float:
        """The mean since the last call; None if there were no numbers."""
        if self._values:
            self._add_up()
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean


class TensorMean:
    """Mean of a metric whose rows are tensors; sums stay on their device.

    Args:
        num_envs: Number of rows.
        device: Device of the sums.

    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._num_envs, self._device = num_envs, device
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)

    @staticmethod
    def to_rows(flags: Any, device: torch.device) -> torch.Tensor:
        """Flags of rows as bool `[num_envs]`."""
        return torch.as_tensor(flags, device=device).bool().reshape(-1)

    def add(self, value: Any, *rows: None | torch.Tensor) -> None:
        """Add a vector step's values, `[num_envs]` or one for all.

        Values count by the product of `rows`: flags, or weights `[num_envs]` or 0-d.
        """
        if not isinstance(value, torch.Tensor):
            if not _may_be_numbers(value) or np.asarray(value).dtype.kind not in "biuf":
                return
            value = torch.as_tensor(np.asarray(value))
        if value.numel() not in (1, self._num_envs) or value.is_complex():
            return
        values = value.detach().to(self._device, torch.float64).reshape(-1)
        weights = values.isfinite().double()
        for flags in rows:
            weights = weights if flags is None else weights * flags
        total = (values.nan_to_num(0.0, 0.0, 0.0) * weights).sum()
        self._sums += torch.stack([total, weights.sum()])

    def pop(self) -> torch.Tensor:
        """The mean since the last call, 0-d; NaN if there were no numbers."""
        total, count = self._sums.unbind()
        mean = total / count
        self._sums = torch.zeros_like(self._sums)
        return mean


def _may_be_numbers(value: Any) -> bool:
    """Whether a value is a number, or has rows and is not text or an object."""
    is_number = isinstance(value, bool | int | float | np.number | np.bool_)
    return is_number or hasattr(value, "__array__") or hasattr(value, "__dlpack__")


class _Entry(NamedTuple):
    """A metric, and what is known of its name."""

    mean: Any
    #: Name of its mask.
    mask_key: str
    #: Whether only rows that end an episode count.
    is_at_ends: bool
    #: Metrics in it, if it is a dictionary.
    inner: "Entries"


Entries = dict[str, None | _Entry]


class InfoMetrics:
    """Means of the numbers in the infos of a vector environment, by name.

    A mean is over the rows in which the environment reported the number, so one that is reported
    where an episode ends is a mean over episodes. Rows that are not valid do not count, nor do the
    infos of a reset. Nested infos are named `outer/inner`.

    Args:
        num_envs: Number of rows.
        names: Names of the metrics; `None` for all.
        device: Device of the rows, if they are tensors.
        mean: Kind of means.

    """

    def __init__(
        self,
        num_envs: int,
        names: None | Sequence[str],
        *,
        device: torch.device,
        mean: type[HostMean] | type[TensorMean] = HostMean,
    ) -> None:
        self._num_envs, self._device, self._mean = num_envs, device, mean
        self._names = None if names is None else frozenset(names)
        self._is_off = names is not None and not names
        self._means: dict[str, Any] = {}
        self._entries: Entries = {}
        self._ends: tuple[Any, Any] = (None, None)

    def add(self, infos: Mapping[str, Any], valid: Any, terminated: Any, truncated: Any) -> None:
        """Add the infos of a vector step.

        Args:
            infos: A number a row under each name, and a mask under `_name` if some rows lack it;
                `final_info` has the infos of episodes that ended, where others are of a reset.
            valid: Rows that count; None for all.
            terminated: Rows that end an episode; so does the next.
            truncated: Rows that end an episode.

        """
        if self._is_off:
            return
        self._ends = terminated, truncated
        valid = None if valid is None else self._mean.to_rows(valid, self._device)
        final = infos.get("final_info")
        if final is not None:
            if isinstance(final, Mapping):
                rows = infos.get("_final_info")
                rows = terminated | truncated if rows is None else rows
            else:
                final, rows = _batch(final, self._num_envs)
            is_final: Any = self._mean.to_rows(rows, self._device)
            self._add(final, "", self._entries, is_final, valid)
            valid = ~is_final if valid is None else valid & ~is_final
        self._add(infos, "", self._entries, None, valid)

    def _add(
        self, infos: Mapping[str, Any], prefix: str, entries: Entries, outer: Any, valid: Any
    ) -> None:
        """Add infos whose own masks default to `outer`."""
        for key, value in infos.items():
            try:
                entry = entries[key]
            except KeyError:
                entry = entries[key] = self._entry(prefix, key)
            if entry is None:
                continue
            mask = infos.get(entry.mask_key)
            mask = outer if mask is None else self._mean.to_rows(mask, self._device)
            if type(value) is dict:
                self._add(value, f"{prefix}{key}/", entry.inner, mask, valid)
                continue
            counted = valid
            if entry.is_at_ends:
                ended = self._mean.to_rows(self._ends[0] | self._ends[1], self._device)
                counted = ended if valid is None else valid & ended
            entry.mean.add(value, mask, counted)

    def _entry(self, prefix: str, key: Any) -> "None | _Entry":
        """A new metric; None if it is not one, or not chosen."""
        if not isinstance(key, str) or key.startswith("_") or key in EXCLUDED:
            return None
        name = prefix + key
        is_chosen = self._names is None or any(
            name == wanted or wanted.startswith(f"{name}/") or name.startswith(f"{wanted}/")
            for wanted in self._names
        )
        if not is_chosen:
            return None
        mean = self._mean(self._num_envs, self._device)
        self._means[name] = mean
        return _Entry(mean, f"_{key}", key in AT_ENDS, {})

    def pop(self) -> dict[str, Any]:
        """The means since the last call."""
        means = [(name, mean.pop()) for name, mean in self._means.items()]
        return {name: mean for name, mean in means if mean is not None}


def _batch(final: Sequence[Any], num_envs: int) -> tuple[dict[str, Any], Array]:
    """Infos that are one mapping a row, None in some, as a batch; and the rows that have one."""
    batch: dict[str, Any] = {}
    has_info = np.zeros(num_envs, np.bool_)
    for i, info in enumerate(final):
        if not isinstance(info, Mapping):
            continue
        has_info[i] = True
        for key, value in info.items():
            if isinstance(value, bool | int | float | np.number | np.bool_):
                batch.setdefault(key, np.full(num_envs, np.nan))[i] = value
    return batch, has_info


class EpisodeMetrics:
    """Means over episodes of numbers that an environment reports when some of them end.

    Each number is a mean over the episodes that end in one vector step, and is weighted by how many
    these are. The sums of each set of names are one tensor, which stays on its device.

    Args:
        names: Names of the metrics; `None` for all.

    """

    def __init__(self, names: None | Sequence[str]) -> None:
        self._names = names if names is None else frozenset(names)
        self._sums: dict[tuple[str, ...], torch.Tensor] = {}

    def add(self, infos: Mapping[str, Any], episodes: torch.Tensor) -> None:
        """Add a vector step's numbers, or tensors of one element; others are ignored.

        Args:
            infos: Numbers by name.
            episodes: Number of episodes, 0-d.

        """
        values = {
            name: value
            for name, value in infos.items()
            if (self._names is None or name in self._names)
            and (isinstance(value, int | float) or getattr(value, "numel", int)() == 1)
        }
        if not values:
            return
        tensors = [torch.as_tensor(x, device=episodes.device) for x in values.values()]
        x = torch.stack([tensor.float().reshape(()) for tensor in tensors]).double()
        sums = torch.stack([x.nan_to_num(0.0, 0.0, 0.0), x.isfinite()]) * episodes
        names = tuple(values)
        self._sums[names] = sums + self._sums[names] if names in self._sums else sums

    def pop(self) -> dict[str, torch.Tensor]:
        """The means since the last call, 0-d each; NaN if no episode has ended."""
        totals: dict[str, torch.Tensor] = {}
        for names, sums in self._sums.items():
            for name, pair in zip(names, sums.unbind(1), strict=True):
                totals[name] = totals[name] + pair if name in totals else pair
        self._sums = {}
        return {name: pair[0] / pair[1] for name, pair in totals.items()}
