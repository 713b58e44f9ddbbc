"""Tensors that say `cuda:0`, and what their operations do to a `Machine`."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .machine import Machine, Memory, place

DEVICE = torch.device("cuda", 0)

#: Operations that bring a number to the host, or have as many results as the data says.
WAITING = frozenset(
    {
        *("_linalg_check_errors", "_local_scalar_dense", "_unique", "_unique2", "bincount"),
        *("equal", "histc", "is_nonzero", "masked_select", "nonzero", "unique_consecutive"),
        *("unique_dim", "unique_dim_consecutive"),
    }
)

#: Operations that take indices from the host, and what a mask selects.
_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})

#: Operations that refuse even a number of the host.
_STRICT = (
    "cat",
    "stack",
    "_foreach",
    "_fused",
    "index_",
    "gather",
    "scatter",
    "mm",
    "addmm",
    "bmm",
)

#: Operations that read of a tensor as much as they write.
_GATHERING = frozenset({"embedding", "gather", "index", "index_select"})

#: Operations whose results have no content yet.
_ALLOCATING = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})


class Generator(torch._C.Generator):
    """A random generator of the device."""

    device = DEVICE
    machine: Machine
    #: Identities: operations get other Python objects of the same generators.
    known: ClassVar[set[int]] = set()

    def __new__(cls) -> "Generator":
        made = super().__new__(cls)
        cls.known.add(made._cdata)
        return made

    def __del__(self) -> None:
        self.known.discard(self._cdata)

    def peek(self) -> torch.Tensor:
        """The state, also while a graph is captured."""
        return super().get_state()

    def poke(self, state: torch.Tensor) -> None:
        """Set the state, also while a graph is captured."""
        super().set_state(state)

    def _refuse_in_capture(self, what: str) -> None:
        if self.machine.capture is not None:
            self.machine.capture.invalidate(what)
            raise RuntimeError(f"Cannot call {what} during CUDA graph capture, at {place()}")

    def manual_seed(self, seed: int) -> "Generator":
        self._refuse_in_capture("Generator.manual_seed")
        super().manual_seed(seed)
        return self

    def set_state(self, state: torch.Tensor) -> "Generator":
        self._refuse_in_capture("Generator.set_state")
        self.poke(state)
        return self

    def get_state(self) -> torch.Tensor:
        self._refuse_in_capture("Generator.get_state")
        return self.peek()

    def clone_state(self) -> "Generator":
        found = Generator()
        found.poke(self.peek())
        return found

    def graphsafe_set_state(self, state: "Generator") -> "Generator":
        self.poke(state.peek())
        return self


class CudaTensor(torch.Tensor):
    """A tensor on the device; `inner`, which computes, is on the host."""

    inner: torch.Tensor
    memory: Memory
    machine: Machine

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls: Any, inner: torch.Tensor, memory: None | Memory = None, requires_grad: bool = False
    ) -> "CudaTensor":
        made: CudaTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=DEVICE,
            requires_grad=requires_grad,
        )
        made.inner = inner
        made.memory = memory or Memory(cls.machine, inner)
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: None | dict[str, Any] = None
    ) -> Any:
        return run(cls.machine, func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"{self.inner!r} on {DEVICE}"

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def is_pinned(self, *_: Any) -> bool:
        return False

    def record_stream(self, stream: Any) -> None:
        self.memory.recorded.add(stream.cuda_stream)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                f"tensor to host memory first. ({place()})"
            )
        return self.detach().cpu().resolve_neg().numpy()

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CudaTensor":
        with torch.no_grad():
            copy = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, self.requires_grad)
        memo[id(self)] = copy.requires_grad_(self.requires_grad)
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A file has the numbers, and the device's name."""
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter, (self.detach(), self.requires_grad)
        return _loaded, (self.detach().cpu(),)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> "Capsule":
        machine = self.machine
        if stream != -1:
            given = machine.default if stream in (None, 1) else machine.streams[stream]
            if given is not machine.current:
                given.wait_stream(machine.current)
        return Capsule(self.inner, self.memory)


class Capsule:
    """Memory of the device that DLPack hands over."""

    def __init__(self, inner: torch.Tensor, memory: Memory) -> None:
        self.inner, self.memory = inner, memory


def _loaded(x: torch.Tensor) -> torch.Tensor:
    return x.to(DEVICE)


class DeviceMode(TorchDispatchMode):
    """Sees operations that have no tensor of the device yet, and those of pinned memory."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.machine = machine

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: None | dict[str, Any] = None
    ) -> Any:
        return run(self.machine, func, args, kwargs or {})


# ---- operations -------------------------------------------------------------------------------


def leaves(tree: Any) -> Iterator[Any]:
    """All that is in nested lists, tuples and dicts; PyTorch's own take three times as long."""
    if isinstance(tree, list | tuple | dict):
        for x in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(x)
    else:
        yield tree


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same nested lists, tuples and dicts of results."""
    if isinstance(tree, dict):
        return {key: mapped(function, x) for key, x in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([mapped(function, x) for x in tree])
    return function(tree)


def run(machine: Machine, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation, wherever its tensors are."""
    name = func.overloadpacket.__name__
    if machine.foreign is not None and not is_view(func):
        written = {id(x) for x in _written(func, args, kwargs)}
        for x in leaves((args, kwargs)):
            if isinstance(x, CudaTensor) and x.memory.owner is not None:
                place = x.memory.address, x.memory.size, id(x) in written
                machine.foreign(machine.current.cuda_stream, *place)
    if (special := _SPECIAL.get(name)) is not None:
        return special(machine, func, args, kwargs)
    tensors = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    of_device = [x for x in tensors if isinstance(x, CudaTensor)]
    device = kwargs.get("device")
    is_made_there = device is not None and torch.device(device).type == "cuda"
    if is_made_there or (of_device and device is None):
        return _on_device(machine, func, args, kwargs)
    pinned = bool(kwargs.get("pin_memory"))
    if pinned:
        kwargs = {**kwargs, "pin_memory": False}
    if of_device:  # a tensor of the host like one of the device
        return func(*mapped(_inner, args), **mapped(_inner, kwargs))
    if not is_view(func):
        machine.touch_host(tensors, _written(func, args, kwargs), name)
    found = func(*args, **kwargs)
    return machine.pin(found) if pinned else found


def _on_device(machine: Machine, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation of the device."""
    name = func.overloadpacket.__name__
    tensors = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    written = _written(func, args, kwargs)
    _check_devices(machine, func, args, tensors, written)
    if what := _waits_for(func, args, kwargs):
        machine.wait(what)
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": "cpu", "pin_memory": False}
        if not any(a.name == "pin_memory" for a in func._schema.arguments):
            del kwargs["pin_memory"]
    capture = machine.capture
    if capture is not None:
        capture.keep(written)
    inner_args, inner_kwargs = mapped(_inner, (args, kwargs))
    found = drawn(machine, func, inner_args, inner_kwargs)
    outer = {id(x.inner): x for x in tensors if isinstance(x, CudaTensor)}
    memories = {x.memory.address: x.memory for x in outer.values()}
    new: list[CudaTensor] = []

    def wrap(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if (same := outer.get(id(x))) is not None:
            if same.shape != x.shape or same.stride() != x.stride():
                with no_dispatch():  # the shape alone
                    func(*args, **kwargs)
            return same
        made = CudaTensor(x, memories.get(x.untyped_storage().data_ptr()))
        if made.memory not in memories.values():
            new.append(made)
        return made

    results = mapped(wrap, found)
    if name in _ALLOCATING or (not new and is_view(func)):
        return results
    reads = {x.memory: None for x in outer.values()}
    writes = {x.memory: None for x in (*written, *new)}
    record(machine, func, (inner_args, inner_kwargs, found), list(reads), list(writes))
    return results


def record(
    machine: Machine, func: Any, call: Any, reads: list[Memory], writes: list[Memory]
) -> None:
    """Count a kernel, and put it into the stream, or into the graph that is being captured."""
    name = func.overloadpacket.__name__
    machine.counts.kernels[name] += 1
    flops, traffic = cost(func, *call)
    machine.counts.flops += flops
    machine.counts.traffic += traffic
    if machine.capture is not None:
        machine.capture.add(func, *call, reads, writes)
        return
    machine.counts.launches += 1
    machine.launch(name, [x for x in reads if x not in writes], writes)


def cost(func: Any, args: Any, kwargs: Any, found: Any) -> tuple[int, int]:
    """Floating-point operations of a product, or bytes that another kernel reads and writes."""
    count = flop_registry.get(func.overloadpacket)
    if count is not None:
        return count(*args, **kwargs, out_val=found), 0
    read, written = (
        sum(min(x.numel() * x.element_size(), x.untyped_storage().nbytes()) for x in each)
        for each in (
            {id(x): x for x in leaves(tree) if isinstance(x, torch.Tensor)}.values()
            for tree in ((args, kwargs), found)
        )
    )
    if func.overloadpacket.__name__ in _GATHERING:
        read = written
    return 0, read + (written or read)


def drawn(machine: Machine, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation on inner tensors, with random numbers of the device."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return _KERNELS.get(func.overloadpacket.__name__, func)(*args, **kwargs)
    given = [x._cdata for x in leaves((args, kwargs)) if isinstance(x, torch._C.Generator)]
    if not Generator.known.issuperset(given):
        raise RuntimeError(
            f"Expected a 'cuda' device type for generator but found 'cpu', at {place()}"
        )
    if machine.capture is not None:
        machine.capture.check_generators(given)
    if given:
        return func(*args, **kwargs)
    own, host = machine.generator, torch.default_generator
    before = host.get_state()
    host.set_state(own.peek())
    try:
        return func(*args, **kwargs)
    finally:
        own.poke(host.get_state())
        host.set_state(before)


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, CudaTensor) else x


def is_view(func: Any) -> bool:
    """Whether an operation only makes another tensor of the same memory."""
    if torch.Tag.inplace_view in func.tags:
        return True
    aliases = [x.alias_info for x in func._schema.arguments if x.alias_info is not None]
    return bool(aliases) and not any(x.is_write for x in aliases)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """Tensors that an operation writes to."""
    if not func._schema.is_mutable:
        return []
    found = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            found += [x for x in leaves(value) if isinstance(x, torch.Tensor)]
    return found


def _check_devices(
    machine: Machine, func: Any, args: Any, tensors: list[torch.Tensor], written: list[Any]
) -> None:
    name = func.overloadpacket.__name__
    strange = [x for x in tensors if not isinstance(x, CudaTensor)]
    if name in _INDEXING:
        indices = [x for x in leaves(args[1]) if isinstance(x, torch.Tensor)]
        strange = [x for x in strange if not any(x is i for i in indices)]
    if name in _INDEXING or not name.startswith(_STRICT):
        strange = [x for x in strange if x.ndim or any(x is w for w in written)]
    if strange:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
            f"and cpu! ({name} at {place()})"
        )


def _waits_for(func: Any, args: Any, kwargs: dict[str, Any]) -> str:
    """Why an operation makes the host wait; empty if it does not."""
    name = func.overloadpacket.__name__
    if name in _INDEXING:
        indices = [x for x in leaves(args[1]) if isinstance(x, torch.Tensor)]
        masks = any(x.dtype in (torch.bool, torch.uint8) for x in indices)
        value = args[2] if "put" in name else None
        is_of_host = value is not None and not isinstance(value, CudaTensor)
        if any(not isinstance(x, CudaTensor) for x in indices):
            return f"{name} with indices of the host"
        if masks and is_of_host and len(indices) == 1:
            return ""  # a number is filled in where the mask says
        if is_of_host:
            return f"{name} of a number of the host"  # which is copied
        return f"{name} with a mask" if masks else ""
    if name == "repeat_interleave":
        return "" if kwargs.get("output_size") is not None else name
    if name == "normal" and any(isinstance(x, torch.Tensor) for x in args[1:2]):
        return "normal, which looks at the deviations"
    return name if name in WAITING else ""


# ---- copies -----------------------------------------------------------------------------------


def _copy(machine: Machine, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`copy_`, in all directions."""
    target, source = args[:2]
    later = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking"))
    if isinstance(target, CudaTensor) is isinstance(source, CudaTensor):
        plain = func, (target, source), {}
        if isinstance(target, CudaTensor):
            return _on_device(machine, *plain)
        machine.touch_host([target, source], [target], "copy_")
        return func(target, source)
    if isinstance(target, CudaTensor):
        if machine.capture is not None:
            machine.capture.keep([target])
        _to_device(machine, func, source, target, later=later, found=target.inner)
        target.inner.copy_(source)
    else:
        _to_host(machine, func, source, target, later=later)
    return target


def _to_copy(machine: Machine, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`to`, in all directions."""
    source, device = args[0], kwargs.get("device")
    from_device = isinstance(source, CudaTensor)
    to_device = from_device if device is None else torch.device(device).type == "cuda"
    options = {k: x for k, x in kwargs.items() if k not in ("non_blocking", "pin_memory")}
    if from_device and to_device:
        return _on_device(machine, func, args, options)
    later = bool(kwargs.get("non_blocking"))
    if not from_device and not to_device:
        machine.touch_host([source], [], "to")
        return func(source, **options)
    options["device"] = "cpu"
    found = func(_inner(source), **options)
    if to_device:
        made = CudaTensor(found)
        _to_device(machine, func, source, made, later=later, found=found)
        return made
    if later:  # PyTorch makes the result in pinned memory
        machine.pin(found)
    _to_host(machine, func, source, found, later=later)
    return found


def _to_device(
    machine: Machine,
    func: Any,
    source: torch.Tensor,
    target: CudaTensor,
    *,
    later: bool,
    found: torch.Tensor,
) -> None:
    machine.touch_host([source], [], "a copy to the device")
    machine.transfer("to device", source.numel() * source.element_size())
    is_direct = source.dtype == target.dtype and source.is_contiguous()
    if not (later and machine.is_pinned(source) and is_direct):
        kind = "to the device" + " from memory that is not pinned" * (not machine.is_pinned(source))
        machine.wait(f"copy {kind}")
        machine.launch("a copy to the device", [], [target.memory])
        return
    if machine.capture is not None:
        copy = torch.ops.aten.copy_.default
        machine.capture.add(copy, (found, source), {}, found, [], [target.memory])
        return
    use = machine.launch("a copy to the device", [], [target.memory])
    machine.copy_later(source, source.clone(), use, to_host=False)


def _to_host(
    machine: Machine, func: Any, source: CudaTensor, target: torch.Tensor, *, later: bool
) -> None:
    machine.touch_host([target], [target], "a copy to the host")
    machine.transfer("to host", source.numel() * source.element_size())
    use = None
    if machine.capture is None:
        use = machine.launch("a copy to the host", [source.memory], [])
    if later and machine.is_pinned(target) and target.is_contiguous():
        if use is None:
            raise NotImplementedError(f"a copy to the host inside of a graph, at {place()}")
        after = torch.empty_like(target).copy_(source.inner)
        machine.copy_later(target, after, use, to_host=True)
        return
    machine.wait("copy to the host")
    target.copy_(source.inner)


def _scalar(machine: Machine, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`item`, `float`, `bool` and the like."""
    x = args[0]
    if not isinstance(x, CudaTensor):
        machine.touch_host([x], [], "item")
        return func(x)
    machine.transfer("to host", x.element_size())
    if machine.capture is None:
        machine.launch("item", [x.memory], [])
    machine.wait("item")
    return func(x.inner)


def _foreach_copy(machine: Machine, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One kernel for tensors of one device and dtype that lie alike, and copies one by one else."""
    targets, sources = args[:2]
    alike = [x.stride() == y.stride() for x, y in zip(targets, sources, strict=True)]
    kinds = {(type(x), x.dtype) for x in (*targets, *sources)}
    if len(kinds) == 1 and all(alike) and isinstance(targets[0], CudaTensor):
        return _on_device(machine, func, args, kwargs)
    for target, source in zip(targets, sources, strict=True):
        _copy(machine, torch.ops.aten.copy_.default, (target, source), kwargs)
    return None


def _pin(machine: Machine, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    if isinstance(args[0], CudaTensor):
        raise RuntimeError(
            "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"
        )
    return machine.pin(args[0].clone())


def _is_pinned(machine: Machine, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    return not isinstance(args[0], CudaTensor) and machine.is_pinned(args[0])


# ---- cells that only a device has ---------------------------------------------------------------


def _lstm_cell(*gates_and_memory: Any) -> tuple[torch.Tensor, ...]:
    """New state, new memory, and the gates, for the backward pass."""
    given, recurrent, before, *biases = gates_and_memory
    gates = sum([x for x in biases if x is not None], given + recurrent)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    after = f * before + i * g
    return o * after.tanh(), after, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    by_state: Any, by_memory: Any, before: Any, after: Any, gates: Any, has_bias: bool
) -> tuple[Any, ...]:
    i, f, g, o = gates.chunk(4, 1)
    tanh = after.tanh()
    by_state = torch.zeros_like(after) if by_state is None else by_state
    by_after = by_state * o * (1 - tanh**2) + (0 if by_memory is None else by_memory)
    by_gates = torch.cat(
        [
            by_after * g * i * (1 - i),
            by_after * before * f * (1 - f),
            by_after * i * (1 - g**2),
            by_state * tanh * o * (1 - o),
        ],
        1,
    )
    return by_gates, by_after * f, by_gates.sum(0) if has_bias else None


def _gru_cell(*gates_and_state: Any) -> tuple[torch.Tensor, ...]:
    """New state, and what the backward pass needs."""
    given, recurrent, state, *biases = gates_and_state
    for_given, for_recurrent = (*biases, None, None)[:2]
    given = given if for_given is None else given + for_given
    recurrent = recurrent if for_recurrent is None else recurrent + for_recurrent
    (given_r, given_z, given_n), (r, z, n) = given.chunk(3, 1), recurrent.chunk(3, 1)
    reset, update = (given_r + r).sigmoid(), (given_z + z).sigmoid()
    new = (given_n + reset * n).tanh()
    return (state - new) * update + new, torch.cat([reset, update, new, state, n], 1)


def _gru_cell_backward(by_state: Any, workspace: Any, has_bias: bool) -> tuple[Any, ...]:
    reset, update, new, state, n = workspace.chunk(5, 1)
    by_update = by_state * (state - new) * update * (1 - update)
    by_new = by_state * (1 - update) * (1 - new**2)
    by_reset = by_new * n * reset * (1 - reset)
    by_given = torch.cat([by_reset, by_update, by_new], 1)
    by_recurrent = torch.cat([by_reset, by_update, by_new * reset], 1)
    sums = [x.sum(0) if has_bias else None for x in (by_given, by_recurrent)]
    return by_given, by_recurrent, by_state * update, *sums


#: Kernels that PyTorch has for a device alone, on the host.
_KERNELS: dict[str, Callable[..., Any]] = {
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}

_SPECIAL: dict[str, Callable[..., Any]] = {
    "copy_": _copy,
    "_to_copy": _to_copy,
    "_local_scalar_dense": _scalar,
    "_foreach_copy_": _foreach_copy,
    "_pin_memory": _pin,
    "is_pinned": _is_pinned,
}
