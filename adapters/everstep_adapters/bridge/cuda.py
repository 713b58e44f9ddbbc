"""Memory of a CUDA device that two processes share, through the driver alone; Python 3.6 runs it.

The driver is called with ctypes, so that neither side's PyTorch matters, nor whether there is one.
`server.py` loads this file by its path. Both processes must see the same device; each may know it
by another number, so that it is named by its UUID.

The client lends the memory, and the server borrows it, as with memory of the host: tensors of the
client that show it stay valid when the server has ended, however it did.

One law orders all uses of it: each side has an event that it records after what it has put into
its stream for a message, and before it sends it; who has received a message lets its stream wait
for the sender's event before it puts anything else there. The host never waits.
"""

import ctypes
import os
import sys
import weakref

LIBRARY = "libcuda.so.1"

#: Bytes to whose multiples arrays are placed, as the allocator of CUDA does.
ALIGNMENT = 256

#: The stream of a library that names none: CUDA's legacy default stream.
DEFAULT_STREAM = 1

_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_INTERPROCESS = 0x2 | 0x4  # CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS

#: PyTorch's names of dtypes that NumPy has, too.
_TYPES = {
    "torch.bool": "|b1",
    "torch.uint8": "|u1",
    "torch.int8": "|i1",
    "torch.int16": "<i2",
    "torch.int32": "<i4",
    "torch.int64": "<i8",
    "torch.float16": "<f2",
    "torch.float32": "<f4",
    "torch.float64": "<f8",
}


class DriverError(Exception):
    """A call of the driver failed; the message names the call and its code."""


class _Handle(ctypes.Structure):
    """Bytes with which another process opens memory or an event; passed by value."""

    _fields_ = [("reserved", ctypes.c_ubyte * 64)]

    @classmethod
    def of(cls, data):
        if len(data) != ctypes.sizeof(cls):
            raise ValueError(f"a handle of {len(data)} bytes")
        return cls.from_buffer_copy(data)


class _Driver:
    """The driver's library, initialised."""

    def __init__(self, library):
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise DriverError(f"{library} cannot be loaded ({error})") from None
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, name, *arguments):
        """Call a function.

        Raises:
            DriverError: If it fails, or the driver has none of this name.

        """
        function = getattr(self._library, name, None)
        if function is None:
            raise DriverError(f"{name} is not in {self._library._name}")
        code = function(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            known = (text.value or b"an unknown error").decode()
            raise DriverError(f"{name} failed with {known} ({code})")


_DRIVERS = {}
_DEVICES = {}


def _driver():
    if LIBRARY not in _DRIVERS:
        _DRIVERS[LIBRARY] = _Driver(LIBRARY)
    return _DRIVERS[LIBRARY]


class Device:
    """A device of this process, in whose primary context libraries compute; see `of`.

    In a `with` block that context is current.

    Attributes:
        ordinal: Its number in this process.
        uuid: What names it in every process, 32 hexadecimal digits.

    """

    def __init__(self, driver, ordinal):
        self.ordinal, self._driver = ordinal, driver
        number, context, uuid = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
        driver.call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(ordinal))
        # The second version names a part of a device (MIG); drivers before 11.4 lack it.
        try:
            driver.call("cuDeviceGetUuid_v2", uuid, number)
        except DriverError:
            driver.call("cuDeviceGetUuid", uuid, number)
        self.uuid = bytes(bytearray(uuid)).hex()
        # Kept until the process ends, as PyTorch keeps it.
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self._context = context

    @classmethod
    def of(cls, ordinal):
        """The device of a number."""
        key = LIBRARY, ordinal
        if key not in _DEVICES:
            _DEVICES[key] = cls(_driver(), ordinal)
        return _DEVICES[key]

    @classmethod
    def of_array(cls, array):
        """The device that an `Array` is on."""
        driver, ordinal = _driver(), ctypes.c_int()
        pointer = ctypes.c_uint64(array.pointer)
        attribute = ctypes.c_int(_DEVICE_ORDINAL)
        driver.call("cuPointerGetAttribute", ctypes.byref(ordinal), attribute, pointer)
        return cls.of(ordinal.value)

    @classmethod
    def of_uuid(cls, uuid):
        """The device of that UUID.

        Raises:
            DriverError: If this process does not see it.

        """
        driver, count = _driver(), ctypes.c_int()
        driver.call("cuDeviceGetCount", ctypes.byref(count))
        for ordinal in range(count.value):
            if cls.of(ordinal).uuid == uuid:
                return cls.of(ordinal)
        raise DriverError(f"this process does not see the device GPU-{uuid}")

    def __enter__(self):
        """Make its context current."""
        self._driver.call("cuCtxPushCurrent_v2", self._context)
        return self

    def __exit__(self, *error):
        """Make the context current that was."""
        self._driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def call(self, name, *arguments):
        """Call a function of the driver in this device's context."""
        with self:
            self._driver.call(name, *arguments)

    def synchronize(self):
        """Wait until this process's work there is done."""
        self.call("cuCtxSynchronize")

    # ---- memory -------------------------------------------------------------------------------

    def allocate(self, size):
        """Address of new memory."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
        return pointer.value

    def free(self, pointer):
        """Free memory of `allocate`; waits for this process's work."""
        self.synchronize()
        self.call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def copy(self, target, source, size, stream):
        """Put a copy of bytes from address to address into a stream."""
        if size:
            self.call(
                "cuMemcpyDtoDAsync_v2",
                ctypes.c_uint64(target),
                ctypes.c_uint64(source),
                ctypes.c_size_t(size),
                ctypes.c_void_p(stream),
            )

    def fetch(self, target, source, size, stream):
        """Put a copy to an address of the host into a stream; it is there after `finish`."""
        if size:
            self.call(
                "cuMemcpyDtoHAsync_v2",
                ctypes.c_void_p(target),
                ctypes.c_uint64(source),
                ctypes.c_size_t(size),
                ctypes.c_void_p(stream),
            )

    def upload(self, target, source, size, stream):
        """Copy bytes of the host's memory, and wait for it."""
        if size:
            self.call(
                "cuMemcpyHtoDAsync_v2",
                ctypes.c_uint64(target),
                ctypes.c_void_p(source),
                ctypes.c_size_t(size),
                ctypes.c_void_p(stream),
            )
        self.finish(stream)

    def finish(self, stream):
        """Wait until what was put into a stream is done."""
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def pin(self, address, size):
        """Let copies to and from the host's memory at an address need no memory in between."""
        flags = ctypes.c_uint(0)
        pointer = ctypes.c_void_p(address)
        self.call("cuMemHostRegister_v2", pointer, ctypes.c_size_t(size), flags)

    def unpin(self, address):
        """Undo `pin`, before the memory is unmapped."""
        self.synchronize()
        self.call("cuMemHostUnregister", ctypes.c_void_p(address))

    # ---- events of this process ---------------------------------------------------------------

    def follow(self, stream, other):
        """Let a stream wait for what was put into another one of this process."""
        if stream == other:
            return
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0x2))
        self.call("cuEventRecord", event, ctypes.c_void_p(other))
        self.call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, ctypes.c_uint(0))
        self.call("cuEventDestroy_v2", event)  # once it has happened


class Memory:
    """Memory of a device that two processes share; see `lend` and `borrow`.

    Attributes:
        device: Its device.
        pointer: Its address in this process.
        size: Its bytes.
        handle: What the other process borrows it with; empty if it is borrowed.

    """

    def __init__(self, device, pointer, size, handle, release):
        self.device, self.pointer, self.size, self.handle = device, pointer, size, handle
        #: Gives it back, once.
        self.close = weakref.finalize(self, _in_process, os.getpid(), release, pointer)
        self.close.atexit = False  # the driver frees what a process has when it ends

    @classmethod
    def allocate(cls, device, size):
        """New memory, which is freed when nothing refers to it."""
        return cls(device, device.allocate(size), size, b"", device.free)

    @classmethod
    def lend(cls, device, size):
        """New memory for another process, too, which must have given it back when it is freed."""
        handle, memory = _Handle(), cls.allocate(device, size)
        pointer = ctypes.c_uint64(memory.pointer)
        device.call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
        memory.handle = bytes(handle)
        return memory

    @classmethod
    def borrow(cls, device, handle, size):
        """Memory that another process lends; `close` gives it back after this process's work."""
        pointer = ctypes.c_uint64()
        given = _Handle.of(handle)
        flags = ctypes.c_uint(_LAZY_PEER_ACCESS)
        device.call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), given, flags)

        def give_back(pointer):
            device.synchronize()
            device.call("cuIpcCloseMemHandle", ctypes.c_uint64(pointer))

        return cls(device, pointer.value, size, b"", give_back)

    def view(self, typestr, shape, at, stream):
        """The array of that dtype and shape which begins at byte `at`, for work in a stream.

        Raises:
            ValueError: If it is not inside of this memory.

        """
        if not isinstance(at, int) or at < 0 or at % ALIGNMENT:
            raise ValueError(f"an array at byte {at!r} of the device's memory")
        array = Array(self.pointer + at, typestr, shape, stream, self)
        if at + array.nbytes > self.size:
            raise ValueError("an array beyond the device's memory")
        return array


def _in_process(owner, release, pointer):
    """Release memory in the process that has it; a fork of it has no context."""
    if os.getpid() == owner:
        release(pointer)


class Array:
    """An array in a device's memory, which any library can view.

    Attributes:
        pointer: Address of its first element.
        typestr: Its dtype, as NumPy writes it.
        shape: Its shape; it is C-contiguous.
        stream: The stream that writes it.
        nbytes: Its bytes.

    """

    def __init__(self, pointer, typestr, shape, stream, owner):
        self.pointer, self.typestr, self.stream = pointer, typestr, stream
        self.shape = tuple(int(size) for size in shape)
        self.nbytes = int(typestr[2:])
        for size in self.shape:
            self.nbytes *= size
        self._owner = owner  # of the memory, which lives as long as this

    @property
    def __cuda_array_interface__(self):
        """Without a stream: whoever made this has let the reader's stream wait."""
        return {
            "shape": self.shape,
            "typestr": self.typestr,
            "data": (self.pointer if self.nbytes else 0, False),
            "strides": None,
            "version": 2,
        }


def array_of_tensor(tensor):
    """The `Array` of a tensor of PyTorch, of its values in the order of the current stream.

    Raises:
        ValueError: If NumPy has no such dtype.

    """
    tensor = tensor.detach().contiguous()  # new memory is freed in the order of the stream
    if str(tensor.dtype) not in _TYPES:
        raise ValueError(f"tensors of {tensor.dtype} cannot cross")
    stream = sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream
    typestr, shape = _TYPES[str(tensor.dtype)], tuple(tensor.shape)
    return Array(tensor.data_ptr(), typestr, shape, stream or DEFAULT_STREAM, tensor)


def array_of_interface(value):
    """The `Array` of an array of any library, by its `__cuda_array_interface__`.

    Raises:
        ValueError: If NumPy has no such dtype, or it is not contiguous.

    """
    if isinstance(value, Array):
        return value
    found = value.__cuda_array_interface__
    typestr = found["typestr"]
    if typestr[0] == ">" or typestr[1] not in "biuf":
        raise ValueError(f"arrays of {typestr} cannot cross")
    stream = found.get("stream") or DEFAULT_STREAM
    array = Array(found["data"][0], typestr, found["shape"], stream, value)
    size = int(typestr[2:])
    strides = found.get("strides") or ()
    for count, stride in zip(reversed(array.shape), reversed(strides)):
        if count > 1 and stride != size:
            raise ValueError(f"an array of {type(value).__name__} is not contiguous")
        size *= count
    return array


class Link:
    """Two processes' memory of a device, and the events that order its uses; see the module.

    Args:
        device: The device.
        memory: The memory.

    """

    def __init__(self, device, memory):
        self.device, self.memory = device, memory
        self._own, self._other = ctypes.c_void_p(), None
        device.call("cuEventCreate", ctypes.byref(self._own), ctypes.c_uint(_INTERPROCESS))
        self.record(DEFAULT_STREAM)  # so that the other side never waits for nothing

    @property
    def handle(self):
        """Bytes with which the other process opens this side's event."""
        handle = _Handle()
        self.device.call("cuIpcGetEventHandle", ctypes.byref(handle), self._own)
        return bytes(handle)

    def connect(self, handle):
        """Open the other side's event."""
        other, given = ctypes.c_void_p(), _Handle.of(handle)
        self.device.call("cuIpcOpenEventHandle", ctypes.byref(other), given)
        self._other = other

    def record(self, stream):
        """Mark what was put into a stream as what the next message is about."""
        self.device.call("cuEventRecord", self._own, ctypes.c_void_p(stream))

    def wait(self, stream):
        """Let a stream wait for what the last message is about."""
        flags = ctypes.c_uint(0)
        self.device.call("cuStreamWaitEvent", ctypes.c_void_p(stream), self._other, flags)

    def disconnect(self):
        """Close the other side's event, which must still be there."""
        other, self._other = self._other, None
        if other is not None:
            self.device.call("cuEventDestroy_v2", other)

    def close(self):
        """Destroy this side's event, which the other side must have closed."""
        own, self._own = self._own, None
        if own is not None:
            self.device.call("cuEventDestroy_v2", own)


class Part:
    """A part of a link's memory, for the arrays of one message at a time.

    Args:
        link: The link.
        number, parts: Which part of how many.

    Attributes:
        needed: Bytes of all arrays of the message, also of those that did not fit.

    """

    def __init__(self, link, number, parts):
        size = link.memory.size // parts // ALIGNMENT * ALIGNMENT
        self._link, self._start, self._end = link, number * size, (number + 1) * size
        self.clear(DEFAULT_STREAM)

    def clear(self, stream):
        """Begin the next message, whose arrays are copied in a stream."""
        self._used, self._stream, self.needed = self._start, stream, 0

    def place(self, array):
        """Copy an `Array`: its dtype, shape, and first byte; None if it does not fit."""
        size = -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        self.needed += size
        if self._used + size > self._end:
            return None
        at = self._used
        self._used += size
        copy_on(self._link.device, self._stream, self._link.memory.pointer + at, array)
        return [array.typestr, list(array.shape), at]


def copy_on(device, stream, target, array):
    """Copy an `Array` to an address in a stream, in order with the array's own stream."""
    device.follow(stream, array.stream)
    device.copy(target, array.pointer, array.nbytes, stream)
    device.follow(array.stream, stream)  # which may write to it again, or free it
