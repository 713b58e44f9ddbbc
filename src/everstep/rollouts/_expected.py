"""What an environment must return of each key."""

from typing import Any

import torch

from ..errors import EnvError


class Expected:
    """A tensor exactly as its storage takes it: copying would broadcast and cast.

    Args:
        name: Key, and path within it.
        row: Where it is stored.
        any_float: Whether it may be of any floating-point type.

    """

    def __init__(self, name: str, row: torch.Tensor, *, any_float: bool = False) -> None:
        self.name, self.any_float = name, any_float
        self._shape, self._dtype, self._device = row.shape, row.dtype, row.device

    def check(self, x: Any) -> None:
        """Check a tensor.

        Raises:
            EnvError: Where it is not what is expected.

        """
        if not isinstance(x, torch.Tensor):
            raise mismatch(self.name, "type", "a tensor", type(x).__name__)
        if x.shape != self._shape:
            raise mismatch(self.name, "shape", list(self._shape), list(x.shape))
        if x.dtype != self._dtype and not (self.any_float and x.is_floating_point()):
            expected = "a floating point type" if self.any_float else self._dtype
            raise mismatch(self.name, "dtype", expected, x.dtype)
        if x.device != self._device:
            raise mismatch(self.name, "device", self._device, x.device)


def mismatch(name: str, what: str, expected: Any, received: Any) -> EnvError:
    """The error of something that an environment returned."""
    return EnvError(
        f"The environment returned `{name}` with {what} {received}; expected {expected}. "
        "Mend what it returns, or the spec that describes it."
    )
