"""Environments with episodes whose env steps a graph can hold, or pretend to; and models that look
at what they are given.
"""

from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Categorical, Unbounded

from everstep.core.graphs import is_static
from everstep.env import Env
from everstep.models import DefaultDiscreteModel, Model
from everstep.views import ViewRequirement


class Walk(Env):
    """Points in the plane that are pushed, and end outside of a circle or when their time is up.

    A new episode opens in the env step that ends one.
    """

    capturable = True
    episode_keys = frozenset({"terminated", "truncated", "first", "final_obs"})

    def __init__(
        self, num_envs: int = 8, /, horizon: None | int = 16, *, device: Any = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(2, device=torch.device(device))
        self.action_spec = Categorical(4, shape=torch.Size([1]), device=torch.device(device))
        self.noise = 0.1
        self.place = torch.zeros(num_envs, 2, device=device)
        self.clock = torch.zeros(num_envs, 1, dtype=torch.int64, device=device)
        self.limit = torch.arange(num_envs, device=device).remainder(5).add(3).unsqueeze(1)

    def push(self, action: Any) -> torch.Tensor:
        """The direction of an action, of four."""
        angle = action * (torch.pi / 2)
        return torch.cat([angle.cos(), angle.sin()], -1)

    def seen(self, place: torch.Tensor) -> Any:
        """The observation of a place, now."""
        return place

    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        self.noise = (config or {}).get("noise", self.noise)
        self.clock.zero_()
        return self.seen(self.place.normal_(0, 0.5))

    def step(self, action: Any) -> TensorDict:
        self.place += 0.5 * self.push(action) + self.noise * torch.randn_like(self.place)
        self.clock += 1
        final = self.place.clone()
        terminated = final.norm(dim=-1, keepdim=True) > 2
        truncated = (self.clock >= self.limit) & ~terminated
        first = terminated | truncated
        final_obs = self.seen(final)
        self.place.copy_(torch.where(first, 0.5 * torch.randn_like(final), final))
        self.clock.masked_fill_(first, 0)
        found = {
            "obs": self.seen(self.place),
            "rewards": -final.square().sum(-1, keepdim=True),
            "final_obs": final_obs,
            "terminated": terminated,
            "truncated": truncated,
            "first": first,
        }
        return TensorDict(found, [self.num_envs])


class Losing(Walk):
    """Every other point loses its final observations."""

    def step(self, action: Any) -> TensorDict:
        found = super().step(action)
        found["final_obs"][::2] = torch.nan
        return found


class Moving(Walk):
    """Says that it is capturable, and puts its state somewhere else in every env step."""

    def step(self, action: Any) -> TensorDict:
        found = super().step(action)
        self.place = self.place.clone()
        return found


class Counting(Walk):
    """Says that it is capturable, and counts env steps in Python."""

    steps = 0

    def step(self, action: Any) -> TensorDict:
        self.steps += 1
        return super().step(action)


class Seeing(Model):
    """Sees the two observations before, too."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.view_requirements = {("obs",): ViewRequirement(shift=2, method="rolling_window")}
        self.policy, self.vf_model = nn.Linear(6, 4), nn.Linear(6, 1)

    def forward(self, batch: TensorDict, /) -> TensorDict:
        seen = batch["obs"].flatten(1)
        self.values = self.vf_model(seen)
        return TensorDict({"logits": self.policy(seen).unsqueeze(1)}, [len(seen)])

    def value_function(self) -> torch.Tensor:
        return self.values


class Looking(DefaultDiscreteModel):
    """Looks at the observations in every call."""

    def forward(self, batch: TensorDict, /) -> Any:
        self.largest = float(batch["obs"].abs().max())
        return super().forward(batch)


class Late(DefaultDiscreteModel):
    """Looks at the observations once: too late to be seen before it is recorded."""

    #: Calls with gradients, in work that may be recorded.
    calls = 0

    def forward(self, batch: TensorDict, /) -> Any:
        self.calls += torch.is_grad_enabled() and is_static()
        if self.calls == 7:  # the third optimizer step of the second update
            self.largest = float(batch["obs"].abs().max())
        return super().forward(batch)
