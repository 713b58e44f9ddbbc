"""The meter of an update: sums of the terms of its loss, and whether its divergence ended it."""

import math
from collections.abc import Mapping

import torch

from ...core.episodes import to_floats
from ...core.graphs import is_static
from ...schedulers import LRScheduler


class Meter:
    """Sums the terms of an update's loss, and ends it where its KL divergence exceeds the target.

    The host asks `has_ended` once an optimizer step. Recorded work cannot ask, so its sums and
    decisions are tensors: steps after the end are computed, and `mask` keeps them from changing
    anything.

    Args:
        device: Where the update is computed.

    """

    def __init__(self, device: torch.device) -> None:
        self._target: None | float = None
        self._adapted: None | LRScheduler = None
        #: On the host: terms of the steps, 0-d or of several, and steps by what became of them.
        self._terms: dict[str, list[torch.Tensor]] = {}
        self._counts: dict[str, float] = {}
        #: In recorded work: whether the update has ended, whether it begins, steps that were
        #: added, refused, and refused as their divergence is NaN, and sums of the terms.
        self._ended = torch.zeros((), dtype=torch.bool, device=device)
        self._is_first = torch.ones((), dtype=torch.bool, device=device)
        self._counted = torch.zeros(3, device=device)
        self._sums: None | torch.Tensor = None
        self._names: tuple[str, ...] = ()

    def begin(
        self, target_kl_div: None | float, adapted: None | LRScheduler, *, recorded: bool
    ) -> None:
        """Begin an update.

        Args:
            target_kl_div: Divergence that ends it; None for no end, and no synchronisation.
            adapted: Learning rates to adapt to the divergence instead; None for none.
            recorded: Whether its steps are recorded, or replayed.

        """
        self._target, self._adapted = target_kl_div, adapted
        self._terms, self._counts = {}, {"steps": 0, "refused": 0, "skipped": 0}
        if recorded:
            for tensor in self.tensors():
                tensor.zero_()
            self._is_first.fill_(True)

    def tensors(self) -> list[torch.Tensor]:
        """The tensors that recorded work changes."""
        sums = [] if self._sums is None else [self._sums]
        return [self._ended, self._is_first, self._counted, *sums]

    @property
    def mask(self) -> None | torch.Tensor:
        """Bool, 0-d: True once steps must change nothing. None if the host asks `has_ended`."""
        ends = self._target is not None and self._adapted is None
        return self._ended if ends and is_static() else None

    def add(self, terms: Mapping[str, torch.Tensor]) -> None:
        """Add the terms of the loss, 0-d each, before the optimizer step that they are of."""
        if is_static():
            self._add_in_place(terms)
            return
        self._counts["steps"] += 1
        for name, term in terms.items():
            self._terms.setdefault(name, []).append(term)

    def has_ended(self) -> bool:
        """Whether the update ends before the step whose terms were added last."""
        if self._target is None or is_static():
            return False
        kl_div = float(self._terms["kl_div"][-1])  # one sync: needed to stop early
        if self._adapted is not None:
            if self._counts["steps"] > 1:  # before the first step the policy has not moved
                self._adapted.adapt(math.inf if math.isnan(kl_div) else kl_div, self._target)
            return False
        if kl_div <= self._target:  # NaN exceeds the target, too
            return False
        self._count_end(kl_div)
        return True

    def _count_end(self, kl_div: float) -> None:
        """Count the step whose divergence ended the update."""
        self._counts["skipped" if math.isnan(kl_div) else "refused"] += 1

    def add_all(self, terms: Mapping[str, torch.Tensor], *, has_ended: bool) -> None:
        """Add the terms `[steps]` of an update that did not call `add`.

        `has_ended` says whether the divergence of the last step ended the update.
        """
        self._counts["steps"] = len(terms["kl_div"])
        self._terms = {name: [term] for name, term in terms.items()}
        if has_ended:
            self._count_end(float(terms["kl_div"][-1]))

    def _add_in_place(self, terms: Mapping[str, torch.Tensor]) -> None:
        """Do what `add` and `has_ended` do, on the device alone."""
        found = torch.stack([term.to(self._counted.dtype) for term in terms.values()])
        if self._sums is None or self._names != tuple(terms):  # other hyperparameters, other terms
            self._sums, self._names = torch.zeros_like(found), tuple(terms)
        self._sums += found.masked_fill(self._ended, 0.0)
        self._counted[0] += ~self._ended
        if self._target is not None and self._adapted is not None:
            # Before the first step the policy has not moved.
            self._adapted.adapt_on_device(terms["kl_div"], self._target, unless=self._is_first)
        elif self._target is not None:
            kl_div = terms["kl_div"]
            exceeds = ~(kl_div <= self._target) & ~self._ended  # NaN exceeds the target, too
            self._counted[1] += exceeds & ~kl_div.isnan()
            self._counted[2] += exceeds & kl_div.isnan()
            self._ended |= exceeds
        self._is_first.zero_()

    def read(self, others: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Sums of the terms, counts of the steps, and other numbers, in one transfer.

        If only some steps have a term, its sum is scaled to the number of all steps.

        Args:
            others: Numbers, 0-d each, among them the number of steps that were `skipped`.

        """
        if not self._terms:  # recorded
            assert self._sums is not None
            counts = zip(self._counts, self._counted.unbind(), strict=True)
            sums = dict(zip(self._names, self._sums.unbind(), strict=True))
            numbers = to_floats({**sums, **{f"of {k}": x for k, x in counts}, **others})
            self._counts = {k: numbers.pop(f"of {k}") for k in self._counts}
        else:
            found = {k: x[0] if len(x) == 1 else torch.stack(x) for k, x in self._terms.items()}
            numbers = to_floats({**{k: x.sum() for k, x in found.items()}, **others})
            for name, terms in found.items():
                numbers[name] *= self._counts["steps"] / terms.numel()
        skipped = numbers.pop("skipped") + self._counts["skipped"]
        return {**numbers, **self._counts, "skipped": skipped}


def total(terms: list[torch.Tensor]) -> torch.Tensor:
    """The sum of 0-d tensors."""
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum()
