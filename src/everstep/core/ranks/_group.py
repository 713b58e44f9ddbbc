"""The reducer of the processes that `torch.distributed` has connected."""

import functools
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from ... import errors
from ...errors import ConfigError, EverstepError, NonFiniteError, RankError
from ._collectives import Collectives
from ._single import NOTHING, Counter, Measured, Moments, Reducer
from ._statistics import reduce_stats

T = TypeVar("T")

#: Name of the number of rows among the terms of a loss, where no term has it.
_ROWS = "/rows"

#: Environment variable with a number of rollouts: after as many, the processes compare their
#: models; 0, the default, for never.
CHECK_EVERY = "EVERSTEP_CHECK_RANKS"

#: Bytes in which the statistics of a rollout, and the name and values of a call, are sent; longer
#: ones take a second collective.
_BYTES, _CALL_BYTES = 8192, 512

#: What is said of values that users may want to differ, by name.
_MORE = {
    "seed": ": from one seed, each rank draws actions of its own, and its environments have other "
    "seeds than those of all other ranks",
    "num_envs": ": it counts the environments of all ranks, which have equal shares",
}

#: Calls of this process that have begun, of all its reducers; the first one was announced.
_calls: list[str] = []


class GroupReducer(Reducer):
    """The reducer of the processes that `torch.distributed` has connected."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.collectives = Collectives()
        self._modules: tuple[nn.Module, ...] = ()
        #: Whether rows are counted later, and those that wait for it.
        self._is_joined, self._waiting = False, cast(dict[Counter, Moments], {})
        self._rollouts, self._check_every = 0, _check_every()
        #: Values that every call compares.
        self._noted: dict[str, str] = {}

    def moments(
        self, each: Sequence[Moments], largest: Sequence[torch.Tensor] = ()
    ) -> tuple[Sequence[Moments], Sequence[torch.Tensor]]:
        """See `Reducer.moments`. Merged in the order of the ranks, so equal on all of them."""
        own = [*(x for moments in each for x in moments), *largest]
        if not own:
            return [], []
        flat = [x.double().reshape(-1) for x in own]
        sizes = [len(x) for x in flat]
        parts = [x.split(sizes) for x in self.collectives.gather(torch.cat(flat))]
        merged: list[Any] = []
        for i, moments in enumerate(each):
            found = functools.reduce(_sum, (tuple(x[3 * i : 3 * i + 3]) for x in parts))
            pairs = zip(found, moments, strict=True)
            merged.append(tuple(x.view_as(y).to(y.dtype) for x, y in pairs))
        rest = zip(*(part[3 * len(each) :] for part in parts), strict=True)
        most = [torch.stack(x).amax(0).view_as(y) for x, y in zip(rest, largest, strict=True)]
        return merged, [x.to(y.dtype) for x, y in zip(most, largest, strict=True)]

    def measured(
        self, orders: Iterable[T], measure: Callable[[T], Measured]
    ) -> Iterator[tuple[T, None | Measured]]:
        """See `Reducer.measured`."""
        drawn = list(orders)
        own = [measure(order) for order in drawn]
        found = self.moments([moments for moments, _ in own], [largest for _, largest in own])
        return zip(drawn, zip(*found, strict=True), strict=True)

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
        sums = self.collectives.sum(torch.cat(packed).mul_(rows))
        *found, values, count = sums.split([len(x) for x in packed])
        count = count.clamp(min=1)
        for flat, total in zip(flats, found, strict=True):
            torch.div(total, count, out=flat)
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
                f"The environments of rank {refused[0]} returned NaN, infinity or a choice "
                "that does not exist; its own message has the place. The policy was not changed."
            )
        own = {key: stats[key] for key in ("finite", "reward_scale") if key in stats}
        recent = [x["episodes/return_mean_100"] for x in ranks if "episodes/return_mean_100" in x]
        mean = {"episodes/return_mean_100": sum(recent) / len(recent)} if recent else {}
        return reduce_stats(ranks) | own | mean

    def begin(self, *modules: None | nn.Module) -> None:
        """See `Reducer.begin`.

        Raises:
            ConfigError: If two ranks are on one GPU.

        """
        self._modules = tuple(module for module in modules if module is not None)
        devices = {p.device for module in self._modules for p in module.parameters()}
        if "cuda:nccl" in dist.get_backend_config():
            self._check_gpus([_name_of_gpu(x) for x in devices if x.type == "cuda"])
        self.collectives.choose_waiting()
        self.check_alike("Algorithm", _shapes_of(self._modules))
        for module in self._modules:
            for tensor in (*module.parameters(), *module.buffers()):
                self.collectives.copy_first(tensor.detach())
            for part in module.modules():
                if hasattr(part, "reducer"):
                    part.reducer = self  # type: ignore[assignment]
        self._check_equal()
        torch.manual_seed(seed_of(torch.initial_seed(), self.rank))

    @contextmanager
    def calling(self, call: str, values: Mapping[str, str] = NOTHING) -> Iterator[None]:
        """See `Reducer.calling`; one collective."""
        if not _calls:
            self._announce(call, values)
        _calls.append(call)
        try:
            yield
        finally:
            _calls.pop()

    def check_alike(self, call: str, values: Mapping[str, str]) -> None:
        """See `Reducer.check_alike`."""
        self._announce(call, values)

    def note(self, values: Mapping[str, str]) -> None:
        """See `Reducer.note`."""
        self._noted |= values

    def agree(self, call: str, *flags: bool) -> tuple[bool, ...]:
        """See `Reducer.agree`; one collective."""
        found = self._announce(call, sent=[int(flag) for flag in flags])
        return tuple(any(each) for each in zip(*found, strict=True))

    @contextmanager
    def together(self, call: str) -> Iterator[None]:
        """See `Reducer.together`."""
        own: None | Exception = None
        try:
            yield
        except RankError:
            raise  # the others are not there any more
        except Exception as error:
            own = error
        sent = {} if own is None else {"kind": type(own).__name__, "message": str(own)}
        found = self._announce(call, sent=sent)
        if own is not None:
            raise own
        for rank, each in enumerate(found):
            if each:
                kind = getattr(errors, each["kind"], EverstepError)
                raise kind(f"Rank {rank} failed: {each['message'] or each['kind']}")

    def gather(self, call: str, value: Any) -> list[Any]:
        """See `Reducer.gather`."""
        with self.calling(call):
            return [_unpacked(each) for each in self.collectives.of_all_on_first(_packed(value))]

    def from_first(self, call: str, make: Callable[[], T]) -> T:
        """See `Reducer.from_first`."""
        with self.calling(call):
            return self._from_first(make)

    def _from_first(self, make: Callable[[], T]) -> T:
        if self.rank:
            made, error = _unpacked(self.collectives.of_first(b""))
        else:
            made, error = None, None
            try:
                made = make()
                sent = _packed((made, None))
            except Exception as raised:
                error, sent = raised, _packed((None, _sendable(raised)))
            self.collectives.of_first(sent)
        if error is not None:
            raise error
        return cast(T, made)

    def _announce(
        self, call: str, values: Mapping[str, str] = NOTHING, sent: Any = None
    ) -> list[Any]:
        """Values that ranks send with a call that all make alike: the first collective of each.

        Raises:
            ConfigError: On all ranks, if one makes another call or has other values.

        """
        own = {"call": call, "values": {**self._noted, **values}, "sent": sent}
        ranks = self._exchange(own, _CALL_BYTES)
        calls = [f"`{each['call']}`" for each in ranks]
        if len({*calls}) > 1:
            raise ConfigError(
                f"All ranks must make the same calls, in the same order; got {_by_rank(calls)}. "
                "Make calls that train, evaluate, save or load in every process, outside of "
                "`if rank == 0`."
            )
        for name in dict.fromkeys(name for each in ranks for name in each["values"]):
            found = [each["values"].get(name, "nothing") for each in ranks]
            if len({*found}) > 1:
                raise ConfigError(
                    f"`{name}` must be the same on all ranks; got {_by_rank(found)}, "
                    f"in {calls[0]}. Give every process the same{_MORE.get(name, '')}."
                )
        return [each["sent"] for each in ranks]

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
        own = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8).to(
            self.collectives.device
        )
        first, *others = self.collectives.gather(own)
        wrong = [str(i) for i, x in enumerate(others, 1) if not torch.equal(x, first)]
        if wrong:
            raise EverstepError(
                f"The model of rank {', '.join(wrong)} is not that of rank 0 after "
                f"{self._rollouts} rollouts: what changes weights must do so on all ranks alike."
            )

    def _check_gpus(self, own: Sequence[str]) -> None:
        ranks = [json.loads(x) for x in self.collectives.of_all(json.dumps(own).encode())]
        owners: dict[str, int] = {}
        for rank, gpus in enumerate(ranks):
            for gpu in gpus:
                if owners.setdefault(gpu, rank) != rank:
                    raise ConfigError(
                        f"Ranks {owners[gpu]} and {rank} are on one GPU, and NCCL connects one "
                        f"process a GPU; PyTorch sees {torch.cuda.device_count()} here. Start as "
                        "many processes as there are GPUs, or set `device` to 'cpu'."
                    )

    def _exchange(self, value: Mapping[str, Any], size: int = _BYTES) -> list[dict[str, Any]]:
        """The value of every rank, as text of a fixed length; a longer one is sent again."""
        text = json.dumps(value).encode()
        while True:
            padded = text[:size].ljust(size) + len(text).to_bytes(8, "little")
            sent = torch.frombuffer(bytearray(padded), dtype=torch.uint8).to(
                self.collectives.device
            )
            parts = torch.stack(self.collectives.gather(sent)).cpu()  # one sync with NCCL alone
            texts = [bytes(x) for x in parts.numpy()]
            longest = max(int.from_bytes(x[size:], "little") for x in texts)
            if longest <= size:
                return [json.loads(x[:size]) for x in texts]
            size = longest


def _sum(one: Moments, other: Moments) -> Moments:
    """Moments of the rows of both.

    Source: parallel variance, Chan, Golub and LeVeque 1979.
    """
    (n, mean, squares), (m, its_mean, its_squares) = one, other
    total, shift = (n + m).clamp(min=1), its_mean - mean
    squares = squares + its_squares + shift.square() * (n * m / total)
    return n + m, mean + shift * (m / total), squares


def _by_rank(values: Sequence[str]) -> str:
    """Values with the ranks that have them, such as "2 on rank 0 and 3 on ranks 1, 2"."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    named = [f"{x} on rank{'s' * (len(y) > 1)} {', '.join(y)}" for x, y in ranks.items()]
    return " and ".join((", ".join(named[:-1]), named[-1]))


def _packed(value: Any) -> bytes:
    """A Python object as bytes; pickle alone cannot load tensors of some dtypes, such as uint32."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _unpacked(data: bytes) -> Any:
    """The object of `_packed`, which another rank of the same training has sent."""
    return torch.load(io.BytesIO(data), weights_only=False)


def _sendable(error: Exception) -> Exception:
    """An error that other ranks can raise: this one, or, if it has no copies, its words."""
    try:
        _unpacked(_packed(error))
    except Exception:
        return EverstepError(f"Rank 0 failed: {type(error).__name__}: {error}")
    return error


def _shapes_of(modules: Sequence[nn.Module]) -> dict[str, str]:
    """Shapes of parameters and buffers of modules, by their names."""
    named = ((x, (*x.named_parameters(), *x.named_buffers())) for x in modules)
    return {
        f"{type(module).__name__}.{name}": str(list(tensor.shape))
        for module, tensors in named
        for name, tensor in tensors
    }


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


def _name_of_gpu(device: torch.device) -> str:
    """A name that no other GPU has, on any machine."""
    return str(torch.cuda.get_device_properties(device).uuid)
