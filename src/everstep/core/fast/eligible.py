"""The one decision whether the native way computes what the general way would.

It asks for behaviour: not only for types, but for methods that were overridden or patched, hooks,
dtypes and what the distribution's parameters depend on. Whatever it refuses takes the general way.
"""

import functools
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn, optim
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from ...distributions import Categorical, MultiCategorical, Normal, SquashedNormal
from ...models import DefaultModel, RecurrentModel
from ...models._default_recurrent import DefaultRecurrentModel
from ...models._defaults import Gaussian, Logits
from ...models._encoders import Flatten, ObservationEncoder, OneHot
from ...nn import Head
from ...objectives import A2C, PPO, ActorCritic
from ...policies import GenericPolicyBase, Policy, RecurrentPolicy
from ..graphs import is_compiled, is_static
from ..normalizers import ValueNormalizer
from ..rollouts import Rollout
from .acting import NativeActor
from .learning import Learner
from .library import unavailable
from .model import ACTIVATIONS, activation_of, kind_of
from .recurrent import LAYERS, Recurrence, against_layer

_log = logging.getLogger(__name__)

#: The reason that was logged last, by policy.
_LOGGED: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

#: Widest layer, widest observation and most layers: beyond, the libraries of PyTorch are faster.
MAX_WIDTH, MAX_INPUTS, MAX_LAYERS = 1024, 4096, 32

#: Encoders of leaves that have no weights.
_ENCODERS = {Flatten, OneHot}

#: Methods whose work the native way does itself.
_METHODS: dict[type, tuple[str, ...]] = {
    Policy: (
        *("act", "values", "evaluate", "_respond", "_forward", "_run"),
        *("_distribution", "_all_values", "_normalization", "in_deviations"),
    ),
    DefaultModel: ("forward", "value_function", "forget_values"),
    DefaultRecurrentModel: ("forward", "init_states", "_run", "_encode"),
    ActorCritic: ("__call__", "gain_of", "total", "_entropy", "_monitors"),
    PPO: ("gain",),
    A2C: ("gain",),
    **dict.fromkeys(
        (Categorical, MultiCategorical, Normal, SquashedNormal),
        ("__init__", "logp", "latents_logp", "entropy", "sample", "latents", "actions"),
    ),
    **dict.fromkeys((nn.Linear, Head, nn.Sequential, Logits, Gaussian), ("forward",)),
    **dict.fromkeys(ACTIVATIONS, ("forward",)),
    **dict.fromkeys((ObservationEncoder, Flatten, OneHot), ("forward",)),
    nn.Module: ("__call__", "_call_impl", "_wrapped_call_impl"),
}

#: These methods as they were when this module was imported: patches of a class show, too.
_ORIGINALS = {cls: {name: getattr(cls, name) for name in names} for cls, names in _METHODS.items()}


#: The same for a quick look at all methods of a class.
_QUICK = {cls: (attrgetter(*each), tuple(each.values())) for cls, each in _ORIGINALS.items()}

#: Names of methods that an object must not have as attributes of its own.
_NAMES = frozenset(name for names in _METHODS.values() for name in names)


def eligible(
    policy: None | GenericPolicyBase[Any] = None,
    objective: Any = None,
    optimizer: None | optim.Optimizer = None,
) -> None | str:
    """None if the native way computes what the general way does, else the first reason why not.

    Acting needs an eligible policy, gradients a policy and an objective, and Adam's quick step an
    optimizer; arguments that are None are not asked.
    """
    reasons: list[Iterator[str]] = []
    if policy is not None:
        if (reason := unavailable()) is not None:
            return reason
        reasons.append(_against_policy(policy))
    if policy is not None and objective is not None:
        reasons.append(_against_gradients(policy, objective))
    if optimizer is not None:
        reasons.append(_against_optimizer(optimizer))
    return next(chain(*reasons), None)


def actor(
    policy: GenericPolicyBase[Any],
    rollout: Rollout,
    previous: None | NativeActor = None,
    *,
    deterministic: bool,
) -> None | NativeActor:
    """Acts as `policies.Actor` does, natively, with the storage of the last rollout's.

    None if that is not possible, or not on a CPU.
    """
    if rollout.device.type != "cpu" or is_static() or eligible(policy) is not None:
        return None
    found = previous or NativeActor()
    found.begin(policy, rollout, deterministic=deterministic)
    return found


def learner(
    policy: GenericPolicyBase[Any], objective: Any, previous: None | Learner
) -> None | Learner:
    """Native gradients, with the storage of the last update's; None if not eligible."""
    if policy.device.type != "cpu" or is_static():  # which costs nothing to ask
        return None
    reason = eligible(policy, objective)
    if reason is None:
        found = previous or Learner()
        found.begin(policy, objective)
        return found
    if _LOGGED.get(policy) != reason:
        _log.info("Updates are differentiated by autograd: %s", reason)
        _LOGGED[policy] = reason
    return None


def recurrence(policy: GenericPolicyBase[Any]) -> AbstractContextManager[Any]:
    """In this context LSTMs and GRUs of a recurrent policy compute natively, where they can.

    Reasons are those that `eligible` gives for a recurrent policy.
    """
    if not isinstance(policy, RecurrentPolicy) or policy.device.type != "cpu" or is_static():
        return nullcontext()
    if unavailable() is not None or next(_against_layers(policy), None) is not None:
        return nullcontext()
    return Recurrence(policy, _layers_of(policy), resets=_is_default(policy.model)).running()


def _layers_of(policy: GenericPolicyBase[Any]) -> list[Any]:
    return [module for module in policy.model.modules() if type(module) in LAYERS]


def _is_default(model: RecurrentModel) -> bool:
    """Whether a recurrent model's states are those of its LSTMs, and zeros where episodes start."""
    is_known = isinstance(model, DefaultRecurrentModel)
    return is_known and not _patched(model, type(model), DefaultRecurrentModel)


def _against_layers(policy: GenericPolicyBase[Any]) -> Iterator[str]:
    """Reasons why no LSTM and GRU of a recurrent policy is computed natively."""
    layers = _layers_of(policy)
    if not layers:
        yield f"{type(policy.model).__name__} has no nn.LSTM and no nn.GRU"
    if policy.is_autocast:
        yield "`enable_amp` runs the model in half precision"
    if is_compiled(policy.model):
        yield "a part of the model is compiled"
    for layer in layers:
        yield from against_layer(layer)


def _against_policy(policy: GenericPolicyBase[Any]) -> Iterator[str]:
    """Reasons why the policy's networks cannot be computed without calling its model."""
    if isinstance(policy, RecurrentPolicy):
        reason = next(_against_layers(policy), None)
        yield (
            "of a recurrent policy LSTMs and GRUs alone are native"
            if reason is None
            else f"nothing of the recurrent policy is native: {reason}"
        )
        return
    if not isinstance(policy, Policy):
        yield f"the policy is a {type(policy).__name__}, not a feedforward Policy"
        return
    model = policy.model
    if policy.memory.paths:
        yield "the policy sees windows of past observations"
    if policy.critic is not None:
        yield "a bonus has a critic of its own"
    if type(policy.value_normalizer) not in (type(None), ValueNormalizer):
        yield f"values are normalised by a {type(policy.value_normalizer).__name__}"
    if policy.is_autocast:
        yield "`enable_amp` runs the model in half precision"
    if not isinstance(model, DefaultModel):
        yield f"{type(model).__name__} is not a default model"
        return
    if not policy._action.is_plain or policy._action.dtypes[0] is torch.bfloat16:
        yield "actions are a mapping, or in bfloat16"
    if type(model.outputs) not in (Logits, Gaussian):
        yield f"{type(model.outputs).__name__} is an output layer of its own"
    called, layers = [model, model.outputs], []
    for encoder in (model.encoder, model.critic_encoder):
        if encoder is not None:
            each = [*encoder.encoders]
            if type(encoder) is not ObservationEncoder or not {*map(type, each)} <= _ENCODERS:
                names = ", ".join(type(module).__name__ for module in each)
                yield f"observations are not numbers and one-hot choices alone: {names}"
            called += [encoder, *each]
    for network, is_trunk in ((model.trunk, True), (model.policy, False), (model.vf_model, False)):
        if network is None:
            continue
        modules = [*network] if type(network) is nn.Sequential else []
        yield from _against_network(network, modules, is_trunk=is_trunk)
        called += [network, *modules]
        layers += modules[::2]
    widest = max(x.out_features for x in layers)
    inputs = max(x.in_features for x in layers)
    if widest > MAX_WIDTH or len(layers) > MAX_LAYERS or inputs > MAX_INPUTS:
        yield f"networks are large: {len(layers)} layers of up to {widest} units, {inputs} inputs"
    yield from _patched(policy, type(policy), Policy)
    yield from _patched(model, type(model), DefaultModel)
    if policy.distribution_cls in _ORIGINALS:
        yield from _patched(None, policy.distribution_cls, policy.distribution_cls)
    if policy.dtype not in (torch.float32, torch.float64):
        yield f"rollouts are in {policy.dtype}"
    yield from _against_modules(called, policy.dtype)


def _against_network(
    network: nn.Module, modules: list[nn.Module], *, is_trunk: bool
) -> Iterator[str]:
    """Reasons why a network is not linear layers with known activations between them.

    A trunk ends with an activation, a head with a linear layer.
    """
    linear, between = modules[::2], modules[1::2]
    others = not all(type(module) in (nn.Linear, Head) for module in linear)
    others |= any(activation_of(module) is None for module in between)
    if type(network) is not nn.Sequential or others or len(modules) % 2 == is_trunk:
        names = ", ".join(type(module).__name__ for module in modules or [network])
        known = ", ".join(kind.__name__ for kind in ACTIVATIONS)
        yield (
            f"networks are not linear layers with {known} of default options between them: {names}"
        )


def _against_modules(modules: list[Any], dtype: torch.dtype) -> Iterator[str]:
    """Reasons why calling a module does more than its `forward` with parameters of that dtype.

    This is asked for in every rollout and update, so it looks at attributes and little else.
    """
    if torch_module._has_any_global_hook():
        yield "a global module hook is registered"
    if torch._C._is_any_autocast_enabled():
        yield "autocast is enabled where training is called"
    kinds: set[Any] = {type(module) for module in modules}
    for kind in kinds:
        for cls in _bases(kind):  # a Head calls Linear's `forward`
            yield from _patched(None, kind if cls is nn.Module else cls, cls)
    for module in modules:
        own, name = vars(module), type(module).__name__
        if own.get("_compiled_call_impl") is not None:
            yield f"{name} is compiled"
        if own["_forward_hooks"] or own["_forward_pre_hooks"]:
            yield f"a forward hook is registered on {name}"
        if own["_backward_hooks"] or own["_backward_pre_hooks"]:
            yield f"a backward hook is registered on {name}"
        if not _NAMES.isdisjoint(own):
            yield f"`{name}.{min(_NAMES & own.keys())}` is overridden or patched"
        if "weight" in own:
            yield f"the weight of a {name} is computed from other tensors"
        for key, p in own["_parameters"].items():
            if p is None:
                continue
            if type(p) is not nn.Parameter or p.layout is not torch.strided:
                yield f"`{key}` is a {type(p).__name__} of layout {p.layout}"
            if p.dtype is not dtype:
                yield f"`{key}` is in {p.dtype}, rollouts are in {dtype}"
            if not p.is_contiguous():
                yield f"`{key}` is not contiguous"
            if p._backward_hooks or p._post_accumulate_grad_hooks:
                yield f"a hook is registered on `{key}`"


@functools.cache
def _bases(kind: type) -> tuple[type, ...]:
    """Classes of `_ORIGINALS` that a module's class is made of."""
    return tuple(cls for cls in kind.__mro__ if cls in _ORIGINALS)


def _against_gradients(policy: GenericPolicyBase[Any], objective: Any) -> Iterator[str]:
    """Reasons why the gradients of the loss are not written out."""
    if type(objective) not in (PPO, A2C):
        yield f"{getattr(type(objective), '__name__', objective)} is an objective of its own"
        return
    for cls in (ActorCritic, type(objective)):
        yield from _patched(objective, type(objective), cls)
    if kind_of(policy) is None:
        yield f"the gradients of {policy.distribution_cls.__name__} are not written out"


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
    get, originals = _QUICK[cls]
    if get(kind) == (originals if len(originals) > 1 else originals[0]) and _NAMES.isdisjoint(own):
        return []  # nearly always: asked for in every rollout and update
    return [
        f"`{kind.__name__}.{name}` is overridden or patched"
        for name, original in _ORIGINALS[cls].items()
        if getattr(kind, name) is not original or name in own
    ]
