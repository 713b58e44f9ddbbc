"""MiniGrid's tasks through EnvPool, with a choice for each thing that a cell may hold."""

from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import MultiCategorical

from ...data import DataKeys, Device
from ...env import Env
from ...registry import make

#: Cells that are seen, 7 by 7.
CELLS = 7 * 7

#: Kinds of objects, colours, and states of doors, as MiniGrid numbers them.
KINDS, COLOURS, STATES = 11, 6, 3

#: Directions that the agent may look in.
DIRECTIONS = 4


class MiniGrid(Env):
    """A task of MiniGrid without its mission, as choices that networks encode one-hot.

    An observation has kind, colour and state of each of the 49 cells in view, and the direction.

    Args:
        num_envs: Number of rooms.
        horizon: Env steps of a rollout.
        device: Where everything that goes in and comes out is.
        task: Name of the task in EnvPool.
        num_threads: Threads that step the rooms.

    """

    default_num_envs = 16

    def __init__(
        self,
        num_envs: int,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
        task: str = "MiniGrid-DoorKey-5x5-v0",
        num_threads: int = 1,
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        options = {"num_threads": num_threads}
        self.pool: Any = make(f"envpool:{task}", num_envs, device=device, env_kwargs=options)
        self.episode_keys = self.pool.episode_keys
        self.action_spec = self.pool.action_spec
        choices = [KINDS, COLOURS, STATES] * CELLS + [DIRECTIONS]
        self.observation_spec = MultiCategorical(
            choices, dtype=torch.uint8, device=torch.device(device)
        )

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """First observations of new rooms."""
        return self._choices(self.pool.reset(config=config))

    def step(self, action: torch.Tensor) -> TensorDict:
        """The outcome of EnvPool, with observations as choices."""
        outcome: TensorDict = self.pool.step(action)
        return TensorDict(
            {
                DataKeys.OBS: self._choices(outcome[DataKeys.OBS]),
                DataKeys.REWARDS: outcome[DataKeys.REWARDS],
                **{key: outcome[key] for key in self.episode_keys},
            },
            batch_size=[self.num_envs],
            device=self.device,
        )

    def seed(self, seed: int) -> None:
        """Fix the rooms to come, from the next reset on."""
        self.pool.seed(seed)

    def close(self) -> None:
        """Stop the threads."""
        self.pool.close()

    def _choices(self, obs: TensorDict) -> torch.Tensor:
        cells = obs["image"].flatten(1).to(torch.uint8)
        return torch.cat([cells, obs["direction"].to(torch.uint8).view(-1, 1)], -1)
