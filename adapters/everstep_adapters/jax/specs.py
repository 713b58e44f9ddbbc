"""Observations that are trees of arrays, as tensors."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, TensorSpec, Unbounded

from everstep.data import DataKeys
from everstep.env.formats import ObservationFormat, numpy_dtype
from everstep.env.specs import Structure
from everstep.errors import AdapterError

from ..common.handoff import as_tensor
from ..common.rounding import RoundingWatch
from ..common.specs import compose_spec

#: Dtypes of which PyTorch has few operations.
_WIDER = {torch.uint16: torch.int32, torch.uint32: torch.int64}


class Observations:
    """Reader of observations; `float64` becomes PyTorch's default dtype, see `RoundingWatch`.

    Args:
        shapes: Tree of the shapes and dtypes of a batch of observations.
        device: Device of the tensors.
        name: Name of the environment in errors.

    Raises:
        AdapterError: If there is nothing to observe.

    """

    #: Spec of one environment's observation: plain if there is one array, else `Composite`.
    spec: TensorSpec

    #: The leaves as the environment has them.
    forms: tuple[ObservationFormat, ...]

    #: Shape and dtype of a batch of each leaf, in the order of the tree.
    layout: list[tuple[tuple[int, ...], torch.dtype]]

    def __init__(self, shapes: Any, device: torch.device, name: str) -> None:
        found = jax.tree_util.tree_flatten_with_path(shapes)[0]
        if not found:
            raise AdapterError(f"{name} observes nothing.")
        self._device = device
        paths = [tuple(map(_name_of, path)) for path, _ in found]
        names: list[Any] = [()] if len(paths) == 1 else [tuple(map(str, path)) for path in paths]
        shapes_of = [x.shape[1:] or (1,) for _, x in found]
        dtypes = [_dtype_of(x.dtype.name) for _, x in found]
        columns = list(zip(names, shapes_of, dtypes, strict=True))
        leaves = {key: _leaf_spec(shape, dtype, device) for key, shape, dtype in columns}
        self.spec = compose_spec(leaves, device)
        self._structure = Structure.of(self.spec)
        self._order = [names.index(path) for path in self._structure.paths]
        self._rows = found[0][1].shape[0]
        self.layout = [((self._rows, *x), y) for x, y in zip(shapes_of, dtypes, strict=True)]
        labels = [DataKeys.OBS + "".join(f"[{index!r}]" for index in path) for path in paths]
        watches = [
            RoundingWatch.of(label, x.dtype, numpy_dtype(dtype))
            for label, (_, x), dtype in zip(labels, found, dtypes, strict=True)
        ]
        self._watches = {i: watch for i, watch in enumerate(watches) if watch is not None}
        self.forms = tuple(
            ObservationFormat(paths[i], tuple(found[i][1].shape[1:])) for i in self._order
        )

    def read(self, obs: Any) -> torch.Tensor | TensorDict:
        """A batch of observations `[N, …]`; the program's own memory where it is on the device."""
        leaves = [tensor_of(x) for x in jax.tree_util.tree_leaves(obs)]
        self.look(leaves)
        columns = zip(leaves, self.layout, strict=True)
        return self.unflatten([x.to(self._device, dt).view(shape) for x, (shape, dt) in columns])

    def look(self, leaves: Sequence[Any]) -> None:
        """Look at a batch, arrays or tensors before they are cast, in the order of the tree."""
        for i, watch in self._watches.items():
            watch.look(leaves[i])

    @property
    def watches(self) -> bool:
        """Whether `look` has anything to look at, any more."""
        return any(watch.left for watch in self._watches.values())

    def unflatten(self, leaves: Sequence[torch.Tensor]) -> torch.Tensor | TensorDict:
        """A batch of observations of the tree's leaves."""
        return self._structure.unflatten(tuple(leaves[i] for i in self._order), [self._rows])


def tensor_of(array: jax.Array) -> torch.Tensor:
    """A tensor that shares the array's memory.

    On the host it is viewed as an array of NumPy, which takes a third of the time of JAX's DLPack;
    NumPy has no `bfloat16`.
    """
    is_on_host = array.device.platform == "cpu" and array.dtype != jax.numpy.bfloat16
    return as_tensor(np.asarray(array) if is_on_host else array)


def _name_of(entry: Any) -> Any:
    """Name of an entry of a path in a tree: a key, an attribute or an index."""
    for attribute in ("name", "key", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return str(entry)


def _dtype_of(name: str) -> torch.dtype:
    if name == "float64":
        return torch.get_default_dtype()
    dtype: torch.dtype = getattr(torch, name)
    return _WIDER.get(dtype, dtype)


def _leaf_spec(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> TensorSpec:
    kind: dict[str, Any] = {"shape": torch.Size(shape), "device": device, "dtype": dtype}
    if dtype is torch.uint8:
        return Bounded(0, 255, **kind)
    if dtype is torch.bool:
        return Categorical(2, **kind)
    return Unbounded(**kind)
