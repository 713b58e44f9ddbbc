"""Arrays of other libraries as tensors and back, and the memory between host and device.

A tensor from `as_tensor` shares the array's memory if possible. It is for reading only, though a
tensor has no flag for that: the array may be read-only or immutable. Copy it before returning it.
"""

import contextlib
import ctypes
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from everstep.errors import EnvError

#: DLPack's number for memory of the host.
_HOST = 1

# Typed views and vector loads want their start aligned; 64 bytes is a cache line.
_ALIGNMENT = 64

#: Most cached views of actions' memory. An allocator reuses few addresses.
_MOST_VIEWS = 256

#: Kinds of NumPy dtypes that PyTorch has: bool, integers, unsigned integers, floating point.
_KINDS = "biuf"


def as_tensor(value: Any, *, name: str = "value") -> torch.Tensor:
    """A tensor to read `value` from, which shares its memory if possible.

    Tensors are detached. Arrays of other libraries come by DLPack, from the object itself, so that
    their library waits for PyTorch's current stream. NumPy arrays are viewed, except those that
    PyTorch cannot view (negative strides, foreign byte order, unaligned), which are copied.

    Args:
        value: A tensor, an array, or nested numbers.
        name: Name in errors.

    Raises:
        EnvError: If no tensor can be made of it.

    """
    if isinstance(value, torch.Tensor):
        return value.detach()
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        return _from_dlpack(value, name)
    array = np.asarray(value)
    if array.dtype.kind not in _KINDS:
        raise EnvError(
            f"`{name}` must be numbers; got {type(value).__name__} with dtype {array.dtype}."
        )
    is_regular = all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
    if not (array.dtype.isnative and array.flags.aligned and is_regular):
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    try:
        # `from_numpy` warns of read-only arrays.
        return torch.from_numpy(array) if array.flags.writeable else from_dlpack(array)
    except BufferError:  # a read-only array in NumPy before 2.1
        return torch.from_numpy(array.copy())
    except TypeError as error:
        raise EnvError(f"`{name}` cannot be a tensor: {error}") from error


def _from_dlpack(value: Any, name: str) -> torch.Tensor:
    # A negative stride ends the process in PyTorch's importer, so it is checked first.
    strides = getattr(value, "strides", None)
    if isinstance(strides, Sequence) and any(stride < 0 for stride in strides):
        raise EnvError(
            f"`{name}` has negative strides {tuple(strides)}, which DLPack does not support. "
            "Let the environment return a contiguous array."
        )
    try:
        return from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise EnvError(
            f"`{name}`, a {type(value).__module__}.{type(value).__qualname__}, cannot be a tensor: "
            f"{error}"
        ) from error


def is_of_tensors(value: Any) -> bool:
    """Whether a value need not go through the host: a tensor, or an array on a device."""
    if isinstance(value, torch.Tensor):
        return True
    find_device = getattr(value, "__dlpack_device__", None)
    return find_device is not None and int(find_device()[0]) != _HOST


def to_numpy(value: Any) -> npt.NDArray[Any]:
    """An array on the host to read `value` from, which shares its memory if possible.

    Tensors and arrays on a GPU are copied, which waits for what computes them.

    Raises:
        EnvError: If no array can be made of it.

    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, torch.Tensor):
        tensor = value.float() if value.dtype is torch.bfloat16 else value  # NumPy has none
        return tensor.numpy(force=True)
    if hasattr(value, "__dlpack_device__") and not hasattr(value, "__array__"):
        return to_numpy(as_tensor(value))
    return np.asarray(value)


def as_array(tensor: torch.Tensor, like: Any) -> Any:
    """`tensor` as an array of the same library as `like`; a tensor if `like` is one.

    Zero-copy if the library can view it. JAX turns 64 bits into 32 unless it is configured
    otherwise, and cannot view strides other than transposed ones: those are copied.

    Args:
        tensor: The tensor; it must not be written to as long as the array is in use.
        like: An array of the library, or a tensor.

    """
    tensor = tensor.detach()
    if isinstance(like, torch.Tensor):
        return tensor
    library = type(like).__module__.partition(".")[0]
    if library in ("jax", "jaxlib"):
        import jax.numpy

        return jax.numpy.from_dlpack(tensor.contiguous())
    if hasattr(like, "__dlpack__") and library == "cupy":
        import cupy

        return cupy.from_dlpack(tensor)
    return to_numpy(tensor)


class BufferEntry(NamedTuple):
    """One tensor of a `TransferBuffer`: the host's arrays of it, and the device's tensor."""

    #: Host memory, one array a side. Write to that of `TransferBuffer.side`. Of `bfloat16`, which
    #: NumPy has not, these are the bits, as `int16`.
    arrays: tuple[npt.NDArray[Any], ...]

    #: The same values on the device after `TransferBuffer.publish`.
    tensor: torch.Tensor

    def write(self, side: int, values: torch.Tensor) -> None:
        """Copy `values` into a side of the host memory."""
        host = torch.from_numpy(self.arrays[side])
        if self.tensor.dtype is torch.bfloat16:
            host = host.view(torch.bfloat16)
        host.copy_(values)


class TransferBuffer:
    """Tensors that reach their device together, in one copy.

    On the CPU the tensors share the host arrays' memory and nothing is copied. Otherwise the host
    has two blocks (pinned for CUDA), its sides, and the device one. While one side is copied, the
    other can be written; `wait` returns when that may begin.

    Args:
        layout: Shape and dtype of each tensor.
        device: Device of the tensors.
        staged: Whether host and device have memory of their own; by default unless both are the
            CPU.

    """

    #: Index of the host's block to write.
    side: int

    #: The layout's tensors, in its order.
    entries: tuple[BufferEntry, ...]

    def __init__(
        self,
        layout: Sequence[tuple[tuple[int, ...], torch.dtype]],
        device: torch.device,
        *,
        staged: None | bool = None,
    ) -> None:
        sizes = (math.prod(shape) * dtype.itemsize for shape, dtype in layout)
        aligned = (math.ceil(size / _ALIGNMENT) * _ALIGNMENT for size in sizes)
        *offsets, size = accumulate(aligned, initial=0)
        self._staged = device.type != "cpu" if staged is None else staged
        on_cuda = device.type == "cuda"
        sides = 2 if self._staged else 1
        self._hosts = [
            torch.zeros(size, dtype=torch.uint8, pin_memory=on_cuda) for _ in range(sides)
        ]
        self._device = self._hosts[0].to(device, copy=True) if self._staged else self._hosts[0]
        self._copied = [torch.cuda.Event() for _ in self._hosts] if on_cuda else []
        self.side = 0
        self.entries = tuple(
            _make_entry([_view(block, offset, *entry) for block in (self._device, *self._hosts)])
            for offset, entry in zip(offsets, layout, strict=True)
        )

    def blocks(self) -> tuple[int, list[torch.Tensor]]:
        """The side, and everything that the buffer holds."""
        return self.side, [*self._hosts, self._device]

    def fill(self, blocks: tuple[int, list[torch.Tensor]]) -> None:
        """Hold what another buffer of this layout held."""
        self.side, found = blocks
        for own, block in zip([*self._hosts, self._device], found, strict=True):
            own.copy_(block)

    def wait(self) -> None:
        """Return when the host arrays of `side` may be written to. Call it before writing."""
        if self._copied:
            self._copied[self.side].synchronize()

    def publish(self) -> None:
        """Copy `side` to the tensors, in stream order, and switch sides."""
        if not self._staged:
            return
        # Only CUDA says when an asynchronous copy is done.
        self._device.copy_(self._hosts[self.side], non_blocking=bool(self._copied))
        if self._copied:
            stream = torch.cuda.current_stream(self._device.device)
            self._copied[self.side].record(stream)
        self.side = 1 - self.side


class HostReader:
    """Transfer of actions to the host: from CUDA in one copy, into memory that is allocated once.

    Actions on the host are not copied. `Tensor.numpy` costs 10 µs between the vector steps of a
    small environment, so the array of an address is cached. It is only returned for a tensor at
    that address, so it never shows memory that was freed.

    Args:
        shape: Shape of the arrays; tensors have as many elements.
        is_real: Whether tensors can be of real numbers, which alone can have PyTorch's negative bit
            set, as the imaginary part of a conjugate has.

    """

    def __init__(self, shape: tuple[int, ...], *, is_real: bool = True) -> None:
        self._shape, self._is_real = shape, is_real
        self._views: dict[tuple[int, torch.dtype], npt.NDArray[Any]] = {}
        self._host: None | torch.Tensor = None
        self._copied: None | torch.cuda.Event = None

    def fetch(self, tensor: torch.Tensor) -> npt.NDArray[Any]:
        """The tensor's values on the host, unchanged until the next call. Never write to them.

        Waits for the copy, and for nothing that was enqueued after it.
        """
        if tensor.is_cpu and tensor.is_contiguous() and not (self._is_real and tensor.is_neg()):
            place = tensor.data_ptr(), tensor.dtype
            view = self._views.get(place)
            return self._view(tensor, place) if view is None else view
        values = self._copy(tensor.detach()) if tensor.is_cuda else to_numpy(tensor)
        return values.reshape(self._shape)

    def _view(self, tensor: torch.Tensor, place: tuple[int, torch.dtype]) -> npt.NDArray[Any]:
        array = to_numpy(tensor).reshape(self._shape)
        if array.nbytes == 0 or array.ctypes.data != place[0]:  # a dtype that NumPy has not
            return array
        memory: Any = (ctypes.c_char * array.nbytes).from_address(place[0])
        view: npt.NDArray[Any] = np.frombuffer(memory, array.dtype).reshape(self._shape)
        view.flags.writeable = False
        if len(self._views) == _MOST_VIEWS:
            self._views.clear()
        self._views[place] = view
        return view

    def _copy(self, tensor: torch.Tensor) -> npt.NDArray[Any]:
        if tensor.dtype is torch.bfloat16:  # NumPy has none
            tensor = tensor.float()
        host = self._host
        if host is None or host.shape != tensor.shape or host.dtype != tensor.dtype:
            host = self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._copied = torch.cuda.Event()
        assert self._copied is not None
        host.copy_(tensor, non_blocking=True)
        self._copied.record(torch.cuda.current_stream(tensor.device))
        self._copied.synchronize()
        return host.numpy()


def finish_reading(device: torch.device) -> None:
    """Wait until PyTorch has read what another library gave it on a GPU.

    The library may write its next results into memory that it has freed, while PyTorch is still
    reading from it. In a vector step the library waits for the actions, which PyTorch computes
    after that reading. Call this before anything else that computes there, such as a reset.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def overlaps(source: torch.device, target: torch.device) -> bool:
    """Whether a copy may be asynchronous: only between accelerators, whose later writes wait.

    Host memory may be a pinned buffer that the environment overwrites at once, and a copy to the
    host is read at once.
    """
    return source.type == "cuda" and target.type == "cuda"


def declared_device(env: Any) -> torch.device:
    """The device that an environment says its tensors are on, as attribute `device`; else the CPU.

    One that PyTorch does not know, such as JAX's, is the CPU.
    """
    for owner in (env, getattr(env, "unwrapped", env)):
        found = getattr(owner, "device", None)
        if isinstance(found, str | torch.device):
            with contextlib.suppress(RuntimeError):
                return torch.device(found)
    return torch.device("cpu")


def indexed(device: str | torch.device) -> torch.device:
    """A device with its index: "cuda" is the current one."""
    return torch.empty(0, device=device).device


def _make_entry(views: list[torch.Tensor]) -> BufferEntry:
    """The entry of a tensor on the device, and those on the host."""
    tensor, *hosts = views
    is_unknown = tensor.dtype is torch.bfloat16
    arrays = tuple((x.view(torch.int16) if is_unknown else x).numpy() for x in hosts)
    return BufferEntry(arrays, tensor)


def _view(
    block: torch.Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A typed view of bytes of `block`, contiguous."""
    return block[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
