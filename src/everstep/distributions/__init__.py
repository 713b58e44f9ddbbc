"""Action distributions: from a model's features to actions and their log-probabilities.

The defaults compute their own samples and log-probabilities; they draw the same numbers from the
same seed as `torch.distributions`, in a fraction of its time.
"""

from ._base import Distribution, TorchDistributionWrapper
from ._continuous import Normal, SquashedNormal
from ._defaults import default_dist_cls
from ._discrete import (
    Bernoulli,
    BoundedCategorical,
    Categorical,
    MultiCategorical,
    OneHotCategorical,
)

__all__ = [
    "Bernoulli",
    "BoundedCategorical",
    "Categorical",
    "Distribution",
    "MultiCategorical",
    "Normal",
    "OneHotCategorical",
    "SquashedNormal",
    "TorchDistributionWrapper",
]

Distribution.default_dist_cls = staticmethod(default_dist_cls)
