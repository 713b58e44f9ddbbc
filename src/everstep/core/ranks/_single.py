"""The reducer of a single process, which has every row already."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from ...errors import ConfigError

T = TypeVar("T")

#: Count, mean and sum of squared distances from the mean, each of any shape.
Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

#: No values of a call.
NOTHING: Mapping[str, str] = MappingProxyType({})

#: Moments, and the largest magnitude.
Measured = tuple[Moments, torch.Tensor]


class Counter(Protocol):
    """Moments of all rows so far."""

    def add(self, n: torch.Tensor, mean: torch.Tensor, squares: torch.Tensor, /) -> None:
        """Add `n` rows with this mean and sum of squared distances from it."""


class Reducer:
    """The reducer of a single process."""

    #: Number of this process.
    rank: int = 0

    #: Number of processes.
    size: int = 1

    def __deepcopy__(self, memo: Any) -> "Reducer":
        return self

    @contextmanager
    def calling(self, call: str, values: Mapping[str, str] = NOTHING) -> Iterator[None]:
        """Context of what all processes must call alike; callbacks are called outside of it.

        Each says first which call it begins, and with what; calls within it say nothing.

        Args:
            call: Name of the call.
            values: Values that must be the same on all, by name.

        Raises:
            ConfigError: If another process makes another call, or has other values.

        """
        yield

    def check_alike(self, call: str, values: Mapping[str, str]) -> None:
        """Check that all processes make the same call with the same values; see `calling`."""

    def note(self, values: Mapping[str, str]) -> None:
        """Let all further calls compare these values, too: they were changed since the start."""

    def share(self, name: str, total: int) -> int:
        """Share of this process in a size of the whole training.

        Raises:
            ConfigError: If the processes cannot have equal shares.

        """
        if total % self.size:
            near = [total // self.size * self.size, -(-total // self.size) * self.size]
            raise ConfigError(
                f"`{name}` is of all processes together, and must be a multiple of their number "
                f"({self.size}); got {total}. Try {' or '.join(str(n) for n in near if n)}."
            )
        return total // self.size

    def moments(
        self, each: Sequence[Moments], largest: Sequence[torch.Tensor] = ()
    ) -> tuple[Sequence[Moments], Sequence[torch.Tensor]]:
        """Moments and largest numbers of the rows of all processes; one collective.

        Args:
            each: Moments of this process's rows.
            largest: Largest numbers of its rows, of any shape.

        """
        return each, largest

    def measured(
        self, orders: Iterable[T], measure: Callable[[T], Measured]
    ) -> Iterator[tuple[T, None | Measured]]:
        """The orders of an update's epochs, and moments of each minibatch of all processes.

        One collective: the orders of all epochs are drawn before the first one begins.

        Args:
            orders: Order of this process's rows in each epoch.
            measure: Moments of the minibatches of this process's rows in an order; the result is
                None where these are all rows.

        """
        return ((order, None) for order in orders)

    def count(self, rows: Sequence[tuple[Counter, Moments]]) -> None:
        """Add moments of the rows of all processes to counters; one collective, if not `joined`."""
        for counter, moments in rows:
            counter.add(*moments)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Context whose calls of `count` share one collective, at its end."""
        yield

    def counted(
        self, terms: dict[str, torch.Tensor], weight: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Terms of a loss; of several processes also the number of rows with a weight `[B, 1]`."""
        return terms

    def gradients(
        self, flats: Sequence[torch.Tensor], terms: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Make gradients, in place, and terms of a loss those of the rows of all processes.

        Args:
            flats: Gradients of the mean over this process's rows.
            terms: Means over this process's rows, 0-d each, from `counted`.

        """
        return terms

    def statistics(self, stats: dict[str, float]) -> dict[str, float]:
        """Statistics of a rollout, of all processes.

        Raises:
            NonFiniteError: If another process's rollout is not finite; this one's is refused, too.

        """
        return stats

    def begin(self, *modules: None | nn.Module) -> None:
        """Begin a training: weights and buffers are those of rank 0, noise is a rank's own."""

    def agree(self, call: str, *flags: bool) -> tuple[bool, ...]:
        """Whether any process says yes, for each flag; the answer is the same on all of them."""
        return flags

    @contextmanager
    def together(self, call: str) -> Iterator[None]:
        """Context whose errors are of all processes: if one raises in it, each does at its end.

        Raises:
            EverstepError: Of the class that another process raised, if it is one of Everstep's.

        """
        yield

    def gather(self, call: str, value: Any) -> list[Any]:
        """The value of each process, on rank 0; an empty list on the others."""
        return [value]

    def from_first(self, call: str, make: Callable[[], T]) -> T:
        """The result of a function that rank 0 calls, on all processes; so is an error of it."""
        return make()
