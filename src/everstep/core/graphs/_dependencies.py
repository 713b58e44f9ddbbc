"""Addresses and numbers that recorded work depends on, and snapshots of objects."""

from numbers import Number
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torchrl.data import TensorSpec

from ..restoring import Snapshot

#: How deep the attributes of an object are searched.
_DEPTH = 5

#: Python values that a recording holds for good.
_NUMBERS = (Number, str, type(None), np.generic)

#: Bytes up to which an array of NumPy is read; a recording holds what Python took from it.
_READ_BYTES = 4096

#: Types without state, and modules: theirs is not the object's.
_CLOSED = (*_NUMBERS, TensorSpec, torch.dtype, torch.device, torch.Generator, type, ModuleType)


def _attributes(root: Any, name: str) -> list[tuple[Any, Any, str, Any]]:
    """Owner, name, path and value of everything reached through attributes; each owner once."""
    reached: list[tuple[Any, Any, str, Any]] = []
    visited, queue = {id(root)}, [(root, name, 0)]
    for owner, path, depth in queue:  # breadth first: by the shortest path
        if isinstance(owner, dict):
            members = list(owner.items())
        elif isinstance(owner, list | tuple):
            members = list(enumerate(owner))
        else:
            members = list(getattr(owner, "__dict__", {}).items())
        for key, value in members:
            below = f"{path}.{key}"
            reached.append((owner, key, below, value))
            is_open = not isinstance(value, (*_CLOSED, torch.Tensor)) and not callable(value)
            is_open |= isinstance(value, nn.Module)
            if is_open and depth < _DEPTH and id(value) not in visited:
                visited.add(id(value))
                queue.append((value, below, depth + 1))
    return reached


def key_of(root: Any, name: str) -> dict[str, Any]:
    """Addresses of an object's tensors, its numbers, and those in arrays, by path."""
    return {
        path: _key(value)
        for *_, path, value in _attributes(root, name)
        if isinstance(value, (*_NUMBERS, torch.Tensor, np.ndarray))
    }


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    if isinstance(value, np.generic):
        return value.dtype.str, value.tobytes()
    if isinstance(value, np.ndarray):
        content = value.tobytes() if value.nbytes <= _READ_BYTES else value.ctypes.data
        return value.dtype.str, value.shape, content
    return value


def generators_of(root: Any) -> list[torch.Generator]:
    """Random generators of an object on a GPU."""
    generators = [x for *_, x in _attributes(root, "") if isinstance(x, torch.Generator)]
    return [generator for generator in generators if generator.device.type == "cuda"]


def detach_tensors(root: Any) -> bool:
    """Detach an object's tensors from the graphs that computed them; whether there were any."""
    found = False
    for owner, name, _, value in _attributes(root, ""):
        if not isinstance(value, torch.Tensor) or value.grad_fn is None:
            continue
        found = True
        if isinstance(owner, tuple):
            value.detach_()
        else:
            members = owner if isinstance(owner, dict | list) else owner.__dict__
            members[name] = value.detach()
    return found


def snapshot_of(root: Any) -> Snapshot:
    """A snapshot of an object's tensors, arrays, numbers and generators, also replaced ones."""
    attributes = _attributes(root, "")
    tensors = Snapshot.of_tensors(x for *_, x in attributes if isinstance(x, torch.Tensor))
    arrays = [x for *_, x in attributes if isinstance(x, np.ndarray)]
    generators = [x for *_, x in attributes if isinstance(x, torch.Generator)]

    def load(saved: tuple[list[np.ndarray], list[torch.Tensor]]) -> None:
        for array, before in zip(arrays, saved[0], strict=True):
            if array.flags.writeable:
                array[...] = before
        for owner, name, _, value in attributes:
            is_restored = isinstance(value, (*_NUMBERS, torch.Tensor, np.ndarray))
            if not is_restored or isinstance(owner, tuple):
                continue
            members = owner if isinstance(owner, dict | list) else owner.__dict__
            members[name] = value
        tensors.restore()
        for generator, state in zip(generators, saved[1], strict=True):
            generator.set_state(state)

    return Snapshot(lambda: (arrays, [x.get_state() for x in generators]), load)


def is_compiled(model: nn.Module) -> bool:
    """Whether a part of a model is compiled by `torch.compile`."""
    for module in model.modules():
        if module._compiled_call_impl is not None or "_orig_mod" in module._modules:
            return True
        classes = (vars(cls) for cls in type(module).__mro__ if cls is not nn.Module)
        for members in (vars(module), *classes):
            if any(_is_compiled(member) for member in members.values()):
                return True
    return False


def _is_compiled(member: object) -> bool:
    """Whether it is a result of `torch.compile`, rather than marked to be left uncompiled."""
    return (
        callable(member)
        and hasattr(member, "_torchdynamo_orig_callable")
        and not getattr(member, "_torchdynamo_disable", False)
    )
