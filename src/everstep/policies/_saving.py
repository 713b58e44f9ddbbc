"""Saving and loading of policies, without pickle."""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from .. import distributions, models
from ..core.checkpoints import load_file, save_file
from ..core.files import foreign_path
from ..core.normalizers import ObservationNormalizer
from ..core.plain_files import path_within
from ..data import Device
from ..distributions import Distribution
from ..env.agents import AgentSpec
from ..env.formats import EnvFormat
from ..env.specs import spec_from_dict, spec_to_dict
from ..errors import CheckpointError, ConfigError, EverstepError
from ._core import PolicyCore

P = TypeVar("P", bound=PolicyCore[Any])

#: Classes of policies by their names in files; the module of each adds it.
KINDS: dict[str, Any] = {}

_SPECS = ("observation_spec", "action_spec")
_KEYS = {"kind", "model_cls", "model_config", "distribution_cls", "weights", *_SPECS}
_KEYS_OF_SEVERAL = {"kind", "agents", "groups", "members"}


def save(policy: PolicyCore[Any], path: str | os.PathLike[str]) -> None:
    """Write `policy` to a file; see `Policy.save`."""
    check_path(path)
    save_file(Path(path), state_of(policy))


def check_path(path: str | os.PathLike[str]) -> None:
    """Check that a file may be at a path of this system.

    Raises:
        ConfigError: If the path is another system's, or a directory is there.

    """
    if problem := foreign_path(path):
        raise ConfigError(f"`path`: {os.fspath(path)}: {problem}.")
    if Path(path).is_dir():
        raise ConfigError(
            f"`path`: {os.fspath(path)} is a directory; name a file, such as "
            f"{Path(path, 'policy.everstep')}."
        )


def state_of(policy: PolicyCore[Any]) -> dict[str, Any]:
    """The content of a policy's file; its tensors are the policy's own."""
    if hasattr(policy, "describe"):  # of several policies
        return dict(policy.describe())
    observation_spec, action_spec = policy._spec
    normalizer = policy.normalizer
    return {
        "kind": type(policy).__name__,
        "model_cls": type(policy.model).__name__,
        "model_config": _config(policy),
        "distribution_cls": policy.distribution_cls.__name__,
        "modules": {
            "model_cls": type(policy.model).__module__,
            "distribution_cls": policy.distribution_cls.__module__,
        },
        "observation_spec": spec_to_dict(observation_spec),
        "action_spec": spec_to_dict(action_spec),
        "env_format": policy.env_format.describe(),
        "env": made_for(policy),
        "weights": dict(policy.model.state_dict()),
        "normalizer": None if normalizer is None else normalizer.describe(),
    }


def form_to_dict(form: AgentSpec) -> dict[str, Any]:
    """Specs and format of rows, as a file has them."""
    specs = {key: spec_to_dict(spec) for key, spec in zip(_SPECS, form[:2], strict=True)}
    return {**specs, "env_format": form.env_format.describe()}


def form_of(state: Mapping[str, Any]) -> None | AgentSpec:
    """Specs and format that `form_to_dict` described; None if the file has none.

    Raises:
        CheckpointError: If they do not fit together.

    """
    if _SPECS[0] not in state:
        return None
    observation, action = (spec_from_dict(state[key]) for key in _SPECS)
    form = EnvFormat.from_description(state["env_format"])
    if not form.fits(observation, action):
        raise CheckpointError("its `env_format` is of other specs.")
    return AgentSpec(observation, action, form)


def made_for(policy: PolicyCore[Any]) -> None | dict[str, Any]:
    """The environment that a policy was made for, as a file can hold it; None if none can."""
    env = {key: x for key, x in policy.made_for.items() if x is not None}
    if str(env.get("env_cls")).startswith("__main__."):
        return None
    try:
        return env if env and json.loads(json.dumps(env, allow_nan=False)) == env else None
    except (TypeError, ValueError):  # objects of the program
        return None


def env_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Keys of a configuration that make the environment of a policy's file; {} if it has none.

    They stay text: nothing is imported.

    Raises:
        CheckpointError: If it is not a policy's file.

    """
    return dict(read(file_of(path)).get("env") or {})


def file_of(path: str | os.PathLike[str]) -> Path:
    """The policy's file: that file, or the one in the directory of a run."""
    given = Path(path)
    if not given.is_dir():
        return given
    if not (file := given / "policy").exists():
        raise CheckpointError(
            f"{path}: a directory without a policy: name a policy's file, or the directory of a "
            "run that has saved one."
        )
    return path_within(file, given)


def _env_problem(env: Any) -> str:
    """Why this cannot be the environment of a file; empty if it can."""
    if env is None:
        return ""
    known = isinstance(env, dict) and {"env_cls"} <= env.keys() <= {"env_cls", "env_kwargs"}
    if known and isinstance(env["env_cls"], str) and isinstance(env.get("env_kwargs", {}), dict):
        return ""
    return "its `env` is no environment's name and options."


def load(
    cls: type[P],
    path: str | os.PathLike[str],
    *,
    model: None | nn.Module,
    model_cls: None | Any,
    distribution_cls: None | type[Distribution],
    device: Device,
) -> P:
    """The policy of a file; see `Policy.load`."""
    with naming(path):
        path = file_of(path)
        state = read(path, cls.__name__)
        if model is None and model_cls is None:
            model_cls = _default(state, "model_cls", models, path)
        if distribution_cls is None:
            distribution_cls = _default(state, "distribution_cls", distributions, path)
        return _build(cls, state, model, model_cls, distribution_cls, device)


def built(state: Any, path: Any, model_cls: Any, distribution_cls: Any, device: Device) -> Any:
    """One policy of a file of several; see `load`."""
    if not isinstance(state, dict) or not _is_policy(state) or state["kind"] not in KINDS:
        raise CheckpointError("an entry of `members` is not a saved policy.")
    model_cls = model_cls or _default(state, "model_cls", models, path)
    distribution_cls = distribution_cls or _default(state, "distribution_cls", distributions, path)
    return _build(KINDS[state["kind"]], state, None, model_cls, distribution_cls, device)


def _is_policy(state: dict[str, Any]) -> bool:
    return set(state) >= _KEYS


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in every error: one of unknown origin can fail in any way."""
    try:
        yield
    except CheckpointError as error:
        if str(error).startswith(str(path)):
            raise
        raise CheckpointError(f"{path}: {error}") from error.__cause__
    except EverstepError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:300]
        raise CheckpointError(f"{path}: no policy can be built from it ({reason}).") from error


def _build(
    cls: type[P],
    state: dict[str, Any],
    model: None | nn.Module,
    model_cls: Any,
    distribution_cls: Any,
    device: Device,
) -> P:
    if model is None:
        _check_sizes(model_cls, state)
    specs = [spec_from_dict(state[key]) for key in _SPECS]
    described, form = state.get("normalizer"), state.get("env_format")  # not in older files
    if form and not EnvFormat.from_description(form).fits(*specs):
        raise CheckpointError("its `env_format` is of other specs.")
    policy = cls(
        *specs,
        model=model,
        model_cls=model_cls,
        model_config=state["model_config"],
        distribution_cls=distribution_cls,
        device=device,
        normalizer=described and ObservationNormalizer.from_description(specs[0], described),
        env_format=form and EnvFormat.from_description(form),
    )
    policy.made_for = state.get("env") or {}
    if (mean := state["weights"].get("value_normalizer.mean")) is not None:
        policy.normalize_values(*mean.shape)
    try:
        policy.model.load_state_dict(state["weights"])
    except RuntimeError as error:
        raise CheckpointError(
            f"the weights do not fit {type(policy.model).__name__}. {error}"
        ) from None
    return policy


def _check_sizes(model_cls: Any, state: dict[str, Any]) -> None:
    """Refuse a file of a model larger than its weights, before specs and model need memory.

    Raises:
        CheckpointError: If that is so.

    """
    if not _is_within(model_cls.__module__, models):
        return  # it may need more than its constructor
    specs = [spec_from_dict(state[key], unbounded_device="meta") for key in _SPECS]
    with torch.device("meta"), _no_larger_than(state["weights"]):
        model = model_cls(*specs, **state["model_config"])
    shapes = {name: list(x.shape) for name, x in model.state_dict().items()}
    saved = {name: list(x.shape) for name, x in state["weights"].items()}
    saved = {k: x for k, x in saved.items() if not k.startswith("value_normalizer.")}
    if wrong := sorted(k for k in shapes | saved if shapes.get(k) != saved.get(k)):
        raise CheckpointError(
            f"the weights do not fit {model_cls.__name__} of its configuration: `{wrong[0]}` is "
            f"{saved.get(wrong[0], 'missing')}, and {shapes.get(wrong[0], 'unknown')} in the "
            "model. Load it with the version of Everstep that saved it, or train it again."
        )


#: Elements of a buffer that a model makes beside its weights, such as a mask, and parameters (a
#: layer may take another's place) and submodules that it makes for each of its weights.
_MAX_BUFFER, _PARAMETERS_PER_WEIGHT, _MODULES_PER_WEIGHT = 2**24, 2, 16


@contextmanager
def _no_larger_than(weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Refuse a model while it is being made as soon as it has more than a file's weights.

    Raises:
        CheckpointError: If it has.

    """
    here, counts = threading.get_ident(), {"parameters": 0, "modules": 0}
    most = {
        "parameters": _PARAMETERS_PER_WEIGHT * len(weights),
        "modules": _MODULES_PER_WEIGHT * (len(weights) + 1),
    }

    def count(kind: str) -> None:
        counts[kind] += threading.get_ident() == here
        if counts[kind] > most[kind]:
            raise CheckpointError(f"its configuration is of more {kind} than it has weights for.")

    def check_buffer(module: nn.Module, name: str, buffer: Any) -> None:
        size = 0 if buffer is None or threading.get_ident() != here else buffer.numel()
        if size > max(_MAX_BUFFER, *(weight.numel() for weight in weights.values())):
            raise CheckpointError(f"its configuration is of a buffer of {size:,} elements.")

    hooks = [
        register_module_parameter_registration_hook(
            lambda module, name, weight: None if weight is None else count("parameters")
        ),
        register_module_module_registration_hook(lambda module, name, inner: count("modules")),
        register_module_buffer_registration_hook(check_buffer),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def kind_of(path: str | os.PathLike[str]) -> str:
    """Class name of the policy in a file.

    Raises:
        CheckpointError: If it is not a policy's file.

    """
    return str(read(file_of(path))["kind"])


def read(path: str | os.PathLike[str], kind: None | str = None) -> dict[str, Any]:
    state = load_file(Path(path))
    if not isinstance(state, dict) or not (_is_policy(state) or set(state) >= _KEYS_OF_SEVERAL):
        raise CheckpointError(f"{path} is not a saved policy.")
    if problem := _env_problem(state.get("env")):  # not in older files
        raise CheckpointError(f"{path}: {problem}")
    if kind is not None and state["kind"] != kind:
        raise CheckpointError(
            f"{path} holds a {state['kind']}; it was loaded as a {kind}. "
            "`everstep.policies.load_policy` reads any policy."
        )
    return state


def _config(policy: PolicyCore[Any]) -> dict[str, Any]:
    """Keyword arguments that rebuild the model.

    The `config` of our models is complete, so that files do not depend on later defaults. That of
    other models has only what their constructors pass on, so `model_config` is preferred for them.
    """
    config = getattr(policy.model, "config", None) or {}
    if _is_within(type(policy.model).__module__, models):
        return dict(config)
    return dict(policy.model_config or config)


def _default(state: dict[str, Any], argument: str, package: ModuleType, path: Any) -> Any:
    """The saved class if it is one of the defaults; a file cannot import anything else."""
    name = str(state[argument])
    found = getattr(package, name, None)
    module = state.get("modules", {}).get(argument)  # older files have the name alone
    is_default = isinstance(found, type) and _is_within(found.__module__, package)
    if not is_default or (module and not _is_within(str(module), package)):
        kind, prefix = argument.removesuffix("_cls"), f"{module}." if module else ""
        raise CheckpointError(
            f"{path} was saved with the {kind} {prefix}{name}, which is not one of the defaults: "
            f"pass `{argument}` (from the code that trained it) to `load`."
        )
    return found


def _is_within(name: str, package: ModuleType) -> bool:
    return f"{name}.".startswith(f"{package.__name__}.")
