"""CartPole-v1 and Pendulum-v1 in PyTorch, as a native environment and as an IsaacGym-style task.

Dynamics, rewards and limits are those of Gymnasium's environments of these names.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, TensorSpec, Unbounded

from everstep.data import DataKeys, Device
from everstep.env import Env


class Dynamics(Protocol):
    """Many copies of one system; `state` is `[num_envs, S]`."""

    state: torch.Tensor

    #: Env steps of an episode, at most.
    limit: int

    def start(self, rows: torch.Tensor) -> None:
        """Draw new states for the rows `[num_envs, 1]` that are True."""
        ...

    def advance(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Move by one time step. Rewards and failures, `[num_envs]` each."""
        ...

    def observe(self) -> torch.Tensor:
        """Observations `[num_envs, …]`, a new tensor."""
        ...


class CartPoleDynamics:
    """A pole on a cart: 1 for every env step; it fails beyond 12° or 2.4 m."""

    limit = 500

    def __init__(self, num_envs: int, device: Device = "cpu") -> None:
        self.state = torch.zeros(num_envs, 4, device=device)

    def start(self, rows: torch.Tensor) -> None:
        """Anything between −0.05 and 0.05."""
        fresh = torch.empty_like(self.state).uniform_(-0.05, 0.05)
        torch.where(rows, fresh, self.state, out=self.state)

    def advance(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Push the cart with 10 N to the left (0) or to the right (1)."""
        push = 20.0 * action.flatten() - 10.0
        place, speed, angle, rate = self.state.unbind(-1)
        cosine, sine = angle.cos(), angle.sin()
        thrust = (push + 0.05 * rate.square() * sine) / 1.1
        turning = (9.8 * sine - cosine * thrust) / (0.5 * (4 / 3 - 0.1 * cosine.square() / 1.1))
        pushing = thrust - 0.05 * turning * cosine / 1.1
        rates = torch.stack([speed, pushing, rate, turning], -1)
        self.state += 0.02 * rates
        place, angle = self.state[:, 0], self.state[:, 2]
        failed = (place.abs() > 2.4) | (angle.abs() > math.radians(12))
        return torch.ones_like(place), failed

    def observe(self) -> torch.Tensor:
        """Position, velocity, angle, angular velocity."""
        return self.state.clone()


class PendulumDynamics:
    """A pendulum to be swung up by a torque between −2 and 2; it never fails."""

    limit = 200

    def __init__(self, num_envs: int, device: Device = "cpu") -> None:
        self.state = torch.zeros(num_envs, 2, device=device)

    def start(self, rows: torch.Tensor) -> None:
        """Any angle, an angular velocity between −1 and 1."""
        fresh = torch.empty_like(self.state).uniform_(-1.0, 1.0)
        fresh[:, 0] *= math.pi
        torch.where(rows, fresh, self.state, out=self.state)

    def advance(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn; costs are those before the time step."""
        angle, rate = self.state.unbind(-1)
        torque = action.flatten().clamp(-2.0, 2.0)
        wrapped = (angle + math.pi).remainder(2 * math.pi) - math.pi
        costs = wrapped.square() + 0.1 * rate.square() + 0.001 * torque.square()
        rate = (rate + 0.05 * (15.0 * angle.sin() + 3.0 * torque)).clamp(-8.0, 8.0)
        self.state.copy_(torch.stack([angle + 0.05 * rate, rate], -1))
        return -costs, torch.zeros_like(costs, dtype=torch.bool)

    def observe(self) -> torch.Tensor:
        """Cosine and sine of the angle, angular velocity."""
        angle, rate = self.state.unbind(-1)
        return torch.stack([angle.cos(), angle.sin(), rate], -1)


class Native(Env):
    """Dynamics in Everstep's protocol; rows that end are reset in the same env step."""

    episode_keys = frozenset(
        {DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST, DataKeys.FINAL_OBS}
    )

    def __init__(
        self,
        dynamics: Callable[[int, Device], Dynamics],
        action_spec: TensorSpec,
        num_envs: int,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.dynamics = dynamics(num_envs, device)
        self.action_spec = action_spec.to(device)
        size = self.dynamics.observe().shape[1]
        self.observation_spec = Unbounded(size, device=torch.device(device))
        self.elapsed = torch.zeros(num_envs, 1, dtype=torch.int64, device=device)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """Every row from a new state."""
        self.dynamics.start(torch.ones_like(self.elapsed, dtype=torch.bool))
        self.elapsed.zero_()
        return self.dynamics.observe()

    def step(self, action: torch.Tensor) -> TensorDict:  # type: ignore[override]  # never nested
        """One time step; no host synchronisation."""
        rewards, failed = self.dynamics.advance(action)
        self.elapsed += 1
        terminated, truncated = failed.unsqueeze(-1), self.elapsed >= self.dynamics.limit
        done = terminated | truncated
        final_obs = self.dynamics.observe()
        self.dynamics.start(done)
        self.elapsed.masked_fill_(done, 0)
        return TensorDict(
            {
                DataKeys.OBS: self.dynamics.observe(),
                DataKeys.REWARDS: rewards.unsqueeze(-1),
                DataKeys.TERMINATED: terminated,
                DataKeys.TRUNCATED: truncated,
                DataKeys.FIRST: done,
                DataKeys.FINAL_OBS: final_obs,
            },
            batch_size=[self.num_envs],
            device=self.device,
        )


def native_cartpole(
    num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
) -> Native:
    """CartPole-v1."""
    spec = Categorical(2, shape=torch.Size([1]))
    return Native(CartPoleDynamics, spec, num_envs, horizon, device=device)


def native_pendulum(
    num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
) -> Native:
    """Pendulum-v1."""
    return Native(PendulumDynamics, Bounded(-2.0, 2.0, [1]), num_envs, horizon, device=device)


class IsaacTask:
    """Dynamics behind the surface of IsaacGymEnvs' `VecTask`.

    Rows that ended are reset in the next env step, after the simulation has moved: their row after
    the end is one that no action caused. Actions are real numbers, as for any such task: a push to
    the right is anything above 0.
    """

    def __init__(
        self, dynamics: Callable[[int, Device], Dynamics], num_envs: int, device: Device = "cpu"
    ) -> None:
        self.dynamics = dynamics(num_envs, device)
        self.num_envs, self.device, self.rl_device = num_envs, str(device), str(device)
        observation = self.dynamics.observe()
        self.num_obs, self.num_states, self.num_actions = observation.shape[1], 0, 1
        bound = 2.0 if isinstance(self.dynamics, PendulumDynamics) else 1.0
        self.obs_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.num_obs,), np.float32)
        self.act_space = gymnasium.spaces.Box(-bound, bound, (1,), np.float32)
        self.clip_obs, self.clip_actions = math.inf, bound
        self.max_episode_length = self.dynamics.limit + 1  # time is up one env step before it
        self.obs_buf = torch.zeros_like(observation)
        self.rew_buf = torch.zeros(num_envs, device=device)
        self.reset_buf = torch.ones(num_envs, dtype=torch.long, device=device)
        self.progress_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.extras: dict[str, Any] = {}
        self.obs_dict: dict[str, torch.Tensor] = {}

    def zero_actions(self) -> torch.Tensor:
        """Actions that do nothing."""
        return torch.zeros(self.num_envs, 1, device=self.device)

    def reset_idx(self, env_ids: torch.Tensor) -> None:
        """New states for some rows."""
        rows = torch.zeros(self.num_envs, 1, dtype=torch.bool, device=self.device)
        rows[env_ids] = True
        self.dynamics.start(rows)
        self.reset_buf[env_ids] = 0
        self.progress_buf[env_ids] = 0

    def step(
        self, actions: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Simulate, then reset what ended in the env step before, then observe."""
        if isinstance(self.dynamics, CartPoleDynamics):
            actions = (actions > 0).float()
        rewards, failed = self.dynamics.advance(actions)
        self.progress_buf += 1
        ended = self.reset_buf.nonzero().flatten()
        self.reset_idx(ended)
        failed[ended] = False
        self.obs_buf.copy_(self.dynamics.observe())
        self.rew_buf.copy_(rewards)
        timed_out = self.progress_buf >= self.max_episode_length - 1
        self.reset_buf.copy_(failed | timed_out)
        self.extras["time_outs"] = timed_out & self.reset_buf.bool()
        return self.reset(), self.rew_buf, self.reset_buf, self.extras

    def reset(self) -> dict[str, torch.Tensor]:
        """The last observations: nothing is reset by this."""
        self.obs_dict["obs"] = self.obs_buf.clamp(-self.clip_obs, self.clip_obs)
        return self.obs_dict
