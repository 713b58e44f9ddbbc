"""Parameter groups of an optimizer, for separate learning rates of policy and values."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from ...bonuses import Bonus
from ...core.hyperparameters import Hyperparameters
from ...core.rollouts import Rollout
from ...policies import GenericPolicyBase, model_mode


def parameter_groups(
    policy: GenericPolicyBase[Any],
    rollout: Rollout,
    config: Hyperparameters,
    bonuses: tuple[Bonus, ...],
) -> list[dict[str, Any]]:
    """Parameter groups of the optimizer: the policy's first, then what only its values depend on.

    Without the learning rates `lr_pi` and `lr_v` there is one group.
    """
    _, rates = config.optimizer_options()
    others = [p for bonus in bonuses for p in bonus.parameters() if p.requires_grad]
    parameters = list(policy.model.parameters())
    if not rates:
        return [{"params": [*parameters, *others]}]
    values = _value_parameters(policy, rollout)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p not in values]},
        {"params": [p for p in parameters if p in values]},
    ]
    for group, name in zip(groups, ("lr_pi", "lr_v"), strict=True):
        if name in rates:
            group["lr"] = rates[name]
    return [group for group in [*groups, {"params": others}] if group["params"]]


def _value_parameters(policy: GenericPolicyBase[Any], rollout: Rollout) -> set[nn.Parameter]:
    """The model's parameters that values depend on, and the action distribution does not.

    Found by differentiating both, so it holds for any model; frozen parameters are differentiated
    like the others.
    """
    n, device = rollout.num_envs, rollout.device
    window = [policy.history + 1] if policy.history else []
    obs = rollout.observation.zeros(n, *window, device=device)
    parameters = [p for p in policy.model.parameters() if p.is_floating_point()]
    forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
    # cuDNN differentiates recurrent layers in train mode only.
    plain = torch.backends.cudnn.flags(enabled=False) if device.type == "cuda" else nullcontext()
    frozen = [p for p in parameters if not p.requires_grad]
    with forked, plain, torch.enable_grad(), model_mode(policy.model, training=False):
        try:
            for p in frozen:
                p.requires_grad_(True)
            states = policy.memory.flatten(policy.init_states(n))
            distribution, values, _ = policy._respond(obs, states)
            logp = distribution.latents_logp(distribution.latents(deterministic=True))
            by_values, by_logp = (_reached(x, parameters) for x in (values, logp))
        finally:
            for p in frozen:
                p.requires_grad_(False)
    return by_values - by_logp


def _reached(x: torch.Tensor, parameters: list[nn.Parameter]) -> set[nn.Parameter]:
    """The parameters that `x` depends on."""
    if not x.requires_grad:
        return set()
    gradients = torch.autograd.grad(x.sum(), parameters, retain_graph=True, allow_unused=True)
    return {p for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None}
