"""Two ranks, each with a pretended device, that a pretended NCCL connects."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.device.installed import installed, unavailable
from tests.device.machine import Counts, DeviceFault
from tests.device.nccl import connected
from tests.device.test_budget import Row
from tests.device.trainings import Case
from tests.everstep.core.graphs.graph_toys import Walk
from tests.ranks import run_ranks

OPTIONS: dict[str, Any] = {
    "num_envs": 8,
    "sgd_minibatch_size": 16,
    "shuffle_minibatches": False,
    "normalize_rewards": "running",
    "normalize_observations": True,
}


def rounds_of(algorithm: Any, count: int) -> list[torch.Tensor]:
    """Weights after some rounds, on the host."""
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(count):
        algorithm.collect()
        algorithm.step()
    return [x.detach().cpu() for x in algorithm.parameters()]


def trained(options: dict[str, Any], alone: bool) -> tuple[list[Row], list[torch.Tensor], str]:
    """Rows of the budget of the last round, weights, and places of waits; of one rank."""
    assert unavailable() is None
    with installed() as machine, connected(machine, alone=alone):
        algorithm = Case(Walk, {**OPTIONS, **options}).build()
        rounds_of(algorithm, 3)
        rows, places = [], ""
        for work in (algorithm.collect, algorithm.step):
            machine.counts = Counts()
            work()
            rows.append(Row(**machine.counts.totals()))
            for (what, where), n in machine.counts.syncs.items():
                places += f"\n{work.__name__}: {n} times {what} at {where}"
        weights = [x.detach().cpu() for x in algorithm.parameters()]
    assert machine.faults == []
    return rows, weights, places


def told_laws() -> list[str]:
    """Messages for mistakes that both ranks make, or one of them."""
    assert unavailable() is None
    found = []
    with installed() as machine, connected(machine, alone=True):
        x = torch.ones(3, device="cuda")
        work: Any = dist.all_reduce(x, async_op=True)
        for mistake in (
            lambda: x + 1,
            lambda: dist.all_reduce(torch.ones(3)),
            lambda: dist.all_reduce(torch.ones(3, 2, device="cuda").t()),
            lambda: dist.broadcast(x[: dist.get_rank() + 1], src=0),
        ):
            with pytest.raises((RuntimeError, ValueError, DeviceFault)) as error:
                mistake()
            found.append(str(error.value))
        work.wait()
        found.append(str((x + 1).tolist()))
        machine.faults.clear()
    return found


def on_host() -> list[torch.Tensor]:
    """The same training with gloo alone."""
    return rounds_of(Case(Walk, OPTIONS).build("cpu"), 4)


#: A training's rows of the budget; with NCCL alone statistics, and the names of calls that ranks
#: compare, go through the device, too.
ROWS = {
    "eager": ({}, False, (Row(2, 0, 1, 152), Row(1, 0, 1, 72))),
    "graphs": ({"cuda_graphs": True}, False, (Row(1, 0, 1, 152), Row(1, 0, 1, 104))),
    "NCCL alone": ({}, True, (Row(6, 2, 3, 26312), Row(3, 1, 2, 1632))),
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    """Weights of two ranks on the host."""
    found: list[torch.Tensor] = run_ranks(2, on_host, tmp_path_factory.mktemp("host"))[0]
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x == "graphs" else pytest.mark.slow) for x in ROWS]
)
def test_ranks_train_as_on_the_host_and_wait_as_the_table_says(
    tmp_path: Path, weights: list[torch.Tensor], name: str
) -> None:
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    options, alone, rows = ROWS[name]
    for found, own, places in run_ranks(2, trained, tmp_path, options, alone):
        assert tuple(found) == rows, places
        for a, b in zip(own, weights, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_nccl_tells_what_it_would_not_forgive(tmp_path: Path) -> None:
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    for early, of_host, strided, order, sums in run_ranks(2, told_laws, tmp_path):
        assert "add on stream 0" in early
        assert "all_reduce on stream 1" in early
        assert "No backend type associated with device type cpu" in of_host
        assert "contiguous" in strided
        assert "rank 0: broadcast of (1,)" in order
        assert "rank 1: broadcast of (2,)" in order
        assert sums == "[3.0, 3.0, 3.0]"
