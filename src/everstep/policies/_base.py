"""Base of policies: adds the uses outside of training, such as `predict` and `save`."""

import os
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from torch import nn
from torchrl.data import Composite
from typing_extensions import Self

from ..core.validation import FilePath, explained
from ..data import Device, ExportFormat, Parity
from ..distributions import Distribution
from ..env.specs import Leaves
from ..models import GenericModelBase
from . import _saving
from ._core import PolicyCore
from ._predict import predict

_Model = TypeVar("_Model", bound=GenericModelBase[..., Any])


class GenericPolicyBase(PolicyCore[_Model], Generic[_Model]):
    """Base of policies: a model and an action distribution, with prediction, saving and export.

    See `PolicyCore` for the arguments, and for the methods that training calls.
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

    @explained("Write `predict(obs, state, episode_start)`.", deterministic=bool)
    def predict(
        self,
        obs: Any,
        state: None | Sequence[Any] = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, None | Leaves]:
        """Actions for observations, both as the environment has them, and the next state.

        What an adapter does between environment and policy is done here: dtypes are converted,
        choices count from their `start`, real numbers are clipped or rescaled. The model is in eval
        mode for this call alone, observations are normalised without an update of the statistics,
        and there are no gradients. Threads may call at the same time, also while another trains the
        policy; then weights may be those of different optimizer steps.

        Args:
            obs: One observation `[…]` or a batch `[N, …]`, told apart by their shapes: an array, a
                tensor, numbers, or a (nested) mapping of them. Keys that values alone depend on
                (`critic_obs`) may be missing.
            state: What the last call returned; None where all episodes begin.
            episode_start: Whether an episode begins with each observation, bool `[N]` or one for
                all: states are reset there. None for no new episodes.
            deterministic: Whether to take the distribution's mode rather than a sample.

        Returns:
            Actions as the environment takes them, one `[…]` for one observation, `[N, …]` for a
            batch; tensors on the observation's device if that is a tensor, else arrays. And the
            next state, a tuple of tensors `[N, …]` of past observations and recurrent states; None
            for a policy without.

        Raises:
            ValueError: If observations, state or `episode_start` do not fit the policy, or a number
                in host memory is not finite.

        """
        return predict(self, obs, state, episode_start, deterministic=deterministic)

    @explained("Write `save('my_policy')`.", path=FilePath)
    def save(self, path: str | os.PathLike[str], /) -> Any:
        """Write the policy to one file, without pickle: weights, specs and how it was built.

        The file names the environment that the policy was trained in, if it was made of a spec
        or a class: `everstep eval x.everstep` plays in it.

        Args:
            path: File to write or replace; any suffix, such as `x.everstep`.

        Returns:
            The `MLflowPolicyModel` or `MLflowRecurrentPolicyModel` that serves the file.

        """
        _saving.save(self, path)
        from ._mlflow import python_model  # after the file is written: MLflow may be broken

        return python_model(self)

    @explained("Write `export('my_program')`.", path=FilePath)
    def export(self, path: str | os.PathLike[str], /, *, format: ExportFormat = "mlflow") -> Parity:
        """Write one env step of the policy as a program that runs without Everstep.

        Inputs are arrays `[B, …]`: `"obs"`, or one `"obs.<key>"` for each tensor of a mapping, and
        one for each recurrent state, such as `"hidden_states"`. Observations are
        `[B, history + 1, …]` where the model sees past ones. Outputs are `"actions"` as an
        environment executes them, the distribution's mode; `"logp"`, `"values"`, the recurrent
        states for the next env step, and the parameters of the distribution, such as
        `"distribution.logits"`. Observations and states that values alone depend on are no inputs,
        and then there are no `"values"`.

        Args:
            path: Directory of the MLflow model, or file, to create.
            format: `"mlflow"`, a directory that `mlflow models serve` serves; `"onnx"`, a file for
                onnxruntime and others; or `"torch-export"`, a file for `torch.export.load`.

        Returns:
            The comparison of program and policy, on more than 1,000 random observations.

        Raises:
            EverstepError: If a library is missing that the format needs.
            FileExistsError: If `path` exists.
            ExportError: If the model or the distribution cannot be exported, or the program
                does not do what the policy does.
            ValueError: If there is no such format.
            ConfigError: If `path` is one of another system, or has the suffix of another format.

        """
        from ._export import export  # takes PyTorch's exporter along

        return export(self, path, format)

    @classmethod
    @explained("Write `load('my_policy')`.", path=FilePath)
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
            path: File to read, or the directory of a run.
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
