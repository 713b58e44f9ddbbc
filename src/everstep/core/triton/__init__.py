"""Advantages in one kernel on a GPU, by Triton, which PyTorch for CUDA brings along.

The general way has some forty kernels, each of which takes the device longer than its rows do.
"""

import logging
import os
from importlib.util import find_spec
from typing import Any

import torch

from .. import advantages

_log = logging.getLogger(__name__)

#: Environment variable that switches Triton off: 0.
SWITCH = "EVERSTEP_TRITON"

#: Why the kernel is not used any more, once it has failed.
_failures: list[str] = []

_library = torch.library.Library("everstep", "FRAGMENT")
_library.define(
    "gae(Tensor rewards, Tensor values, Tensor next_values, Tensor done, Tensor? known, "
    "Tensor? passed, Tensor? gammas, float gamma, float gae_lambda) -> Tensor"
)


def is_available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def gae(
    *rows: torch.Tensor,
    gamma: float | torch.Tensor,
    gae_lambda: float,
    known: None | torch.Tensor = None,
    passed: None | torch.Tensor = None,
) -> torch.Tensor:
    """`advantages.gae` of the same arguments, without gradients, in one kernel where that is used.

    A tensor `gamma` is `[K]`, and flags are `[T, N, K]` or `[T, N, 1]`.
    """
    is_used = rows[0].is_cuda and not _failures and os.environ.get(SWITCH) != "0"
    if not is_used or rows[0].numel() >= 2**31 or not is_available():
        return advantages.gae(*rows, gamma=gamma, gae_lambda=gae_lambda, known=known, passed=passed)
    numbers = (gamma, 0.0) if isinstance(gamma, torch.Tensor) else (None, gamma)
    found: torch.Tensor = torch.ops.everstep.gae(*rows, known, passed, *numbers, gae_lambda)
    return found


def _general(*tensors_and_numbers: Any) -> torch.Tensor:
    *tensors, known, passed, gammas, gamma, gae_lambda = tensors_and_numbers
    options = {"gae_lambda": gae_lambda, "known": known, "passed": passed}
    return advantages.gae(*tensors, gamma=gamma if gammas is None else gammas, **options)


def _by_triton(*tensors_and_numbers: Any) -> torch.Tensor:
    """Advantages by the kernel; the general way where it fails, which is said once."""
    if not _failures:
        try:
            from . import _kernel

            return _kernel.launch(*tensors_and_numbers)
        except Exception as error:  # a compiler may be missing, or too old for the card
            _failures.append(f"{type(error).__name__}: {error}")
            _log.warning(
                "Advantages are computed by PyTorch's own kernels, which take somewhat longer: "
                "Triton failed with %s",
                _failures[0],
            )
    return _general(*tensors_and_numbers)


_library.impl("gae", _general, "CPU")
_library.impl("gae", _by_triton, "CUDA")
