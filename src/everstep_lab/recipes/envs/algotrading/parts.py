"""Parts that the models share: encodings of the inputs, and the heads."""

import torch
from tensordict import TensorDict
from torch import nn

from everstep.nn import MLP

from .env import GAIN

#: Changes of the price are a few percent; networks learn faster from numbers near 1.
SCALE = 20.0

#: Width of what `position` gives.
POSITION = 2


def position(obs: TensorDict) -> torch.Tensor:
    """Whether the asset is owned, and what was gained since: `[…, POSITION]`."""
    return torch.cat([obs["invested"].float(), SCALE * obs[GAIN]], -1)


class Heads(nn.Module):
    """A network for the actions and one for the value, behind the same inputs.

    Args:
        width: Width of the inputs.
        hidden: Width of the networks' hidden layer.

    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.actions = MLP(width, (hidden, hidden, 3), activation_fn="tanh")
        self.value = MLP(width, (hidden, hidden, 1), activation_fn="tanh")
        last = self.actions[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)  # training starts at the uniform policy
        nn.init.zeros_(last.bias)

    def forward(
        self, x: torch.Tensor, action_mask: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Features of the action distribution, and values.

        Args:
            x: Inputs `[B, width]`.
            action_mask: What can be done, bool `[B, 3]`.

        """
        logits = self.actions(x).unsqueeze(1)  # [B, 1, 3]: one choice out of three
        return {"logits": logits, "action_mask": action_mask}, self.value(x)
