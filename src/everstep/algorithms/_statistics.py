"""Sums and times."""

import time
from collections.abc import Callable, Mapping

import torch


class Sums:
    """Sums of 0-d tensors by name: kept as they come, and added up once."""

    def __init__(self) -> None:
        self._terms: dict[str, list[torch.Tensor]] = {}

    def add(self, terms: Mapping[str, torch.Tensor]) -> None:
        """Take in one minibatch's terms, without their gradients."""
        for name, term in terms.items():
            kept = term.detach() if term.requires_grad else term
            self._terms.setdefault(name, []).append(kept)

    def totals(self) -> dict[str, torch.Tensor]:
        """The sums, 0-d each."""
        return {name: _sum(terms) for name, terms in self._terms.items()}


def _sum(terms: list[torch.Tensor]) -> torch.Tensor:
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum()


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
