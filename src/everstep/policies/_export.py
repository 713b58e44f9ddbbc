"""Export of policies to programs that run where Everstep is not installed.

The program, made by `torch.export`, is one env step: observations and states in; the most likely
actions as the environment takes them, their log-probabilities, the parameters of the distribution,
values and the next states out. It holds the weights and the observation normaliser. A format writes
it; then the written program is compared with the policy.
"""

import copy
import os
import tempfile
import warnings
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from ..core.files import replacing
from ..data import DataKeys, ExportFormat, Parity
from ..env.specs import Leaves, Structure, random_values
from ..errors import ConfigError, ExportError
from ._core import PolicyCore
from ._export_formats import WRITERS, Run, Tensors
from ._predict import acted_on, env_actions
from ._saving import check_path

#: Rows while tracing; a prime, so that no width equals it by accident.
_TRACED_ROWS = 11

#: Rows of the batches that program and policy are compared on: above 1,000 observations.
_COMPARED_ROWS = (1, 2, *(64,) * 16)

#: Env steps of each batch if the policy has a state.
_COMPARED_STEPS = 3

#: Differences that are accepted, of a number and of the largest: libraries sum in other orders.
_RTOL, _ATOL = 1e-4, 1e-5

#: Formats by the suffixes of their files; programs that read them go by these.
_SUFFIXES: dict[str, ExportFormat] = {".onnx": "onnx", ".pt2": "torch-export"}

_WAY_OUT = (
    "A model can be exported if `forward` and `value_function` use PyTorch operations on tensors "
    "only: no `if` on a tensor's value, no `.item()`, no NumPy, and `x.shape[0]` for the number of "
    "rows, not `len(x)`. Change it, or serve the policy with Everstep installed: "
    "mlflow.pyfunc.save_model(path, python_model=policy.save(file), artifacts={'policy': file})."
)


def export(
    policy: PolicyCore[Any], path: str | os.PathLike[str], format: ExportFormat = "mlflow"
) -> Parity:
    """Write the policy in a format; see `Policy.export`."""
    if format not in WRITERS:
        formats = ", ".join(get_args(ExportFormat))
        raise ValueError(f"`format` must be one of {formats}; got {format!r}.")
    path = Path(path)
    named = _SUFFIXES.get(path.suffix, format)
    if named != format:
        raise ConfigError(
            f"`path`: {path} is named as a file of the format {named}, and `format` is {format}. "
            f"Write format={named}, or another name."
        )
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists already: export to another place, or remove it.")
    check_path(path)
    step = Step(_portable(policy))
    # A fixed seed for the observations that are compared; the caller's generators are restored.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # the CPU's alone, unlike `torch.manual_seed`
        program = _program(step)
        example = step.inputs(1)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as directory:
            written = Path(directory) / "exported"
            try:
                with torch.no_grad():
                    run = WRITERS[format](program, example, step(example), step.facts, written)
            except ExportError as error:
                raise _refusal(step.label, str(error)) from error.__cause__
            parity = _compare(step, run)
            with replacing(path) as place:
                written.rename(place)
    return parity


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
        self.facts = {
            "policy": type(policy).__name__,
            "model": type(policy.model).__name__,
            "distribution": policy.distribution_cls.__name__,
            "choices": self._choices(),
        }

    @property
    def label(self) -> str:
        """Names of model and distribution, for errors."""
        return f"{type(self.model).__name__} with {self.policy.distribution_cls.__name__}"

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Actions, their log-probabilities `[B, 1]`, values `[B, K]`, the next states, and the
        parameters of the distribution.
        """
        forms = compress(self.policy.env_format.observation, self.is_seen)
        given = [form.from_zero(inputs[name]) for form, name in zip(forms, self.obs, strict=True)]
        rows, history = given[0], self.policy.history
        window = [history + 1] if history else []
        obs = _filled(self.policy._observation, self.is_seen, given, rows, window)
        memory = [inputs[name] for name in self.memory]
        states = _filled(self.policy.memory, self.is_kept, memory, rows, [])
        distribution, values, states = self.policy._respond(obs, states)
        latents = distribution.latents(deterministic=True)
        chosen = self.policy._action.flatten(distribution.actions(latents))
        parameters = {
            f"distribution.{name}": x.clone()  # an output of its own, also where it is the action
            for name, x in distribution.features.items()
            if isinstance(x, torch.Tensor) and name != DataKeys.ACTION_MASK
        }
        return {
            **dict(zip(self.actions, env_actions(self.policy, chosen), strict=True)),
            DataKeys.LOGP: distribution.latents_logp(latents),
            **({DataKeys.VALUES: values} if self.has_values else {}),
            **dict(zip(self.memory, compress(states, self.is_kept), strict=True)),
            **parameters,
        }

    def _choices(self) -> dict[str, Any]:
        """First and last choices of each input of choices, two lists of one row's shape."""
        found = {}
        shapes = compress(self.policy._observation.shapes, self.is_seen)
        limits = compress(self.policy.observation_limits, self.is_seen)
        for name, shape, limit in zip(self.obs, shapes, limits, strict=True):
            if limit is not None and limit.is_choice:
                start = torch.as_tensor(limit.start)
                ends = (limit.low + start, limit.high + start)
                found[name] = [end.expand(shape).tolist() for end in ends]
        return found

    def inputs(self, rows: int) -> dict[str, torch.Tensor]:
        """Random observations, and the states at the start of an episode, `[rows, …]`."""
        history = self.policy.history
        size = [rows, history + 1] if history else [rows]
        obs = self.policy._observation.flatten(random_values(self.policy.observation_spec, size))
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


def _compare(step: Step, run: Run) -> Parity:
    """Check that policy and program return the same for the same observations."""
    steps = _COMPARED_STEPS if step.memory else 1
    observations, largest = 0, 0.0
    with torch.no_grad():
        for rows in _COMPARED_ROWS:
            inputs = step.inputs(rows)
            for _ in range(steps):
                expected = step(inputs)
                largest = max(largest, _difference(step, expected, run(inputs)))
                observations += rows
                inputs = step.inputs(rows) | {name: expected[name] for name in step.memory}
    return Parity(observations, largest)


def _difference(step: Step, expected: Tensors, found: Tensors) -> float:
    """The largest difference of an output.

    Raises:
        ExportError: If one is too large, or has another shape or dtype.

    """
    largest = 0.0
    for name, tensor in expected.items():
        rtol = atol = 0.0
        if tensor.is_floating_point():
            scale = float(tensor.abs().nan_to_num(0.0, posinf=0.0).max()) if tensor.numel() else 0.0
            rtol, atol = _RTOL, _ATOL * max(1.0, scale)
        try:
            torch.testing.assert_close(found[name], tensor, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            reason = f"the program's {name} differ from the policy's: "
            raise _refusal(step.label, reason + _head(str(error))) from None
        gap = (found[name].double() - tensor.double()).abs()
        largest = max(largest, float(gap.nan_to_num(0.0).max()) if gap.numel() else 0.0)
    return largest


def _refusal(label: str, reason: str) -> ExportError:
    return ExportError(f"{label} cannot be exported: {reason}\n{_WAY_OUT}")


def _head(text: str) -> str:
    """The first lines of a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:3])[:400]
