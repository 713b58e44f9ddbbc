"""Outputs of default models: base class, and the noise of state-dependent exploration."""

from abc import abstractmethod
from typing import Any

import torch
from torch import nn
from torchrl.data import TensorSpec

from ..nn import Head

#: Added to variances of state-dependent noise, as in stable-baselines3.
EPSILON = 1e-6


class Outputs(nn.Module):
    """Base: outputs `[B, width]` of the policy's network to features of the distribution.

    Args:
        action_spec: Spec of one action.
        width: Outputs that the network has.

    """

    #: Options that the model reports in its own `config`.
    config: dict[str, Any]

    #: Outputs that the network has.
    width: int

    #: Whether features are views of the outputs.
    are_views: bool = True

    #: Elements of an action mask; 0 if actions cannot be masked.
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
        """Change the network's last layer after its initialisation."""


class StateDependentNoise(Outputs):
    """`mean` and `log_std`, `[B, *shape]`, of generalised state-dependent exploration (gSDE).

    Noise is a linear function ε = h·E of the last hidden layer's outputs h, which are not
    differentiated. The weights E, one matrix for each environment, are drawn from N(0, σ²) at the
    beginning of a rollout and every `sde_sample_freq` env steps, so that an action changes smoothly
    with the state. Given the state alone an action is distributed as N(μ, h²·σ²), which is what
    log-probabilities and entropies are of; outside of rollouts actions are sampled from it.

    Source: arXiv 2005.05719.

    Args:
        action_spec: Spec of one action.
        log_std_init: Natural logarithm of the initial σ.
        sde_sample_freq: Env steps between draws of E; negative: at the beginning of rollouts only.
        full_std: Whether σ has an element for each action, or one for all of them.

    """

    def __init__(
        self, action_spec: TensorSpec, log_std_init: float, *, sde_sample_freq: int, full_std: bool
    ) -> None:
        super().__init__(action_spec, action_spec.shape.numel())
        if type(sde_sample_freq) is not int or sde_sample_freq == 0:
            raise ValueError(
                "`sde_sample_freq` expected int > 0, or -1 for once a rollout; got "
                f"{sde_sample_freq!r}"
            )
        self.config = {
            "log_std_init": float(log_std_init),
            "use_sde": True,
            "sde_sample_freq": sde_sample_freq,
            "full_std": full_std,
        }
        self.are_views = False

    def prepare(self, network: nn.Sequential) -> None:
        """Replace the last layer by one that gives variances and noise, too."""
        head = network[-1]
        assert isinstance(head, Head)
        noisy = NoisyHead(head, self.config["log_std_init"], full_std=self.config["full_std"])
        network[-1] = noisy

    def forward(self, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Means, logarithms of the standard deviations, and in rollouts the noise."""
        parts = [x.reshape(-1, *self.shape) for x in outputs.split(self.width, -1)]
        mean, variance, *noise = parts
        features = {"mean": mean, "log_std": (variance + EPSILON).log() / 2}
        return {**features, "noise": noise[0]} if noise else features


class NoisyHead(Head):
    """A linear layer of means, with variances and noise that are linear in the same inputs.

    Args:
        head: The layer of means.
        log_std_init: Initial value of `log_std`.
        full_std: Whether σ has a column for each output, or one for all.

    """

    #: Natural logarithms of the standard deviations of exploration weights, `[D, W]` or `[D, 1]`.
    log_std: nn.Parameter

    #: Exploration weights of each environment `[N, D, W]`; None outside of rollouts.
    exploration: None | torch.Tensor = None

    def __init__(self, head: nn.Linear, log_std_init: float, *, full_std: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = head.in_features, head.out_features
        self.weight, self.bias = head.weight, head.bias
        columns = head.out_features if full_std else 1
        self.log_std = nn.Parameter(torch.full((head.in_features, columns), log_std_init))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Means, variances and noise `[B, 3·W]`; without the last where there is none."""
        mean = super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            inputs = x.detach().to(self.weight.dtype)
            variance = inputs.square() @ (2 * self.log_std).exp().expand_as(self.weight.t())
            parts = [mean, variance]
            if self.exploration is not None and len(self.exploration) == len(inputs):
                parts.append(torch.bmm(inputs.unsqueeze(1), self.exploration).squeeze(1))
        return torch.cat(parts, -1)

    @torch.no_grad()
    def draw(self, num_envs: int) -> None:
        """Draw the exploration weights of so many environments."""
        shape = (num_envs, *self.weight.t().shape)
        noise = torch.randn(shape, dtype=self.weight.dtype, device=self.weight.device)
        self.exploration = noise * self.log_std.exp()


class Exploration:
    """The exploration weights of a model in a rollout.

    Args:
        head: Layer that has them.
        every: Env steps between draws; negative: at the beginning of rollouts only.

    """

    def __init__(self, head: NoisyHead, every: int) -> None:
        self.head, self.every = head, every

    def begin_step(self, t: int, num_envs: int) -> None:
        """Draw new weights for as many environments if that is due in vector step `t`."""
        if t == 0 or (self.every > 0 and t % self.every == 0):
            self.head.draw(num_envs)

    def end(self) -> None:
        """Forget the weights."""
        self.head.exploration = None
