"""Sums and times."""

import time
from collections.abc import Callable

import torch


def add_terms(sums: dict[str, torch.Tensor], terms: dict[str, torch.Tensor]) -> None:
    """Add the terms of one minibatch to those of the update so far, without their gradients."""
    for name, term in terms.items():
        term = term.detach()
        sums[name] = sums[name] + term if name in sums else term


def stopwatch() -> Callable[[], float]:
    """A function that returns the milliseconds since this call."""
    start = time.perf_counter_ns()
    return lambda: (time.perf_counter_ns() - start) / 1e6
