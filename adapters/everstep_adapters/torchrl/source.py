"""Construction of TorchRL environments by name."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch

from everstep.data import Device
from everstep.errors import AdapterError

from ..common.libraries import creating
from ..common.parents import EndsWithParent

#: `module:Class` or `package.module.Class`; ids of Gymnasium have a hyphen and a version.
_CLASS = re.compile(r"(?P<module>[^\W\d][\w.]*)[:.](?P<name>[^\W\d]\w*)")


def make_env(
    name: str | Callable[..., Any],
    num_envs: int,
    device: Device,
    *,
    parallel: bool = False,
    vector_kwargs: None | dict[str, Any] = None,
    **kwargs: Any,
) -> Any:
    """A TorchRL environment with a batch of `num_envs`.

    Args:
        name: `EnvBase` class or its path, function that makes an environment, or id of a Gymnasium
            environment.
        num_envs: Number of environments in the batch.
        device: Device of an environment that is made with a batch. Others are made on the CPU.
        parallel: Whether environments without a batch are stepped in processes of their own.
        vector_kwargs: Arguments of `ParallelEnv` or `SerialEnv`.
        kwargs: Arguments of each environment.

    Raises:
        AdapterError: If there is no such class or id, or it cannot be made.

    """
    from torchrl.envs import GymEnv, ParallelEnv, SerialEnv

    kind: Any = _find_class(name) if isinstance(name, str) else name
    with creating("TorchRL", getattr(name, "__name__", str(name))):
        if kind is not None and _takes(kind, "batch_size"):
            if _takes(kind, "device"):
                kwargs.setdefault("device", torch.device(device))
            return kind(batch_size=torch.Size([num_envs]), **kwargs)
        make_one = partial(GymEnv, name, **kwargs) if kind is None else partial(kind, **kwargs)
        if parallel:
            return ParallelEnv(num_envs, EndsWithParent(make_one), **(vector_kwargs or {}))
        return SerialEnv(num_envs, make_one, **(vector_kwargs or {}))


def _find_class(name: str) -> Any:
    """The class at the path `name`; `None` if it is no path."""
    from torchrl.envs import EnvBase

    path = _CLASS.fullmatch(name)
    if path is None:
        return None
    try:
        kind = getattr(import_module(path["module"]), path["name"])
    except (ImportError, AttributeError) as error:
        raise AdapterError(
            f"{name!r} is no class that can be imported: {error}. Write 'module:Class', or the id "
            "of a Gymnasium environment with its version, such as 'CartPole-v1'."
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, EnvBase)):
        raise AdapterError(f"{name!r} is no class of `torchrl.envs.EnvBase`; it is {kind!r}.")
    return kind


def _takes(kind: Any, parameter: str) -> bool:
    """Whether a class or function has a parameter of that name."""
    return parameter in inspect.signature(getattr(kind, "__init__", kind)).parameters
