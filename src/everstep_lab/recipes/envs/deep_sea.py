"""A treasure that random actions do not find: DeepSea, in PyTorch."""

from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical

from everstep.data import DataKeys, Device
from everstep.env import Env


class DeepSea(Env):
    """Dive through a square sea, one row an env step, to the left or to the right.

    A treasure of 1 lies at the end of the deepest row, and only moves to the right from the first
    row on lead there; each of them costs 0.01 / size. The best return is 0.99, and random actions
    reach it once in 2^size episodes. Which of the two actions leads to the right differs from cell
    to cell, and is the same in all environments.

    Source: Osband et al. 2019, "Behaviour suite for reinforcement learning".

    Args:
        num_envs: Number of seas.
        horizon: Vector steps of a rollout.
        device: Where the seas are.
        size: Rows and columns.
        mapping_seed: Seed of what the actions mean.

    """

    default_num_envs = 64
    episode_keys = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST})

    def __init__(
        self,
        num_envs: int,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
        size: int = 20,
        mapping_seed: int = 42,
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.size = size
        self.observation_spec = Bounded(
            torch.zeros(size * size), torch.ones(size * size), dtype=torch.float32, device=device
        )
        self.action_spec = Categorical(2, shape=torch.Size([1]), device=torch.device(device))
        generator = torch.Generator().manual_seed(mapping_seed)
        meaning = torch.randint(2, (size, size), generator=generator)
        self.rightwards = meaning.to(device)
        self.row = 0
        self.column = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.never = torch.zeros(num_envs, 1, dtype=torch.bool, device=device)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """All at the surface, on the left."""
        self.row = 0
        self.column.zero_()
        return self._observe()

    def step(self, action: torch.Tensor) -> TensorDict:
        """One row down; at the bottom the next dive begins."""
        right = action.flatten() == self.rightwards[self.row, self.column]
        self.row += 1
        over = self.row == self.size
        found = right & (self.column == self.size - 1) & over
        rewards = found.float() - 0.01 / self.size * right
        self.column += 2 * right - 1
        self.column.clamp_(0, self.size - 1)
        obs = self.reset() if over else self._observe()
        ends = self.never | over
        return TensorDict(
            {
                DataKeys.OBS: obs,
                DataKeys.REWARDS: rewards.unsqueeze(-1),
                DataKeys.TERMINATED: ends,
                DataKeys.TRUNCATED: self.never,
                DataKeys.FIRST: ends,
            },
            batch_size=[self.num_envs],
            device=self.device,
        )

    def _observe(self) -> torch.Tensor:
        obs = torch.zeros(self.num_envs, self.size * self.size, device=self.device)
        obs[torch.arange(self.num_envs), self.row * self.size + self.column] = 1.0
        return obs
