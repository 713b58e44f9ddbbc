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
    """The same logits, to which no vanishing gradient flows back.

    On a CPU: GPUs are as fast with subnormal numbers. In float16 all gradients would vanish.
    """
    if (
        not torch.compiler.is_compiling()  # where hooks are nothing to be looked at
        and logits.is_cpu
        and logits.dtype is not torch.float16
        and logits.grad_fn is not None
    ):
        logits.register_hook(_cut)
    return logits


def _cut(gradient: None | torch.Tensor) -> None | torch.Tensor:
    if gradient is None:  # another output of the operation that made the logits is differentiated
        return None
    return gradient.masked_fill(gradient.abs() < vanishing(gradient.dtype), 0.0)
