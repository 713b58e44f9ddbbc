"""The stand-in itself: each law is broken by a small program, which is told with its lines."""

import contextlib
import copy
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from everstep.core import triton as ours
from everstep.core.advantages import gae
from everstep.core.episodes import EpisodeTracker
from everstep.core.graphs._base import watching
from tests.device.machine import Counts, DeviceFault, Machine
from tests.device.trainings import CASES

SOURCE = Path(__file__).read_text().splitlines()


def line(mark: str) -> str:
    """The place of the line that ends with a mark, as messages have it."""
    (number,) = (i for i, text in enumerate(SOURCE, 1) if text.endswith(f"# {mark}"))
    return rf"tests/device/test_stand_in\.py:{number} "


@contextmanager
def told(machine: Machine, *parts: str) -> Iterator[None]:
    """The block breaks a law; the fault has these parts, in their order."""
    with pytest.raises(DeviceFault, match=".*".join(parts)):
        yield
    assert machine.faults.pop()


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="cuda")


def side_stream() -> Any:
    """A stream that has waited for everything so far."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def pinned(*values: float) -> torch.Tensor:
    return torch.tensor(values).pin_memory()


def syncs(machine: Machine) -> dict[str, int]:
    return {f"{what} at {place}": n for (what, place), n in machine.counts.syncs.items()}


# Devices.


def test_tensors_say_where_they_are_and_compute(machine: Machine) -> None:
    x = torch.arange(3.0, device="cuda", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad is not None
    assert x.device == x.grad.device == torch.device("cuda:0")
    assert x.is_cuda
    assert not machine.counts.syncs
    assert x.grad.tolist() == [0.0, 2.0, 4.0]


def test_devices_are_not_mixed(machine: Machine) -> None:
    here, there = torch.ones(2), ones(2)
    for work in (
        lambda: here + there,
        lambda: there.add_(here),
        lambda: here.add_(there),
        lambda: torch.cat([there, here]),
        lambda: torch.where(there > 0, here, there),
        lambda: there.gather(0, torch.zeros(2, dtype=torch.long)),
        lambda: nn.Linear(2, 2)(there),
        lambda: here[there.long()],
    ):
        with pytest.raises(RuntimeError, match=r"cuda:0 and cpu.*test_stand_in\.py"):
            work()
    assert (there + torch.tensor(2.0)).tolist() == [3.0, 3.0]  # a number of the host is passed on
    assert machine.faults == []


def test_modules_that_are_moved_keep_their_parameters(machine: Machine) -> None:
    model = nn.Linear(2, 1)
    weight = model.weight
    model.to("cuda")
    assert model.weight is weight
    assert isinstance(weight, nn.Parameter)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(ones(3, 2)).sum().backward()
    optimizer.step()
    other = copy.deepcopy(model)
    assert torch.equal(other.weight, weight)
    model.to("cpu")
    assert model.weight is weight
    assert not weight.is_cuda


def test_files_have_numbers_and_the_name_of_the_device(machine: Machine) -> None:
    file = io.BytesIO()
    torch.save({"x": ones(2), "p": nn.Parameter(ones(1))}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded["x"].is_cuda
    assert isinstance(loaded["p"], nn.Parameter)


@pytest.mark.parametrize(("cls", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_cells_of_the_device_are_those_of_the_host(machine: Machine, cls: Any, gates: int) -> None:
    here = cls(3, 4, batch_first=True)
    there = copy.deepcopy(here).to("cuda")
    x = torch.randn(2, 5, 3)
    for module, given in ((here, x), (there, x.to("cuda"))):
        module(given)[0].square().sum().backward()
    assert machine.counts.kernels[f"_thnn_fused_{cls.__name__.lower()}_cell"] == 5
    assert there.weight_ih_l0.shape == (gates * 4, 3)
    for p, q in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad.cpu())


# Waiting.


def test_waiting_is_counted_by_line(machine: Machine) -> None:
    x = ones(3)
    assert x.sum() > 0  # bool
    x.cpu()  # cpu
    x.nonzero()  # nonzero
    x.add_(1)
    torch.cuda.synchronize()  # everything
    x[x > 0]  # mask
    x[torch.tensor([0])]  # index
    x[torch.zeros(1, dtype=torch.long, device="cuda")] = 2.0  # number
    x[0] = 5.0  # element
    torch.tensor([1.0], device="cuda")  # tensor
    x.to("cpu", torch.float64)  # to
    found = list(syncs(machine))
    marks = ("bool", "cpu", "nonzero", "everything", "mask", "index", "number", "element")
    marks = (*marks, "tensor", "to")
    assert len(found) == len(marks)
    for text, mark in zip(found, marks, strict=True):
        assert re.search(line(mark), text), (text, mark)


def test_lines_are_not_those_of_what_only_looks_on(machine: Machine) -> None:
    x = ones(3)
    with watching("cuda", lambda name: None):
        x.nonzero()  # looked at
    (found,) = syncs(machine)
    assert re.search(line("looked at"), found)


def test_what_does_not_wait_is_not_counted(machine: Machine) -> None:
    x, at = ones(3), torch.zeros(1, dtype=torch.long, device="cuda")
    x[x > 0] = 0.0
    x[at] = x[at] + 1
    x[:1] = 5.0
    torch.where(x > 0, 0.0, x)
    torch.full((2,), 3.0, device="cuda")
    x.record_stream(torch.cuda.current_stream())
    assert not machine.counts.syncs
    assert machine.counts.totals() == {"syncs": 0, "to_device": 0, "to_host": 0, "bytes": 0}


def test_copies_are_counted_with_their_bytes(machine: Machine) -> None:
    torch.ones(4).to("cuda").double().cpu()
    expected = {"syncs": 2, "to_device": 1, "to_host": 1, "bytes": 16 + 32}
    assert machine.counts.totals() == expected


def test_waits_can_be_errors(machine: Machine) -> None:
    x = ones(1)
    torch.cuda.set_sync_debug_mode("error")
    torch.cuda.current_stream().synchronize()  # which was asked for
    with pytest.raises(RuntimeError, match=f"item at {line('refused')}"):
        x.item()  # refused
    torch.cuda.set_sync_debug_mode(0)
    x.item()


def test_an_event_that_is_known_to_be_over_costs_nothing(machine: Machine) -> None:
    event = torch.cuda.Event()
    event.synchronize()  # never recorded
    ones(1)
    event.record()
    event.synchronize()
    event.synchronize()
    assert machine.counts.syncs.total() == 1


# Pinned memory.


def test_a_copy_to_the_host_arrives_when_it_is_waited_for(machine: Machine) -> None:
    host = pinned(0.0, 0.0)
    x = ones(2)
    host.copy_(x, non_blocking=True)
    x.zero_()  # later in the stream: the copy does not see it
    assert np.isnan(host.numpy()).all()
    torch.cuda.current_stream().synchronize()
    assert host.tolist() == [1.0, 1.0]


def test_a_copy_to_the_host_is_not_read_before_it_is_done(machine: Machine) -> None:
    host = pinned(0.0)
    host.copy_(ones(1), non_blocking=True)  # copied
    with told(machine, line("read early"), line("copied"), "event"):
        host + 1  # read early
    other = ones(1).to("cpu", non_blocking=True)  # PyTorch pins it
    with told(machine, "before its copy to the host"):
        other.sum()


def test_pinned_memory_is_not_written_before_its_copy_is_done(machine: Machine) -> None:
    host = pinned(1.0, 2.0)
    host.to("cuda", non_blocking=True)  # on its way
    host.sum()  # reading is allowed
    with told(machine, line("written early"), "to the device", line("on its way")):
        host.zero_()  # written early


def test_pinned_memory_is_not_written_by_numpy_before_its_copy_is_done(machine: Machine) -> None:
    host, array = pinned(1.0, 2.0), None
    array = host.numpy()
    host.to("cuda", non_blocking=True)  # under way
    array[0] = 5.0
    with told(machine, "between", line("under way"), line("seen"), line("under way")):
        torch.cuda.synchronize()  # seen


def test_an_event_of_before_the_copy_does_not_wait_for_it(machine: Machine) -> None:
    host, event = pinned(1.0), torch.cuda.Event()
    event.record()
    host.to("cuda", non_blocking=True)
    event.synchronize()
    with told(machine, "before its copy to the device"):
        host.zero_()
    host.to("cuda", non_blocking=True)
    event.record()
    event.synchronize()
    host.zero_()


def test_memory_that_is_not_pinned_is_waited_for(machine: Machine) -> None:
    torch.ones(2).to("cuda", non_blocking=True)
    torch.empty(2).copy_(ones(2), non_blocking=True)
    assert machine.counts.syncs.total() == 2


# Streams.


def test_reading_what_another_stream_has_not_finished_is_told(machine: Machine) -> None:
    side = side_stream()
    with torch.cuda.stream(side):  # entered
        x = ones(2) * 3  # made
    parts = line("used"), "mul on stream 1", line("made"), "stream 1 was entered", line("entered")
    with told(machine, *parts):
        x + 1  # used
    torch.cuda.current_stream().wait_stream(side)
    assert (x + 1).tolist() == [4.0, 4.0]


def test_writing_what_another_stream_still_reads_is_told(machine: Machine) -> None:
    x, side = ones(2), side_stream()
    with torch.cuda.stream(side):
        x.sum()  # reading
    with told(machine, line("overwriting"), "sum on stream 1", line("reading")):
        x.zero_()  # overwriting


def test_events_order_streams_and_the_host_orders_all(machine: Machine) -> None:
    side, event = side_stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        x = ones(2)
        event.record()
        y = ones(2)
    event.wait()
    x + 1
    with told(machine, "on stream 1"):
        y + 1
    event.record(side)
    event.synchronize()
    y + 1


def test_memory_is_not_used_again_before_other_streams_are_done(machine: Machine) -> None:
    x = torch.ones(2, device="cuda")  # first
    side = side_stream()
    with torch.cuda.stream(side):
        x.sum()  # still
    del x  # freed
    with told(machine, line("first"), line("freed"), line("again"), line("still"), "record_stream"):
        torch.ones(2, device="cuda")  # again
    torch.cuda.synchronize()
    y = ones(2)
    with torch.cuda.stream(side_stream()) as _:
        y.sum()
    y.record_stream(machine.streams[-1])
    del y
    ones(2)


# Random numbers.


def test_random_numbers_of_the_device_are_its_own(machine: Machine) -> None:
    torch.manual_seed(0)
    here, there = torch.rand(2), torch.rand(2, device="cuda")
    state = torch.cuda.get_rng_state()
    later = torch.rand(2, device="cuda")
    torch.rand(2)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(2, device="cuda"), later)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(2), here)
    assert torch.equal(torch.rand(2, device="cuda"), there)
    own = torch.Generator(device="cuda").manual_seed(1)
    assert own.device == torch.device("cuda:0")
    first = torch.rand(2, device="cuda", generator=own)
    assert torch.equal(torch.rand(2, device="cuda", generator=own.manual_seed(1)), first)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(2, device="cuda", generator=torch.Generator())
    with torch.random.fork_rng([torch.device("cuda:0")]):
        torch.rand(2, device="cuda")
    assert isinstance(torch.default_generator, torch.Generator)


# DLPack.


class Foreign:
    """An array of another library, which computes on its own stream."""

    def __init__(self, *, waits: bool) -> None:
        self.stream, self.waits = side_stream(), waits
        with torch.cuda.stream(self.stream):
            self.x = ones(2)

    def compute(self) -> None:
        """The next result, where the last one is."""
        with torch.cuda.stream(self.stream):
            self.x.add_(1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: Any, **_: Any) -> Any:
        with torch.cuda.stream(self.stream):
            return self.x.__dlpack__(stream=stream if self.waits else -1)


def test_dlpack_makes_the_readers_stream_wait(machine: Machine) -> None:
    taken = torch.from_dlpack(Foreign(waits=True))
    assert (taken + 1).tolist() == [2.0, 2.0]
    careless = torch.from_dlpack(Foreign(waits=False))
    with told(machine, "on stream 2"):
        careless + 1
    x = ones(2)
    assert torch.from_dlpack(x).data_ptr() == x.data_ptr()


# Graphs.


@contextmanager
def captured(pool: Any = None, *generators: Any) -> Iterator[Any]:
    """Capture the block."""
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.stream(side_stream()) as _:
        graph.capture_begin(pool=pool)
        try:
            yield graph
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(machine_of().streams[-1])


def machine_of() -> Machine:
    return torch.cuda.Stream.machine


def test_a_capture_runs_nothing_and_a_replay_does_it_again(machine: Machine) -> None:
    total = torch.zeros(2, device="cuda")
    with captured() as graph:
        total += 1
        doubled = total * 2  # doubled
    assert total.tolist() == [0.0, 0.0]
    with told(machine, line("too early"), line("doubled"), "not been replayed"):
        doubled.tolist()  # too early
    for n in (1.0, 2.0):
        graph.replay()
        assert doubled.tolist() == [2 * n, 2 * n]


def test_a_graph_is_one_launch_of_its_kernels(machine: Machine) -> None:
    x = ones(2)
    with captured() as graph:
        x.mul_(2).add_(1)
    launches, kernels = machine.counts.launches, machine.counts.kernels.total()
    graph.replay()
    assert machine.counts.launches == launches + 1
    assert machine.counts.kernels.total() == kernels + 2


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x.cpu(),
        lambda x: x + torch.ones(1).to("cuda"),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.get_rng_state(),
        lambda x: torch.cuda.manual_seed(0),
        lambda x: x.normal_(generator=torch.Generator(device="cuda")),
    ],
)
def test_a_capture_refuses_what_waits_and_strange_generators(machine: Machine, work: Any) -> None:
    x = ones(2)
    before = torch.cuda.get_rng_state()

    def program() -> None:
        with captured():
            x.add_(1)
            work(x)

    with pytest.raises(RuntimeError, match=r"test_stand_in\.py|captur"):
        program()
    assert x.tolist() == [1.0, 1.0]
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_a_capture_is_invalid_though_the_error_was_caught(machine: Machine) -> None:
    x = ones(2)

    def program() -> None:
        with captured():
            with contextlib.suppress(RuntimeError):
                x.tolist()  # caught
            x.add_(1)

    with pytest.raises(RuntimeError, match=f"previous error.*{line('caught')}"):
        program()


def test_a_capture_needs_a_stream_of_its_own(machine: Machine) -> None:
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()
    event = torch.cuda.Event()
    event.record()
    with pytest.raises(RuntimeError, match="uncaptured work"), captured():
        event.wait()


def test_an_optimizer_in_a_capture_has_to_be_capturable(machine: Machine) -> None:
    p = nn.Parameter(ones(2))
    p.grad = ones(2)
    optimizer = torch.optim.Adam([p])
    optimizer.step()
    with pytest.raises(RuntimeError, match="capturable"), captured():
        optimizer.step()


def test_replays_draw_other_random_numbers(machine: Machine) -> None:
    own = torch.Generator(device="cuda").manual_seed(3)
    torch.cuda.manual_seed(0)
    expected = [
        (torch.rand(2, device="cuda"), torch.rand(2, device="cuda", generator=own))
        for _ in range(2)
    ]
    torch.cuda.manual_seed(0)
    own.manual_seed(3)
    with captured(None, own) as graph:
        drawn = torch.rand(2, device="cuda"), torch.rand(2, device="cuda", generator=own)
    for pair in expected:
        graph.replay()
        assert all(map(torch.equal, drawn, pair))


def test_a_graph_keeps_addresses_and_not_memory(machine: Machine) -> None:
    x, y = torch.ones(2, device="cuda"), ones(2)  # lost
    with captured() as graph:
        y.add_(x)  # held
    graph.replay()
    del x
    with told(machine, line("replayed"), line("held"), line("lost"), "freed by now"):
        graph.replay()  # replayed


def test_what_a_graph_uses_is_told_with_what_calls_it(machine: Machine) -> None:
    tracker = EpisodeTracker(2, device=torch.device("cuda"))
    valid, done = (torch.ones(3, 2, 1, dtype=torch.bool, device="cuda") for _ in range(2))
    with captured() as graph:
        tracker.update(ones(3, 2, 1) * 2, valid, done)
    del done
    within = r"uses memory of .*episodes\.py:\d+ \(episode_sums\), called at "
    with told(machine, within + r"src/everstep/core/episodes\.py:\d+ \(update\), that was"):
        graph.replay()


def test_scratch_memory_is_another_graphs_after_a_replay(machine: Machine) -> None:
    pool, given = torch.cuda.graph_pool_handle(), ones(2)
    with captured(pool) as first:
        kept = given * 2
        address = (given * 3).inner  # as someone who keeps an address alone
    with captured(pool) as second:
        given.add_(1)
        later = given * 5  # later
    first.replay()
    second.replay()
    assert address.isnan().all()
    assert kept.tolist() == [2.0, 2.0]
    assert later.tolist() == [10.0, 10.0]
    first.replay()  # its scratch memory may be where the second has its result
    assert kept.tolist() == [4.0, 4.0]
    with told(machine, line("too late"), line("later"), "overwritten"):
        later + 1  # too late
    second.replay()
    assert later.tolist() == [15.0, 15.0]


def test_a_pool_is_gone_with_its_last_graph(machine: Machine) -> None:
    pool = torch.cuda.graph_pool_handle()
    x = ones(1)
    with captured(pool) as graph:
        x.add_(1)
    del graph
    with told(machine, "lost its last graph"), torch.cuda.stream(side_stream()):
        torch.cuda.CUDAGraph().capture_begin(pool=pool)


def test_a_replay_is_work_of_its_stream(machine: Machine) -> None:
    x = ones(2)
    with captured() as graph:
        x.add_(1)
    with torch.cuda.stream(side_stream()):
        graph.replay()  # on the side
    with told(machine, line("beside"), "a graph on stream", line("on the side")):
        x.sum()  # beside


# The end.


def test_nothing_is_left_behind() -> None:
    from tests.device.installed import installed, unavailable

    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    names = ("Stream", "Event", "is_available", "synchronize", "CUDAGraph")
    before = {name: getattr(torch.cuda, name) for name in names}
    with installed():
        assert torch.cuda.is_available()
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert {name: getattr(torch.cuda, name) for name in names} == before
    assert torch.accelerator.current_accelerator() is None
    assert not torch.cuda.is_available()
    assert torch.Generator is torch._C.Generator


# Kernels of our own.


@pytest.mark.parametrize(("switch", "launches"), [("1", 1), ("0", 30)])
def test_advantages_are_one_launch(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, switch: str, launches: int
) -> None:
    monkeypatch.setenv(ours.SWITCH, switch)
    rows = [ones(24, 3, 1) for _ in range(3)]
    done = torch.zeros(24, 3, 1, dtype=torch.bool, device="cuda")
    machine.counts = Counts()
    found = ours.gae(*rows, done, gamma=0.99, gae_lambda=0.95)
    assert launches <= machine.counts.launches < launches + 10
    expected = gae(*(x.cpu() for x in rows), done.cpu(), gamma=0.99, gae_lambda=0.95)
    torch.testing.assert_close(found.cpu(), expected)


def test_rows_are_one_launch_a_dtype(machine: Machine) -> None:
    algorithm = CASES["episodes"].build()
    algorithm.collect()
    row = algorithm.env.step(torch.zeros(4, 1, dtype=torch.int64, device="cuda"))
    sample = [x.clone() for x in (algorithm.rollout.actions[0][0], *ones(2, 4, 1))]
    machine.counts = Counts()
    algorithm.rollout.write_outcome(0, row)
    assert machine.counts.launches == 2  # real numbers, and flags
    algorithm.rollout.write_sample(0, (sample[0],), *sample[1:])
    assert machine.counts.launches == 4  # choices, and real numbers
