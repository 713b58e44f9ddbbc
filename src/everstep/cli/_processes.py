"""Several processes of one training: started here, or by `torchrun`, and connected."""

import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..errors import ConfigError, EverstepError, RankError

#: Variables that `torchrun` sets, and other launchers do as well.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

#: Time that a process waits for the others, which may evaluate or compile; those that end, or
#: whose environment hangs, are noticed within seconds.
_PATIENCE = timedelta(minutes=30)

#: Time that a process which has lost another one waits for the reason.
_MOMENT = timedelta(seconds=3)

#: Seconds between two looks at the store.
_BETWEEN = 0.05

#: Keys of the launcher's store: the message of rank 0, and whether the configuration is invalid,
#: which starting again would not change.
_REFUSED, _INVALID = "everstep/refused", "everstep/invalid"

#: The store in which connected processes leave texts for each other.
_store: Any = None


def is_started() -> bool:
    """Whether a launcher has started this process as one of several."""
    return all(name in os.environ for name in _VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def connected() -> Iterator[None]:
    """Context in which the processes of a launcher are connected; rank 0 prints for all of them.

    gloo connects what is on CPUs, NCCL what is on GPUs, of which each process has its own: that
    with the number `LOCAL_RANK`.
    """
    global _store
    if not is_started():
        yield
        return
    import torch
    import torch.distributed as dist

    # Defaults of its functions are the group that there is when it is imported: they would keep its
    # threads until Python has ended, when some end the process with SIGABRT.
    import torch.distributed.nn
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from ..core.ranks import reported

    gpus = torch.cuda.device_count()
    if gpus:  # processes that share one are refused where they train on it
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % gpus)
    else:
        bind()
    store, rank, size = next(rendezvous("env://", timeout=_PATIENCE))
    if store.check([_INVALID]):
        raise SystemExit(2)
    _store = PrefixStore(f"everstep/{name_of_start(store, rank, size)}", store)
    backends = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backends, store=_store, rank=rank, world_size=size, timeout=_PATIENCE)
    if rank:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    try:
        with reported():
            yield
    except RankError as error:
        raise SystemExit(f"everstep: rank {rank} cannot go on: {error.reason}") from None
    except EverstepError as error:
        if isinstance(error, ConfigError):
            store.set(_INVALID, "")
        if _is_reported(rank, str(error)):
            raise SystemExit(2) from None
        raise
    finally:
        dist.destroy_process_group()


def bind() -> None:
    """Let a process on CPUs use its share of the machine's cores, as `mpirun --bind-to` does.

    Processes that are moved between cores wait for each other longer. Nothing is done where there
    are fewer cores than processes, where the launcher has bound them already, and outside Linux.
    """
    rank, size = (int(os.environ.get(f"LOCAL_{x}", n)) for x, n in (("RANK", 0), ("WORLD_SIZE", 1)))
    if size == 1 or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0), key=_place)
    own = cores[rank * len(cores) // size : (rank + 1) * len(cores) // size]
    if len(cores) >= size and set(cores) == os.sched_getaffinity(os.getppid()):
        os.sched_setaffinity(0, own)


def _place(core: int) -> tuple[int, ...]:
    """Socket, core and number of a logical core: those of a core are neighbours."""
    folder = Path(f"/sys/devices/system/cpu/cpu{core}/topology")
    try:
        found = [int((folder / name).read_text()) for name in ("physical_package_id", "core_id")]
    except (OSError, ValueError):
        found = []
    return *found, core


def name_of_start(store: Any, rank: int, size: int) -> str:
    """A name of this start of the processes, equal for all of them and new for each start.

    `torchrun` keeps its store for all starts, with the addresses of processes that have ended, and
    its agents on several machines count restarts differently. The first process lists names that
    all give themselves, again and again, until each has found its own: then no name is of an
    earlier start.
    """
    own = uuid.uuid4().hex
    others = [f"everstep/name/{other}" for other in range(1, size)]
    if rank:
        store.set(f"everstep/name/{rank}", own)
    for _ in _looks(_PATIENCE):
        if rank == 0 and store.check(others):
            names = [own.encode(), *store.multi_get(others)]
            store.set("everstep/start", b",".join(names))
        if rank == 0 and store.add(f"everstep/agreed/{own}", 0) == len(others):
            return own
        first, *found = _text(store, "everstep/start").split(",")
        if own in found:
            store.add(f"everstep/agreed/{first}", 1)
            return first
    raise EverstepError(
        f"Rank {rank} has waited for {_PATIENCE} for all {size} processes to start; one has not "
        "started, or cannot reach MASTER_ADDR."
    )


def _looks(patience: timedelta) -> Iterator[None]:
    """Looks at the store, one after the other, until a time has passed."""
    limit = time.monotonic() + patience.total_seconds()
    while time.monotonic() < limit:
        yield
        time.sleep(_BETWEEN)  # the store's own `wait` would print warnings


def _is_reported(rank: int, message: str) -> bool:
    """Whether rank 0 reports the same mistake."""
    with suppress(Exception):  # the store may be gone
        if rank == 0:
            _store.set(_REFUSED, message)
            return False
        return _answer(_REFUSED) == message
    return False


def _answer(key: str) -> str:
    """The text of a key that another process may set within a moment; empty if none does."""
    for _ in _looks(_MOMENT):
        if text := _text(_store, key):
            return text
    return ""


def _text(store: Any, key: str) -> str:
    """The text of a key; empty if there is none."""
    return str(store.get(key).decode()) if store.check([key]) else ""


def tell(text: str) -> None:
    """Leave a text of this process in the store."""
    with suppress(Exception):  # the store may be gone
        _store.set(f"everstep/told/{os.environ['RANK']}", text)


def told(rank: int) -> str:
    """The text that a process has left in the store; empty if it has left none."""
    with suppress(Exception):  # the store may be gone
        return _text(_store, f"everstep/told/{rank}")
    return ""


def start(processes: int, words: Sequence[str], *, max_restarts: int = 0) -> int:
    """Run a command of Everstep in several processes, as `torchrun` does; its exit code.

    Args:
        processes: Their number.
        words: The command line, without the name of the program.
        max_restarts: How often all of them are started again after one has failed.

    """
    from torch.distributed.run import main

    # Each process says itself why it ends, and `outcome` what killed it; the launcher would log
    # exit codes and process numbers below.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    command = ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={max_restarts}"]
    return outcome(lambda: main([*command, "-m", "everstep", *words]))


def outcome(launch: Callable[[], object]) -> int:
    """The exit code of processes that PyTorch's launcher starts, and ends together."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launch()
    except ChildFailedError as error:
        return _exit_code(error.failures)
    except SignalException as error:
        return 128 + int(error.sigval or signal.SIGTERM)
    return 0


def _exit_code(failures: Mapping[int, Any]) -> int:
    """The exit code of the rank that failed first, which may have said nothing itself."""
    first = min(failures, key=lambda rank: failures[rank].timestamp)
    rank = next((rank for rank, x in failures.items() if x.exitcode == -signal.SIGKILL), first)
    code = int(failures[rank].exitcode)
    if code >= 0:
        if code != 2:  # of mistakes in the command line, which say all that there is
            print(f"everstep: rank {rank} ended with exit code {code}.", file=sys.stderr)
        return code
    print(f"everstep: rank {rank} was ended by {signal.Signals(-code).name}.", file=sys.stderr)
    return 128 - code
