"""KL control of a recorded update: decisions are tensors on the device."""

from collections.abc import Mapping

import torch

from ..schedulers import LRScheduler
from ._updater import Updater


class DeviceControl:
    """Ends an update on the device: later optimizer steps are computed, but masked.

    Args:
        device: Where the update is computed.

    """

    stopped: None | torch.Tensor = None

    def __init__(self, device: torch.device) -> None:
        self._stopped = torch.zeros((), dtype=torch.bool, device=device)
        self._is_first = torch.ones((), dtype=torch.bool, device=device)
        self._counts = torch.zeros(2, device=device)
        self._sums: None | torch.Tensor = None  # made by the first minibatch of these terms
        self._names: tuple[str, ...] = ()

    def begin(self, target_kl_div: None | float, adapted: None | LRScheduler) -> None:
        """Begin an update; see `HostControl` for the arguments."""
        self._target, self._adapted = target_kl_div, adapted
        self.stopped = self._stopped if target_kl_div is not None and adapted is None else None
        for tensor in self.tensors():
            tensor.zero_()
        self._is_first.fill_(True)

    def tensors(self) -> list[torch.Tensor]:
        """The tensors that an update changes."""
        sums = [] if self._sums is None else [self._sums]
        return [self._stopped, self._is_first, self._counts, *sums]

    def admits(self, terms: Mapping[str, torch.Tensor], updater: Updater) -> bool:
        """See `Control.admits`; always True, `stopped` masks the step."""
        stacked = torch.stack([term.to(self._counts.dtype) for term in terms.values()])
        if self._sums is None or self._names != tuple(terms):  # other hyperparameters, other terms
            self._sums, self._names = torch.zeros_like(stacked), tuple(terms)
        self._sums += stacked.masked_fill(self._stopped, 0.0)
        self._counts[0] += ~self._stopped
        if self._target is not None and self._adapted is not None:
            # Before the first minibatch the policy has not moved.
            self._adapted.adapt_on_device(terms["kl_div"], self._target, unless=self._is_first)
        elif self._target is not None:
            kl_div = terms["kl_div"]
            exceeds = ~(kl_div <= self._target) & ~self._stopped  # NaN exceeds the target, too
            updater.skipped += exceeds & kl_div.isnan()
            self._counts[1] += exceeds & ~kl_div.isnan()
            self._stopped |= exceeds
        self._is_first.zero_()
        return True

    def sums(self) -> dict[str, torch.Tensor]:
        """Sums of the terms, and `HostControl.counts`, 0-d each."""
        assert self._sums is not None
        counts = dict(zip(("steps", "refused"), self._counts.unbind(), strict=True))
        return dict(zip(self._names, self._sums.unbind(), strict=True)) | counts
