"""Gradients too small to be seen, of policies that are nearly sure of themselves.

Their products are subnormal numbers, which processors take many times longer to multiply: an update
of such a policy took more than twice as long as that of another.
"""

import torch


def vanishing(dtype: torch.dtype) -> float:
    """Magnitude below which no gradient is seen beside any other."""
    limits = torch.finfo(dtype)
    return limits.tiny / limits.eps**2


def without_vanishing(logits: torch.Tensor) -> torch.Tensor:
    """The same logits, to which no vanishing gradient flows back. GPUs are as fast with these."""
    # What numbers of 16 bits lack is range: there is nothing to cut.
    is_wide = logits.dtype in (torch.float32, torch.float64)
    if is_wide and logits.is_cpu and logits.grad_fn is not None:
        logits.register_hook(_cut)
    return logits


def _cut(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.masked_fill(gradient.abs() < vanishing(gradient.dtype), 0.0)
