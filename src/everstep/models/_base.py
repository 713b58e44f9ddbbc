"""Base class of models."""

from abc import abstractmethod
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import nn
from torchrl.data import TensorSpec
from typing_extensions import Self

from ..env.specs import Path
from ._outputs import Exploration

ObservationSpec = TypeVar("ObservationSpec", bound=TensorSpec)
ActionSpec = TypeVar("ActionSpec", bound=TensorSpec)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class GenericModelBase(nn.Module, Generic[_P, _T]):
    """Base class of models: observations in, features of a distribution and values out.

    Args:
        observation_spec: Spec of one observation.
        action_spec: Spec of one action.
        **config: `model_config` of the algorithm.

    The type arguments are the types of `forward`'s arguments and result.

    """

    #: Spec of one action.
    action_spec: TensorSpec

    #: Paths of the observation's leaves that actions depend on; None for all of them. `predict` and
    #: exported policies do without the others.
    actor_paths: None | tuple[Path, ...] = None

    #: `model_config` of the algorithm.
    config: dict[str, Any]

    #: Noise that lasts for several steps of a rollout; None for none.
    exploration: None | Exploration = None

    #: Spec of one observation.
    observation_spec: TensorSpec

    def __init__(
        self, observation_spec: TensorSpec, action_spec: TensorSpec, /, **config: Any
    ) -> None:
        super().__init__()
        self.observation_spec = observation_spec
        self.action_spec = action_spec
        self.config = config

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The model converted as `nn.Module.to` does, and its specs on the same device."""
        device, *_ = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None:
            self.observation_spec = self.observation_spec.to(device)
            self.action_spec = self.action_spec.to(device)
        return super().to(*args, **kwargs)

    @abstractmethod
    def value_function(self) -> torch.Tensor:
        """Values `[B, K]` of the observations of the last `forward`."""


class TypedSpecs(nn.Module, Generic[ObservationSpec, ActionSpec]):
    """Mixin of models that gives their specs types."""

    #: Spec of one action.
    action_spec: ActionSpec

    #: Spec of one observation.
    observation_spec: ObservationSpec

    def __init__(
        self, observation_spec: ObservationSpec, action_spec: ActionSpec, /, **config: Any
    ) -> None:
        super().__init__(observation_spec, action_spec, **config)
