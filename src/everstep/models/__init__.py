"""Models: from observations to features of an action distribution and value estimates.

A model takes a TensorDict of batch `[B]` with the observations under `"obs"`, and returns the
features as a TensorDict. Then its `value_function` returns the values `[B, K]` of the same
observations. A recurrent model takes batches `[B, T]` and states, and also returns the next states.
"""

from ._base import GenericModelBase
from ._default_recurrent import (
    DefaultContinuousRecurrentModel,
    DefaultDiscreteRecurrentModel,
    DefaultRecurrentModel,
    default_recurrent_model_cls,
)
from ._defaults import (
    DefaultContinuousModel,
    DefaultDiscreteModel,
    DefaultModel,
    default_model_cls,
)
from ._feedforward import GenericModel, Model, ModelFactory
from ._networks import ObservationNetwork
from ._outputs import Exploration, StateDependentNoise
from ._recurrent import GenericRecurrentModel, RecurrentModel, RecurrentModelFactory

__all__ = [
    "DefaultContinuousModel",
    "DefaultContinuousRecurrentModel",
    "DefaultDiscreteModel",
    "DefaultDiscreteRecurrentModel",
    "DefaultModel",
    "DefaultRecurrentModel",
    "Exploration",
    "GenericModel",
    "GenericModelBase",
    "GenericRecurrentModel",
    "Model",
    "ModelFactory",
    "ObservationNetwork",
    "RecurrentModel",
    "RecurrentModelFactory",
    "StateDependentNoise",
]

Model.default_model_cls = staticmethod(default_model_cls)
RecurrentModel.default_model_cls = staticmethod(default_recurrent_model_cls)
