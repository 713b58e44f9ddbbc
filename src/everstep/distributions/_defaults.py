"""The default distribution for each kind of action."""

from torchrl.data import Binary, Bounded, OneHot, TensorSpec, Unbounded
from torchrl.data import Categorical as Discrete
from torchrl.data import MultiCategorical as MultiDiscrete

from ..env.specs import options
from . import _continuous, _discrete
from ._base import Distribution

#: Distributions of discrete actions by the class of their spec; a subclass comes before its base.
_DISCRETE: dict[type[TensorSpec], type[Distribution]] = {
    MultiDiscrete: _discrete.MultiCategorical,
    Binary: _discrete.Bernoulli,
    Discrete: _discrete.Categorical,
    OneHot: _discrete.OneHotCategorical,
}


def default_dist_cls(action_spec: TensorSpec, /) -> type[Distribution]:
    """Default distribution for an action spec.

    Raises:
        TypeError: If there is none.

    """
    for spec_cls, distribution_cls in _DISCRETE.items():
        if isinstance(action_spec, spec_cls):
            return distribution_cls
    if isinstance(action_spec, Unbounded | Bounded) and action_spec.dtype.is_floating_point:
        return _continuous.Normal
    if options(action_spec):
        return _discrete.BoundedCategorical
    raise TypeError(
        f"There is no default distribution for actions of {type(action_spec).__name__} "
        f"{list(action_spec.shape)} ({action_spec.dtype}): set `distribution_cls`."
    )
