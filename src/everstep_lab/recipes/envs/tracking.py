"""A target that is followed, with rewards that depend on more than the action."""

from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded

from everstep.data import DataKeys, Device
from everstep.env import Env


class Tracking(Env):
    """Follow a target that jumps in each env step; nothing ever ends.

    An observation has `target`, uniform in [-1, 1], and `level`. An env step earns `level` less the
    squared distance of the action, clipped to [-1, 1], from half of the target. Levels are
    ±`spread` in turns of environments, for ever: actions do not change them, and their mean is 0.

    Args:
        num_envs: Number of targets; even, so that levels cancel.
        horizon: Vector steps of a rollout.
        device: Where everything is.
        spread: Absolute value of the levels.

    """

    default_num_envs = 128
    default_horizon = 16

    def __init__(
        self,
        num_envs: int,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
        spread: float = 0.0,
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        leaf = {"device": torch.device(device), "dtype": torch.float32}
        self.observation_spec = Composite(
            target=Bounded(-1.0, 1.0, (1,), **leaf), level=Unbounded(1, **leaf)
        )
        self.action_spec = Bounded(-1.0, 1.0, (1,), **leaf)
        signs = 1.0 - 2.0 * (torch.arange(num_envs, device=device) % 2)
        self.level = spread * signs.unsqueeze(-1)
        self.target = torch.zeros(num_envs, 1, device=device)

    def reset(self, *, config: None | dict[str, Any] = None) -> TensorDict:
        """New targets."""
        return self._observe()

    def step(self, action: torch.Tensor) -> TensorDict:
        """The rewards of the actions, and new targets."""
        distance = action.clamp(-1.0, 1.0) - self.target / 2
        rewards = self.level - distance.square()
        return TensorDict(
            {DataKeys.OBS: self._observe(), DataKeys.REWARDS: rewards},
            batch_size=[self.num_envs],
            device=self.device,
        )

    def _observe(self) -> TensorDict:
        self.target = torch.empty_like(self.target).uniform_(-1.0, 1.0)
        parts = {"target": self.target, "level": self.level}
        return TensorDict(parts, batch_size=[self.num_envs], device=self.device)
