"""An update whose every decision is made on the device."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import torch

if TYPE_CHECKING:
    from ..rollouts._sequences import Index
    from ._algorithm import OnPolicyAlgorithm

#: Most optimizer steps of an update that is one graph, of 120 to 350 nodes each; above, every
#: optimizer step replays the same graph.
MAX_STEPS = 32


class Learning:
    """An update that can be recorded: whatever changes from one to the next is in tensors.

    It ends where it would end eagerly: once the policy has moved too far, optimizer steps are
    computed, but skipped, and not counted. All orders are drawn before it begins.

    Args:
        algorithm: Whose update it is.

    """

    def __init__(self, algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> None:
        # Not a cycle: who drops an algorithm gets its memory back at once.
        self._algorithm = ref(algorithm)
        device = algorithm.rollout.device
        self._stopped = torch.zeros((), dtype=torch.bool, device=device)
        self._is_first = torch.ones((), dtype=torch.bool, device=device)
        self._steps = torch.zeros((), device=device)
        #: Sums over optimizer steps of what `_names` says; there after the first one.
        self._sums: None | torch.Tensor = None
        self._names: tuple[str, ...] = ()
        #: What the environment's rewards are divided by.
        self._scale: None | torch.Tensor = None
        #: Which sequences the optimizer steps of a graph see, `[steps, sequences]`.
        self._order: None | torch.Tensor = None

    def is_of(self, algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> bool:
        """Whether it is this algorithm's update."""
        return self._algorithm() is algorithm

    @property
    def algorithm(self) -> "OnPolicyAlgorithm[Any, Any, Any]":
        """Whose update it is."""
        algorithm = self._algorithm()
        assert algorithm is not None
        return algorithm

    def tensors(self) -> list[torch.Tensor]:
        """What is counted."""
        updater, sums = self.algorithm.updater, [] if self._sums is None else [self._sums]
        return [self._stopped, self._is_first, self._steps, *sums, *updater.totals().values()]

    def begin(self) -> None:
        """Start counting anew, with what was set from outside in its place."""
        algorithm = self.algorithm
        algorithm.updater.hold_rates()
        algorithm.updater.begin()
        for counted in self.tensors():
            counted.zero_()
        self._is_first.fill_(True)
        if algorithm._reward_scale is not None:
            if self._scale is None:
                self._scale = torch.empty_like(algorithm._reward_scale)
            algorithm._reward_scale = self._scale.copy_(algorithm._reward_scale)

    def pieces(self) -> Iterator[None]:
        """As often as `learn` makes a whole update, with the order of its minibatches in place."""
        config, count = self.algorithm.config, self.algorithm.sequences_per_rollout
        each = self._steps_at_once()
        whole = each == self._steps_of_update()
        if self.algorithm.minibatch_size == count or (whole and not config.shuffle_minibatches):
            self._order = None
            for _ in range(self._steps_of_update() // each):
                yield
            return
        orders = self._orders(count)
        if self._order is None or self._order.shape != orders[:each].shape:
            self._order = torch.empty_like(orders[:each])
        for order in orders.split(each):
            self._order.copy_(order)
            yield

    def _orders(self, count: int) -> torch.Tensor:
        """Which sequences each optimizer step sees, `[steps, sequences]`."""
        config, algorithm = self.algorithm.config, self.algorithm
        epochs = range(cast(int, config.num_sgd_iters))
        if config.shuffle_minibatches:
            orders = [algorithm._permutation(count) for _ in epochs]
        else:
            orders = [torch.arange(count, device=algorithm.rollout.device) for _ in epochs]
        return torch.cat(orders).view(self._steps_of_update(), -1)

    def _steps_of_update(self) -> int:
        """Optimizer steps of an update."""
        config = self.algorithm.config
        minibatches = self.algorithm.sequences_per_rollout // self.algorithm.minibatch_size
        return cast(int, config.num_sgd_iters) * (1 if config.accumulate_grads else minibatches)

    def _steps_at_once(self) -> int:
        """Optimizer steps of a graph."""
        steps = self._steps_of_update()
        return steps if steps <= MAX_STEPS else 1

    def learn(self) -> None:
        """The optimizer steps of a graph."""
        algorithm, config = self.algorithm, self.algorithm.config
        sequences, gradients = algorithm._sequences(), algorithm._gradients()
        for indices in self._indices(sequences.count):
            chunks = sequences.step(indices, algorithm.chunk_size, joint=config.accumulate_grads)
            self._take(algorithm._accumulate(chunks, gradients))

    def _indices(self, count: int) -> Iterator[list["Index"]]:
        """Which sequences the minibatches of each optimizer step hold."""
        size, joint = self.algorithm.minibatch_size, self.algorithm.config.accumulate_grads
        if self._order is not None:
            for row in self._order:
                yield list(row.split(size))
        elif size == count:
            for _ in range(self._steps_at_once()):
                yield [None]
        else:
            parts: list[Index] = [slice(start, start + size) for start in range(0, count, size)]
            for _ in range(cast(int, self.algorithm.config.num_sgd_iters)):
                yield from [parts] if joint else [[part] for part in parts]

    def _take(self, terms: dict[str, torch.Tensor]) -> None:
        """Make an optimizer step of gradients that are there, unless the update has ended."""
        updater, target = self.algorithm.updater, self.algorithm.config.target_kl_div
        stacked = torch.stack([term.to(self._steps.dtype) for term in terms.values()])
        if self._sums is None:
            self._sums, self._names = torch.zeros_like(stacked), tuple(terms)
        self._sums += stacked.masked_fill(self._stopped, 0.0)
        self._steps += ~self._stopped
        if target is None:
            updater.step()
        elif self.algorithm.config.lr_schedule_kind == "adaptive":
            # Before the first minibatch the policy has not moved.
            scheduler = self.algorithm.lr_scheduler
            scheduler.adapt_on_device(terms["kl_div"], target, unless=self._is_first)
            updater.step()
        else:
            kl_div = terms["kl_div"]
            updater.skipped += kl_div.isnan() & ~self._stopped
            self._stopped |= ~(kl_div <= target)  # NaN is too far, too
            updater.step(stopped=self._stopped)
        self._is_first.zero_()

    def totals(self) -> dict[str, torch.Tensor]:
        """Sums over the update, and of how many optimizer steps, as `steps`."""
        assert self._sums is not None
        named = dict(zip(self._names, self._sums.unbind(), strict=True))
        return named | self.algorithm.updater.totals() | {"steps": self._steps}
