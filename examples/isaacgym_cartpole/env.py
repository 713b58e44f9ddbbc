"""A cart-pole with the interface of an IsaacGym task, in PyTorch alone."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

import everstep
from everstep.data import Device
from everstep.env import Env


class CartPoleTask:
    """A pole on a cart that is pushed with up to 10 N, with the surface of IsaacGymEnvs' VecTask.

    Like that library's own cart-pole it resets what has ended in the next env step, after the
    physics, and its `reset` resets nothing: observations are zeros until the first env step.

    Each env step is worth 1, less the square of the pole's angle and a hundredth of both speeds.
    An episode fails where the cart is beyond 2.4 m or the pole beyond 0.4 rad, which costs 2; time
    is up one env step before `max_episode_length`.
    """

    max_episode_length = 500
    num_obs, num_states, num_actions = 4, 0, 1
    clip_obs, clip_actions = 10.0, 1.0

    def __init__(self, num_envs: int, device: Device = "cpu") -> None:
        self.num_envs = num_envs
        self.device = self.rl_device = str(device)
        self.obs_space = spaces.Box(-np.inf, np.inf, (self.num_obs,), np.float32)
        self.act_space = spaces.Box(-1.0, 1.0, (self.num_actions,), np.float32)
        #: Position, velocity, angle, angular velocity.
        self.obs_buf = torch.zeros(num_envs, self.num_obs, device=device)
        self.rew_buf = torch.zeros(num_envs, device=device)
        self.reset_buf = torch.ones(num_envs, dtype=torch.long, device=device)
        self.progress_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.state = torch.zeros_like(self.obs_buf)
        self.generator = torch.Generator(device)
        self.extras: dict[str, Any] = {}
        self.obs_dict: dict[str, torch.Tensor] = {}

    def seed(self, seed: int) -> None:
        """A `VecTask` has none, and draws from the process's generators; this one has its own."""
        self.generator.manual_seed(seed)

    def zero_actions(self) -> torch.Tensor:
        return torch.zeros(self.num_envs, self.num_actions, device=self.rl_device)

    def step(
        self, actions: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, dict[str, Any]]:
        self.pre_physics_step(actions.clamp(-self.clip_actions, self.clip_actions))
        self.simulate()
        self.post_physics_step()
        return self.reset(), self.rew_buf, self.reset_buf, self.extras

    def reset(self) -> dict[str, torch.Tensor]:
        self.obs_dict["obs"] = self.obs_buf.clamp(-self.clip_obs, self.clip_obs)
        return self.obs_dict

    def reset_done(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        ids = self.reset_buf.nonzero().flatten()
        self.reset_idx(ids)
        return self.reset(), ids

    def reset_idx(self, env_ids: torch.Tensor) -> None:
        """Anything within 0.1 of standing still; with a mask nothing waits for the device."""
        rows = torch.zeros_like(self.reset_buf, dtype=torch.bool)
        rows[env_ids] = True
        fresh = torch.empty_like(self.state).uniform_(-0.1, 0.1, generator=self.generator)
        torch.where(rows.unsqueeze(-1), fresh, self.state, out=self.state)
        self.progress_buf.masked_fill_(rows, 0)
        self.reset_buf.masked_fill_(rows, 0)

    def pre_physics_step(self, actions: torch.Tensor) -> None:
        self.force = 10.0 * actions.flatten()

    def simulate(self) -> None:
        """50 Hz, semi-implicit; a cart of 1 kg, a pole of 0.1 kg and 1 m, no friction."""
        _, speed, angle, rate = self.state.unbind(-1)
        cosine, sine = angle.cos(), angle.sin()
        thrust = (self.force + 0.05 * rate.square() * sine) / 1.1
        turning = (9.8 * sine - cosine * thrust) / (0.5 * (4 / 3 - 0.1 * cosine.square() / 1.1))
        speed += 0.02 * (thrust - 0.05 * turning * cosine / 1.1)
        rate += 0.02 * turning
        self.state[:, 0::2] += 0.02 * self.state[:, 1::2]

    def post_physics_step(self) -> None:
        self.progress_buf += 1
        self.reset_idx(self.reset_buf != 0)
        self.obs_buf.copy_(self.state)
        place, speed, angle, rate = self.obs_buf.unbind(-1)
        failed = (place.abs() > 2.4) | (angle.abs() > 0.4)
        upright = 1.0 - angle.square() - 0.01 * (speed.abs() + rate.abs())
        self.rew_buf.copy_(torch.where(failed, -2.0, upright))
        time_is_up = self.progress_buf >= self.max_episode_length - 1
        self.reset_buf.copy_(failed | time_is_up)
        self.extras["time_outs"] = time_is_up & (self.reset_buf != 0)


def cartpole(num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu") -> Env:
    """The task, wrapped: what a trainer is given."""
    return everstep.wrap(CartPoleTask(num_envs, device), horizon=horizon)
