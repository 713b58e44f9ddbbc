"""Tasks that cannot be done without remembering."""

from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

import everstep
from everstep.env import Env


class RepeatFirst(Env):
    """Say again and again what was shown first.

    An observation shows one of two cues and whether it is the first. Every action that names the
    first cue earns one over the number of actions that count, so that a perfect horizon earns 1;
    the action that sees the first cue does not count. Later cues are random: without a memory one
    half is the most there is.
    """

    default_num_envs = 128
    default_horizon = 16

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Any = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon or self.default_horizon, device=device)
        self.observation_spec = Unbounded(3, device=torch.device(device))
        self.action_spec = Categorical(2, shape=torch.Size([1]), device=torch.device(device))

    def _show(self, *, is_first: bool) -> torch.Tensor:
        cue = torch.randint(2, (self.num_envs,), device=self.device)
        if is_first:
            self.cue = cue.unsqueeze(-1)
        flag = torch.full((self.num_envs, 1), float(is_first), device=self.device)
        return torch.cat([F.one_hot(cue, 2).float(), flag], -1)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        self.counts = False
        return self._show(is_first=True)

    def step(self, action: torch.Tensor) -> TensorDict:
        right = (action == self.cue).float() / (self.horizon - 1)
        rewards = right if self.counts else torch.zeros_like(right)
        self.counts = True
        return TensorDict(
            {"obs": self._show(is_first=False), "rewards": rewards}, batch_size=[self.num_envs]
        )


class Positions(gymnasium.ObservationWrapper):
    """CartPole without its velocities: position and angle are all there is to see."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        self.observation_space = gymnasium.spaces.Box(
            space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32
        )

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


def cartpole_positions(num_envs: int, /, horizon: None | int = None, *, device: Any = "cpu") -> Env:
    """CartPole-v1 whose policy must find out by itself how fast things move."""
    env = gymnasium.make_vec(
        "CartPole-v1",
        num_envs,
        vectorization_mode="sync",
        wrappers=[Positions],
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )
    return everstep.wrap(env, horizon=horizon, device=device)
