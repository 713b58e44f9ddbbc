"""MiniGrid's tasks through EnvPool, with a choice for each thing that a cell may hold."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import MultiCategorical

from everstep.data import DataKeys, Device
from everstep.env import Env
from everstep.env.registry import make

#: Cells that are seen, 7 by 7.
CELLS = 7 * 7

#: Kinds of objects, colours, and states of doors, as MiniGrid numbers them.
KINDS, COLOURS, STATES = 11, 6, 3

#: Directions that the agent may look in.
DIRECTIONS = 4


class Rooms(Env):
    """A task of MiniGrid in EnvPool whose observations are choices, which networks encode one-hot.

    Args:
        num_envs: Number of rooms.
        horizon: Vector steps of a rollout.
        device: Where everything that goes in and comes out is.
        task: Name of the task in EnvPool.
        num_threads: Threads that step the rooms.
        options: Number of options of each choice.

    """

    def __init__(
        self,
        num_envs: int,
        horizon: None | int,
        *,
        device: Device,
        task: str,
        num_threads: int,
        options: Sequence[int],
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        threads = {"num_threads": num_threads}
        self.pool: Any = make(f"envpool:{task}", num_envs, device=device, env_kwargs=threads)
        self.episode_keys = self.pool.episode_keys
        self.action_spec = self.pool.action_spec
        self.observation_spec = MultiCategorical(
            list(options), dtype=torch.uint8, device=torch.device(device)
        )

    @abstractmethod
    def choices(self, obs: TensorDict) -> torch.Tensor:
        """Choices `[N, C]` of EnvPool's observations: `image` `[N, 7, 7, 3]`, and `direction`."""

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """First observations of new rooms."""
        return self.choices(self.pool.reset(config=config))

    def step(self, action: torch.Tensor) -> TensorDict:
        """The outcome of EnvPool, with observations as choices."""
        outcome: TensorDict = self.pool.step(action)
        return TensorDict(
            {
                DataKeys.OBS: self.choices(outcome[DataKeys.OBS]),
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


class MiniGrid(Rooms):
    """A task of MiniGrid without its mission.

    An observation has kind, colour and state of each of the 49 cells in view, and the direction.

    Args:
        num_envs: Number of rooms.
        horizon: Vector steps of a rollout.
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
        options = [KINDS, COLOURS, STATES] * CELLS + [DIRECTIONS]
        super().__init__(
            num_envs, horizon, device=device, task=task, num_threads=num_threads, options=options
        )

    def choices(self, obs: TensorDict) -> torch.Tensor:
        """Kind, colour and state of each cell, and the direction."""
        cells = obs["image"].flatten(1).to(torch.uint8)
        return torch.cat([cells, obs["direction"].to(torch.uint8).view(-1, 1)], -1)
