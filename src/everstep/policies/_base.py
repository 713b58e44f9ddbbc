"""Base of policies: what is done with them outside of training is added to their core."""

import os
from typing import Any, Generic, TypeVar

from torch import nn
from torchrl.data import Composite
from typing_extensions import Self

from ..data import Device
from ..distributions import Distribution
from ..models import GenericModelBase
from . import _saving
from ._core import PolicyCore

_Model = TypeVar("_Model", bound=GenericModelBase[..., Any])


class GenericPolicyBase(PolicyCore[_Model], Generic[_Model]):
    """Base of policies: a model and an action distribution, saved, exported, and used elsewhere.

    See `PolicyCore` for its arguments, and for its part in a rollout and an update.
    """

    def as_tensordict_module(
        self, *, deterministic: bool = False, observation_key: None | str = None
    ) -> Any:
        """The policy as a module of TensorDicts, for TorchRL's collectors and rollouts.

        It reads the observation and writes `"action"`, the action's log-probability under the key
        that TorchRL's losses read, and `"state_value"`. A recurrent policy also reads and
        writes `"states"`, and reads `"is_init"`: append torchrl's `InitTracker()` and what
        `make_tensordict_primer()` of the module returns to the environment.

        Args:
            deterministic: Whether to take the likeliest action. Torchrl's
                `set_exploration_type` can ask for it, too.
            observation_key: Key of the observation. `None` is `"observation"`, and the root for a
                mapping: its leaves have their own keys, as `everstep.adapters.to_torchrl` has it.

        """
        from ._tensordict import as_module  # which imports this module

        is_mapping = isinstance(self.observation_spec, Composite)
        default: tuple[str, ...] = () if is_mapping else ("observation",)
        path = default if observation_key is None else (observation_key,)
        return as_module(self, deterministic=deterministic, observation_path=path)

    def save(self, path: str | os.PathLike[str], /) -> Any:
        """Write the policy to one file, without pickle: weights, specs and how it was built.

        Args:
            path: File to write or replace; any suffix.

        Returns:
            The `MLflowPolicyModel` or `MLflowRecurrentPolicyModel` that serves the file.

        """
        _saving.save(self, path)
        from ._mlflow import python_model  # after the file is written: MLflow may be broken

        return python_model(self)

    def export(self, path: str | os.PathLike[str], /) -> None:
        """Write a directory that `mlflow models serve` serves where Everstep is not installed.

        Inputs are arrays `[B, …]`: `"obs"`, or one `"obs.<key>"` for each tensor of a mapping, and
        one for each recurrent state, such as `"hidden_states"`. Observations are
        `[B, history + 1, …]` where the model sees past ones. Outputs are `"actions"` as an
        environment executes them, the distribution's mode; `"logp"`, `"values"`, and the recurrent
        states for the next env step.

        Args:
            path: Directory to create.

        Raises:
            FileExistsError: If `path` exists.
            ExportError: If the model or the distribution cannot be exported, or the program
                does not do what the policy does.

        """
        from ._export import export  # takes PyTorch's exporter along

        export(self, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        /,
        *,
        model: None | nn.Module = None,
        model_cls: None | Any = None,
        distribution_cls: None | type[Distribution] = None,
        device: Device = "cpu",
    ) -> Self:
        """The policy that `save` wrote. Reading it never runs code from the file.

        Args:
            path: File to read.
            model: Model to load the weights into, if it was not a default one.
            model_cls: Class to build that model with, from the saved `model_config`.
            distribution_cls: Action distribution, if it was not a default one.
            device: Where the model lives.

        Raises:
            CheckpointError: If the file is damaged, or its weights do not fit the model.

        """
        return _saving.load(
            cls,
            path,
            model=model,
            model_cls=model_cls,
            distribution_cls=distribution_cls,
            device=device,
        )
