"""Export of policies to MLflow models that need PyTorch and MLflow, but not Everstep.

The exported program, made by `torch.export`, is one env step: observations and states in; the most
likely actions as the environment takes them, log-probabilities, values and the next states out. It
holds the weights and the observation normaliser. MLflow adds a signature, an example, requirements
and the file that runs it.
"""

import copy
import os
import tempfile
import warnings
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packaging.version import Version
from torch import nn

from .._version import __version__
from ..data import DataKeys
from ..errors import ExportError
from ..specs import Leaves, Structure
from ._core import PolicyCore
from ._predict import acted_on, env_actions

#: Rows while tracing; a prime, so that no width equals it by accident.
_TRACED_ROWS = 11

#: Rows of the batches that program and policy are compared on.
_COMPARED_ROWS = (1, 2, 64)

#: Env steps of the comparison if the policy has a state.
_COMPARED_STEPS = 3

_SERVED_POLICY = Path(__file__).with_name("_served_policy.py")

_WAY_OUT = (
    "A model can be exported if `forward` and `value_function` use PyTorch operations on tensors "
    "only: no `if` on a tensor's value, no `.item()`, no NumPy, and `x.shape[0]` for the number of "
    "rows, not `len(x)`. Change it, or serve the policy with Everstep installed: "
    "mlflow.pyfunc.save_model(path, python_model=policy.save(file), artifacts={'policy': file})."
)


def export(policy: PolicyCore[Any], path: str | os.PathLike[str]) -> None:
    """Write the policy as an MLflow model; see `Policy.export`."""
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists already: export to another directory, or remove it.")
    step = Step(_portable(policy))
    # A fixed seed for the observations that are compared; the caller's generators are restored.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # the CPU's alone, unlike `torch.manual_seed`
        program = _program(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as directory:
            file = Path(directory) / "policy.pt2"
            torch.export.save(program, file)
            _compare(step, torch.export.load(file).module())
            _save_model(step, file, Path(directory) / "model")
            (Path(directory) / "model").rename(path)


class Step(nn.Module):
    """One env step of a policy, with named tensors as inputs and outputs.

    Args:
        policy: The policy, in eval mode.

    """

    def __init__(self, policy: PolicyCore[Any]) -> None:
        super().__init__()
        self.policy = policy
        self.model = policy.model  # registered, so that the program holds its weights
        self.normalizer = policy.normalizer
        # The others are for values alone, which are left out then.
        of_values = getattr(policy.model, "critic_states", ())
        self.is_seen = acted_on(policy)
        self.is_kept = tuple(path[-1] not in of_values for path in policy.memory.paths)
        self.obs = _names(DataKeys.OBS, policy._observation, self.is_seen)
        self.memory = _names("", policy.memory, self.is_kept)
        self.has_values = all((*self.is_seen, *self.is_kept))
        self.actions = _names(DataKeys.ACTIONS, policy._action, [True] * len(policy._action.paths))

    @property
    def label(self) -> str:
        """Names of model and distribution, for errors."""
        return f"{type(self.model).__name__} with {self.policy.distribution_cls.__name__}"

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Actions, log-probabilities `[B, 1]`, values `[B, K]` and the next states."""
        forms = compress(self.policy.env_format.observation, self.is_seen)
        given = [form.from_zero(inputs[name]) for form, name in zip(forms, self.obs, strict=True)]
        rows, history = given[0], self.policy.history
        window = [history + 1] if history else []
        obs = _filled(self.policy._observation, self.is_seen, given, rows, window)
        memory = [inputs[name] for name in self.memory]
        states = _filled(self.policy.memory, self.is_kept, memory, rows, [])
        sample = self.policy.act(obs, states, deterministic=True)
        actions = env_actions(self.policy, sample.actions)
        values = {DataKeys.VALUES: sample.values} if self.has_values else {}
        return {
            **dict(zip(self.actions, actions, strict=True)),
            DataKeys.LOGP: sample.logp,
            **values,
            **dict(zip(self.memory, compress(sample.states, self.is_kept), strict=True)),
        }

    def inputs(self, rows: int) -> dict[str, torch.Tensor]:
        """Random observations, and the states at the start of an episode, `[rows, …]`."""
        history = self.policy.history
        size = [rows, history + 1] if history else [rows]
        obs = self.policy._observation.flatten(self.policy.observation_spec.rand(size))
        states = self.policy.memory.flatten(self.policy.init_states(rows))
        seen = (*compress(obs, self.is_seen), *compress(states, self.is_kept))
        inputs = dict(zip((*self.obs, *self.memory), seen, strict=True))
        for name, leaf in inputs.items():
            if name.endswith("action_mask"):
                leaf[..., 0] = 1  # at least one option is allowed
        forms = compress(self.policy.env_format.observation, self.is_seen)
        for name, form in zip(self.obs, forms, strict=True):
            if form.start is not None:
                inputs[name] = inputs[name] + torch.as_tensor(form.start)
        return {name: leaf.contiguous() for name, leaf in inputs.items()}


def _names(head: str, structure: Structure, chosen: Sequence[bool]) -> tuple[str, ...]:
    paths = compress(structure.paths, chosen)
    return tuple(".".join((head, *path) if head else path) for path in paths)


def _filled(
    structure: Structure,
    chosen: Sequence[bool],
    given: Sequence[torch.Tensor],
    rows: torch.Tensor,
    window: list[int],
) -> Leaves:
    """The leaves that were given, and zeros with as many `rows` in place of the others."""
    leaves, found = iter(given), []
    for is_given, (_, shape, dtype) in zip(chosen, structure.leaves(), strict=True):
        size = (rows.shape[0], *window, *shape)
        found.append(next(leaves) if is_given else rows.new_zeros(size, dtype=dtype))
    return tuple(found)


def _portable(policy: PolicyCore[Any]) -> PolicyCore[Any]:
    """A copy of the policy on the CPU, in eval mode and without autocast."""
    # Tensors with a gradient history, such as stored values, cannot be copied: detach them.
    detached = {
        id(value): value.detach()
        for module in policy.model.modules()
        for value in vars(module).values()
        if isinstance(value, torch.Tensor)
    }
    try:
        model, normalizer = copy.deepcopy((policy.model, policy.normalizer), detached)
    except Exception as error:
        raise _refusal(type(policy.model).__name__, f"it cannot be copied: {error}") from error
    model.eval()
    return type(policy)(
        *policy._spec,
        model=model,
        distribution_cls=policy.distribution_cls,
        normalizer=normalizer,
        env_format=policy.env_format,
        device="cpu",
    )


def _program(step: Step) -> torch.export.ExportedProgram:
    """The step as a program for any number of rows."""
    inputs = step.inputs(_TRACED_ROWS)
    rows = torch.export.Dim("rows")
    shapes = ({name: {0: rows} for name in inputs},)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of models that store values for `value_function`
            step(inputs)  # fills caches of the specs' properties before tracing
            return torch.export.export(step, (inputs,), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # a model's own code may fail in any way while it is traced
        if f"constant ({_TRACED_ROWS})" in str(error):
            raise _refusal(step.label, "it fixes the number of rows.") from error
        raise _refusal(step.label, f"{type(error).__name__}: {_head(str(error))}") from error


def _compare(step: Step, program: nn.Module) -> None:
    """Check that policy and program return the same for the same observations."""
    steps = _COMPARED_STEPS if step.memory else 1
    with torch.no_grad():
        for rows in _COMPARED_ROWS:
            inputs = step.inputs(rows)
            for _ in range(steps):
                expected, found = step(inputs), program(inputs)
                for name, tensor in expected.items():
                    try:
                        torch.testing.assert_close(found[name], tensor, equal_nan=True)
                    except AssertionError as error:
                        reason = f"the program's {name} differ from the policy's: "
                        raise _refusal(step.label, reason + _head(str(error))) from None
                inputs = step.inputs(rows) | {name: expected[name] for name in step.memory}


def _refusal(label: str, reason: str) -> ExportError:
    return ExportError(f"{label} cannot be exported: {reason}\n{_WAY_OUT}")


def _head(text: str) -> str:
    """The first lines of a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:3])[:400]


def _save_model(step: Step, program: Path, path: Path) -> None:
    """Write MLflow's directory: program, signature, example, requirements, code."""
    from ._mlflow import mlflow  # slow import

    inputs = step.inputs(1)
    with torch.no_grad():
        outputs = step(inputs)
    mlflow.pyfunc.save_model(
        str(path),
        python_model=str(_SERVED_POLICY),
        artifacts={"program": str(program)},
        signature=mlflow.models.ModelSignature(_schema(inputs), _schema(outputs)),
        input_example={name: leaf.numpy() for name, leaf in inputs.items()},
        pip_requirements=[
            f"torch=={Version(torch.__version__).public}",
            f"numpy=={np.__version__}",
            f"mlflow=={mlflow.__version__}",
        ],
        metadata={
            "everstep": __version__,
            "policy": type(step.policy).__name__,
            "model": type(step.model).__name__,
            "distribution": step.policy.distribution_cls.__name__,
        },
    )


def _schema(leaves: dict[str, torch.Tensor]) -> Any:
    """MLflow's schema of leaves `[B, …]`: names, dtypes and shapes."""
    from mlflow.types import Schema, TensorSpec

    named = leaves.items()
    return Schema([TensorSpec(x.numpy().dtype, (-1, *x.shape[1:]), name) for name, x in named])
