"""Recurrent models."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

import torch
from tensordict import TensorDict
from torchrl.data import Composite, TensorSpec
from typing_extensions import Self

from ..data import Device
from ._base import ActionSpec, GenericModelBase, ObservationSpec, TypedSpecs

_Tensors: TypeAlias = TensorDict | Mapping[str, torch.Tensor]


class RecurrentModel(GenericModelBase[[TensorDict, TensorDict], tuple[_Tensors, _Tensors]]):
    """Model with a recurrent state.

    A subclass sets `state_spec` in its constructor and implements `forward` and `value_function`.

    Args:
        observation_spec: Spec of one observation.
        action_spec: Spec of one action.
        **config: `model_config` of the algorithm.

    """

    #: Default model for an observation spec and an action spec; a TypeError if there is none.
    default_model_cls: ClassVar[Callable[[TensorSpec, TensorSpec], type["RecurrentModel"]]]

    #: Keys of recurrent states that only values depend on; exported policies do without them.
    critic_states: tuple[str, ...] = ()

    #: Spec of one environment's recurrent state.
    state_spec: Composite

    @abstractmethod
    def forward(self, batch: TensorDict, states: TensorDict, /) -> tuple[_Tensors, _Tensors]:
        """Features `[B·T, …]` for the action distribution, and the next states `[B, …]`.

        Args:
            batch: Batch `[B, T]` with observations under `"obs"`.
            states: Batch `[B, 1]` of the states before the first observation.

        """

    def init_states(self, n: int, /) -> TensorDict:
        """States `[n, …]` at the start of an episode: zeros.

        An override must return the same states every time: the update restarts episodes inside of
        sequences, and must compute what collection computed.
        """
        return self.state_spec.zero([n])

    def to(self, device: Device) -> Self:  # type: ignore[override]
        """The model and its specs on `device`."""
        if hasattr(self, "state_spec"):  # without one, building a policy raises the error
            self.state_spec = self.state_spec.to(device)
        return super().to(device)


class RecurrentModelFactory(Protocol):
    """A class of recurrent models, or a function with the same signature."""

    def __call__(
        self, observation_spec: TensorSpec, action_spec: TensorSpec, /, **config: Any
    ) -> RecurrentModel:
        """A new model."""
        ...


class GenericRecurrentModel(TypedSpecs[ObservationSpec, ActionSpec], RecurrentModel):
    """`RecurrentModel` with typed specs."""
