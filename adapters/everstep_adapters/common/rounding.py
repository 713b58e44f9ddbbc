"""float64 observations and rewards that float32 cannot tell apart."""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .handoff import to_numpy

_log = logging.getLogger(__name__)

#: Batches that are looked at, from the first reset on.
BATCHES = 64

#: Numbers that float32 must have between the smallest and the largest one seen.
FEWEST = 16

#: Relative differences that rounding errors of float64 have; they carry nothing.
ROUNDING = 2.0**-40


class RoundingWatch:
    """Logs a warning if values of a float64 leaf that differ become equal in another dtype.

    Policies see PyTorch's default dtype. In float32, a coordinate of 5,400,000 ± 0.2 m is always
    the same number, and normalising it later does not help. The check ends with one warning, which
    names the leaf, or after `BATCHES` batches.

    Args:
        name: Name of the leaf in the warning.
        dtype: Dtype that it is cast to.

    """

    #: Batches left to look at.
    left: int = BATCHES

    def __init__(self, name: str, dtype: np.dtype[Any]) -> None:
        self._name, self._dtype = name, dtype
        self._ends: None | tuple[Any, Any] = None

    @classmethod
    def of(cls, name: str, source: Any, dtype: np.dtype[Any]) -> "None | RoundingWatch":
        """A watch where float64 is cast to less; else None."""
        is_rounded = source == np.float64 and dtype.kind == "f" and dtype.itemsize < 8
        return cls(name, dtype) if is_rounded else None

    def look(self, batch: Any) -> None:
        """Look at a batch `[N, …]`, and warn if it was the last and differences are lost.

        Args:
            batch: An array, or a tensor; one on an accelerator is waited for at the last batch.

        """
        if not self.left:
            return
        self.left -= 1
        if isinstance(batch, torch.Tensor) and batch.is_cpu:
            batch = to_numpy(batch)
        ends: Any
        lesser: Any
        larger: Any
        if isinstance(batch, torch.Tensor):
            ends, lesser, larger = tuple(batch.aminmax(dim=0)), torch.minimum, torch.maximum
        else:
            ends, lesser, larger = (batch.min(0), batch.max(0)), np.minimum, np.maximum
        if self._ends is not None:
            ends = lesser(ends[0], self._ends[0]), larger(ends[1], self._ends[1])
        self._ends = ends
        if self.left == 0:
            self._compare(*(np.asarray(to_numpy(end)) for end in ends))

    def _compare(self, least: npt.NDArray[Any], most: npt.NDArray[Any]) -> None:
        with np.errstate(all="ignore"):  # infinity and NaN are reported elsewhere
            largest = np.maximum(np.abs(least), np.abs(most))
            gap = np.spacing(largest.astype(self._dtype)).astype(np.float64)
            spread = most - least
            lost = (spread > ROUNDING * largest) & (spread < FEWEST * gap)
        if not lost.any():
            return
        i = int(lost.flatten().nonzero()[0][0])
        low, high, step = (x.flatten()[i] for x in (least, most, gap))
        element = f"element {i} of " if least.size > 1 else ""
        _log.warning(
            "Differences in `%s` are lost: %sits numbers were between %r and %r, and %s, which is "
            "trained on, has steps of %g there. Subtract an offset in the environment or a "
            "wrapper, or set `torch.set_default_dtype(torch.float64)` before it is made.",
            self._name,
            element,
            float(low),
            float(high),
            self._dtype,
            float(step),
        )
