"""The default distribution for each kind of action."""

from torchrl.data import Binary, Bounded, OneHot, TensorSpec, Unbounded
from torchrl.data import Categorical as Discrete
from torchrl.data import MultiCategorical as MultiDiscrete

from ..specs import options
from . import _continuous, _discrete
from ._base import Distribution


def default_dist_cls(action_spec: TensorSpec, /) -> type[Distribution]:
    """Default distribution for an action spec.

    Raises:
        TypeError: If there is none.

    """
    if isinstance(action_spec, MultiDiscrete):
        return _discrete.MultiCategorical
    if isinstance(action_spec, Binary):
        return _discrete.Bernoulli
    if isinstance(action_spec, Discrete):
        return _discrete.Categorical
    if isinstance(action_spec, OneHot):
        return _discrete.OneHotCategorical
    if isinstance(action_spec, Unbounded | Bounded) and action_spec.dtype.is_floating_point:
        return _continuous.Normal
    if options(action_spec):
        return _discrete.BoundedCategorical
    raise TypeError(
        f"There is no default distribution for actions of {type(action_spec).__name__} "
        f"{list(action_spec.shape)} ({action_spec.dtype}): set `distribution_cls`."
    )
