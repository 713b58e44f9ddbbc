"""What is trained, in groups that may have learning rates of their own."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ..hyperparameters import Hyperparameters
from ..policies import GenericPolicyBase, model_mode
from ..rollouts import Rollout


def parameter_groups(
    policy: GenericPolicyBase[Any],
    rollout: Rollout,
    config: Hyperparameters,
    others: list[nn.Parameter],
) -> list[dict[str, Any]]:
    """Parameter groups of the optimizer: the policy's first, then what only its values depend on.

    One group where the config has neither `lr_pi` nor `lr_v`.

    Args:
        policy: The policy.
        rollout: Its storage, for the shapes of observations.
        config: Hyperparameters.
        others: Parameters of bonuses.

    """
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    _, rates = config.optimizer_options()
    if not rates:
        return [{"params": [*trained, *others]}]
    values = value_parameters(policy, rollout)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if id(p) not in values]},
        {"params": [p for p in trained if id(p) in values]},
    ]
    for group, name in zip(groups, ("lr_pi", "lr_v"), strict=True):
        if name in rates:
            group["lr"] = rates[name]
    groups.append({"params": others})
    return [group for group in groups if group["params"]]


def value_parameters(policy: GenericPolicyBase[Any], rollout: Rollout) -> set[int]:
    """Ids of the model's parameters that values depend on, and the action distribution does not.

    Found by differentiating both, so it holds for any model.
    """
    n, device = rollout.num_envs, rollout.device
    window = [policy.history + 1] if policy.history else []
    obs = rollout.observation.zeros(n, *window, device=device)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
    plain = _without_cudnn() if device.type == "cuda" else nullcontext()
    with forked, plain, torch.enable_grad(), model_mode(policy.model, training=False):
        states = policy.memory.flatten(policy.init_states(n))
        distribution, values, _ = policy._respond(obs, states)
        logp = distribution.latents_logp(distribution.latents(deterministic=True))
        reached = [
            {id(p) for p, gradient in zip(trained, gradients, strict=True) if gradient is not None}
            for gradients in (
                torch.autograd.grad(out.sum(), trained, retain_graph=True, allow_unused=True)
                for out in (values, logp)
            )
        ]
    return reached[0] - reached[1]


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """CuDNN differentiates recurrent layers in train mode only."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before
