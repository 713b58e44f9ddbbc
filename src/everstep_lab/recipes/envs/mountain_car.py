"""A car that is too weak for its hill swings up to the goal, and stays there."""

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

from everstep.data import DataKeys, Device
from everstep.env import Env


@dataclass(frozen=True)
class MountainCarConfig:
    """Options of a reset. Lengths are the track's, times are env steps."""

    force: float = 0.001
    gravity: float = 0.0025
    max_speed: float = 0.07
    min_position: float = -1.2
    max_position: float = 0.6
    goal_position: float = 0.5

    goal_velocity: float = 0.0
    """The least velocity that counts as being at the goal."""


class MountainCar(Env):
    """Accelerate to the left (action 0), not at all (1) or to the right (2).

    Observations are position and velocity. The reward is the negative distance to the goal; 1 at
    the goal and beyond it, unless the car rolls back.
    """

    max_horizon = 512

    #: Position and velocity, `[num_envs, 2]`.
    state: torch.Tensor

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(2, device=device, dtype=torch.float32)
        self.action_spec = Categorical(3, shape=torch.Size([1]), device=device)
        self.config = MountainCarConfig()
        self.state = torch.zeros(num_envs, 2, device=device)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """Near the bottom of the valley; `config` holds fields of `MountainCarConfig`."""
        self.config = MountainCarConfig(**(config or {}))
        self.state.normal_(0, 0.05)
        self.state[:, 0] -= 0.5
        return self.state

    def step(self, action: torch.Tensor) -> TensorDict:
        """Accelerate for one env step."""
        config = self.config
        position, velocity = self.state.unbind(-1)  # views
        velocity += config.force * (action.flatten() - 1) - config.gravity * (3 * position).cos()
        velocity.clamp_(-config.max_speed, config.max_speed)
        position += velocity
        position.clamp_(config.min_position, config.max_position)
        at_wall = (position <= config.min_position) & (velocity < 0)
        velocity.masked_fill_(at_wall, 0.0)
        return TensorDict(
            {DataKeys.OBS: self.state, DataKeys.REWARDS: self._rewards(position, velocity)},
            batch_size=[self.num_envs],
            device=self.device,
        )

    def _rewards(self, position: torch.Tensor, velocity: torch.Tensor) -> torch.Tensor:
        goal = self.config.goal_position
        arrived = (position >= goal) & (velocity >= self.config.goal_velocity)
        return torch.where(arrived, 1.0, -(position - goal).abs()).unsqueeze(-1)
