"""A pole is kept upright on a cart that is kept at the origin; nothing ever ends."""

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

from everstep.data import DataKeys, Device
from everstep.env import Env


@dataclass(frozen=True)
class CartPoleConfig:
    """Options of a reset, in SI units."""

    cart_mass: float = 1.0
    pole_mass: float = 0.1

    length: float = 0.5
    """Half of the pole's length: from the joint to its centre of mass."""

    gravity: float = 9.8

    force: float = 5.0
    """Force of a push."""

    time_step: float = 0.02

    semi_implicit: bool = False
    """Whether positions move by the new velocities instead of the old ones."""


class CartPole(Env):
    """Push the cart to the left (action 0), not at all (1) or to the right (2).

    Observations are the cart's position and velocity, cosine and sine of the pole's angle, and its
    angular velocity. Each env step costs the distance of all five from the pole standing still at
    the origin, added up.
    """

    max_horizon = 128

    #: Position, velocity, angle and angular velocity, `[num_envs, 4]`.
    state: torch.Tensor

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(5, device=device, dtype=torch.float32)
        self.action_spec = Categorical(3, shape=torch.Size([1]), device=device)
        self.config = CartPoleConfig()
        self.state = torch.zeros(num_envs, 4, device=device)
        self.upright = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0], device=device)  # and still

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """Almost upright and almost still; `config` holds fields of `CartPoleConfig`."""
        self.config = CartPoleConfig(**(config or {}))
        self.state.normal_(0, 0.01)
        return self._observe()

    def step(self, action: torch.Tensor) -> TensorDict:
        """Push for one time step."""
        push = self.config.force * (action.flatten() - 1)
        rates = self.state[:, 1::2]  # views: of the velocities, and of what they move
        places = self.state[:, 0::2]
        accelerations = self._accelerations(push)
        if self.config.semi_implicit:
            rates += self.config.time_step * accelerations
            places += self.config.time_step * rates
        else:
            places += self.config.time_step * rates
            rates += self.config.time_step * accelerations
        obs = self._observe()
        distance = (obs - self.upright).abs().sum(-1, keepdim=True)
        return TensorDict(
            {DataKeys.OBS: obs, DataKeys.REWARDS: -distance},
            batch_size=[self.num_envs],
            device=self.device,
        )

    def _accelerations(self, push: torch.Tensor) -> torch.Tensor:
        """Of the cart and of the pole's angle, `[num_envs, 2]`, without friction.

        Source: R. V. Florian, "Correct equations for the dynamics of the cart-pole system", 2007,
        eq. 23 and 24.
        """
        config = self.config
        _, _, angle, rate = self.state.unbind(-1)
        cosine, sine = angle.cos(), angle.sin()
        mass = config.cart_mass + config.pole_mass
        moment = config.pole_mass * config.length
        thrust = (push + moment * rate.square() * sine) / mass
        inertia = config.length * (4 / 3 - config.pole_mass * cosine.square() / mass)
        turning = (config.gravity * sine - cosine * thrust) / inertia
        return torch.stack([thrust - moment * turning * cosine / mass, turning], -1)

    def _observe(self) -> torch.Tensor:
        position, velocity, angle, rate = self.state.unbind(-1)
        return torch.stack([position, velocity, angle.cos(), angle.sin(), rate], -1)
