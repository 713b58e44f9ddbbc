"""The device hand-off: views, copies, and arrays that allow neither."""

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from everstep.errors import EnvError
from everstep_adapters.common.handoff import (
    HostReader,
    TransferBuffer,
    as_array,
    as_tensor,
    declared_device,
    overlaps,
    to_numpy,
)
from everstep_adapters.gymnasium import GymnasiumEnv
from everstep_adapters.gymnasium.rows import RowMemory
from everstep_adapters.gymnasium.specs import observation_parts
from tests.everstep_adapters.gymnasium.gymnasium_toys import scripted

CPU = torch.device("cpu")


def address(array: Any) -> int:
    pointer: int = array.__array_interface__["data"][0]
    return pointer


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


# ---- arrays in -------------------------------------------------------------------------------

VIEWED = {
    "contiguous": np.arange(12, dtype=np.float32).reshape(3, 4),
    "Fortran": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
    "columns": np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2],
    "read-only": read_only(np.arange(3.0)),
    "uint8": np.arange(5, dtype=np.uint8),
    "uint16": np.arange(5, dtype=np.uint16),
    "float64": np.arange(5, dtype=np.float64),
    "bool": np.array([True, False]),
    "0-d": np.array(3.5),
    "expanded": np.broadcast_to(np.arange(3.0), (2, 3)),
}

COPIED = {
    "negative strides": np.arange(12.0).reshape(3, 4)[::-1, ::-1],
    "big-endian": np.arange(5, dtype=">f4"),
    "big-endian integers": np.arange(5, dtype=">i8"),
    "unaligned": np.frombuffer(bytes(1) + np.arange(4.0).tobytes(), np.uint8)[1:].view(np.float64),
    "field of a record": np.zeros(3, dtype=[("a", np.int8), ("b", np.float32)])["b"],
}


@pytest.mark.parametrize("kind", VIEWED)
def test_an_array_that_can_be_viewed_is_not_copied(kind: str) -> None:
    array = VIEWED[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = as_tensor(array)
    assert tensor.data_ptr() == address(array)
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("kind", COPIED)
def test_an_array_that_cannot_be_viewed_is_copied(kind: str) -> None:
    array = COPIED[kind]
    tensor = as_tensor(array)
    assert tensor.data_ptr() != address(array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert tensor.is_contiguous()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_an_array_of_nothing_keeps_its_shape(shape: tuple[int, ...]) -> None:
    assert as_tensor(np.zeros(shape)).shape == shape
    assert as_tensor(np.zeros((3, 4))[::-1, :0]).shape == (3, 0)


@pytest.mark.parametrize(
    "value", [np.array(["a"]), np.array([None]), np.array([1j]), "text", [object()]]
)
def test_what_is_not_numbers_is_named(value: Any) -> None:
    with pytest.raises(EnvError, match="`camera` must be numbers"):
        as_tensor(value, name="camera")


def test_numbers_come_as_they_are() -> None:
    assert as_tensor(3.5).item() == 3.5
    assert as_tensor([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]


def test_a_tensor_is_handed_over_without_its_history() -> None:
    weight = torch.ones(3, requires_grad=True)
    tensor = as_tensor(weight * 2)
    assert not tensor.requires_grad
    assert as_tensor(weight).data_ptr() == weight.data_ptr()


NEGATIVE = """
import numpy as np, torch
array = np.arange(4.0)[::-1]
{line}
print("alive")
"""


@pytest.mark.slow
def test_negative_strides_do_not_end_the_process() -> None:
    safe = "from everstep_adapters.common.handoff import as_tensor; assert as_tensor(array)[0] == 3"
    found = subprocess.run(
        [sys.executable, "-c", NEGATIVE.format(line=safe)], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "alive"


@pytest.mark.slow
def test_negative_strides_do_end_a_process_without_it() -> None:
    found = subprocess.run(
        [sys.executable, "-c", NEGATIVE.format(line="torch.from_dlpack(array)")],
        capture_output=True,
        text=True,
    )
    if found.returncode >= 0:
        pytest.skip("this version of PyTorch survives them")
    assert "alive" not in found.stdout


class Producer:
    """Something that speaks DLPack, and notes how it was asked."""

    def __init__(self, tensor: torch.Tensor, strides: Any = None) -> None:
        self.tensor, self.strides, self.asked = tensor, strides, []

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        return self.tensor.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def test_dlpack_is_asked_of_the_object() -> None:
    producer = Producer(torch.arange(4.0))
    tensor = as_tensor(producer)
    assert tensor.data_ptr() == producer.tensor.data_ptr()
    assert len(producer.asked) == 1
    assert to_numpy(producer).tolist() == [0, 1, 2, 3]


def test_dlpack_with_negative_strides_is_refused() -> None:
    producer = Producer(torch.arange(4.0), strides=(-4,))
    with pytest.raises(EnvError, match=r"`pose` has negative strides \(-4,\)"):
        as_tensor(producer, name="pose")
    assert not producer.asked


class Broken(Producer):
    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("the buffer is gone")


def test_what_a_producer_refuses_is_told() -> None:
    with pytest.raises(EnvError, match=r"`pose`, a .*Broken, cannot be a tensor: the buffer"):
        as_tensor(Broken(torch.zeros(1)), name="pose")


def test_jax_arrays_are_viewed_both_ways() -> None:
    jax = pytest.importorskip("jax")
    for dtype in (jax.numpy.float32, jax.numpy.int32, jax.numpy.uint8, jax.numpy.bfloat16):
        array = jax.numpy.arange(6, dtype=dtype).reshape(2, 3)
        tensor = as_tensor(array)
        assert tensor.data_ptr() == array.unsafe_buffer_pointer()
        assert tensor.float().tolist() == [[0, 1, 2], [3, 4, 5]]
    flags = as_tensor(jax.numpy.array([True, False]))
    assert flags.dtype is torch.bool
    action = torch.arange(6.0).reshape(2, 3)
    lent = as_array(action, jax.numpy.zeros(1))
    assert isinstance(lent, jax.Array)
    assert lent.unsafe_buffer_pointer() == action.data_ptr()
    strided = as_array(torch.arange(6.0)[::2], jax.numpy.zeros(1))
    assert strided.tolist() == [0, 2, 4]


# ---- tensors out -----------------------------------------------------------------------------


def test_tensors_are_lent_as_what_their_receiver_has() -> None:
    tensor = torch.arange(4.0, requires_grad=True)
    assert address(as_array(tensor, np.zeros(1))) == tensor.data_ptr()
    assert as_array(tensor, torch.zeros(1)).data_ptr() == tensor.data_ptr()
    assert not as_array(tensor, torch.zeros(1)).requires_grad
    assert as_array(torch.ones(2, dtype=torch.bfloat16), np.zeros(1)).dtype == np.float32


def test_actions_on_the_host_are_fetched_without_a_copy() -> None:
    reader = HostReader((4,))
    for tensor in (torch.arange(4), torch.arange(4).view(4, 1), torch.ones(4, requires_grad=True)):
        for value in (1, 2):  # the second time from the array that is kept
            with torch.no_grad():
                tensor.fill_(value)
            array = reader.fetch(tensor)
            assert array.tolist() == [value] * 4
            assert address(array) == tensor.data_ptr()
            assert not array.flags.writeable or value == 1


def test_what_cannot_be_shown_is_copied_to_the_host() -> None:
    reader, numbers = HostReader((3,)), torch.arange(6.0)
    assert reader.fetch(numbers[::2]).tolist() == [0, 2, 4]
    assert reader.fetch(numbers[:3].bfloat16()).tolist() == [0, 1, 2]
    negative = torch.view_as_complex(numbers.view(3, 2)).conj().imag
    assert reader.fetch(negative).tolist() == [-1, -3, -5]
    assert HostReader((0,)).fetch(torch.zeros(0, 1)).shape == (0,)


def test_memory_that_is_used_again_is_read_again() -> None:
    """Addresses come back with other dtypes, and more of them than are kept."""
    reader, block = HostReader((2,)), torch.zeros(1024, dtype=torch.uint8)
    for dtype in (torch.int64, torch.float64, torch.int32):
        for start in range(0, 1024 - 16, 16):
            for value in (start % 7, start % 5):
                tensor = block[start : start + 2 * dtype.itemsize].view(dtype)
                tensor.fill_(value)
                assert reader.fetch(tensor).tolist() == [value] * 2
    for value in range(300):
        action = torch.full((2, 1), value)
        assert reader.fetch(action).tolist() == [value] * 2
        del action
    assert len(reader._views) <= 256


# ---- rows ------------------------------------------------------------------------------------

LAYOUT = [((3, 2), torch.float32), ((3, 1), torch.bool), ((0,), torch.int64), ((5,), torch.uint8)]


def test_on_the_host_what_is_written_is_what_is_shown() -> None:
    buffer = TransferBuffer(LAYOUT, CPU)
    for entry, (shape, dtype) in zip(buffer.entries, LAYOUT, strict=True):
        (array,) = entry.arrays
        assert entry.tensor.shape == shape
        assert entry.tensor.dtype is dtype
        assert array.shape == shape
        if array.size:
            assert entry.tensor.data_ptr() == address(array)
            assert entry.tensor.data_ptr() % 64 == 0


def test_staged_memory_takes_turns_and_shows_what_was_published() -> None:
    buffer = TransferBuffer(LAYOUT, CPU, staged=True)
    arrays, tensor = buffer.entries[0]
    assert len({address(array) for array in arrays} | {tensor.data_ptr()}) == 3
    for turn in range(5):
        assert buffer.side == turn % 2
        buffer.wait()
        arrays[buffer.side][...] = turn
        assert tensor.eq(max(turn - 1, 0)).all()
        buffer.publish()
        assert tensor.eq(turn).all()


@pytest.mark.parametrize("staged", [False, True])
def test_bfloat16_is_published(staged: bool) -> None:
    """NumPy has no such dtype."""
    buffer = TransferBuffer([((2, 3), torch.bfloat16), ((2,), torch.float32)], CPU, staged=staged)
    values = torch.randn(2, 3, dtype=torch.bfloat16)
    buffer.entries[0].write(buffer.side, values)
    buffer.publish()
    assert torch.equal(buffer.entries[0].tensor, values)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [("cpu", "cuda", False), ("cuda:0", "cuda:1", True), ("cuda", "cpu", False)],
)
def test_copies_from_the_host_are_complete_when_they_return(
    source: str, target: str, expected: bool
) -> None:
    """An environment may own the memory, pinned, and write to it again at once."""
    assert overlaps(torch.device(source), torch.device(target)) is expected


def test_the_device_is_the_one_that_an_environment_declares() -> None:
    class Simulator:
        device = "cuda:1"

    class Wrapper:
        unwrapped = Simulator()

    class Jax:
        device = "TFRT_CPU_0"

    assert declared_device(Wrapper()) == torch.device("cuda:1")
    assert declared_device(Jax()) == declared_device(object()) == CPU


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_rows_through_staged_memory_are_the_same(mode: str) -> None:
    plain, staged = (GymnasiumEnv(scripted("mixed", mode)) for _ in range(2))
    parts = observation_parts(staged.env.single_observation_space, CPU)
    staged._memory = RowMemory(parts, staged.episode_keys, staged.num_envs, CPU, staged=True)
    assert torch.equal(plain.reset(), staged.reset())
    for _ in range(40):
        action = torch.randint(5, (3, 1))
        one, other = plain.step(action), staged.step(action)
        for key in one.keys():  # noqa: SIM118  a TensorDict
            assert torch.equal(one[key], other[key]), key


def test_nothing_is_allocated_in_an_env_step() -> None:
    """No storage but that of the rows; NumPy's is the environment's own affair."""
    env = GymnasiumEnv(scripted("mixed", "SAME_STEP"))
    env.reset()
    env.step(torch.zeros(3, 1, dtype=torch.int64))
    before = {key: value.data_ptr() for key, value in env.step(torch.ones(3, 1).long()).items()}
    with Allocations() as allocations:
        for _ in range(30):
            row = env.step(ACTION)
            assert {key: value.data_ptr() for key, value in row.items()} == before
    assert allocations.made == []


ACTION = torch.zeros(3, 1, dtype=torch.int64)


class Allocations(torch.utils._python_dispatch.TorchDispatchMode):
    """Operations whose result has memory that none of their arguments has."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in known:
            self.made.append(str(func))
        return out


def test_a_row_keeps_its_shape_for_every_space() -> None:
    space = spaces.Dict({"a": spaces.Discrete(3, start=1), "b": spaces.Box(-1, 1, (2, 2))})
    parts = observation_parts(space, CPU)
    memory = RowMemory(parts, frozenset({"terminated", "truncated", "first"}), 2, CPU, staged=True)
    batch = {"a": np.array([1, 3]), "b": np.ones((2, 2, 2), np.float32)}
    for _ in range(3):
        memory.writable().read_obs(batch)
        shown = memory.publish()
        assert shown["obs", "a"].tolist() == [[0], [2]]
        assert shown["obs", "b"].eq(1).all()


# ---- a GPU -----------------------------------------------------------------------------------


@pytest.mark.gpu
def test_pinned_sides_are_not_overwritten_on_their_way() -> None:
    """The device is kept busy, so that copies are still queued when the next rows are written."""
    device = torch.device("cuda")
    buffer = TransferBuffer([((1 << 20,), torch.float32)], device)
    (arrays, tensor), seen = buffer.entries[0], []
    busy = torch.randn(2048, 2048, device=device)
    for turn in range(50):
        busy = (busy @ busy).clamp(-1, 1)
        buffer.wait()
        arrays[buffer.side].fill(turn)
        buffer.publish()
        seen.append(torch.stack([tensor.min(), tensor.max()]))
    expected = [[float(turn)] * 2 for turn in range(50)]
    assert torch.stack(seen).tolist() == expected


@pytest.mark.gpu
def test_actions_are_read_after_they_are_computed() -> None:
    device, reader = torch.device("cuda"), HostReader((64, 1))
    busy = torch.randn(4096, 4096, device=device)
    for turn in range(20):
        busy = (busy @ busy).clamp(-1, 1)
        action = torch.full((64, 1), turn, device=device) + (busy.sum() * 0).long()
        assert (reader.fetch(action) == turn).all()


@pytest.mark.gpu
def test_a_producer_on_another_stream_is_waited_for() -> None:
    device = torch.device("cuda")
    side = torch.cuda.Stream()
    for turn in range(20):
        with torch.cuda.stream(side):
            busy = torch.randn(4096, 4096, device=device)
            made = (busy @ busy).sum().mul(0) + turn
        side_event = torch.cuda.Event()
        side_event.record(side)
        torch.cuda.current_stream().wait_event(side_event)
        assert as_tensor(made).item() == turn


@pytest.mark.gpu
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_rows_on_a_gpu_are_those_of_the_host(mode: AutoresetMode) -> None:
    host, device = (
        GymnasiumEnv(scripted("mixed", mode.name), device=where) for where in ("cpu", "cuda")
    )
    assert torch.equal(host.reset(), device.reset().cpu())
    for _ in range(40):
        action = torch.randint(5, (3, 1))
        one, other = host.step(action), device.step(action.cuda())
        for key in one.keys():  # noqa: SIM118  a TensorDict
            assert torch.equal(one[key], other[key].cpu()), key
