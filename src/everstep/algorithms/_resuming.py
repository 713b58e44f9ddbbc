"""What an algorithm continues from."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import torch

from ..errors import CheckpointError

if TYPE_CHECKING:
    from ._algorithm import OnPolicyAlgorithm


def state_of(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> dict[str, Any]:
    """Everything that `restore` needs, as a nested mapping of tensors and numbers."""
    rollout, device = algorithm.rollout, algorithm.rollout.device
    normalizer = algorithm.policy.normalizer
    return {
        "model": dict(algorithm.policy.model.state_dict()),
        "optimizer": algorithm.updater.state_dict(),
        "grad_scaler": algorithm.grad_scaler.state_dict(),
        "counters": asdict(algorithm.state),
        "continues": algorithm.continues,
        "episodes": algorithm.episodes.state_dict(),
        "last_obs": list(rollout.last_obs()),
        "last_done": rollout.done[-1],
        "reversed_returns": rollout.reversed_returns[-1],
        "discounted_returns": dict(algorithm.discounted_returns.state_dict()),
        "bonuses": {bonus.name: dict(bonus.state_dict()) for bonus in algorithm.bonuses},
        "normalizer": None if normalizer is None else dict(normalizer.state_dict()),
        "memory": None if algorithm.states is None else list(algorithm.states),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "env": algorithm.env.state_dict() if hasattr(algorithm.env, "state_dict") else None,
    }


def restore(algorithm: "OnPolicyAlgorithm[Any, Any, Any]", state: dict[str, Any]) -> None:
    """Put an algorithm of the same config where `state_of` found one.

    Raises:
        CheckpointError: Where the state is of another model or another number of environments.

    """
    rollout = algorithm.rollout
    expected = [leaf.shape for leaf in rollout.last_obs()]
    if [x.shape for x in state["last_obs"]] != expected:
        raise CheckpointError(
            "The checkpoint's observations [history + 1, num_envs, …] have shapes "
            f"{[list(x.shape) for x in state['last_obs']]}; this algorithm's have "
            f"{[list(shape) for shape in expected]}."
        )
    _restore_bonuses(algorithm, state.get("bonuses", {}))
    normalizer = algorithm.policy.normalizer
    if (normalizer is None) is not (state["normalizer"] is None):
        raise CheckpointError(
            "The checkpoint and this algorithm differ in `normalize_observations`: set it as it "
            "was in the training that wrote the checkpoint."
        )
    try:
        algorithm.policy.model.load_state_dict(state["model"])
        if normalizer is not None:
            normalizer.load_state_dict(state["normalizer"])
    except RuntimeError as error:
        raise CheckpointError(f"The checkpoint's weights do not fit the model. {error}") from None
    algorithm.updater.load_state_dict(state["optimizer"])
    algorithm.grad_scaler.load_state_dict(state["grad_scaler"])
    algorithm.state = type(algorithm.state)(**{**state["counters"], "buffered": False})
    algorithm.discounted_returns.load_state_dict(state["discounted_returns"])
    algorithm.episodes.load_state_dict(state["episodes"])
    rollout.put_last_obs(tuple(state["last_obs"]))
    rollout.truncated[-1].copy_(state["last_done"])
    rollout.terminated[-1].zero_()
    rollout.reversed_returns[-1].copy_(state["reversed_returns"])
    memory = state["memory"]
    algorithm.states = None if memory is None else tuple(x.to(rollout.device) for x in memory)
    algorithm.follow_schedules()
    torch.set_rng_state(state["rng"].cpu())
    if state["cuda_rng"] is not None and rollout.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_rng"].cpu(), rollout.device)
    algorithm.continues = state["continues"] and state["env"] is not None
    if state["env"] is not None:
        cast(Any, algorithm.env).load_state_dict(state["env"])


def _restore_bonuses(
    algorithm: "OnPolicyAlgorithm[Any, Any, Any]", states: dict[str, dict[str, torch.Tensor]]
) -> None:
    names = [bonus.name for bonus in algorithm.bonuses]
    if set(names) != set(states):
        raise CheckpointError(
            f"The checkpoint's bonuses are {sorted(states)}; this algorithm's are {names}."
        )
    for bonus in algorithm.bonuses:
        try:
            bonus.load_state_dict(states[bonus.name])
        except RuntimeError as error:
            raise CheckpointError(
                f"The checkpoint's state does not fit the bonus {bonus.name}. {error}"
            ) from None
    algorithm.is_prepared = True
