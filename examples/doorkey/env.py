"""MiniGrid's DoorKey through EnvPool, with one number for each thing that a cell may hold."""

import torch
from tensordict import TensorDict

from everstep.data import Device
from everstep_lab.recipes.envs.minigrid import CELLS, DIRECTIONS, KINDS, STATES, Rooms

#: The agent's own cell, which shows what is carried, and the one ahead.
OWN, AHEAD = 3 * 7 + 6, 3 * 7 + 5

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


class DoorKey(Rooms):
    """Pick up the key, open the door, and go to the goal, for 1 less 0.9 of the time it took.

    Rooms differ from episode to episode. An observation is a choice for each cell, the number of
    the thing in it, and one for the direction; networks encode choices one-hot. The mission, always
    the same, and the colours, which one door and one key do not need, are left out.

    Args:
        num_envs: Number of rooms.
        horizon: Vector steps of a rollout.
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
        task, options = f"MiniGrid-DoorKey-{size}x{size}-v0", [len(THINGS)] * CELLS + [DIRECTIONS]
        super().__init__(
            num_envs, horizon, device=device, task=task, num_threads=num_threads, options=options
        )
        self.things = torch.zeros(KINDS, STATES, dtype=torch.uint8, device=device)
        for i, (thing, state) in enumerate(THINGS.values()):
            self.things[thing, state] = i

    def choices(self, obs: TensorDict) -> torch.Tensor:
        """The thing in each cell, and the direction."""
        cells = obs["image"].flatten(1, 2).long()
        things = self.things[cells[..., 0], cells[..., 2]]
        return torch.cat([things, obs["direction"].to(torch.uint8)], -1)
