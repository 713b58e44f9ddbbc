"""Base class of action distributions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from tensordict import TensorDict
from torchrl.data import TensorSpec

_FeatureSpec = TypeVar("_FeatureSpec", bound=TensorSpec)
_TorchDistribution = TypeVar("_TorchDistribution", bound=torch.distributions.Distribution)
_ActionSpec = TypeVar("_ActionSpec", bound=TensorSpec)
_Fact = TypeVar("_Fact")

#: Cached properties of each model's action spec, by function and arguments.
_FACTS: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


class Distribution(ABC):
    """A distribution over actions.

    Args:
        features: Outputs of the model, batch `[B]`.
        model: The model, for its specs and parameters.

    """

    #: Outputs of the model, batch `[B]`.
    features: Mapping[str, torch.Tensor] | TensorDict

    #: The model that returned them.
    model: Any

    def __init__(self, features: Mapping[str, torch.Tensor] | TensorDict, model: Any, /) -> None:
        self.features = features
        self.model = model

    def __repr__(self) -> str:
        shapes = (f"{name} {list(x.shape)}" for name, x in self.features.items())
        return f"{type(self).__name__}({', '.join(shapes)})"

    #: Default distribution for an action spec; a TypeError if there is none.
    default_dist_cls: ClassVar[Callable[[TensorSpec], type["Distribution"]]]

    @abstractmethod
    def deterministic_sample(self) -> torch.Tensor | TensorDict:
        """The mode, `[B, …]`."""

    @abstractmethod
    def entropy(self) -> torch.Tensor:
        """Entropy in nats, `[B, 1]`."""

    @abstractmethod
    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of actions `[B, …]`, `[B, 1]`."""

    @abstractmethod
    def sample(self) -> torch.Tensor | TensorDict:
        """Random actions `[B, …]`."""

    def latents(self, *, deterministic: bool) -> torch.Tensor | TensorDict:
        """Actions `[B, …]` in the form that is stored and learned from."""
        return self.deterministic_sample() if deterministic else self.sample()

    def actions(self, latents: torch.Tensor | TensorDict) -> torch.Tensor | TensorDict:
        """Actions `[B, …]` in the form that the environment executes."""
        return latents

    def kl_divergence(self, other: Any) -> torch.Tensor:
        """KL divergence from this distribution to another of its class, KL(self ‖ other), `[B, 1]`.

        Raises:
            NotImplementedError: If the class has no closed form.

        """
        raise NotImplementedError(f"{type(self).__name__} has no closed form of KL divergences.")

    def latents_logp(self, latents: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of the actions of `latents`, `[B, 1]`."""
        return self.logp(latents)


class TorchDistributionWrapper(
    Distribution, Generic[_FeatureSpec, _TorchDistribution, _ActionSpec]
):
    """Wrapper of a `torch.distributions` distribution over the elements of the last dimension.

    A subclass sets `dist` in its constructor.
    """

    #: The distribution.
    dist: _TorchDistribution

    def deterministic_sample(self) -> torch.Tensor:
        """The mode, `[B, …]`."""
        return self.dist.mode

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, summed over the last dimension, `[B, 1]`."""
        return self.dist.entropy().sum(-1, keepdim=True)

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of actions `[B, …]`, summed over the last dimension, `[B, 1]`."""
        return self.dist.log_prob(samples).sum(-1, keepdim=True)

    def sample(self) -> torch.Tensor:
        """Random actions `[B, …]`."""
        return self.dist.sample()


def cached(model: Any, find_out: Callable[..., _Fact], *arguments: Any) -> _Fact:
    """The result of `find_out(model.action_spec, *arguments)`, cached for each model.

    Distributions are made in every vector step, and copying the bounds of a spec to an accelerator
    would synchronise each time.
    """
    facts = _FACTS.setdefault(model, {})
    key = (find_out, *arguments)
    if key in facts:
        return cast(_Fact, facts[key])
    fact = find_out(model.action_spec, *arguments)
    if not torch.compiler.is_compiling():  # tensors of a trace are invalid outside of it
        facts[key] = fact
    return fact


def share_facts(copy: Any, model: Any) -> None:
    """Let a copy of a model share the model's entries of `cached`."""
    _FACTS[copy] = _FACTS.setdefault(model, {})


def action_dtype(model: Any, default: torch.dtype) -> torch.dtype:
    """Dtype of the actions of `model`, or the default if the model has no action spec."""
    return cast(torch.dtype, getattr(getattr(model, "action_spec", None), "dtype", default))


def as_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` in that dtype."""
    return x if x.dtype == dtype else x.to(dtype)  # a `to` without effect costs 1 µs


def sum_rows(x: torch.Tensor) -> torch.Tensor:
    """Sums `[B, 1]` over all but the first dimension."""
    return x.flatten(1).sum(-1, keepdim=True) if x.ndim > 1 else x.unsqueeze(-1)


def smallest_gradient(dtype: torch.dtype) -> float:
    """Magnitude below which gradients count as 0.

    Products of smaller ones are subnormal numbers, which processors multiply many times slower: an
    update of a nearly deterministic policy took more than twice as long.
    """
    limits = torch.finfo(dtype)
    return limits.tiny / limits.eps**2


def without_subnormal_gradients(logits: torch.Tensor) -> torch.Tensor:
    """The same logits, with gradients below `smallest_gradient` set to 0.

    On a CPU only: GPUs are as fast with subnormal numbers. In float16 all gradients would vanish.
    """
    if (
        not torch.compiler.is_compiling()  # hooks are not traced
        and logits.is_cpu
        and logits.dtype is not torch.float16
        and logits.grad_fn is not None
    ):
        logits.register_hook(_flush)
    return logits


def _flush(gradient: None | torch.Tensor) -> None | torch.Tensor:
    if gradient is None:  # another output of the operation that made the logits is differentiated
        return None
    return gradient.masked_fill(gradient.abs() < smallest_gradient(gradient.dtype), 0.0)
