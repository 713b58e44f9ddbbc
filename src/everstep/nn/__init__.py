"""Building blocks of models, and functions of advantages and losses.

Masks of the functions (`mask=`) mark elements that count: True or 1. Masks of attention modules
(`key_padding_mask=`, `attention_mask=`) mark excluded elements, as PyTorch's do: True, or −inf.
"""

from . import modules
from .functional import (
    binary_mask_to_float_mask,
    float_mask_to_binary_mask,
    generalized_advantage_estimate,
    mask_from_lengths,
    masked_avg,
    masked_categorical_sample,
    masked_log_softmax,
    masked_max,
    ppo_losses,
    skip_connection,
)
from .modules import *  # noqa: F403  as `modules.__all__` lists them

__all__ = [
    "binary_mask_to_float_mask",
    "float_mask_to_binary_mask",
    "generalized_advantage_estimate",
    "mask_from_lengths",
    "masked_avg",
    "masked_categorical_sample",
    "masked_log_softmax",
    "masked_max",
    "ppo_losses",
    "skip_connection",
]
__all__ += modules.__all__
