"""The one decision whether the fast ways of this package compute what the general way would.

It asks for behaviour: not only for types, but for methods that were overridden or patched, hooks,
dtypes and what the distribution's parameters depend on. Whatever it refuses takes the general way.
"""

import logging
from collections.abc import Iterator
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn, optim
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from ..distributions import Categorical, Normal
from ..graphs import is_static
from ..models import DefaultModel
from ..models._defaults import Gaussian, Logits
from ..nn import Head
from ..objectives import A2C, PPO, ActorCritic
from ..policies import GenericPolicyBase, Policy
from ..rollouts import Rollout
from .gradients import MinibatchGradients
from .mlp import ACTIVATIONS
from .rollout import BlockActor

_log = logging.getLogger(__name__)

#: The reason that was logged last, by policy.
_LOGGED: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

#: Methods whose work the fast ways do themselves.
_METHODS: dict[type, tuple[str, ...]] = {
    Policy: (
        *("act", "values", "evaluate", "_respond", "_forward", "_run"),
        *("_distribution", "_all_values", "_normalized", "_normalization"),
    ),
    DefaultModel: ("forward", "value_function", "forget_values"),
    ActorCritic: ("__call__", "total", "_entropy", "_monitors"),
    PPO: ("gain",),
    A2C: ("gain",),
    **dict.fromkeys(
        (Categorical, Normal),
        ("__init__", "logp", "latents_logp", "entropy", "sample", "latents", "actions"),
    ),
    **dict.fromkeys((nn.Linear, Head, nn.Sequential, Logits, Gaussian), ("forward",)),
    **dict.fromkeys(ACTIVATIONS, ("forward",)),
    nn.Module: ("__call__", "_call_impl", "_wrapped_call_impl"),
}

#: These methods as they were when this module was imported: patches of a class show, too.
_ORIGINALS = {cls: {name: getattr(cls, name) for name in names} for cls, names in _METHODS.items()}


def eligible(
    policy: None | GenericPolicyBase[Any] = None,
    objective: Any = None,
    optimizer: None | optim.Optimizer = None,
) -> None | str:
    """None if the fast ways compute what the general way does, else the first reason why not.

    Acting in blocks needs an eligible policy, written-out gradients a policy and an objective, and
    Adam's quick step an optimizer; arguments that are None are not asked.
    """
    reasons: list[Iterator[str]] = []
    if policy is not None:
        reasons.append(_against_policy(policy))
    if policy is not None and objective is not None:
        reasons.append(_against_gradients(policy, objective))
    if optimizer is not None:
        reasons.append(_against_optimizer(optimizer))
    return next(chain(*reasons), None)


def actor(
    policy: GenericPolicyBase[Any], rollout: Rollout, *, deterministic: bool
) -> None | BlockActor:
    """Acts as `policies.Actor` does, in blocks; None if that is not possible, or not on a CPU."""
    if eligible(policy) is not None or rollout.device.type != "cpu" or is_static():
        return None
    return BlockActor(policy, rollout, deterministic=deterministic)


def gradients(
    policy: GenericPolicyBase[Any], objective: Any, previous: None | MinibatchGradients
) -> None | MinibatchGradients:
    """Written-out gradients, with the storage of the last update's; None if not eligible."""
    reason = eligible(policy, objective)
    if reason is None:
        found = previous or MinibatchGradients()
        found.begin(policy, objective)
        return found
    if _LOGGED.get(policy) != reason:
        _log.info("Updates are differentiated by autograd: %s", reason)
        _LOGGED[policy] = reason
    return None


def _against_policy(policy: GenericPolicyBase[Any]) -> Iterator[str]:
    """Reasons why the policy's networks cannot be computed without calling its model."""
    if not isinstance(policy, Policy):
        yield f"the policy is a {type(policy).__name__}, not a feedforward Policy"
        return
    model = policy.model
    if policy.memory.paths:
        yield "the policy sees windows of past observations"
    if policy.critic is not None or policy.value_normalizer is not None:
        yield "a bonus has a critic of its own, or values are normalised"
    if policy.is_autocast:
        yield "`enable_amp` runs the model in half precision"
    if not isinstance(model, DefaultModel):
        yield f"{type(model).__name__} is not a default model"
        return
    if not policy._action.is_plain or policy._action.dtypes[0] is torch.bfloat16:
        yield "actions are a mapping, or in bfloat16"
    if model.encoder is not None or model.has_mask or model.trunk is not None:
        yield "observations are encoded, masked, or go through a shared trunk"
    if type(model.outputs) not in (Logits, Gaussian):
        yield f"{type(model.outputs).__name__} is an output layer of its own"
    for network in (model.policy, model.vf_model):
        yield from _against_network(network)
    yield from _patched(policy, type(policy), Policy)
    yield from _patched(model, type(model), DefaultModel)
    if policy.distribution_cls in _ORIGINALS:
        yield from _patched(None, policy.distribution_cls, policy.distribution_cls)
    if policy.dtype not in (torch.float32, torch.float64):
        yield f"rollouts are in {policy.dtype}"
    yield from _against_modules(model, policy.dtype)


def _against_network(network: nn.Module) -> Iterator[str]:
    """Reasons why a network is not linear layers with known activations between them."""
    kinds: Any = ((nn.Linear, Head), tuple(ACTIVATIONS))
    modules = list(network) if isinstance(network, nn.Sequential) else [network]
    others = [m for i, m in enumerate(modules) if type(m) not in kinds[i % 2]]
    if type(network) is not nn.Sequential or others or len(modules) % 2 == 0:
        names = ", ".join(type(module).__name__ for module in modules)
        yield f"networks are not linear layers with ReLU, tanh or sigmoid between them: {names}"


def _against_modules(model: nn.Module, dtype: torch.dtype) -> Iterator[str]:
    """Reasons why calling a module does more than its `forward` with parameters of that dtype."""
    if torch_module._has_any_global_hook():
        yield "a global module hook is registered"
    for module in model.modules():
        kind = type(module)
        if module._compiled_call_impl is not None:
            yield f"{kind.__name__} is compiled"
        if module._forward_hooks or module._forward_pre_hooks:
            yield f"a forward hook is registered on {kind.__name__}"
        if module._backward_hooks or module._backward_pre_hooks:
            yield f"a backward hook is registered on {kind.__name__}"
        yield from _patched(module, kind, nn.Module)
        for cls in _ORIGINALS.keys() & kind.__mro__[:-2]:  # a Head calls Linear's `forward`
            yield from _patched(module, cls, cls)
        if "weight" in vars(module):
            yield f"the weight of a {kind.__name__} is computed from other tensors"
        for name, p in module._parameters.items():
            if p is None:
                continue
            if type(p) is not nn.Parameter or p.layout is not torch.strided:
                yield f"`{name}` is a {type(p).__name__} of layout {p.layout}"
            if p.dtype is not dtype:
                yield f"`{name}` is in {p.dtype}, rollouts are in {dtype}"
            if p._backward_hooks or p._post_accumulate_grad_hooks:
                yield f"a hook is registered on `{name}`"


def _against_gradients(policy: GenericPolicyBase[Any], objective: Any) -> Iterator[str]:
    """Reasons why the gradients of the loss are not written out."""
    if type(objective) not in (PPO, A2C):
        yield f"{getattr(type(objective), '__name__', objective)} is an objective of its own"
        return
    for cls in (ActorCritic, type(objective)):
        yield from _patched(objective, type(objective), cls)
    kind, outputs = policy.distribution_cls, policy.model.outputs
    if kind is Categorical:
        if outputs.logits[-1] != outputs.width:
            yield "actions are several choices"
    elif kind is not Normal or objective.config.bounds_loss_coeff:
        yield f"the gradients of {kind.__name__}, or of its bounds loss, are not written out"
    elif outputs.log_std is None:
        yield "the standard deviation depends on the observation"


def _against_optimizer(optimizer: optim.Optimizer) -> Iterator[str]:
    """Reasons why an optimizer's steps are not Adam's alone."""
    name = type(optimizer).__name__
    if type(optimizer) not in (optim.Adam, optim.AdamW):
        yield f"only Adam and AdamW have a quick step; got {name}"
        return
    if "step" in vars(optimizer):  # as PyTorch's learning rate schedulers do
        yield f"`{name}.step` is patched"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        yield f"a hook is registered on {name}"
    if torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks:
        yield "a global optimizer hook is registered"
    for group in optimizer.param_groups:
        if not group["fused"] or group["amsgrad"]:
            yield f"{name} is not fused, or uses `amsgrad`"
        if not all(isinstance(beta, float) for beta in group["betas"]):
            yield f"the betas of {name} are tensors"
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if len({(p.device, p.dtype) for p in parameters}) > 1:
        yield "parameters have different dtypes or devices"


def _patched(thing: Any, kind: type, cls: type) -> list[str]:
    """Methods of `cls` that `kind` overrides, or that are patched there or on the object itself."""
    own = getattr(thing, "__dict__", ())
    return [
        f"`{kind.__name__}.{name}` is overridden or patched"
        for name, original in _ORIGINALS[cls].items()
        if getattr(kind, name) is not original or name in own
    ]
