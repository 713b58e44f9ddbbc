"""Memory between host and device, as adapters use it, without anything else that waits."""

from typing import Any

import numpy as np
import pytest
import torch

import everstep
from everstep_adapters.common.handoff import (
    HostReader,
    TransferBuffer,
    as_tensor,
    finish_reading,
)
from tests.device.machine import Machine
from tests.device.test_stand_in import Foreign, told
from tests.device.trainings import NUM_ENVS, TensorVector, counters


def test_both_sides_of_a_buffer_are_written_again_after_their_copies(machine: Machine) -> None:
    buffer = TransferBuffer([((3,), torch.float32)], torch.device("cuda"))
    (entry,), seen = buffer.entries, []
    for turn in range(5):
        buffer.wait()
        entry.arrays[buffer.side].fill(turn)
        buffer.publish()
        seen.append(entry.tensor.clone())
    assert torch.stack(seen)[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    # The first two sides are free, and the host waits for the copy before the last one.
    waits = {f"{what} at {place}": n for (what, place), n in machine.counts.syncs.items()}
    assert [n for text, n in waits.items() if text.startswith("Event")] == [3], str(waits)


def test_actions_are_read_when_they_have_arrived(machine: Machine) -> None:
    reader, found = HostReader((4, 1)), []
    for turn in range(3):
        action = torch.full((4, 1), turn, device="cuda") * 2
        found.append(reader.fetch(action).copy())
    assert np.all(np.stack(found)[:, :, 0].T == [0, 2, 4])
    assert machine.counts.syncs.total() == 3


def test_arrays_of_another_stream_are_waited_for(machine: Machine) -> None:
    taken = as_tensor(Foreign(waits=True))
    assert taken.is_cuda
    assert (taken * 2).tolist() == [2.0, 2.0]


def test_what_is_read_is_finished_before_another_library_computes(machine: Machine) -> None:
    library = Foreign(waits=True)
    for finishes in (True, False):
        read = as_tensor(library) * 2
        if finishes:
            finish_reading(read.device)
            library.compute()
            continue
        with told(machine, "add_ on stream 1", "mul on stream 0"):
            library.compute()
    assert read.tolist() == [4.0, 4.0]


class Array(Foreign):
    """A result of a library on a stream of its own."""

    def __init__(self, x: torch.Tensor, stream: Any) -> None:
        self.x, self.stream, self.waits = x, stream, True


class ForeignVector(TensorVector):
    """A vector environment of such a library, whose memory it uses again."""

    def __init__(self) -> None:
        super().__init__("NEXT_STEP")
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        with torch.cuda.stream(self.stream):
            obs, infos = super().reset(seed=seed, options=options)
            return Array(obs, self.stream), infos

    def step(self, actions: Any) -> Any:
        with torch.cuda.stream(self.stream):
            *found, infos = super().step(torch.as_tensor(actions, device="cuda"))
            return *(Array(x, self.stream) for x in found), infos


def test_rows_of_another_library_are_read_before_it_resets(machine: Machine) -> None:
    env = everstep.wrap(ForeignVector())
    for _ in range(3):
        env.reset()
        for _ in range(2):
            row = env.step(torch.zeros(NUM_ENVS, 1, device="cuda"))
            read = row["obs"] + 1
            del row
    assert read.tolist() == [[3.0, 3.0]] * NUM_ENVS


@pytest.mark.parametrize("call", ["reset", "load", "state"])
def test_rows_of_jax_are_read_before_it_computes_without_actions(
    machine: Machine, call: str
) -> None:
    env = counters(NUM_ENVS, device="cuda")
    env.reset()
    state = env.state_dict()
    for _ in range(3):
        row = env.step(torch.zeros(NUM_ENVS, 1, dtype=torch.int64, device="cuda"))
        read = {key: value.clone() for key, value in row.items()}
        del row
        if call == "reset":
            env.reset()
        elif call == "load":
            env.load_state_dict(state)
        else:
            env.state_dict()
    assert read["first"].shape == (NUM_ENVS, 1)


def test_jax_computes_in_order_with_what_it_takes_and_gives(machine: Machine) -> None:
    pytest.importorskip("jax")
    from tests.device.jax_double import Device

    library = Device()
    double = library.compiled(lambda x: 2 * x)
    given = torch.ones(NUM_ENVS, device="cuda")
    found = as_tensor(double(library.take(given)))
    assert (found + 1).tolist() == [3.0] * NUM_ENVS
    with told(machine, "add_ on stream 0", "a call of JAX on stream 1"):
        taken = library.take(given)
        double(taken)
        given.add_(1)
