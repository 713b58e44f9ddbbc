"""Sums, moments and statistics of all processes of one training.

Each process, a rank, steps its own environments and holds its own rows; weights and everything
that is computed from all rows are the same on every rank. `Reducer` is of one process, which has
everything already; `GroupReducer` is of those that `torch.distributed` has connected.
"""

import functools
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from . import errors
from .errors import ConfigError, EverstepError, NonFiniteError

T = TypeVar("T")

#: `time.sleep(0)` sleeps for longer than a collective takes.
_let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))

#: Count, mean and sum of squared distances from the mean, each of any shape.
Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

#: Name of the number of rows among the terms of a loss.
_ROWS = "rows"

#: Environment variable with a number of rollouts: after as many, the processes compare their
#: models; 0, the default, for never.
CHECK_EVERY = "EVERSTEP_CHECK_RANKS"

#: Seconds for which a process on a CPU asks whether a collective has ended before it sleeps: to be
#: woken up takes longer than most collectives.
_POLLING = 0.005

#: Bytes in which the statistics of a rollout are sent; longer ones take a second collective.
_BYTES = 8192


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
            largest: Largest numbers of its rows, 0-d each.

        """
        return each, largest

    def count(self, rows: Sequence[tuple[Counter, Moments]]) -> None:
        """Add moments of the rows of all processes to counters; one collective, if not `joined`."""
        for counter, moments in rows:
            counter.add(*moments)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Context at whose end everything in it is counted, in one collective."""
        yield

    def counted(
        self, terms: dict[str, torch.Tensor], weight: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Terms of a loss, with the number of rows that have a weight, of `[B, 1]`."""
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

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """Whether any process says yes, for each flag; the answer is the same on all of them."""
        return flags

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context whose errors are of all processes: if one raises in it, each does at its end.

        Raises:
            EverstepError: Of the class that another process raised, if it is one of Everstep's.

        """
        yield

    def gather(self, value: Any) -> list[Any]:
        """The value of each process, on rank 0; an empty list on the others."""
        return [value]

    def from_first(self, make: Callable[[], T]) -> T:
        """The result of a function that rank 0 calls, on all processes; so is an error of it."""
        return make()


class GroupReducer(Reducer):
    """The reducer of the processes that `torch.distributed` has connected."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        #: Collectives that were started so far, and the bytes of this process in them; those of
        #: Python objects, which are sent when a training begins, evaluates or saves, not counted.
        self.collectives, self.bytes = 0, 0
        self._modules: tuple[nn.Module, ...] = ()
        #: Whether rows are counted later, and those that wait for it.
        self._is_joined, self._waiting = False, cast(dict[Counter, Moments], {})
        self._rollouts, self._check_every = 0, _check_every()
        self._polls = dist.get_backend() == "gloo"

    def moments(
        self, each: Sequence[Moments], largest: Sequence[torch.Tensor] = ()
    ) -> tuple[Sequence[Moments], Sequence[torch.Tensor]]:
        """See `Reducer.moments`. Merged in the order of the ranks, so equal on all of them."""
        own = [*(x for moments in each for x in moments), *largest]
        flat = [x.double().reshape(-1) for x in own]
        sizes = [len(x) for x in flat]
        parts = [x.split(sizes) for x in self._all_gather(torch.cat(flat))]
        merged: list[Any] = []
        for i, moments in enumerate(each):
            found = functools.reduce(_sum, (tuple(x[3 * i : 3 * i + 3]) for x in parts))
            pairs = zip(found, moments, strict=True)
            merged.append(tuple(x.view_as(y).to(y.dtype) for x, y in pairs))
        rest = zip(*(part[3 * len(each) :] for part in parts), strict=True)
        most = [torch.stack(x).amax(0).view_as(y) for x, y in zip(rest, largest, strict=True)]
        return merged, [x.to(y.dtype) for x, y in zip(most, largest, strict=True)]

    def count(self, rows: Sequence[tuple[Counter, Moments]]) -> None:
        """See `Reducer.count`. In `joined`, each counter's rows are merged until its end."""
        for counter, moments in rows:
            before = self._waiting.get(counter)
            self._waiting[counter] = moments if before is None else _sum(before, moments)
        if not self._is_joined and self._waiting:
            waiting, self._waiting = self._waiting, {}
            found, _ = self.moments(list(waiting.values()))
            super().count(list(zip(waiting, found, strict=True)))

    @contextmanager
    def joined(self) -> Iterator[None]:
        """See `Reducer.joined`. After an error nothing is counted."""
        self._is_joined = True
        try:
            yield
            self._is_joined = False
            self.count([])
        finally:
            self._is_joined, self._waiting = False, {}

    def counted(
        self, terms: dict[str, torch.Tensor], weight: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """See `Reducer.counted`."""
        return {**terms, _ROWS: weight.count_nonzero().to(weight.dtype)}

    def gradients(
        self, flats: Sequence[torch.Tensor], terms: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """See `Reducer.gradients`; one collective of gradients, terms and the number of rows."""
        rows = terms.pop(_ROWS)
        packed = [*flats, torch.stack(list(terms.values())), torch.ones_like(flats[0][:1])]
        sums = torch.cat(packed).mul_(rows)
        self._all_reduce(sums)
        *found, values, count = sums.split([len(x) for x in packed])
        count = count.clamp(min=1)
        for flat, total in zip(flats, found, strict=True):
            flat.copy_(total.div_(count))
        return dict(zip(terms, (values / count).unbind(), strict=True))

    def statistics(self, stats: dict[str, float]) -> dict[str, float]:
        """See `Reducer.statistics`."""
        self._rollouts += 1
        if self._check_every and self._rollouts % self._check_every == 0:
            self._check_equal()
        ranks = self._exchange(stats)
        refused = [rank for rank, each in enumerate(ranks) if not each.get("finite", 1.0)]
        if refused and self.rank not in refused:
            raise NonFiniteError(
                f"The environments of rank {refused[0]} returned NaN or infinity; its own message "
                "has the place. The policy was not changed."
            )
        own = {key: stats[key] for key in ("finite", "reward_scale") if key in stats}
        recent = [x["episodes/return_mean_100"] for x in ranks if "episodes/return_mean_100" in x]
        mean = {"episodes/return_mean_100": sum(recent) / len(recent)} if recent else {}
        return reduce_stats(ranks) | own | mean

    def begin(self, *modules: None | nn.Module) -> None:
        """See `Reducer.begin`."""
        self._modules = tuple(module for module in modules if module is not None)
        for module in self._modules:
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor.detach(), src=0)
            for part in module.modules():
                if hasattr(part, "reducer"):
                    part.reducer = self  # type: ignore[assignment]
        self._check_equal()
        torch.manual_seed(seed_of(torch.initial_seed(), self.rank))

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """See `Reducer.agree`; one collective of a byte a flag."""
        asked = torch.tensor(flags, dtype=torch.uint8, device=self._device())
        self._all_reduce(asked, op=dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in asked.tolist())

    @contextmanager
    def together(self) -> Iterator[None]:
        """See `Reducer.together`."""
        own: None | Exception = None
        try:
            yield
        except Exception as error:
            own = error
        sent = {} if own is None else {"kind": type(own).__name__, "message": str(own)}
        found = self._exchange(sent)
        if own is not None:
            raise own
        for rank, each in enumerate(found):
            if each:
                kind = getattr(errors, each["kind"], EverstepError)
                raise kind(f"Rank {rank} failed: {each['message'] or each['kind']}")

    def gather(self, value: Any) -> list[Any]:
        """See `Reducer.gather`."""
        values: list[Any] = [None] * self.size if self.rank == 0 else []
        self.collectives += 1
        dist.gather_object(value, values if self.rank == 0 else None)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """See `Reducer.from_first`."""
        sent: list[Any] = [None, None]
        if self.rank == 0:
            try:
                sent[0] = make()
            except Exception as error:
                sent[1] = error
        self.collectives += 1
        dist.broadcast_object_list(sent, src=0)
        if sent[1] is not None:
            raise sent[1]
        return cast(T, sent[0])

    def _check_equal(self) -> None:
        """Compare weights and moments of all processes, by a hash; the moments of rows are shared.

        Raises:
            EverstepError: If they differ.

        """
        shared: list[torch.Tensor] = [p for x in self._modules for p in x.parameters()]
        for module in self._modules:
            owners = (part for part in module.modules() if hasattr(part, "reducer"))
            shared += [x for part in owners for x in part.buffers(recurse=False)]
        digest = hashlib.blake2b(digest_size=8)
        for x in shared:
            row = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(row.numpy().tobytes())
        own = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8).to(self._device())
        first, *others = self._all_gather(own)
        wrong = [str(i) for i, x in enumerate(others, 1) if not torch.equal(x, first)]
        if wrong:
            raise EverstepError(
                f"The model of rank {', '.join(wrong)} is not that of rank 0 after "
                f"{self._rollouts} rollouts: what changes weights must do so on all ranks alike."
            )

    def _all_reduce(self, x: torch.Tensor, **op: Any) -> None:
        self._wait(x, dist.all_reduce(x, async_op=self._polls, **op))

    def _all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._wait(x, dist.all_gather(parts, x, async_op=self._polls))
        return parts

    def _wait(self, sent: torch.Tensor, work: Any) -> None:
        """Count a collective, and wait until it has ended."""
        self.collectives += 1
        self.bytes += sent.nbytes
        if work is None:
            return
        limit = time.perf_counter() + _POLLING
        while not work.is_completed() and time.perf_counter() < limit:
            _let_others_run()
        work.wait()

    def _exchange(self, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The value of every rank, as text of a fixed length; a longer one is sent again."""
        text, size = json.dumps(value).encode(), _BYTES
        while True:
            padded = text[:size].ljust(size) + len(text).to_bytes(8, "little")
            sent = torch.frombuffer(bytearray(padded), dtype=torch.uint8).to(self._device())
            texts = [bytes(x.cpu().numpy()) for x in self._all_gather(sent)]
            longest = max(int.from_bytes(x[size:], "little") for x in texts)
            if longest <= size:
                return [json.loads(x[:size]) for x in texts]
            size = longest

    def _device(self) -> str:
        return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _sum(one: Moments, other: Moments) -> Moments:
    """Moments of the rows of both.

    Source: parallel variance, Chan, Golub and LeVeque 1979.
    """
    (n, mean, squares), (m, its_mean, its_squares) = one, other
    total, shift = (n + m).clamp(min=1), its_mean - mean
    squares = squares + its_squares + shift.square() * (n * m / total)
    return n + m, mean + shift * (m / total), squares


def _check_every() -> int:
    text = os.environ.get(CHECK_EVERY, "0")
    if not text.isdecimal():
        raise ConfigError(f"{CHECK_EVERY}: must be a number of rollouts; got {text!r}.")
    return int(text)


def seed_of(seed: int, rank: int) -> int:
    """Seed of a rank's actions and minibatches, which no other seed has as that of another rank."""
    if rank == 0:
        return seed
    return int(np.random.SeedSequence(seed, spawn_key=(rank,)).generate_state(1, np.uint64)[0])


def current_reducer() -> Reducer:
    """The reducer of this process: of a group, if `torch.distributed` is initialised."""
    is_group = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return GroupReducer() if is_group else Reducer()


def reduce_stats(rollouts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Statistics over rollouts of equal length; a key may be absent from some of them.

    Minima and maxima are reduced by min and max. Means are averaged and standard deviations are
    the root of the mean square, weighted by the number of episodes for `episodes/*`. The
    environment's own metrics are averaged. Everything else is a sum.
    """
    keys = dict.fromkeys(key for stats in rollouts for key in stats)
    return {key: _reduce(key, [stats for stats in rollouts if key in stats]) for key in keys}


def _reduce(key: str, rollouts: Sequence[Mapping[str, float]]) -> float:
    values = [stats[key] for stats in rollouts]
    kind = key.split("/")[-1].split("_")[-1]
    if kind == "100":  # a moving window over episodes: the newest value
        return values[-1]
    about_episodes = key.startswith("episodes/")
    weights = [stats["episodes/count"] if about_episodes else 1.0 for stats in rollouts]
    is_own = key.startswith("env/") and key not in ("env/steps", "env/resets")
    if kind in ("min", "max") and not is_own:
        return min(values) if kind == "min" else max(values)
    if kind == "mean" or is_own:
        return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
    if kind == "std":
        squares = sum(v * v * w for v, w in zip(values, weights, strict=True))
        return math.sqrt(squares / sum(weights))
    return sum(values)
