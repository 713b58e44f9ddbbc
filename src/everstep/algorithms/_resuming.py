"""What an algorithm continues from."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import torch

from ..data import AlgorithmState
from ..errors import CheckpointError

if TYPE_CHECKING:
    from ._algorithm import Algorithm


def state_of(algorithm: "Algorithm") -> dict[str, Any]:
    """Everything that `restore` needs, as a nested mapping of tensors and numbers."""
    rollout, device = algorithm.rollout, algorithm.rollout.device
    return {
        "model": dict(algorithm.policy.model.state_dict()),
        "optimizer": algorithm.optimizer.state_dict(),
        "grad_scaler": algorithm.grad_scaler.state_dict(),
        "counters": asdict(algorithm.state),
        "continues": algorithm.continues,
        "episodes": algorithm.episodes.state_dict(),
        "last_obs": [leaf[-1] for leaf in rollout.obs],
        "last_done": rollout.done[-1],
        "reversed_returns": rollout.reversed_returns[-1],
        "memory": list(algorithm.states),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "env": algorithm.env.state_dict() if hasattr(algorithm.env, "state_dict") else None,
    }


def restore(algorithm: "Algorithm", state: dict[str, Any]) -> None:
    """Put an algorithm of the same config where `state_of` found one.

    Raises:
        CheckpointError: Where the state is of another model or another number of environments.

    """
    rollout = algorithm.rollout
    expected = [leaf[-1].shape for leaf in rollout.obs]
    if [x.shape for x in state["last_obs"]] != expected:
        raise CheckpointError(
            "The checkpoint's observations [num_envs, …] have shapes "
            f"{[list(x.shape) for x in state['last_obs']]}; this algorithm's have "
            f"{[list(shape) for shape in expected]}."
        )
    try:
        algorithm.policy.model.load_state_dict(state["model"])
    except RuntimeError as error:
        raise CheckpointError(f"The checkpoint's weights do not fit the model. {error}") from None
    algorithm.optimizer.load_state_dict(state["optimizer"])
    algorithm.grad_scaler.load_state_dict(state["grad_scaler"])
    algorithm.state = AlgorithmState(**{**state["counters"], "buffered": False})
    algorithm.episodes.load_state_dict(state["episodes"])
    for leaf, last in zip(rollout.obs, state["last_obs"], strict=True):
        leaf[-1].copy_(last)
    rollout.truncated[-1].copy_(state["last_done"])
    rollout.terminated[-1].zero_()
    rollout.reversed_returns[-1].copy_(state["reversed_returns"])
    algorithm.states = tuple(x.to(rollout.device) for x in state["memory"])
    algorithm.follow_schedules()
    torch.set_rng_state(state["rng"].cpu())
    if state["cuda_rng"] is not None and rollout.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_rng"].cpu(), rollout.device)
    algorithm.continues = state["continues"] and state["env"] is not None
    if state["env"] is not None:
        cast(Any, algorithm.env).load_state_dict(state["env"])
