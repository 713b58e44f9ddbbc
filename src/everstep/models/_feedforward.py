"""Feedforward models of the present observation, or of a window that ends in it."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import torch
from tensordict import TensorDict
from torchrl.data import TensorSpec

from ..data import DataKeys
from ..views import ViewKind, ViewRequirement
from ._base import ActionSpec, GenericModelBase, ObservationSpec, TypedSpecs


class Model(GenericModelBase[[TensorDict], TensorDict | Mapping[str, torch.Tensor]]):
    """Feedforward model.

    A subclass implements `forward` and `value_function`. With `view_requirements` it receives past
    observations.

    Args:
        observation_spec: Spec of one observation.
        action_spec: Spec of one action.
        **config: `model_config` of the algorithm.

    """

    #: Default model for an observation spec and an action spec; a TypeError if there is none.
    default_model_cls: ClassVar[Callable[[TensorSpec, TensorSpec], type["Model"]]]

    #: Past observations that `forward` receives of each key, `"obs"` or `("obs", …)`; a nested key
    #: overrides its parent's. By default the present observation only.
    view_requirements: dict[str | tuple[str, ...], ViewRequirement]

    def __init__(
        self, observation_spec: TensorSpec, action_spec: TensorSpec, /, **config: Any
    ) -> None:
        super().__init__(observation_spec, action_spec, **config)
        present = {DataKeys.OBS: ViewRequirement(shift=0)}
        self.view_requirements = dict(getattr(type(self), "view_requirements", present))

    def apply_view_requirements(
        self, batch: TensorDict, /, *, kind: ViewKind = "last"
    ) -> TensorDict:
        """Input of `forward`, from a batch `[B, T]` that begins with an episode.

        Args:
            batch: Batch `[B, T]` with observations under `"obs"`.
            kind: `"last"` for the last row of each sequence, `"all"` for every row except the
                first `drop_size`, which have no full window.

        """
        views: dict[Any, torch.Tensor | TensorDict] = {}
        for key, requirement in self.ordered_view_requirements():
            if kind == "last":
                views[key] = requirement.apply_last(key, batch)
                continue
            sequences = batch.shape[0], batch.shape[1] - requirement.drop_size
            rows = requirement.apply_all(key, batch).unflatten(0, sequences)
            views[key] = rows[:, self.drop_size - requirement.drop_size :].flatten(0, 1)
        batch_size = [len(next(iter(views.values())))]
        return TensorDict(views, batch_size=batch_size, device=batch.device)

    def ordered_view_requirements(self) -> list[tuple[tuple[str, ...], ViewRequirement]]:
        """View requirements, nested keys after their parents."""
        found = self.view_requirements.items()
        paths = [((key,) if isinstance(key, str) else tuple(key), view) for key, view in found]
        return sorted(paths, key=lambda item: len(item[0]))

    @property
    def drop_size(self) -> int:
        """Rows at the beginning of an episode without a full window; they are not learned from."""
        return max(requirement.drop_size for requirement in self.view_requirements.values())

    def validate_view_requirements(self) -> None:
        """Check the types of the view requirements.

        Raises:
            TypeError: If there are none, or one is not a `ViewRequirement`.

        """
        found = self.view_requirements
        if not found or not all(isinstance(x, ViewRequirement) for x in found.values()):
            raise TypeError(
                f"{type(self).__name__}.view_requirements must map keys to ViewRequirement; got "
                f"{found!r}. Leave it out to see the present observation."
            )

    @abstractmethod
    def forward(self, batch: TensorDict, /) -> TensorDict | Mapping[str, torch.Tensor]:
        """Features `[B, …]` for the action distribution.

        Args:
            batch: Batch `[B]` with observations under `"obs"`.

        """


class ModelFactory(Protocol):
    """A class of models, or a function with the same signature."""

    def __call__(
        self, observation_spec: TensorSpec, action_spec: TensorSpec, /, **config: Any
    ) -> Model:
        """A new model."""
        ...


class GenericModel(TypedSpecs[ObservationSpec, ActionSpec], Model):
    """`Model` with typed specs."""
