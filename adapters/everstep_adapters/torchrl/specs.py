"""Keys, specs and batch of a TorchRL environment as rows and leaves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import TensorSpec
from torchrl.data import tensor_specs as specs

from everstep.env.formats import check_held, numpy_dtype
from everstep.errors import AdapterError, EnvError

from ..common.rounding import RoundingWatch
from ..common.specs import choices_spec, real_spec

#: A TorchRL key, always as a tuple: `("agents", "observation")`, `("reward",)`.
Key = tuple[str, ...]

#: A key as users write it.
NestedKey = str | Sequence[str]


def as_key(key: str | Sequence[Any]) -> Key:
    """A key as a tuple."""
    if isinstance(key, str):
        return (key,)
    return tuple(part for inner in key for part in as_key(inner))


def join_keys(keys: Sequence[Key]) -> str:
    """Keys as errors and descriptions show them: `observation, agents.reward`."""
    return ", ".join(".".join(key) for key in keys)


def write_key(key: Key) -> str:
    """A key as a program writes it."""
    return repr(key[0] if len(key) == 1 else key)


def leaves_of(spec: TensorSpec) -> dict[Key, TensorSpec]:
    """Specs of the leaves of an environment's `Composite`, by key, in its order."""
    return {as_key(key): leaf for key, leaf in spec.items(True, True)}


@dataclass(frozen=True)
class Layout:
    """The environment's batch, and the agents in each environment, as rows.

    Row `(b_1, …, b_k, a)` of batch and agents is row number `((b_1·B_2 + b_2)·… )·A + a`.
    """

    #: Batch size of the environment's tensors.
    batch: torch.Size

    #: Number of leading dimensions of the environment's specs that are its batch.
    batch_dims: int

    #: Key of the part of the specs that the action is in, such as that of agents.
    group: Key = ()

    #: Batch size of the agents after the environment's; empty if a row is an environment.
    agents: torch.Size = torch.Size()  # noqa: RUF009  it cannot be changed

    @cached_property
    def num_rows(self) -> int:
        """N: environments times agents."""
        return self.batch.numel() * self.agents.numel()

    def is_shared(self, key: Key) -> bool:
        """Whether all agents of an environment have one value."""
        return bool(self.agents) and key[: len(self.group)] != self.group

    def feature(self, key: Key, spec: TensorSpec) -> torch.Size:
        """Shape of one row's value, without batch and agents.

        Raises:
            AdapterError: If it is not the same in all rows and vector steps.

        """
        dims = self.batch_dims + (0 if self.is_shared(key) else len(self.agents))
        if min(spec.shape, default=0) < 0 or type(spec).__name__.startswith("Stacked"):
            raise AdapterError(
                f"`{join_keys([key])}` cannot be a tensor of one shape: its spec differs between "
                f"rows, or its size varies ({type(spec).__name__}, {tuple(spec.shape)}). Pad it "
                "in a transform."
            )
        return torch.Size(spec.shape[dims:])

    def flatten(self, key: Key, value: torch.Tensor, feature: torch.Size) -> torch.Tensor:
        """Values as rows `[N, *feature]`, of a scalar `[N, 1]`; a view if strides allow it.

        Raises:
            EnvError: If the value's size is not that of its spec.

        """
        shape = torch.Size([self.num_rows, *(feature or (1,))])
        if value.shape == shape:  # a fifth of the cost of `reshape`
            return value
        try:
            if self.is_shared(key):
                value = value.reshape(*self.batch, *(1 for _ in self.agents), *feature)
                value = value.expand(*self.batch, *self.agents, *feature)
            return value.reshape(shape)
        except RuntimeError:
            raise EnvError(
                f"The environment returned `{join_keys([key])}` with shape {tuple(value.shape)}; "
                f"its spec says {(*self.batch, *feature)}. Fix what it returns, or its spec."
            ) from None

    def per_row(self, key: Key, bound: torch.Tensor, feature: torch.Size) -> torch.Tensor:
        """A spec's bound for each row, `[N, *feature]`, of a scalar `[N, 1]`."""
        agents = () if self.is_shared(key) else self.agents
        shape = torch.Size([*self.batch, *agents, *feature])  # may be empty
        return self.flatten(key, bound.expand(shape), feature)


@dataclass(frozen=True)
class Leaf:
    """One tensor of the environment, and its spec in a row."""

    #: Its key in the environment.
    key: Key

    #: Shape of one row's value in the environment; a scalar's is empty.
    feature: torch.Size

    #: Spec of one row's value; a scalar has the shape `[1]`.
    spec: TensorSpec

    #: Looks at the first batches; None where nothing is rounded.
    watch: None | RoundingWatch = None

    def read(self, data: TensorDictBase, layout: Layout) -> torch.Tensor:
        """Rows `[N, *spec.shape]` on the environment's device: its memory, if strides allow it.

        Raises:
            EnvError: If it is missing or has another size.

        """
        rows = layout.flatten(self.key, value_of(data, self.key), self.feature)
        dtype = self.spec.dtype
        if self.watch is not None:
            self.watch.look(rows)
        if rows.dtype is not dtype and not dtype.is_floating_point:
            # Waits for the device, if an environment's dtypes are not those of its specs.
            check_held(rows.numpy(force=True), numpy_dtype(dtype), join_keys([self.key]))
        return rows.to(dtype)


def value_of(data: TensorDictBase, key: Key) -> torch.Tensor:
    """The tensor at a key.

    Raises:
        EnvError: If there is none.

    """
    value = data.get(key, None)
    if not isinstance(value, torch.Tensor):
        returned = join_keys([as_key(name) for name in data.keys(True, True)])
        raise EnvError(
            f"The environment did not return `{join_keys([key])}`, which its specs have. It "
            f"returned {returned}."
        )
    return value


def make_leaf(key: Key, spec: TensorSpec, layout: Layout, device: torch.device) -> Leaf:
    """The leaf that `spec` describes; `float64` becomes PyTorch's default dtype.

    Raises:
        AdapterError: If it is no tensor, or not of one shape.

    """
    feature = layout.feature(key, spec)
    dtype = torch.get_default_dtype() if spec.dtype == torch.float64 else spec.dtype
    common = {"shape": feature or torch.Size([1]), "dtype": dtype, "device": device}
    return Leaf(key, feature, _row_spec(key, spec, layout, common))


def _row_spec(key: Key, spec: TensorSpec, layout: Layout, common: dict[str, Any]) -> TensorSpec:
    """Spec of one row. The order of the cases is that of torchrl's subclasses."""
    if isinstance(spec, specs.MultiOneHot):
        return specs.MultiOneHot([box.n for box in spec.space], **common)
    if isinstance(spec, specs.MultiCategorical):
        counts = spec.nvec.expand(spec.shape).reshape(-1, *common["shape"])[0]
        return choices_spec(counts.to(common["device"]), common["dtype"])
    if isinstance(spec, specs.Binary):
        return specs.Binary(**common)
    if isinstance(spec, specs.OneHot):
        return specs.OneHot(spec.space.n, **common)
    if isinstance(spec, specs.Categorical) and spec.space.n > 0:
        return specs.Categorical(spec.space.n, **common)
    if isinstance(spec, specs.Bounded):
        return _bounded(key, spec, layout, common)
    if isinstance(spec, specs.Unbounded | specs.Categorical):
        return specs.Unbounded(**common)
    raise AdapterError(
        f"`{join_keys([key])}` cannot be a tensor: it is described by {type(spec).__name__}. Make "
        "it numbers in a transform."
    )


def _bounded(key: Key, spec: specs.Bounded, layout: Layout, common: dict[str, Any]) -> TensorSpec:
    """Spec with the widest bounds of any row."""
    feature = layout.feature(key, spec)
    ends = (layout.per_row(key, end, feature) for end in (spec.space.low, spec.space.high))
    low, high = (end.to(common["device"], common["dtype"]) for end in ends)
    low, high = low.amin(0), high.amax(0)
    if common["dtype"].is_floating_point:
        return real_spec(low, high, common["device"])
    return specs.Bounded(low=low, high=high, **common)


def observation_leaves(
    observed: dict[Key, TensorSpec], layout: Layout, device: torch.device
) -> dict[Key, Leaf]:
    """The leaves of an observation, by their paths in a row; the path of a single leaf is empty.

    Agents' own leaves lose the group's key, so that a row has the keys of an environment's.

    Raises:
        AdapterError: If two have the same path, or one is no tensor.

    """
    leaves: dict[Key, Leaf] = {}
    failures: list[AdapterError] = []
    for key, spec in observed.items():
        own = layout.agents and not layout.is_shared(key)
        path = key[len(layout.group) :] if own else key
        if path in leaves:
            chosen = ", ".join(write_key(key) for key in observed if not layout.is_shared(key))
            raise AdapterError(
                f"`{join_keys([key])}` and `{join_keys([leaves[path].key])}` would both be called "
                f"{path[-1]!r}. Choose, such as `observation_keys=[{chosen}]`, or rename one in a "
                "transform."
            )
        try:
            leaf = make_leaf(key, spec, layout, device)
            name, dtype = join_keys([key]), numpy_dtype(leaf.spec.dtype)
            watch = RoundingWatch.of(name, numpy_dtype(spec.dtype), dtype)
            leaves[path] = replace(leaf, watch=watch)
        except AdapterError as error:
            failures.append(error)
    if failures:
        others = ", ".join(write_key(leaf.key) for leaf in leaves.values())
        advice = f" Or observe others only: `observation_keys=[{others}]`." if others else ""
        raise AdapterError(f"{failures[0]}{advice}")
    return leaves if len(leaves) > 1 else {(): next(iter(leaves.values()))}
