"""Base of graphs, and the operations that cannot be recorded."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import EverstepError

_T = TypeVar("_T")

#: Operations that bring a number to the host, or have as many results as the data says.
_SYNCHRONISING = frozenset(
    {
        *("_linalg_check_errors", "_local_scalar_dense", "_unique", "_unique2", "bincount"),
        *("equal", "is_nonzero", "masked_select", "nonzero", "unique", "unique_consecutive"),
        "unique_dim",
    }
)

#: Functions that read a tensor's memory without an operation, on a CPU.
_READING = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__)

#: Functions that copy numbers of Python to the device, which waits for them.
_MAKING = (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.Tensor.new_tensor)

_STATIC: ContextVar[bool] = ContextVar("static", default=False)


class CaptureError(EverstepError, RuntimeError):
    """Work cannot be recorded: it waits for the device, or moves tensors that it uses."""


def is_static() -> bool:
    """Whether `static_shapes` is active: shapes and decisions must not depend on data."""
    return _STATIC.get()


@contextmanager
def static_shapes() -> Iterator[None]:
    """Context of work that a graph may replay: shapes and decisions must not depend on data."""
    token = _STATIC.set(True)
    try:
        yield
    finally:
        _STATIC.reset(token)


def waits(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], device_type: None | str = None
) -> bool:
    """Whether an operation makes the host wait, or has results whose shape depends on data.

    Args:
        func: The operation, as dispatched.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        device_type: Devices that are watched; None for all.

    """
    name = func.overloadpacket.__name__
    masks = name in ("index", "index_put", "index_put_")
    tensors = tensors_of(args[1] if masks else args)
    devices = {x.device.type for x in tensors}
    if kwargs.get("device") is not None and name == "_to_copy":
        devices.add(torch.device(kwargs["device"]).type)
    if device_type is not None and device_type not in devices:
        return False
    if masks:
        return any(x.dtype in (torch.bool, torch.uint8) for x in tensors)
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in _SYNCHRONISING or (name in ("copy_", "_to_copy") and len(devices) > 1)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


@contextmanager
def watching(device_type: None | str, found: Callable[[str], None]) -> Iterator[None]:
    """Pass the names of operations that cannot be recorded to `found`, before each is done.

    Args:
        device_type: Devices that are watched; None for all.
        found: Takes a name.

    """
    with AtTheHost(device_type, found), _Watching(device_type, found):
        yield


def refuse(name: str) -> None:
    """Raise an error for an operation that cannot be recorded."""
    raise CaptureError(
        f"{name} brings numbers to the host, or from it. Keep them in tensors on the device, use "
        "`torch.where` rather than `if`, or set `cuda_graphs` to False."
    )


class _Looking:
    """A mode that watches one type of device, and passes names to `found`."""

    def __init__(self, device_type: None | str, found: Callable[[str], None]) -> None:
        super().__init__()
        self.device_type, self.found = device_type, found


class _Watching(_Looking, TorchDispatchMode):
    """Passes names of operations that cannot be recorded to `found`; see `watching`."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: None | dict[str, Any] = None
    ) -> Any:
        if waits(func, args, kwargs or {}, self.device_type):
            self.found(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class AtTheHost(_Looking, TorchFunctionMode):
    """Passes names of functions that bypass the dispatcher to `found`; see `watching`."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: None | dict[str, Any] = None
    ) -> Any:
        kwargs = kwargs or {}
        # Read elsewhere than on a CPU, a tensor is copied to the host, which the dispatcher sees.
        if func in _READING and self.device_type is None:
            self.found(func.__name__)
        given = args[1:] if func is torch.Tensor.new_tensor else args
        makes = func in _MAKING and not tensors_of(given)
        if makes and self.device_type in (None, _made_on(func, args, kwargs)):
            self.found(func.__name__)
        return func(*args, **kwargs)


def _made_on(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Type of the device on which a function of `_MAKING` makes its tensor."""
    device = kwargs.get("device")
    if device is None and func is torch.Tensor.new_tensor:
        device = args[0].device
    if device is None:
        device = "cpu" if func is torch.from_numpy else torch.get_default_device()
    return torch.device(device).type


class Graph(ABC):
    """Recorded work.

    Args:
        pool: Memory that it shares with other graphs, as `shared_pool` returned it; None for its
            own.
        generators: Generators of random numbers that the work has of its own.
        watched: Whether operations are looked at one by one, which `torch.compile` leaves
            uncompiled.

    """

    #: Devices whose operations are watched; None for all.
    device_type: ClassVar[None | str] = None

    def __init__(
        self,
        pool: Any = None,
        generators: Sequence[torch.Generator] = (),
        *,
        watched: bool = True,
    ) -> None:
        self.pool = self.shared_pool() if pool is None else pool
        self.generators, self.watched = generators, watched

    @abstractmethod
    def capture(self, function: Callable[[], _T]) -> _T:
        """Do the work once and record it; every replay fills the tensors of the result.

        Raises:
            CaptureError: If the work waits for the device; part of it may be done then.

        """

    @abstractmethod
    def replay(self) -> None:
        """Do the work again."""

    @classmethod
    def shared_pool(cls) -> Any:
        """Memory for graphs that are never replayed at the same time."""
        return None

    @classmethod
    def warm_up(cls, function: Callable[[], _T], *, watched: bool = True) -> tuple[_T, list[str]]:
        """Do the work as it will be recorded; its result and operations that cannot be recorded."""
        found: list[str] = []
        looking = watching(cls.device_type, found.append) if watched else nullcontext()
        with static_shapes(), looking:
            return function(), found
