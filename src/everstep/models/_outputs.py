"""From what a policy's network gives to the features of an action distribution."""

from abc import abstractmethod
from typing import Any

import torch
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical, TensorSpec, Unbounded

from ..nn import Head
from ..specs import options


class Outputs(nn.Module):
    """Base: outputs `[B, width]` of the policy's network to features of the distribution.

    Args:
        action_spec: Spec of one action.
        width: Outputs that the network has.

    """

    #: What the model was told about them, for its own `config`.
    config: dict[str, Any]

    #: Outputs that the network has.
    width: int

    #: Whether features lie where the outputs do.
    are_views: bool = True

    #: Elements that a mask of the action has; 0 where there can be none.
    maskable: int = 0

    def __init__(self, action_spec: TensorSpec, width: int) -> None:
        super().__init__()
        self.width = width
        self.config: dict[str, Any] = {}
        self.shape = action_spec.shape

    @abstractmethod
    def forward(self, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Features `[B, …]`, of outputs `[B, width]`."""

    def prepare(self, network: nn.Sequential) -> None:
        """Change the network's last layer, once it is initialised."""


class Logits(Outputs):
    """One output an option: `logits` `[B, *shape, n]` of `Categorical`, `[B, *shape]` of `Binary`,
    and of all others `[B, Σ n]`, choice by choice.
    """

    def __init__(self, action_spec: TensorSpec) -> None:
        self.logits: tuple[int, ...]
        counts = options(action_spec)
        if isinstance(action_spec, Binary):
            super().__init__(action_spec, len(counts))
            self.logits = tuple(action_spec.shape)
        else:
            super().__init__(action_spec, sum(counts))
            alike = isinstance(action_spec, Categorical)
            alike = alike and not isinstance(action_spec, MultiCategorical)
            self.logits = (*action_spec.shape, counts[0]) if alike else (self.width,)
        self.maskable = self.width

    def forward(self, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits."""
        return {"logits": outputs.unflatten(-1, self.logits)}


class Gaussian(Outputs):
    """`mean` and `log_std`, `[B, *shape]`.

    The standard deviation is a parameter of its own, independent of the observation; with
    `state_dependent_std` the policy's network gives it.

    Args:
        action_spec: Spec of one action.
        log_std_init: Natural logarithm of the initial standard deviation.
        state_dependent_std: Whether the standard deviation depends on the observation.

    """

    #: Natural logarithm of the standard deviations; None where they depend on the observation.
    log_std: None | nn.Parameter

    def __init__(
        self, action_spec: TensorSpec, log_std_init: float, *, state_dependent_std: bool
    ) -> None:
        super().__init__(action_spec, action_spec.shape.numel())
        log_std_init = float(log_std_init)  # files write 0 and -1
        self.config = {"log_std_init": log_std_init, "state_dependent_std": state_dependent_std}
        if state_dependent_std:
            self.register_parameter("log_std", None)
            self.are_views = False
        else:
            self.log_std = nn.Parameter(torch.full(action_spec.shape, log_std_init))

    def prepare(self, network: nn.Sequential) -> None:
        """Widen the last layer where it gives standard deviations too."""
        if self.log_std is not None:
            return
        head = network[-1]
        assert isinstance(head, nn.Linear)
        wide = Head(head.in_features, 2 * head.out_features)
        nn.init.orthogonal_(wide.weight, 0.01)
        nn.init.zeros_(wide.bias)
        with torch.no_grad():
            wide.weight[: head.out_features] = head.weight
            wide.bias[head.out_features :] = self.config["log_std_init"]
        network[-1] = wide

    def forward(self, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Means and logarithms of the standard deviations."""
        shape = (-1, *self.shape)
        if self.log_std is None:
            mean, log_std = outputs.chunk(2, -1)
            return {"mean": mean.reshape(shape), "log_std": log_std.reshape(shape)}
        mean = outputs.reshape(shape)
        return {"mean": mean, "log_std": self.log_std.expand_as(mean)}


def is_discrete(action_spec: TensorSpec) -> bool:
    """Whether actions are choices among options."""
    return bool(options(action_spec))


def is_continuous(action_spec: TensorSpec) -> bool:
    """Whether actions are numbers."""
    return isinstance(action_spec, Unbounded | Bounded) and action_spec.dtype.is_floating_point
