"""A pendulum is swung up and held, by a torque that cannot lift it at once."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Unbounded

from everstep.data import DataKeys, Device
from everstep.env import Env


@dataclass(frozen=True)
class PendulumConfig:
    """Options of a reset, in SI units."""

    mass: float = 1.0
    length: float = 1.0
    gravity: float = 10.0
    max_torque: float = 2.0
    max_speed: float = 8.0
    time_step: float = 0.05


class Pendulum(Env):
    """Apply a torque; beyond `max_torque` more of it changes nothing.

    Observations are cosine and sine of the angle (0: upright) and the angular velocity. An env step
    costs angle² + 0.1·velocity² + 0.001·torque², all before the step, with the angle in [−π, π).
    """

    max_horizon = 512

    #: Angle and angular velocity, `[num_envs, 2]`.
    state: torch.Tensor

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(3, device=device, dtype=torch.float32)
        self.action_spec = Unbounded(1, device=device, dtype=torch.float32)
        self.config = PendulumConfig()
        self.state = torch.zeros(num_envs, 2, device=device)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """Any angle, slowly turning; `config` holds fields of `PendulumConfig`."""
        self.config = PendulumConfig(**(config or {}))
        self.state[:, 0].uniform_(-math.pi, math.pi)
        self.state[:, 1].uniform_(-1.0, 1.0)
        return self._observe()

    def step(self, action: torch.Tensor) -> TensorDict:
        """Turn for one time step."""
        config = self.config
        angle, rate = self.state.unbind(-1)  # views
        torque = action.flatten().clamp(-config.max_torque, config.max_torque)
        wrapped = (angle + math.pi).remainder(2 * math.pi) - math.pi
        costs = wrapped.square() + 0.1 * rate.square() + 0.001 * torque.square()
        falling = 1.5 * config.gravity / config.length * angle.sin()
        turning = 3 / (config.mass * config.length**2) * torque  # a rod: its inertia is m·l²/3
        rate += config.time_step * (falling + turning)
        rate.clamp_(-config.max_speed, config.max_speed)
        angle += config.time_step * rate
        return TensorDict(
            {DataKeys.OBS: self._observe(), DataKeys.REWARDS: -costs.unsqueeze(-1)},
            batch_size=[self.num_envs],
            device=self.device,
        )

    def _observe(self) -> torch.Tensor:
        angle, rate = self.state.unbind(-1)
        return torch.stack([angle.cos(), angle.sin(), rate], -1)
