"""Inputs of models with view requirements, made of windows of observations."""

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import nn

from ..data import DataKeys
from ..env.specs import EMPTY, Leaves, Path, Structure
from ..errors import ConfigError
from ..models import Model
from ..views import PaddedRollingWindow, RollingWindow, ViewRequirement


@dataclass(frozen=True)
class Windows:
    """A model's view requirements, applied to windows of observations.

    Windows that reach before the episode's first observation are zero there, and marked as padding
    if the method marks it.
    """

    #: Past observations beside the present one, the maximum of all requirements.
    history: int
    #: Paths of the observations' leaves in a batch.
    paths: tuple[Path, ...]
    #: The requirement of each key, outer keys first.
    requirements: tuple[tuple[Path, ViewRequirement], ...]

    @classmethod
    def of(cls, model: nn.Module, observation: Structure) -> "None | Windows":
        """The model's windows; None if it needs the present observation only.

        Raises:
            ConfigError: If a requirement's key is not in the observation.

        """
        if not isinstance(model, Model):  # a module with the same `forward`
            return None
        try:
            model.validate_view_requirements()
        except TypeError as error:
            raise ConfigError(str(error)) from None
        requirements = tuple(model.ordered_view_requirements())
        history = max((requirement.shift for _, requirement in requirements), default=0)
        if not requirements or (history == 0 and [key for key, _ in requirements] == [("obs",)]):
            return None
        paths = tuple((DataKeys.OBS, *path) for path in observation.paths)
        for key, _ in requirements:
            if not any(path[: len(key)] == key for path in paths):
                raise ConfigError(
                    f"{type(model).__name__}.view_requirements has {key}, which is not observed; "
                    f"observations have {', '.join(map(str, paths))}."
                )
        return cls(history, paths, requirements)

    def batch(self, windows: Leaves, ages: torch.Tensor) -> TensorDict:
        """Input of the model, batch `[B]`.

        Args:
            windows: Observations, leaves `[B, history + 1, …]`, the present one last; `[B, …]` if
                `history` is 0.
            ages: Number of earlier observations of the same episode, `[B]`.

        """
        if not self.history:
            windows = tuple(leaf.unsqueeze(1) for leaf in windows)
        past = torch.arange(self.history, -1, -1, device=ages.device)
        padding = past > ages.unsqueeze(-1)  # [B, history + 1]
        out = TensorDict({}, [ages.shape[0]], device=ages.device)
        for key, requirement in self.requirements:
            start = self.history - requirement.shift
            for path, leaf in zip(self.paths, windows, strict=True):
                if path[: len(key)] == key:
                    out[path] = _view(requirement, leaf[:, start:], padding[:, start:])
        return out


def past_structure(observation: Structure, history: int) -> Structure:
    """Structure of the past observations `[history, …]` of a policy's windows."""
    if not history:
        return EMPTY
    return Structure(
        tuple(("window", *path) for path in observation.paths),
        tuple(torch.Size([history, *shape]) for shape in observation.shapes),
        observation.dtypes,
    )


def without(past: Leaves, first: torch.Tensor) -> Leaves:
    """Past observations `[B, history, …]`, zero where an episode starts, bool `[B, 1]`."""
    return tuple(x.masked_fill(first.view(-1, *(1,) * (x.ndim - 1)), 0) for x in past)


def extended(past: Leaves, obs: Leaves) -> Leaves:
    """Windows `[B, history + 1, …]` of past and present observations; `obs` if nothing is past."""
    if not past:
        return obs
    return tuple(torch.cat([x, now.unsqueeze(1)], 1) for x, now in zip(past, obs, strict=True))


def _view(
    requirement: ViewRequirement, window: torch.Tensor, padding: torch.Tensor
) -> torch.Tensor | TensorDict:
    """View of one leaf, from its window `[B, shift + 1, …]` and padding `[B, shift + 1]`."""
    if not requirement.shift:
        return window[:, -1]
    window = window.masked_fill(padding.view(*padding.shape, *(1,) * (window.ndim - 2)), 0)
    if requirement.method is RollingWindow:
        return window
    if requirement.method is not PaddedRollingWindow:
        return requirement.method.apply_last(window, requirement.shift + 1)
    return TensorDict(
        {DataKeys.INPUTS: window, DataKeys.PADDING_MASK: padding},
        batch_size=list(padding.shape),
        device=window.device,
    )
