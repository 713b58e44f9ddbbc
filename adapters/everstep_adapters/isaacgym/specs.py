"""Observations of a task: their spec, and their tensors in it."""

from collections.abc import Sequence
from functools import reduce
from operator import getitem

import torch
from tensordict import TensorDict
from torchrl.data import TensorSpec, Unbounded

from everstep.env.specs import Leaves, Path, Structure
from everstep.errors import AdapterError, EnvError

from ..common.specs import compose_spec
from .source import Task, Tree, on_device


class Observations:
    """Reader of observations that have the structure of the first ones.

    Args:
        first: The first observations.
        keys: Top-level keys to read; None for all.
        task: The task.

    Raises:
        AdapterError: If there is no tensor in them, or a key that is asked for is missing.

    """

    #: Spec of one environment's observation: plain if there is one tensor, else `Composite`.
    spec: TensorSpec

    def __init__(self, first: Tree, keys: None | Sequence[str], task: Task) -> None:
        self._num_envs, self._device, self._name = task.num_envs, task.device, task.name
        paths = _paths(first)
        known = sorted({path[0] for path in paths if path})
        missing = sorted(set(keys or ()) - set(known))
        if missing or not paths:
            raise AdapterError(
                f"{task.name} has no observation {', '.join(missing) or 'at all'}; it has "
                f"{', '.join(known) or 'one without a key'}."
            )
        self._paths = [path for path in paths if keys is None or path[0] in keys]
        self._is_plain = len(self._paths) == 1
        names = [()] if self._is_plain else self._paths
        specs = {
            name: Unbounded(leaf.shape[1:], device=self._device, dtype=leaf.dtype)
            for name, leaf in zip(names, self.leaves(first), strict=True)
        }
        self.spec = compose_spec(specs, self._device)
        self._structure = Structure.of(self.spec)

    def read(self, obs: Tree) -> torch.Tensor | TensorDict:
        """Observations `[N, …]` on the device; the task's own memory if it is there already.

        Raises:
            EnvError: If a tensor is missing.

        """
        return self.pack(self.leaves(obs))

    def leaves(self, obs: Tree) -> Leaves:
        """The tensors of observations `[N, …]`; see `read`."""
        leaves = (on_device(leaf, self._device) for leaf in self.own_leaves(obs))
        return tuple(x.unsqueeze(-1) if x.ndim == 1 else x for x in leaves)

    def own_leaves(self, obs: Tree) -> Leaves:
        """The tensors of observations as the task returned them."""
        return tuple(self._leaf(obs, path) for path in self._paths)

    @property
    def names(self) -> list[str]:
        """Names of the tensors in errors, such as `['states']`; of one tensor an empty one."""
        paths = [()] if self._is_plain else self._paths
        return ["".join(f"[{key!r}]" for key in path) for path in paths]

    def pack(self, leaves: Leaves) -> torch.Tensor | TensorDict:
        """Observations of these tensors."""
        return self._structure.unflatten(leaves, [self._num_envs])

    def _leaf(self, obs: Tree, path: Path) -> torch.Tensor:
        is_leaf = self._is_plain and isinstance(obs, torch.Tensor)
        try:
            leaf: torch.Tensor = obs if is_leaf else reduce(getitem, path, obs)
        except (KeyError, IndexError, TypeError):
            raise EnvError(
                f"{self._name} returned observations without {'.'.join(path)}, which its first "
                "ones had. Return the same entries in every vector step."
            ) from None
        return leaf


def _paths(obs: Tree, path: Path = ()) -> list[Path]:
    """Paths of the tensors of an observation, in its own order."""
    if isinstance(obs, torch.Tensor):
        return [path]
    if not hasattr(obs, "keys"):
        return []
    children = ((str(key), obs[key]) for key in obs.keys())  # noqa: SIM118  a TensorDict has no items of its own order
    return [leaf for key, child in children for leaf in _paths(child, (*path, key))]
