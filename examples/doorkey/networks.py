"""Networks of the bonus: they see which things there are, whatever the room looks like."""

from typing import Any

import torch
from torch import nn
from torchrl.data import TensorSpec, Unbounded

from everstep.models import ObservationNetwork
from everstep_lab.recipes.envs.minigrid import CELLS

from .env import AHEAD, OWN, THINGS


class ThingsInView(nn.Module):
    """A perceptron that sees three sets: the things in view, the one ahead, and the one carried.

    Rooms differ from episode to episode. With the places of things every view would be new.

    Args:
        observation_spec: Spec of one observation of `DoorKey`.
        outputs: Numbers that come out.
        **options: See `ObservationNetwork`.

    """

    def __init__(self, observation_spec: TensorSpec, /, outputs: int = 64, **options: Any) -> None:
        super().__init__()
        self.network = ObservationNetwork(Unbounded(3 * len(THINGS)), outputs, **options)

    def forward(self, leaves: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Numbers `[B, outputs]`."""
        cells = leaves[0][:, :CELLS].long()
        none = torch.zeros(len(cells), len(THINGS), device=cells.device)
        sets = (cells, cells[:, AHEAD : AHEAD + 1], cells[:, OWN : OWN + 1])
        found: torch.Tensor = self.network(
            (torch.cat([none.scatter(1, s, 1.0) for s in sets], -1),)
        )
        return found
