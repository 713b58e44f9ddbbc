"""The stand-in in PyTorch's place: `torch.cuda` as on a machine with one device."""

import contextlib
import ctypes
import functools
import hashlib
import importlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from everstep.core import triton as ours
from everstep.core.fast import build
from everstep.core.graphs._cuda import _warming

from .graphs import Graph, Pool
from .machine import Event, Machine, Memory, Stream, place
from .tensors import DEVICE, Capsule, CudaTensor, DeviceMode, Generator

SOURCE = Path(__file__).with_name("guard.cpp")

_LIBRARY: list[Any] = []


@functools.cache
def unavailable() -> None | str:
    """None once autograd knows the device, else why it cannot; before the first backward pass."""
    if torch.cuda.is_available():
        return "there is a CUDA device"
    include, lib = (Path(torch.__file__).parent / x for x in ("include", "lib"))
    text = SOURCE.read_bytes() + torch.__version__.encode()
    library = Path(tempfile.gettempdir(), f"guard-{hashlib.sha256(text).hexdigest()[:16]}.so")
    if not library.exists():
        own = library.with_suffix(f".{os.getpid()}")
        compiler = build.compiler()
        command = [*compiler, "-std=c++20", "-shared", "-fPIC", f"-I{include}", str(SOURCE)]
        command += ["-o", str(own), f"-L{lib}", "-lc10", "-ltorch_cpu"]
        done = subprocess.run(command, capture_output=True, text=True) if compiler else None
        if done is None or done.returncode:
            return f"{SOURCE.name} cannot be built: {done.stderr[-500:] if done else 'no compiler'}"
        os.replace(own, library)
    _LIBRARY.append(ctypes.CDLL(str(library)))
    _LIBRARY[0].register_guard()
    return None


class Patches(contextlib.ExitStack):
    """Attributes that are replaced, and put back in the end."""

    def set(self, owner: Any, **values: Any) -> None:
        for name, value in values.items():
            if hasattr(owner, name):
                self.callback(setattr, owner, name, getattr(owner, name))
            else:
                self.callback(delattr, owner, name)
            setattr(owner, name, value)


class _IsGenerator(type):
    """A generator of the host is an instance of `torch.Generator`, too."""

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, torch._C.Generator)


class _AnyGenerator(metaclass=_IsGenerator):
    """`torch.Generator`, of either device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        is_there = torch.device(device).type == "cuda"
        return Generator() if is_there else torch._C.Generator(device)


@contextlib.contextmanager
def installed() -> Iterator[Machine]:
    """A machine with one pretended CUDA device, in this block."""
    machine = Machine()
    CudaTensor.machine = Generator.machine = Graph.machine = machine
    machine.generator = Generator()
    with Patches() as patches:
        _LIBRARY[0].install()
        patches.callback(_LIBRARY[0].remove_again)
        _install(machine, patches)
        with DeviceMode(machine):
            yield machine


def _install(machine: Machine, patches: Patches) -> None:
    def stream_of(device: Any = None) -> Stream:
        return machine.current

    @contextlib.contextmanager
    def on_stream(stream: None | Stream) -> Iterator[None]:
        before, machine.current = machine.current, stream or machine.current
        machine.current.entered = place()
        try:
            yield
        finally:
            machine.current = before

    @contextlib.contextmanager
    def on_device(device: Any = None) -> Iterator[None]:
        yield

    def synchronize(device: Any = None) -> None:
        clock = {stream.cuda_stream: stream.tick for stream in machine.streams}
        machine.wait("torch.cuda.synchronize", clock)

    def seed(number: int) -> None:
        machine.generator.manual_seed(number)

    def set_debug_mode(mode: int | str) -> None:
        names = {"default": 0, "warn": 1, "error": 2}
        machine.debug_mode = names[mode] if isinstance(mode, str) else mode

    properties = SimpleNamespace(
        name="stand-in", total_memory=2**33, major=9, minor=0, multi_processor_count=132
    )
    patches.set(
        torch.cuda,
        _lazy_init=lambda: None,
        _is_in_bad_fork=lambda: False,
        is_available=lambda: True,
        is_initialized=lambda: True,
        is_bf16_supported=lambda *_: True,
        is_current_stream_capturing=lambda: machine.capture is not None,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda device: None,
        device=on_device,
        get_device_name=lambda device=None: properties.name,
        get_device_properties=lambda device=None: properties,
        get_device_capability=lambda device=None: (9, 0),
        mem_get_info=lambda device=None: (2**32, 2**33),
        empty_cache=lambda: None,
        synchronize=synchronize,
        set_sync_debug_mode=set_debug_mode,
        get_sync_debug_mode=lambda: machine.debug_mode,
        Stream=Stream,
        ExternalStream=lambda pointer, device=None: machine.streams[pointer],
        Event=Event,
        stream=on_stream,
        current_stream=stream_of,
        default_stream=lambda device=None: machine.default,
        CUDAGraph=Graph,
        graph_pool_handle=Pool,
        default_generators=(machine.generator,),
        manual_seed=seed,
        manual_seed_all=seed,
        seed=machine.generator.seed,
        initial_seed=machine.generator.initial_seed,
        get_rng_state=lambda device=None: machine.generator.get_state(),
        set_rng_state=lambda state, device=None: machine.generator.set_state(state),
    )
    # The general way takes the kernel's place, as one operation.
    patches.set(ours, is_available=lambda: True)
    patches.set(torch.accelerator, current_stream=stream_of)
    patches.set(torch, Generator=_AnyGenerator)
    patches.set(torch.backends.cuda, is_built=lambda: True)
    patches.set(torch.backends.cudnn, is_acceptable=lambda tensor: False)
    patches.set(torch._C, _from_dlpack=_taking_over(torch._C._from_dlpack))
    # Modules that are moved keep their parameters, as those of a real device do.
    overwrites = torch.__future__.get_swap_module_params_on_conversion()
    patches.callback(torch.__future__.set_swap_module_params_on_conversion, overwrites)
    torch.__future__.set_swap_module_params_on_conversion(True)
    load = torch.nn.Module._load_from_state_dict
    patches.set(torch.nn.Module, _load_from_state_dict=_without_swaps(load))
    patches.set(torch, tensor=_reading(torch.tensor))
    patches.set(torch, as_tensor=_viewing(machine, torch.as_tensor))
    # `torch.tensor(…, device="cuda")` makes a tensor of the host, and moves it.
    patches.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
    torch._C._set_only_lift_cpu_tensors(True)
    patches.callback(_warming.cache_clear)  # a stream of this machine
    supported = importlib.import_module("torch.optim.optimizer")._foreach_supported_types
    supported.append(CudaTensor)
    patches.callback(supported.remove, CudaTensor)


def _without_swaps(load: Any) -> Any:
    """Loading that writes into the parameters: those of an LSTM cannot be swapped."""

    def loaded(*arguments: Any) -> None:
        torch.__future__.set_swap_module_params_on_conversion(False)
        try:
            load(*arguments)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(True)

    return loaded


def _reading(original: Any) -> Any:
    """`torch.tensor`, which reads tensors in a list one by one."""

    def tensor(data: Any, **options: Any) -> torch.Tensor:
        if isinstance(data, list | tuple) and any(isinstance(x, CudaTensor) for x in data):
            data = [x.item() if isinstance(x, torch.Tensor) else x for x in data]
        made: torch.Tensor = original(data, **options)
        return made

    return tensor


def _viewing(machine: Machine, original: Any) -> Any:
    """`torch.as_tensor`, which views the memory of other libraries' arrays on the device."""

    def as_tensor(data: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        found: torch.Tensor
        if isinstance(data, torch.Tensor) or not hasattr(data, "__cuda_array_interface__"):
            found = original(data, *arguments, **options)
            return found
        interface = data.__cuda_array_interface__
        dtype, shape = np.dtype(interface["typestr"]), interface["shape"]
        size = int(np.prod(shape)) * dtype.itemsize
        if not size:
            return torch.from_numpy(np.empty(shape, dtype)).to(DEVICE)
        memory: Any = (ctypes.c_char * size).from_address(interface["data"][0])
        inner = torch.from_numpy(np.frombuffer(memory, dtype).reshape(shape))
        made = CudaTensor(inner, Memory(machine, inner))
        made.memory.owner = data
        return made

    return as_tensor


def _taking_over(original: Any) -> Any:
    def from_dlpack(capsule: Any) -> torch.Tensor:
        if isinstance(capsule, Capsule):
            return CudaTensor(capsule.inner, capsule.memory)
        found: torch.Tensor = original(capsule)
        return found

    return from_dlpack


__all__ = ["DEVICE", "installed", "unavailable"]
