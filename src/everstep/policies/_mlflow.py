"""Policies as MLflow Python models, for servers that have Everstep installed.

`policy.save(path)` returns such a model. MLflow pickles its attributes, the names of classes; the
policy is read from its own file, which is not a pickle.
"""

import warnings
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from tensordict import TensorDict

from .. import distributions, models
from ..data import DataKeys
from ..distributions import Distribution
from ..env.specs import Leaves, Path
from ..views import rolling_window
from ._core import PolicyCore
from ._predict import env_actions, read_leaf, read_numbers
from ._saving import KINDS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow warns of its own type hints
    import mlflow as mlflow
    from mlflow.pyfunc import PythonModel, PythonModelContext


class ServedPolicy(PythonModel):  # type: ignore[misc]
    """Base class of policies in MLflow.

    Args:
        model_cls: Model class, if it is not one of the defaults.
        distribution_cls: Action distribution, if it is not one of the defaults.

    """

    #: Kind of policy, as files name it.
    kind: str

    # MLflow cannot make a schema of mappings of arrays.
    _skip_type_hint_validation = True

    def __init__(
        self,
        *,
        model_cls: None | type[models.GenericModelBase[..., Any]] = None,
        distribution_cls: None | type[Distribution] = None,
    ) -> None:
        self.model_cls = model_cls
        self.distribution_cls = distribution_cls

    def load_context(self, context: PythonModelContext) -> None:
        """Load the policy from the artifact `"policy"`, without unpickling.

        Raises:
            CheckpointError: If it is damaged, or its weights do not fit the model.

        """
        self.policy: Any = KINDS[self.kind].load(
            context.artifacts["policy"],
            model_cls=self.model_cls,
            distribution_cls=self.distribution_cls,
        )
        self.policy.model.eval()


class MLflowPolicyModel(ServedPolicy):
    """A policy in MLflow: observations `[B, T, …]` in, a DataFrame of B·T rows out.

    Args:
        model_cls: Model class, if it is not one of the defaults.
        distribution_cls: Action distribution, if it is not one of the defaults.

    """

    kind = "Policy"

    def predict(  # type: ignore[no-untyped-def]  # MLflow warns of types that are no schema
        self, context, model_input, params=None
    ) -> pd.DataFrame:
        """The most likely actions, their log-probabilities and values, one row per observation.

        Args:
            context: Unused.
            model_input: Observations under `"obs"`: an array `[B, T, …]`, or a (nested) mapping of
                arrays. Each sequence begins with an episode, and a model with view requirements
                receives the earlier rows of the sequence.
            params: Unused.

        Returns:
            Columns `"actions"`, `"logp"` and `"values"` of lists; the row of observation `[b, t]`
            is b·T + t.

        Raises:
            ValueError: If the observations do not fit the policy.

        """
        obs = _observations(self.policy, model_input)
        rows, ages = _rows(obs, self.policy.history)
        states = (ages,) if self.policy.memory.paths else ()
        with torch.no_grad():
            sample = self.policy.act(rows, states, deterministic=True)
        chosen = env_actions(self.policy, sample.actions)
        actions = _columns(DataKeys.ACTIONS, self.policy._action.paths, chosen)
        return _frame({**actions, DataKeys.LOGP: sample.logp, DataKeys.VALUES: sample.values})


class MLflowRecurrentPolicyModel(ServedPolicy):
    """A recurrent policy in MLflow: DataFrames of B·T rows and of B states out.

    Args:
        model_cls: Model class, if it is not one of the defaults.
        distribution_cls: Action distribution, if it is not one of the defaults.

    """

    kind = "RecurrentPolicy"

    def predict(  # type: ignore[no-untyped-def]  # MLflow warns of types that are no schema
        self, context, model_input, params=None
    ) -> list[pd.DataFrame]:
        """The most likely actions, their log-probabilities and values; and the next states.

        Args:
            context: Unused.
            model_input: Observations under `"obs"`: an array `[B, T, …]`, or a (nested) mapping of
                arrays. Optionally the states before each sequence under `"states"`: a mapping of
                arrays `[B, 1, …]` or `[B, …]`, or the DataFrame of an earlier call. Without them
                each sequence begins an episode.
            params: Unused.

        Returns:
            Columns `"actions"`, `"logp"` and `"values"` of lists, where the row of observation
            `[b, t]` is b·T + t; and one column per state, B rows.

        Raises:
            ValueError: If observations or states do not fit the policy.

        """
        policy = self.policy
        leaves = _observations(policy, model_input)
        size = list(leaves[0].shape[:2])
        batch = TensorDict({DataKeys.OBS: policy._observation.unflatten(leaves, size)}, size)
        states = None
        if model_input.get(DataKeys.STATES) is not None:
            before = _states(policy, model_input[DataKeys.STATES], size[0])
            states = policy.memory.unflatten(before, [size[0], 1])
        out, after = policy.sample(
            batch, states, deterministic=True, return_logp=True, return_values=True
        )
        found = env_actions(policy, policy._action.flatten(out[DataKeys.ACTIONS]))
        actions = _columns(DataKeys.ACTIONS, policy._action.paths, found)
        columns = {**actions, **{key: out[key] for key in (DataKeys.LOGP, DataKeys.VALUES)}}
        next_states = policy.memory.flatten(after)
        return [_frame(columns), _frame(_columns("", policy.memory.paths, next_states))]


def python_model(
    policy: PolicyCore[Any],
) -> MLflowPolicyModel | MLflowRecurrentPolicyModel:
    """The MLflow model of a policy; the policy's file is its artifact."""
    recurrent = isinstance(policy, KINDS["RecurrentPolicy"])
    return (MLflowRecurrentPolicyModel if recurrent else MLflowPolicyModel)(
        model_cls=_unless_default(type(policy.model), models),
        distribution_cls=_unless_default(policy.distribution_cls, distributions),
    )


def _unless_default(cls: type, module: Any) -> None | type:
    """The class, or None if it is one of the defaults in `module`."""
    return None if getattr(module, cls.__name__, None) is cls else cls


# ---- from arrays to tensors ----------------------------------------------------------------------


def _observations(policy: PolicyCore[Any], model_input: Any) -> Leaves:
    """Leaves `[B, T, …]` of the observations in a model's input."""
    if not isinstance(model_input, Mapping) or DataKeys.OBS not in model_input:
        found = list(model_input) if isinstance(model_input, Mapping) else type(model_input)
        raise ValueError(
            f"The input must be a mapping with observations [B, T, …] under 'obs'; got {found}."
        )
    obs, leaves = model_input[DataKeys.OBS], []
    for form, limit, (path, shape, dtype) in zip(
        policy.env_format.observation,
        policy.observation_limits,
        policy._observation.leaves(),
        strict=True,
    ):
        name = _name((DataKeys.OBS, *path))
        leaf = read_leaf(_at(obs, path), form, shape, dtype, limit, name)
        leaves.append(_shaped(leaf, name, shape).to(policy.device))
    if len({leaf.shape[:2] for leaf in leaves}) > 1:
        sizes = ", ".join(str(list(leaf.shape[:2])) for leaf in leaves)
        raise ValueError(f"All observations must have the same [B, T]; got {sizes}.")
    return tuple(leaves)


def _states(policy: PolicyCore[Any], given: Any, count: int) -> Leaves:
    """Leaves `[B, 1, …]` of states given as `[B, 1, …]`, as `[B, …]`, or as a DataFrame."""
    leaves = []
    for path, shape, dtype in policy.memory.leaves():
        value = given[".".join(path)] if isinstance(given, pd.DataFrame) else _at(given, path)
        array = np.asarray(value.tolist() if isinstance(value, pd.Series) else value)
        if array.ndim == 1 + len(shape):
            array = np.expand_dims(array, 1)
        name = _name(("states", *path))
        leaf = _shaped(read_numbers(array, dtype, name), name, shape).to(policy.device)
        if leaf.shape[:2] != (count, 1):
            raise ValueError(
                f"`{name}` must hold the states before each of the {count} "
                f"sequences, [{count}, 1, …]; got {list(leaf.shape)}."
            )
        leaves.append(leaf)
    return tuple(leaves)


def _at(value: Any, path: Path) -> Any:
    """The value at `path` in nested mappings."""
    for depth, key in enumerate(path):
        if not isinstance(value, Mapping) or key not in value:
            found = list(value) if isinstance(value, Mapping) else type(value).__name__
            raise ValueError(f"The policy takes {_name(path[: depth + 1])}; got {found}.")
        value = value[key]
    return value


def _shaped(tensor: torch.Tensor, name: str, shape: torch.Size) -> torch.Tensor:
    if tensor.shape[2:] != shape or tensor.ndim < 2:
        expected = ", ".join(["B", "T", *map(str, shape)])
        raise ValueError(f"`{name}` must be [{expected}]; got {list(tensor.shape)}.")
    return tensor


def _rows(leaves: Leaves, history: int) -> tuple[Leaves, torch.Tensor]:
    """Each row's observation, or the window that ends in it, and its age, `[B·T, …]`.

    Args:
        leaves: Observations `[B, T, …]`.
        history: Past observations in a window.

    """
    count, length = leaves[0].shape[:2]
    ages = torch.arange(length, device=leaves[0].device).repeat(count)
    if history:
        padded = (torch.cat([x.new_zeros(count, history, *x.shape[2:]), x], 1) for x in leaves)
        leaves = tuple(rolling_window(x, history + 1) for x in padded)
    return tuple(x.flatten(0, 1) for x in leaves), ages


# ---- from tensors to DataFrames ------------------------------------------------------------------


def _columns(head: str, paths: tuple[Path, ...], leaves: Leaves) -> dict[str, torch.Tensor]:
    """The leaves by column name: `head` for a plain tensor."""
    prefix = (head,) if head else ()
    return {_name((*prefix, *path)): leaf for path, leaf in zip(paths, leaves, strict=True)}


def _name(path: Path) -> str:
    return ".".join(path)


def _frame(columns: Mapping[str, torch.Tensor]) -> pd.DataFrame:
    return cast(pd.DataFrame, pd.DataFrame({k: leaf.tolist() for k, leaf in columns.items()}))
