"""Memory between host and device, as adapters use it, without anything else that waits."""

import numpy as np
import torch

from everstep_adapters.common.handoff import HostReader, TransferBuffer, as_tensor
from tests.device.machine import Machine
from tests.device.test_stand_in import Foreign


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
    waits = {what: n for (what, _), n in machine.counts.syncs.items()}
    assert waits["Event.synchronize"] == 3


def test_actions_are_read_when_they_have_arrived(machine: Machine) -> None:
    reader = HostReader((4, 1))
    for turn in range(3):
        action = torch.full((4, 1), turn, device="cuda") * 2
        assert np.all(reader.fetch(action) == 2 * turn)
    assert machine.counts.syncs.total() == 3


def test_arrays_of_another_stream_are_waited_for(machine: Machine) -> None:
    taken = as_tensor(Foreign(waits=True))
    assert taken.is_cuda
    assert (taken * 2).tolist() == [2.0, 2.0]
