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


#: What an update reports that is neither a loss nor its own.
_MONITORS = ("kl_div", "clip_fraction", "grad_norm")


def statistic(term: str) -> str:
    """Name under which a term of the loss is reported: `losses/vf`."""
    return f"{'monitors' if term in _MONITORS else 'losses'}/{term}"


def update_statistics(sums: dict[str, float], steps: int) -> dict[str, float | int]:
    """Statistics of an update, from sums over its `steps` optimizer steps."""
    found: dict[str, float | int] = {
        "monitors/explained_variance": sums["explained_variance"],
        "monitors/skipped_updates": int(sums["skipped"]),
    }
    for name, total in sums.items():
        if name not in ("explained_variance", "skipped"):
            found[statistic(name)] = total / steps
    return found
