"""Environments in PyTorch alone, for each library to wrap: the same code on every side."""

from typing import Any

import torch


class Pole:
    """A pole on a cart, without an end: pushed to the left (0), not at all (1), to the right (2).

    Observations are position, velocity, cosine and sine of the pole's angle, angular velocity. An
    env step costs the distance of these from standing still at the origin. The equations are those
    of R. V. Florian, "Correct equations for the dynamics of the cart-pole system", 2007, without
    friction.
    """

    obs_size = 5
    num_actions = 3

    #: Gravity, masses of both and of the pole, half of its length, a push, and the time step, SI.
    gravity, mass, pole_mass, length, force, time_step = 9.8, 1.1, 0.1, 0.5, 5.0, 0.02

    def __init__(self, num_envs: int, device: Any) -> None:
        self.state = torch.zeros(4, num_envs, device=device)
        self.upright = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0], device=device)

    def reset(self) -> torch.Tensor:
        """Observations `[N, 5]` of poles that are almost upright and almost still."""
        self.state.normal_(0, 0.01)
        return self._observe()

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Observations `[N, 5]` and rewards `[N]` after actions `[N]`."""
        _, velocity, angle, rate = self.state
        sine, cosine = angle.sin(), angle.cos()
        moment = self.pole_mass * self.length
        thrust = (self.force * (actions - 1) + moment * rate.square() * sine) / self.mass
        inertia = self.length * (4 / 3 - self.pole_mass * cosine.square() / self.mass)
        turning = (self.gravity * sine - cosine * thrust) / inertia
        pushing = thrust - moment * turning * cosine / self.mass
        self.state += self.time_step * torch.stack([velocity, pushing, rate, turning])
        obs = self._observe()
        return obs, -(obs - self.upright).abs().sum(-1)

    def _observe(self) -> torch.Tensor:
        position, velocity, angle, rate = self.state
        return torch.stack([position, velocity, angle.cos(), angle.sin(), rate], -1)


class Drift:
    """60 numbers that 8 actions push towards 0; the clock ends an episode after 250 env steps.

    The shape of a robot's task, for almost nothing. Environments start at random points of their
    first episode. A new episode opens in the env step that ends one; final observations are lost.
    """

    obs_size = 60
    action_size = 8
    max_episode_steps = 250

    def __init__(self, num_envs: int, device: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self.levers = torch.randn(8, 60, generator=generator).to(device) / 8
        self.state = torch.zeros(num_envs, 60, device=device)
        self.clock = torch.zeros(num_envs, dtype=torch.long, device=device)
        self._reward_sum = torch.zeros((), device=device)
        self._env_steps = torch.zeros((), device=device)

    def reset(self) -> torch.Tensor:
        """Observations `[N, 60]`."""
        self.clock.random_(self.max_episode_steps)
        return self.state.normal_().clone()

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Observations `[N, 60]`, rewards `[N]` and ends `[N]` after actions `[N, 8]`."""
        self.state.mul_(0.99).addmm_(actions.clamp(-1, 1), self.levers, alpha=0.2)
        rewards = -self.state.square().mean(-1)
        self._reward_sum += rewards.mean()
        self._env_steps += 1
        self.clock += 1
        done = self.clock >= self.max_episode_steps
        self.state.copy_(torch.where(done.unsqueeze(-1), torch.randn_like(self.state), self.state))
        self.clock.masked_fill_(done, 0)
        return self.state.clone(), rewards, done  # libraries keep what they acted on

    def take_mean_reward(self) -> float:
        """Mean reward of an env step since the last call."""
        mean = float(self._reward_sum / self._env_steps)
        self._reward_sum.zero_()
        self._env_steps.zero_()
        return mean
