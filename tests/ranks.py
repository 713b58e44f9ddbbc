"""Several processes that `torch.distributed` connects, for tests of `everstep.core.ranks`."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Seconds after which processes that wait for each other are killed.
TIMEOUT = 900


def run_ranks(size: int, function: Callable[..., Any], directory: Path, *args: Any) -> list[Any]:
    """Results of a function of a module, called in `size` connected processes."""
    name = f"{function.__module__}:{function.__qualname__}"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "args").write_bytes(pickle.dumps(args))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.ranks", name, str(rank), str(size), str(directory)],
            stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]
    try:
        errors = [process.communicate(timeout=TIMEOUT)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    failed = [x.decode() for x, process in zip(errors, processes, strict=True) if process.poll()]
    assert not failed, "\n".join(failed)
    return [pickle.loads((directory / str(rank)).read_bytes()) for rank in range(size)]


def _main() -> None:
    import importlib

    import torch.distributed as dist
    import torch.distributed.nn  # noqa: F401 - see `everstep.cli._processes`

    name, rank, size, place = sys.argv[1:]
    directory = Path(place)
    module, function = name.split(":")
    args = pickle.loads((directory / "args").read_bytes())
    if int(size) > 1:
        store = dist.FileStore(str(directory / "store"), int(size))
        dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(size))
    result = getattr(importlib.import_module(module), function)(*args)
    (directory / rank).write_bytes(pickle.dumps(result))
    if int(size) > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    _main()
