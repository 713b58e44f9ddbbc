"""What recorded work depends on, and what it changes."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torchrl.data import TensorSpec

from ..env import Env
from ..graphs import Same, random_state
from . import _bookkeeping as bookkeeping

if TYPE_CHECKING:
    from ._algorithm import OnPolicyAlgorithm

#: How far what an environment consists of is looked for.
_DEPTH = 5

#: What Python looks at while it is recorded, so that a graph has it for good.
_NUMBERS = (bool, int, float, str, type(None))

#: What holds no state.
_CLOSED = (*_NUMBERS, TensorSpec, torch.dtype, torch.device, torch.Generator, type)


# ---- environments -----------------------------------------------------------------------------


def _parts(owner: Any, path: str, depth: int = 0) -> Iterator[tuple[Any, Any, str, Any]]:
    """Owner, name, path and value of everything that is reached through attributes."""
    if isinstance(owner, dict):
        members = list(owner.items())
    elif isinstance(owner, list | tuple):
        members = list(enumerate(owner))
    else:
        members = list(getattr(owner, "__dict__", {}).items())
    for name, value in members:
        below = f"{path}.{name}"
        yield owner, name, below, value
        is_open = not isinstance(value, (*_CLOSED, torch.Tensor)) and not callable(value)
        if depth < _DEPTH and (is_open or isinstance(value, nn.Module)):
            yield from _parts(value, below, depth + 1)


def _of_env(env: Env) -> dict[str, Any]:
    """Addresses of an environment's tensors, and its numbers."""
    found: dict[str, Any] = {}
    for _, _, path, value in _parts(env, "env"):
        if isinstance(value, torch.Tensor):
            found[path] = value.data_ptr()
        elif isinstance(value, _NUMBERS):
            found[path] = value
    return found


def generators_of(env: Env) -> list[torch.Generator]:
    """The generators of random numbers that an environment has on a GPU."""
    generators = (value for *_, value in _parts(env, "env") if isinstance(value, torch.Generator))
    return [generator for generator in generators if generator.device.type == "cuda"]


def _keep_env(env: Env) -> Callable[[], None]:
    """What puts an environment's tensors and numbers back, also those that were replaced."""
    parts = list(_parts(env, "env"))
    tensors = [value for *_, value in parts if isinstance(value, torch.Tensor)]
    generators = [(x, x.get_state()) for *_, x in parts if isinstance(x, torch.Generator)]
    fill = keep(tensors)

    def put_back() -> None:
        for owner, name, _, value in parts:
            if isinstance(value, (*_NUMBERS, torch.Tensor)):
                _set(owner, name, value)
        fill()
        for generator, state in generators:
            generator.set_state(state)

    return put_back


def _set(owner: Any, name: Any, value: Any) -> None:
    if isinstance(owner, dict | list):
        owner[name] = value
    elif not isinstance(owner, tuple):
        owner.__dict__[name] = value


# ---- algorithms -------------------------------------------------------------------------------


def keep(tensors: Iterable[torch.Tensor]) -> Callable[[], None]:
    """What puts these tensors' numbers back."""
    kept = [(x, x.detach().clone()) for x in tensors]

    def put_back() -> None:
        with torch.no_grad():
            for x, before in kept:
                x.copy_(before)

    return put_back


def _modules(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> dict[str, nn.Module]:
    policy = algorithm.policy
    every = {"model": policy.model, "normalizer": policy.normalizer, "critic": policy.critic}
    return {name: module for name, module in every.items() if module is not None}


def _of_both(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> dict[str, Any]:
    """Addresses of weights, and everything that is set."""
    found: dict[str, Any] = {
        "config": Same(algorithm.config),
        "matmul_precision": torch.get_float32_matmul_precision(),
    }
    for prefix, module in _modules(algorithm).items():
        for name, x in (*module.named_parameters(), *module.named_buffers()):
            found[f"{prefix}.{name}"] = (x.data_ptr(), x.requires_grad)
        found[f"{prefix}.training"] = tuple(m.training for m in module.modules())
    return found


def of_collection(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> dict[str, Any]:
    """What a rollout depends on, beside numbers in tensors."""
    rollout, every = algorithm.rollout, algorithm.hparams.get("seqs_per_state_reset", -1)
    opened = algorithm.state.horizons * (rollout.horizon // rollout.seq_len)
    phase = opened % every if every > 0 else 0  # which of its sequences start anew
    return {"phase": phase, **_of_both(algorithm), **_of_env(algorithm.env)}


def keep_for_collection(
    algorithm: "OnPolicyAlgorithm[Any, Any, Any]", states: Iterable[torch.Tensor]
) -> Callable[[], None]:
    """What takes a rollout back."""
    buffers = [x for module in _modules(algorithm).values() for x in module.buffers()]
    steps = (
        keep([*states, *buffers]),
        _keep_env(algorithm.env),
        random_state(algorithm.rollout.device),
    )
    counters = bookkeeping.copy_of(algorithm)

    def put_back() -> None:
        bookkeeping.put_back(algorithm, counters)
        for step in steps:
            step()

    return put_back


def of_estimates(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> dict[str, Any]:
    """What advantages depend on, beside numbers in tensors."""
    return {"config": Same(algorithm.config), "streams": algorithm.streams}


def of_update(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> dict[str, Any]:
    """What an update depends on, beside numbers in tensors."""
    found = _of_both(algorithm)
    found |= {"objective": Same(algorithm.objective), "chunk_size": algorithm.chunk_size}
    optimizer = algorithm.optimizer
    options = {
        f"optimizer.{i}.{name}": value
        for i, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if name != "params"
    }
    moments = {
        f"optimizer.{i}.{name}": value
        for i, state in enumerate(optimizer.state.values())
        for name, value in state.items()
    }
    for name, value in (options | moments).items():
        found[name] = value.data_ptr() if isinstance(value, torch.Tensor) else value
    return found


def keep_for_update(
    algorithm: "OnPolicyAlgorithm[Any, Any, Any]", counted: Iterable[torch.Tensor]
) -> Callable[[], None]:
    """What takes optimizer steps back: weights, moments, learning rates, counters, randomness."""
    optimizer = algorithm.optimizer
    tensors = [x for group in optimizer.param_groups for x in (*group["params"], group["lr"])]
    tensors += [x for module in _modules(algorithm).values() for x in module.buffers()]
    tensors += [x for state in optimizer.state.values() for x in state.values()]
    steps = (
        keep(x for x in (*tensors, *counted) if isinstance(x, torch.Tensor)),
        random_state(algorithm.rollout.device),
        algorithm.updater.zero_grad,
    )

    def put_back() -> None:
        for step in steps:
            step()

    return put_back
