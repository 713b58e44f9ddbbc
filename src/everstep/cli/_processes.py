"""Several processes of one training: started here, or by `torchrun`, and connected."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

#: Variables that `torchrun` sets, and other launchers do as well.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

#: Environment variable with the seconds that a process waits for the others; PyTorch's default is
#: half an hour.
TIMEOUT = "EVERSTEP_TIMEOUT"


def is_started() -> bool:
    """Whether a launcher has started this process as one of several."""
    return all(name in os.environ for name in _VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def connected() -> Iterator[None]:
    """Context in which the processes of a launcher are connected; rank 0 prints for all of them.

    gloo connects processes on CPUs, NCCL those on GPUs, one GPU (`LOCAL_RANK`) each.
    """
    if not is_started():
        yield
        return
    import torch
    import torch.distributed as dist

    on_gpus = torch.cuda.is_available()
    if on_gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    timeout = timedelta(seconds=float(os.environ.get(TIMEOUT, 1800)))
    dist.init_process_group("nccl" if on_gpus else "gloo", timeout=timeout)
    if dist.get_rank():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    try:
        yield
    finally:
        dist.destroy_process_group()


def start(processes: int, words: Sequence[str]) -> int:
    """Run a command of Everstep in several processes, as `torchrun` does; its exit code.

    Args:
        processes: Their number.
        words: The command line, without the name of the program.

    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    command = ["--standalone", f"--nproc-per-node={processes}", "-m", "everstep", *words]
    try:
        main(command)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code >= 0 else 128 - code
    except SignalException as error:
        return 128 + int(error.sigval or signal.SIGTERM)
    return 0
