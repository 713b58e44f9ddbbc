"""MiniGrid's DoorKey through EnvPool, with one number for each thing that a cell may hold."""

from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import MultiCategorical

import everstep
from everstep.data import DataKeys, Device
from everstep.env import Env

#: Cells that are seen, 7 by 7; the agent's own, which shows what is carried; and the one ahead.
CELLS, OWN, AHEAD = 7 * 7, 3 * 7 + 6, 3 * 7 + 5

#: What a cell may hold, by MiniGrid's numbers of objects and of their states.
THINGS = {
    "nothing seen": (0, 0),
    "empty": (1, 0),
    "wall": (2, 0),
    "open door": (4, 0),
    "closed door": (4, 1),
    "locked door": (4, 2),
    "key": (5, 0),
    "goal": (8, 0),
}

#: Directions that the agent may look in.
DIRECTIONS = 4


class DoorKey(Env):
    """Pick up the key, open the door, and go to the goal, for 1 less 0.9 of the time it took.

    Rooms differ from episode to episode. An observation is a choice for each cell, the number of
    the thing in it, and one for the direction; networks encode choices one-hot. The mission, always
    the same, and the colours, which one door and one key do not need, are left out.

    Args:
        num_envs: Number of rooms.
        horizon: Env steps of a rollout.
        device: Where everything that goes in and comes out is.
        size: Cells from wall to wall, walls included: 5, 6, 8 or 16.
        num_threads: Threads that step the rooms.

    """

    default_num_envs = 64

    def __init__(
        self,
        num_envs: int,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
        size: int = 8,
        num_threads: int = 1,
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        name = f"envpool:MiniGrid-DoorKey-{size}x{size}-v0"
        self.pool: Any = everstep.make(name, num_envs, device=device, num_threads=num_threads)
        self.episode_keys = self.pool.episode_keys
        self.action_spec = self.pool.action_spec
        self.observation_spec = MultiCategorical(
            [len(THINGS)] * CELLS + [DIRECTIONS], dtype=torch.uint8, device=torch.device(device)
        )
        self.things = torch.zeros(11, 3, dtype=torch.uint8, device=device)
        for i, (thing, state) in enumerate(THINGS.values()):
            self.things[thing, state] = i

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """First observations of new rooms."""
        return self._choices(self.pool.reset(config=config))

    def step(self, action: torch.Tensor) -> TensorDict:  # type: ignore[override]  # never nested
        """The outcome of EnvPool, with observations of our own."""
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
        cells = obs["image"].flatten(1, 2).long()
        things = self.things[cells[..., 0], cells[..., 2]]
        return torch.cat([things, obs["direction"].to(torch.uint8)], -1)
