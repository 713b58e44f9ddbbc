"""The keys and the batch of a TorchRL environment, as rows and leaves."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)

from everstep.errors import AdapterError, EnvError

#: A TorchRL key, always as a tuple: `("agents", "observation")`, `("reward",)`.
Key = tuple[str, ...]

#: What users write for a key.
NestedKey = str | Sequence[str]


def as_key(key: str | Sequence[Any]) -> Key:
    """A key as a tuple, whichever way it is nested."""
    if isinstance(key, str):
        return (key,)
    return tuple(part for inner in key for part in as_key(inner))


def spelled(keys: Sequence[Key]) -> str:
    """Keys as errors and descriptions show them: `observation, agents.reward`."""
    return ", ".join(".".join(key) for key in keys)


def leaves_of(spec: TensorSpec) -> dict[Key, TensorSpec]:
    """Specs of the leaves of an environment's `Composite`, by key, in its order."""
    return {as_key(key): leaf for key, leaf in spec.items(True, True)}


@dataclass(frozen=True)
class Layout:
    """How the environment's batch, and the agents in each environment of it, become rows.

    Row `(b_1, …, b_k, a)` of batch and agents is row number `((b_1·B_2 + b_2)·… )·A + a`.
    """

    #: Batch size of what the environment takes and returns.
    batch: torch.Size

    #: Leading dimensions of the environment's specs that are its batch.
    batch_dims: int

    #: Key that the agents are under; empty where a row is an environment.
    group: Key = ()

    #: Batch size of the agents behind the environment's; empty where a row is an environment.
    agents: torch.Size = torch.Size()  # noqa: RUF009  it cannot be changed

    @cached_property
    def num_rows(self) -> int:
        """N: environments times agents."""
        return self.batch.numel() * self.agents.numel()

    def is_shared(self, key: Key) -> bool:
        """Whether there is one value for all agents of an environment, rather than one each."""
        return bool(self.agents) and key[: len(self.group)] != self.group

    def feature(self, key: Key, spec: TensorSpec) -> torch.Size:
        """Shape of one row's value, without batch and agents.

        Raises:
            AdapterError: Where it is not the same in all rows and env steps.

        """
        dims = self.batch_dims + (0 if self.is_shared(key) else len(self.agents))
        if min(spec.shape, default=0) < 0 or type(spec).__name__.startswith("Stacked"):
            raise AdapterError(
                f"`{spelled([key])}` cannot be a tensor of one shape: its spec differs between "
                f"rows, or its size varies ({type(spec).__name__}, {tuple(spec.shape)}). Pad it "
                "in a transform, or leave it out with `observation_keys`."
            )
        return torch.Size(spec.shape[dims:])

    def flatten(self, key: Key, value: torch.Tensor, feature: torch.Size) -> torch.Tensor:
        """Values as rows `[N, *feature]`, of a scalar `[N, 1]`; a view where strides allow it.

        Raises:
            EnvError: Where the value's size is not that of its spec.

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
                f"The environment returned `{spelled([key])}` with shape {tuple(value.shape)}; its "
                f"spec says {(*self.batch, *feature)}. Mend what it returns, or its spec."
            ) from None

    def per_row(self, key: Key, bound: torch.Tensor, feature: torch.Size) -> torch.Tensor:
        """A spec's bound for each row, `[N, *feature]`, of a scalar `[N, 1]`."""
        agents = () if self.is_shared(key) else self.agents
        return self.flatten(key, bound.expand(*self.batch, *agents, *feature), feature)


@dataclass(frozen=True)
class Leaf:
    """One tensor of what the environment returns, and what it is in a row."""

    #: Where the environment has it.
    key: Key

    #: Shape of one row's value in the environment; a scalar's is empty.
    feature: torch.Size

    #: Spec of one row's value; a scalar has the shape `[1]`.
    spec: TensorSpec

    def read(self, data: TensorDictBase, layout: Layout) -> torch.Tensor:
        """Rows `[N, *spec.shape]` on the environment's device: its own memory where the dtype and
        the strides allow it.

        Raises:
            EnvError: Where it is missing or has another size.

        """
        rows = layout.flatten(self.key, value_of(data, self.key), self.feature)
        return rows.to(self.spec.dtype)


def value_of(data: TensorDictBase, key: Key) -> torch.Tensor:
    """The tensor at a key.

    Raises:
        EnvError: Where there is none.

    """
    value = data.get(key, None)
    if not isinstance(value, torch.Tensor):
        found = spelled([as_key(name) for name in data.keys(True, True)])
        raise EnvError(
            f"The environment did not return `{spelled([key])}`, which its specs have. It returned "
            f"{found}."
        )
    return value


def make_leaf(key: Key, spec: TensorSpec, layout: Layout, device: torch.device) -> Leaf:
    """What the tensor that `spec` describes is in a row.

    Raises:
        AdapterError: Where it is no tensor, or not of one shape.

    """
    feature = layout.feature(key, spec)
    shape = feature or torch.Size([1])
    # What networks are made of; the rest stays as it is.
    dtype = torch.get_default_dtype() if spec.dtype == torch.float64 else spec.dtype
    return Leaf(key, feature, _row_spec(key, spec, layout, shape, dtype, device))


def _row_spec(
    key: Key,
    spec: TensorSpec,
    layout: Layout,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
) -> TensorSpec:
    common: dict[str, Any] = {"shape": shape, "dtype": dtype, "device": device}
    if isinstance(spec, MultiOneHot):
        return MultiOneHot([box.n for box in spec.space], **common)
    if isinstance(spec, MultiCategorical):
        return _multi_categorical(spec, common)
    if isinstance(spec, Binary):
        return Binary(**common)
    if isinstance(spec, OneHot):
        return OneHot(spec.space.n, **common)
    if isinstance(spec, Categorical) and spec.space.n > 0:
        return Categorical(spec.space.n, **common)
    if isinstance(spec, Bounded):
        return _bounded(key, spec, layout, common)
    if isinstance(spec, Unbounded | Categorical):
        return Unbounded(**common)
    raise AdapterError(
        f"`{spelled([key])}` cannot be a tensor: it is described by {type(spec).__name__}. Leave "
        "it out with `observation_keys`."
    )


def _multi_categorical(spec: MultiCategorical, common: dict[str, Any]) -> TensorSpec:
    """`MultiCategorical`; past one dimension, which that has not, `Bounded` integers."""
    shape = common["shape"]
    counts = spec.nvec.expand(spec.shape).reshape(-1, *shape)[0].to(common["device"])
    if len(shape) == 1:
        return MultiCategorical(counts, **common)
    return Bounded(low=torch.zeros_like(counts), high=counts - 1, **common)


def _bounded(key: Key, spec: Bounded, layout: Layout, common: dict[str, Any]) -> TensorSpec:
    """`Bounded` by what no row exceeds, where that is finite in the tensor's dtype."""
    feature = layout.feature(key, spec)
    ends = (layout.per_row(key, end, feature) for end in (spec.space.low, spec.space.high))
    low, high = (end.to(common["device"], common["dtype"]) for end in ends)
    low, high = low.amin(0), high.amax(0)
    if bool(low.isfinite().all() and high.isfinite().all()):
        return Bounded(low=low, high=high, **common)
    return Unbounded(**common)


def observation_leaves(
    specs: dict[Key, TensorSpec], layout: Layout, device: torch.device
) -> dict[Key, Leaf]:
    """The leaves of an observation, by their paths in a row.

    Agents' own leaves lose the group's key, so that a row looks like an environment's.

    Raises:
        AdapterError: Where there is none, two end up under one path, or one is no tensor.

    """
    leaves: dict[Key, Leaf] = {}
    for key, spec in specs.items():
        own = layout.agents and not layout.is_shared(key)
        path = key[len(layout.group) :] if own else key
        if path in leaves:
            raise AdapterError(
                f"`{spelled([key])}` and `{spelled([leaves[path].key])}` would both be called "
                f"{path[-1]!r}. Choose with `observation_keys`, or rename one in a transform."
            )
        leaves[path] = make_leaf(key, spec, layout, device)
    if not leaves:
        raise AdapterError("The environment has nothing to observe. Pass `observation_keys`.")
    return leaves


def observation_spec(leaves: dict[Key, Leaf], device: torch.device) -> TensorSpec:
    """Spec of the whole observation: `Composite`, or the spec of its only leaf."""
    if len(leaves) == 1:
        return next(iter(leaves.values())).spec
    spec = Composite(device=device)
    for path, leaf in leaves.items():
        spec[path] = leaf.spec
    return spec
