"""Tasks on a GPU in another Python: what they share there, and in which order it is used.

The driver is a stand-in (`driver.c`), which both processes load in place of CUDA's.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.errors import AdapterError, EnvError
from everstep_adapters import IsaacGymEnv
from everstep_adapters.bridge import BridgeEnv, client, cuda
from tests.device.bridge_tasks import walk
from tests.device.machine import Counts, Machine
from tests.everstep_adapters.bridge.test_bridge import assert_equal
from tests.everstep_adapters.bridge.test_pythons import python
from tests.everstep_adapters.isaacgym.isaacgym_tasks import SCRIPTS, TASKS, some_actions

ENTRIES = "tests.device.bridge_tasks"
SOURCE = Path(__file__).with_name("driver.c")


@functools.cache
def library() -> Path:
    """A folder with the stand-in, under the name of CUDA's driver."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir(), f"driver-{digest}")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    if not (folder / cuda.LIBRARY).exists():
        folder.mkdir(exist_ok=True)
        built = folder / f"{os.getpid()}.so"
        options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
        subprocess.run([compiler, *options, "-o", str(built), str(SOURCE)], check=True)
        os.replace(built, folder / cuda.LIBRARY)
    return folder


class Driver:
    """The stand-in in this process."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.standin_fault.restype = ctypes.c_char_p

    def use(self, stream: int, address: int, size: int, writes: bool) -> None:
        place = ctypes.c_int64(stream), ctypes.c_uint64(address), ctypes.c_size_t(size)
        self._library.standin_use(*place, ctypes.c_int(writes))

    def faults(self) -> list[str]:
        """Faults since the last call."""
        count = self._library.standin_faults()
        found = [self._library.standin_fault(i).decode() for i in range(count)]
        self._library.standin_forgive()
        return found

    def count(self, what: str) -> int:
        """Number of `copies`, of `late` ones, or of what running processes have `left`."""
        return int(getattr(self._library, f"standin_{what}")())


@pytest.fixture
def driver(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """The driver of this process and of the servers that it starts; all it tells is a failure."""
    folder = library()
    # Loaded anew for each test, as it has the state of a process.
    own = shutil.copy(folder / cuda.LIBRARY, tmp_path / "own.so")
    monkeypatch.setenv("STANDIN_FILE", str(tmp_path / "device"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setattr(cuda, "LIBRARY", str(own))
    driver = Driver(own)
    machine.foreign = driver.use
    yield driver
    assert driver.faults() == []


@contextmanager
def remote(entry: str = "torch_task", style: str = "A", **options: Any) -> Iterator[Any]:
    """A task of the scripts `"both"` in another process, for tensors on this one's device."""
    given = options.pop("scripts", SCRIPTS["both"])
    kwargs = {"scripts": given, "style": style, **options.pop("kwargs", {})}
    options = {"python": sys.executable, "device": "cuda", **options}
    if entry == "numpy_task":  # which resets the task in it, and itself calls nothing
        options["reset_style"] = style
    with BridgeEnv.make(f"{ENTRIES}:{entry}", len(given), kwargs=kwargs, **options) as env:
        yield env


def step(env: Any, number: float = 0.5) -> Any:
    return env.step(torch.full((env.num_envs, 1), number, device="cuda"))


@pytest.mark.slow
@pytest.mark.parametrize("style", ["A", "B", "C", "D"])
def test_rows_are_those_in_process_and_stay_on_the_device(
    machine: Machine, driver: Driver, style: str
) -> None:
    given = SCRIPTS["both"]
    own = IsaacGymEnv(TASKS[style](given, 7, device="cuda:0", rl_device="cuda:0"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bridged = remote(style=style)
        env = bridged.__enter__()
    assert env.task.device == "cuda:0"
    assert "stay on cuda:0" in env.describe()["hand-off"]
    for _ in range(2):  # a second full reset, with a reset pending
        assert_equal(env.reset(), own.reset())
        for action in some_actions(20, len(given)):
            action = action.unsqueeze(-1).to("cuda")
            machine.counts = Counts()
            row = env.step(action)
            assert machine.counts.totals()["syncs"] == 0, machine.counts.syncs
            assert machine.counts.totals()["bytes"] == 0
            assert row["obs"].is_cuda
            assert_equal(row, own.step(action))
    assert driver.count("late") > 100
    bridged.__exit__(None, None, None)
    del env, row, bridged
    assert driver.count("left") == 0


@pytest.mark.parametrize("where", ["here", "py36", "py38"])
@pytest.mark.parametrize("style", ["A", "C"])
def test_arrays_of_another_library_need_no_pytorch(driver: Driver, style: str, where: str) -> None:
    """They have `__cuda_array_interface__`, a stream of their own, and are overwritten."""
    from tests.everstep_adapters.bridge import numpy_tasks

    interpreter = sys.executable if where == "here" else python(where)
    given = SCRIPTS["both"]
    torch.set_default_dtype(torch.float64)
    try:
        twin = numpy_tasks.VecTask(style, given)
        with remote("numpy_task", style, python=interpreter) as env:
            assert env.reset_style == style
            assert env.task.device == "cuda:0"
            env.reset()
            for number in (0.5, -1.0, 0.25, 0.125, 1.0, 0.75, 0.5):
                row = step(env, number)
            assert row["obs"].dtype == torch.float64
            assert row["obs"][:, 0].tolist() == [0.0, 1.0]
            assert row["obs"][:, 1].max() >= 1  # episodes went on
            assert row["rewards"].is_cuda
            del row
    finally:
        torch.set_default_dtype(torch.float32)
    del env
    assert twin.num_envs == 2
    assert driver.count("left") == 0


_ENTRIES = pytest.mark.parametrize(
    "entry", [pytest.param("torch_task", marks=pytest.mark.slow), "numpy_task"]
)


@_ENTRIES
def test_an_answer_is_read_until_the_one_after_the_next(driver: Driver, entry: str) -> None:
    """As late as it may be: what the stream reads was put into it before the call."""
    with remote(entry, "C") as env:
        env.reset()
        rows, kept = [], []
        for t in range(12):
            row = step(env, t / 12)
            rows.append(row["obs"])
            kept.append(row["obs"].clone())
            if t:
                assert torch.equal(rows[-2], kept[-2])  # the last but one is still there
        assert any(not torch.equal(x, y) for x, y in pairwise(kept))
        del row, rows


def test_a_copy_is_in_order_with_its_arrays_own_stream(driver: Driver) -> None:
    device = cuda.Device.of(0)
    source, target = (cuda.Memory.allocate(device, 512) for _ in range(2))
    array = cuda.Array(source.pointer, "<f4", (128,), 7, source)
    for _ in range(2):
        driver.use(7, source.pointer, 512, True)
        cuda.copy_on(device, 9, target.pointer, array)
        driver.use(9, target.pointer, 512, False)
    assert driver.faults() == []
    device.copy(target.pointer, source.pointer, 512, 9)
    driver.use(7, source.pointer, 512, True)  # nothing lets it wait for the copy
    assert len(driver.faults()) == 1
    device.synchronize()


@pytest.mark.slow
def test_large_answers_and_calls_move_to_larger_memory(driver: Driver) -> None:
    given = [[3], [4, 2]] * 40_000
    own = IsaacGymEnv(TASKS["A"](given, 7, device="cuda:0", rl_device="cuda:0"))
    with remote(style="A", scripts=given) as env:
        first = env.reset()
        assert_equal(first, own.reset())
        for action in some_actions(6, len(given)):
            action = action.unsqueeze(-1).to("cuda")
            assert_equal(env.step(action), own.step(action))
        assert first.is_cuda
        del first
    del env
    assert driver.count("left") == 0


def test_tensors_outlive_the_environment(driver: Driver) -> None:
    with remote("numpy_task", "C") as env:
        env.reset()
        row = step(env)
        before = row["obs"].tolist()
    assert driver.count("left") == 1  # their memory
    assert row["obs"].tolist() == before
    del row, env
    assert driver.count("left") == 0


def test_an_error_of_the_task_leaves_the_order_as_it_is(driver: Driver) -> None:
    with remote("numpy_task", "A") as env:
        env.reset()
        with pytest.raises(AdapterError, match="does not cross"):
            env.task._call("no_such_method", torch.ones(3, 1, device="cuda"))
        assert step(env)["obs"].is_cuda


def test_a_state_does_not_change_with_later_steps(driver: Driver) -> None:
    with remote("numpy_task", "A") as env:
        env.reset()
        state = env.task.state_dict()
        before = state["place"].tolist()
        for _ in range(4):
            step(env)
        assert state["place"].tolist() == before
        env.task.load_state_dict(state)


@pytest.mark.parametrize("victim", ["server", pytest.param("client", marks=pytest.mark.slow)])
def test_nothing_is_left_after_a_kill(driver: Driver, victim: str) -> None:
    if victim == "server":
        with remote("numpy_task", "C") as env:
            env.reset()
            os.kill(env.task._connection.process.pid, signal.SIGKILL)
            with pytest.raises(EnvError, match="killed by signal 9"):
                step(env)
        del env
    else:
        code = (
            "import sys, time; from everstep_adapters.bridge import cuda; "
            "from tests.device.installed import installed, unavailable; unavailable()\n"
            f"cuda.LIBRARY = {cuda.LIBRARY!r}\n"
            "with installed():\n"
            "    from tests.device.test_bridge import remote, step\n"
            "    with remote('numpy_task', 'C') as env:\n"
            "        env.reset(); step(env); print('ready', flush=True); time.sleep(100)"
        )
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert driver.count("left") > 3
            process.kill()
    end = time.monotonic() + 5
    while driver.count("left"):
        assert time.monotonic() < end
        time.sleep(0.05)


# ---- what cannot be shared --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"STANDIN_FAIL": "cuIpcOpenMemHandle_v2=801"}, r"cuIpcOpenMemHandle_v2 .*\(801\)"),
        ({"STANDIN_FAIL": "cuIpcOpenEventHandle=801"}, r"cuIpcOpenEventHandle .*\(801\)"),
        ({"STANDIN_FAIL": "cuMemHostRegister_v2=2,cuIpcOpenMemHandle_v2=801"}, r"\(801\)"),
        ({"STANDIN_FAIL": "cuInit=100"}, r"cuInit failed with .* \(100\)"),
        ({"STANDIN_DEVICES": "z"}, "does not see the device GPU-7a7a7a7a"),
        ({"LD_LIBRARY_PATH": ""}, r"libcuda\.so\.1 cannot be loaded"),
    ],
)
@_ENTRIES
def test_what_cannot_be_shared_goes_through_the_host_and_is_said_once(
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    says: str,
    entry: str,
) -> None:
    """The variables are those of the server alone."""
    if entry == "numpy_task" and ("cuInit" in str(variables) or "LD_LIBRARY_PATH" in variables):
        pytest.skip("its library needs the driver, as any does")
    start = client.Connection.start
    monkeypatch.setattr(
        client.Connection, "start", lambda *arguments: start(*arguments, env=variables)
    )

    def play() -> Any:
        with remote(entry, "C") as env:
            env.reset()
            rows = [step(env) for _ in range(3)]
            return env.describe()["hand-off"], rows[-1]

    with pytest.warns(RuntimeWarning, match=says) as told:
        hand_off, row = play()
    assert len([x for x in told if "of the GPU" in str(x.message)]) == 1
    assert "copied" in hand_off
    assert row["obs"].is_cuda  # where the training has asked for it
    assert row["obs"][:, 0].tolist() == [0.0, 1.0]


def test_devices_are_paired_by_what_they_are(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their numbers differ where `CUDA_VISIBLE_DEVICES` does."""
    monkeypatch.setenv("STANDIN_DEVICES", "cba")
    assert cuda.Device.of_uuid("61" * 16).ordinal == 2
    assert cuda.Device.of(0).uuid == "63" * 16
    with pytest.raises(cuda.DriverError, match="does not see the device GPU-78"):
        cuda.Device.of_uuid("78" * 16)


def test_a_training_on_the_host_asks_the_device_for_nothing(driver: Driver) -> None:
    with remote("numpy_task", "C", device="cpu") as env:
        env.reset()
        row = env.step(torch.zeros(2, 1))
        assert row["obs"].is_cpu
        assert "copied" in env.describe()["hand-off"]


def test_arrays_that_cannot_cross() -> None:
    class Odd:
        def __init__(self, **changes: Any) -> None:
            base = {"data": (64, False), "shape": (2, 3), "typestr": "<f4", "strides": None}
            self.__cuda_array_interface__ = {**base, **changes}

    assert cuda.array_of_interface(Odd()).nbytes == 24
    assert cuda.array_of_interface(Odd(strides=(12, 4), stream=9)).stream == 9
    with pytest.raises(ValueError, match="not contiguous"):
        cuda.array_of_interface(Odd(strides=(4, 8)))
    for typestr in ("<c8", ">f4", "<M8[s]"):
        with pytest.raises(ValueError, match="cannot cross"):
            cuda.array_of_interface(Odd(typestr=typestr))
    with pytest.raises(ValueError, match=r"torch\.bfloat16 cannot cross"):
        cuda.array_of_tensor(torch.ones(2, dtype=torch.bfloat16))


# ---- a real device ----------------------------------------------------------------------------


def walks(**options: Any) -> Any:
    """A small task of PyTorch, in another process."""
    return BridgeEnv.make(f"{ENTRIES}:walk", 64, device="cuda", **options)


def assert_walks(env: Any, own: Any) -> None:
    assert env.task.device == "cuda:0"
    assert_equal(env.reset(), own.reset())
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        action = torch.rand(64, 1, generator=generator).to("cuda")
        torch.cuda.set_sync_debug_mode("error")
        row = env.step(action)
        torch.cuda.set_sync_debug_mode("default")
        assert_equal(row, own.step(action))


def test_a_task_of_pytorch_alone(driver: Driver) -> None:
    """The task of the tests on a real device, on the pretended one."""
    with BridgeEnv.make(
        f"{ENTRIES}:pretended_walk", 64, device="cuda", python=sys.executable
    ) as env:
        assert_walks(env, IsaacGymEnv(walk(64)))


@pytest.mark.gpu(real=True)
@pytest.mark.parametrize("which", ["this PyTorch", "another PyTorch"])
def test_a_real_device_is_shared(which: str) -> None:
    """`EVERSTEP_BRIDGE_TORCH` is the path of an interpreter with another PyTorch for CUDA."""
    interpreter = sys.executable
    if which == "another PyTorch":
        interpreter = os.environ.get("EVERSTEP_BRIDGE_TORCH", "")
        if not interpreter:
            pytest.skip("needs EVERSTEP_BRIDGE_TORCH, an interpreter with another PyTorch")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*of the GPU.*")
        env = walks(python=interpreter)
    with env:
        assert_walks(env, IsaacGymEnv(walk(64)))
        before = env.task._connection.process
        row = env.step(torch.zeros(64, 1, device="cuda"))["obs"]
        kept = row.tolist()
    assert before.poll() == 0
    assert row.tolist() == kept  # the memory is this process's
    torch.cuda.synchronize()


@pytest.mark.gpu(real=True)
def test_a_killed_server_leaves_a_real_device_as_it_was() -> None:
    free = torch.cuda.mem_get_info()[0]
    for _ in range(3):
        with walks(python=sys.executable) as env:
            env.reset()
            os.kill(env.task._connection.process.pid, signal.SIGKILL)
            with pytest.raises(EnvError, match="killed by signal 9"):
                env.step(torch.zeros(64, 1, device="cuda"))
        torch.cuda.synchronize()
    del env
    end = time.monotonic() + 10
    while torch.cuda.mem_get_info()[0] < free - 2**28:
        assert time.monotonic() < end
        time.sleep(0.1)
