"""Base of bonuses: an intrinsic reward stream, and a loss."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torchrl.data import TensorSpec

from ..core.rollouts import Minibatch, Rollout
from ..env import Env
from ..env.specs import Leaves


@dataclass(frozen=True)
class Stream:
    """One column of rewards, values and advantages."""

    #: Discount.
    gamma: float

    #: Weight of its advantages in the policy's.
    weight: float = 1.0

    #: Whether its returns end where episodes do.
    episodic: bool = True


class Bonus(nn.Module, ABC):
    """Base of bonuses: a reward for the observation after an action, and a loss.

    An algorithm calls, in this order: `build` once; `prepare` before the first rollout; `rewards`
    with every rollout; `losses` with every minibatch; `update` after every update. All parameters
    that require gradients are trained by the algorithm's optimizer, and everything in `state_dict`
    is saved with its state.
    """

    #: Data of each row that `rewards` stores for `losses`, `[T, N, …]`.
    cache: Leaves = ()

    #: Name in statistics, and in files.
    name: str

    #: Values of this stream `[B, 1]` from observations, if the policy's model has none.
    critic: None | nn.Module

    #: Arguments that it was made with, for the record.
    options: Mapping[str, Any] = MappingProxyType({})

    #: Weight of the environment's own advantages in the policy's.
    extrinsic_weight: float = 1.0

    #: Whether its loss is a sum over rows, each by its weight, so that a minibatch may be taken in
    #: chunks.
    sums_rows: bool = False

    #: How its rewards become returns.
    stream: Stream

    def __init__(self) -> None:
        super().__init__()
        self.critic = None

    def as_config(self) -> dict[str, Any]:
        """Description for a file, which makes the same bonus."""
        cls = type(self)
        return {f"{cls.__module__}.{cls.__qualname__}": dict(self.options)}

    @abstractmethod
    def build(self, observation_spec: TensorSpec, num_envs: int, device: torch.device) -> None:
        """Make everything that depends on the environment.

        Raises:
            ConfigError: If such observations are not supported.

        """

    def prepare(self, env: Env) -> bool:
        """Look at the environment before the first rollout; whether it was stepped.

        It is reset after that.
        """
        return False

    @abstractmethod
    def rewards(self, rollout: Rollout) -> torch.Tensor:
        """Rewards of a complete rollout, `[T, N, 1]`; those of invalid rows do not matter."""

    @abstractmethod
    def losses(self, minibatch: Minibatch) -> torch.Tensor:
        """Term of the loss, 0-d: a sum over rows, each by its share `minibatch.weight`.

        A bonus with another loss leaves `sums_rows` False. Otherwise this may be called with a part
        of a minibatch, whose weights sum to that part's share.

        Args:
            minibatch: With `next_obs`, `next_known`, and `cache` under this bonus's name.

        """

    def update(self, rollout: Rollout) -> None:
        """Update statistics with a rollout, after an update."""


class Critics(nn.Module):
    """Values of several bonuses' streams, from observations."""

    def __init__(self, critics: list[nn.Module]) -> None:
        super().__init__()
        self.critics = nn.ModuleList(critics)

    def forward(self, obs: Leaves) -> torch.Tensor:
        """Values `[B, K]`."""
        return torch.cat([critic(obs) for critic in self.critics], -1)
