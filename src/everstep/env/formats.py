"""Observations and actions in the form that an environment's own library has them.

Specs describe tensors with at least one dimension, of choices that count from 0. Libraries may have
scalars, other numbers and other dtypes. An adapter describes them in `Env.env_format`; policies
store the description, so that `Policy.predict` works without the adapter.
"""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchrl.data import Bounded, TensorSpec

from ..errors import CheckpointError, EnvError
from .specs import leaf_specs, spec_to_dict

__all__ = ["ActionFormat", "EnvFormat", "ObservationFormat"]

Array = npt.NDArray[Any]

_ARRAYS = ("start", "low", "high", "scale", "offset")


def check_held(
    values: Array, dtype: np.dtype[Any], name: str, error: type[Exception] = EnvError
) -> None:
    """Check that a cast changes no number: casts to integers wrap and truncate without an error.

    Args:
        values: Numbers, of any dtype.
        dtype: Dtype of their spec.
        name: Name in errors, such as `obs['camera']`.
        error: Class of the error.

    Raises:
        Exception: Of that class, if `dtype` is one of integers or flags that cannot hold them.

    """
    if dtype.kind not in "biu" or values.dtype == dtype or np.can_cast(values.dtype, dtype):
        return
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    wrong = values[(values < least) | (values > most) | (values != np.floor(values))]
    if wrong.size:
        raise error(
            f"`{name}` has the value {wrong.flat[0]} of dtype {values.dtype}, which the {dtype} of "
            f"its spec cannot hold: it has whole numbers from {least} to {most}. Give the spec or "
            "space a wider dtype, or return what fits it."
        )


@dataclass(frozen=True, eq=False)
class ObservationFormat:
    """One tensor of an observation, as the environment's library has it."""

    #: Indices to it in an observation, outermost first: keys of mappings, places in tuples.
    path: tuple[str | int, ...]

    #: Shape of one environment's value; that of a scalar is empty.
    shape: tuple[int, ...]

    #: First of the values, which count from 0 in the spec; None if they do so here.
    start: None | Array = None

    #: Whether numbers are choices, even where the spec has bounded integers: those of more than one
    #: dimension. Integers that are measured have the same spec.
    is_choice: bool = False

    def from_zero(self, values: torch.Tensor) -> torch.Tensor:
        """The environment's values `[…, *shape]`, counted from 0."""
        if self.start is None:
            return values
        return values - torch.as_tensor(self.start, dtype=values.dtype, device=values.device)


@dataclass(frozen=True, eq=False)
class ActionFormat:
    """One tensor of an action, as the environment's library takes it.

    Values are cast to `dtype`; then `start` is added to choices, or they are encoded one-hot; real
    numbers are multiplied by `scale`, shifted by `offset`, and clipped to `low` and `high`. None
    leaves a step out; `scale` comes with `offset`, and `low` with `high`.
    """

    #: Shape of one environment's action; that of a scalar is empty.
    shape: tuple[int, ...]

    #: Dtype that the environment takes; PyTorch has one of the same name.
    dtype: np.dtype[Any]

    #: First of the choices, integers.
    start: None | Array = None

    #: Lower bounds.
    low: None | Array = None

    #: Upper bounds.
    high: None | Array = None

    #: Factors.
    scale: None | Array = None

    #: Numbers that are added to the products.
    offset: None | Array = None

    #: Options of each choice, if the last dimension of `shape` has all of them one-hot; else empty.
    groups: tuple[int, ...] = ()

    _on: dict[torch.device, dict[str, torch.Tensor]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def choices(self) -> tuple[int, ...]:
        """Shape of one action of a policy: without the one-hot encoding."""
        return (*self.shape[:-1], len(self.groups)) if self.groups else self.shape

    def to_numpy(self, values: Array) -> Array:
        """Actions `[N, *shape]` for the environment, in new memory.

        Args:
            values: Actions of a policy, `[N, *choices]`.

        """
        if self.groups:
            return self.to_torch(torch.from_numpy(values)).numpy()
        if self.start is not None:
            # The sum first: it may exceed the dtype of the policy's choices.
            return (values + self.start).astype(self.dtype, copy=False)
        sent = values.astype(self.dtype, order="C")
        if self.scale is not None and self.offset is not None:
            sent *= self.scale
            sent += self.offset
        if self.low is not None and self.high is not None:
            np.maximum(sent, self.low, out=sent)
            np.minimum(sent, self.high, out=sent)
        return sent

    def to_torch(self, values: torch.Tensor) -> torch.Tensor:
        """Actions `[N, *shape]` for an environment that takes tensors, in new memory.

        Args:
            values: Actions of a policy, `[N, *choices]`.

        """
        arrays, dtype = self.on(values.device), getattr(torch, self.dtype.name)
        if self.groups:
            # Not `one_hot`, which reads the smallest and largest choice first.
            size = (*values.shape[:-1], sum(self.groups))
            zeros = torch.zeros(size, dtype=dtype, device=values.device)
            return zeros.scatter_(-1, values + arrays["places"], 1)
        if "start" in arrays:
            return (values + arrays["start"]).to(dtype)
        sent = values.to(dtype, copy=True)
        if "scale" in arrays:
            sent = sent.mul_(arrays["scale"]).add_(arrays["offset"])
        return sent.clamp_(arrays["low"], arrays["high"]) if "low" in arrays else sent

    def on(self, device: torch.device) -> dict[str, torch.Tensor]:
        """The arrays that are not None, as tensors on a device; copied there once.

        With them the `places` of each choice's first option, if there are groups.
        """
        found = self._on.get(device)
        if found is None:
            arrays = {name: getattr(self, name) for name in _ARRAYS}
            if self.groups:
                arrays["places"] = np.cumsum([0, *self.groups[:-1]])
            found = self._on[device] = {
                name: torch.tensor(x, device=device) for name, x in arrays.items() if x is not None
            }
        return found


@dataclass(frozen=True, eq=False)
class EnvFormat:
    """Observations and actions of an environment, leaf by leaf in the order of its specs."""

    #: Leaves of the observation.
    observation: tuple[ObservationFormat, ...]

    #: Leaves of the action.
    action: tuple[ActionFormat, ...]

    @classmethod
    def of(cls, observation_spec: TensorSpec, action_spec: TensorSpec) -> "EnvFormat":
        """The format of an environment that is described by its specs alone.

        Real-valued actions are clipped to the bounds of a `Bounded` spec.
        """
        actions = leaf_specs(action_spec).values()
        return cls(observation_formats(observation_spec), tuple(map(_action_format, actions)))

    def fits(self, observation_spec: TensorSpec, action_spec: TensorSpec) -> bool:
        """Whether the leaves of the specs have as many elements as these."""
        pairs = (
            (observation_spec, [leaf.shape for leaf in self.observation]),
            (action_spec, [leaf.choices for leaf in self.action]),
        )
        return all(
            [spec.shape.numel() for spec in leaf_specs(whole).values()]
            == [math.prod(shape) for shape in shapes]
            for whole, shapes in pairs
        )

    def describe(self) -> dict[str, Any]:
        """A JSON-able description; `from_description` reads it."""
        return {
            "observation": [
                {
                    "path": list(x.path),
                    "shape": list(x.shape),
                    "start": _to_list(x.start),
                    "is_choice": x.is_choice,
                }
                for x in self.observation
            ],
            "action": [
                {"shape": list(x.shape), "dtype": x.dtype.name, "groups": list(x.groups)}
                | {name: _to_list(getattr(x, name)) for name in _ARRAYS}
                for x in self.action
            ],
        }

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> "EnvFormat":
        """The format of a description.

        Raises:
            CheckpointError: If the description was not made by `describe`.

        """
        try:
            return cls(
                tuple(
                    ObservationFormat(
                        tuple(x["path"]),
                        tuple(x["shape"]),
                        _start(x["start"]),
                        bool(x.get("is_choice", False)),
                    )
                    for x in description["observation"]
                ),
                tuple(_read_action(x) for x in description["action"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"Not a format: {description!r} ({error}).") from error


def format_of(env: Any) -> EnvFormat:
    """The environment's format; without one, or with that of an environment that it wraps, what its
    specs say.
    """
    form = getattr(env, "env_format", None)
    specs = env.observation_spec, env.action_spec
    if isinstance(form, EnvFormat) and form.fits(*specs):
        return form
    return EnvFormat.of(*specs)


def are_rescaled(form: EnvFormat) -> list[bool]:
    """Whether the real numbers of each leaf of an action are mapped to its bounds."""
    return [leaf.scale is not None for leaf in form.action]


def unit_problem(
    what: str, own: tuple[TensorSpec, EnvFormat], where: str, other: tuple[TensorSpec, EnvFormat]
) -> None | str:
    """Why a policy's actions mean something else in an environment; None if they do not.

    Args:
        what: Name of the policy.
        own: Spec and format of its actions.
        where: Name of the environment.
        other: Spec and format of the environment's actions.

    """
    rescales = are_rescaled(own[1])
    if rescales == are_rescaled(other[1]) or spec_to_dict(own[0]) == spec_to_dict(other[0]):
        return None
    units = ["in the environment's own unit", "from -1 to 1, which are mapped to the bounds"]
    return (
        f"The actions of {what} are {units[any(rescales)]}, and {where} takes them "
        f"{units[not any(rescales)]}: give the environment the option of the training, "
        f"`env_kwargs.action_bounds={['clip', 'rescale'][any(rescales)]}` of a run."
    )


def observation_formats(spec: TensorSpec) -> tuple[ObservationFormat, ...]:
    """The formats of observations that are described by their spec alone."""
    return tuple(
        ObservationFormat(path, tuple(leaf.shape)) for path, leaf in leaf_specs(spec).items()
    )


@cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's dtype of the same name; float32 for bfloat16, which it lacks."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype("float32" if name == "bfloat16" else name)


def _action_format(spec: TensorSpec) -> ActionFormat:
    dtype, low, high = numpy_dtype(spec.dtype), None, None
    if isinstance(spec, Bounded) and dtype.kind == "f":
        low, high = (
            np.asarray(end.expand(spec.shape).tolist(), dtype)
            for end in (spec.space.low, spec.space.high)
        )
    return ActionFormat(tuple(spec.shape), dtype, low=low, high=high)


def _read_action(description: dict[str, Any]) -> ActionFormat:
    dtype = np.dtype(description["dtype"])
    arrays = {
        name: None if description[name] is None else np.asarray(description[name], dtype)
        for name in _ARRAYS[1:]
    }
    shape, groups = tuple(description["shape"]), tuple(description["groups"])
    return ActionFormat(shape, dtype, start=_start(description["start"]), groups=groups, **arrays)


def _start(value: Any) -> None | Array:
    return None if value is None else np.asarray(value, np.int64)


def _to_list(array: None | Array) -> Any:
    return None if array is None else array.tolist()
