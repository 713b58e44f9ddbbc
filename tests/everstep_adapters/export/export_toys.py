"""Torch-native environments that end their episodes in every reset mode, and how to play them."""

from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, Unbounded

from everstep import Env
from everstep.env.specs import Structure

FLAGS = frozenset({"terminated", "truncated", "first"})

#: How episodes end, and the episode keys that say it.
KEYS = {
    "never": frozenset(),
    "same step": FLAGS | {"final_obs"},
    "lost": FLAGS,
    "next step": FLAGS | {"valid"},
    "both": FLAGS | {"final_obs", "valid"},
}


class Walk(Env):
    """A walk in the plane: it terminates far from the origin, and a clock truncates it.

    Everything it returns is its own memory, written to in the next env step.
    """

    def __init__(
        self,
        num_envs: int,
        /,
        horizon: None | int = None,
        *,
        device: Any = "cpu",
        ends: str = "same step",
        mapping: bool = False,
        continuous: bool = False,
        limit: int = 5,
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        on = torch.device(device)
        place = Unbounded(2, device=on)
        self.mapping, self.continuous, self.limit = mapping, continuous, limit
        self.observation_spec = place
        if mapping:
            age = Categorical(limit + 1, shape=torch.Size([1]), device=on)
            inner = Composite(age=age, device=on)
            self.observation_spec = Composite(place=place, clock=inner, device=on)
        self.action_spec = Categorical(4, shape=torch.Size([1]), device=on)
        if continuous:
            self.action_spec = Bounded(-1, 1, (2,), device=on)
        self.ends, self.episode_keys = ends, KEYS[ends]
        self.generator = torch.Generator(on)
        self.structure = Structure.of(self.observation_spec)
        self.place = torch.zeros(num_envs, 2, device=on)
        self.age = torch.zeros(num_envs, 1, dtype=torch.int64, device=on)
        self.final = tuple(leaf.clone() for leaf in self.leaves())
        self.pending = torch.zeros(num_envs, 1, dtype=torch.bool, device=on)
        self.rewards = torch.zeros(num_envs, 1, device=on)
        self.configs: list[Any] = []
        self.closed = 0

    def seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def close(self) -> None:
        self.closed += 1

    def render(self) -> str:
        return "a picture"

    def leaves(self) -> Any:
        return (self.place, self.age) if self.mapping else (self.place,)

    def obs(self, leaves: Any) -> Any:
        return self.structure.unflatten(leaves, [self.num_envs])

    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        self.configs.append(config)
        self.pending.fill_(False)
        self.open(torch.ones_like(self.pending))
        return self.obs(self.leaves())

    def open(self, rows: torch.Tensor) -> None:
        fresh = torch.rand(self.place.shape, generator=self.generator, device=self.place.device)
        self.place.copy_(torch.where(rows, fresh - 0.5, self.place))
        self.age.masked_fill_(rows, 0)

    def step(self, action: Any) -> TensorDict:
        moves = (
            action
            if self.continuous
            else torch.eye(4, device=self.place.device)[action[:, 0]].view(-1, 2, 2).diff()[..., 0]
        )
        waits = self.pending.clone()
        self.place += torch.where(waits, 0.0, moves.to(self.place.device))
        self.age.add_(~waits).clamp_(max=self.limit)
        self.rewards.copy_(torch.where(waits, 0.0, self.place.norm(dim=-1, keepdim=True)))
        done = self.flags(waits)
        for final, leaf in zip(self.final, self.leaves(), strict=True):
            final.copy_(leaf)
        at_once = self.at_once(done["terminated"] | done["truncated"])
        self.open(waits | at_once)
        ended = done["terminated"] | done["truncated"]
        self.pending = ended & ~at_once
        row: dict[str, Any] = {"obs": self.obs(self.leaves()), "rewards": self.rewards}
        if self.ends != "never":
            row |= {**done, "first": waits | at_once}
        if "valid" in self.episode_keys:
            row["valid"] = ~waits
        if "final_obs" in self.episode_keys:
            row["final_obs"] = self.obs(self.final)
        return TensorDict(row, batch_size=[self.num_envs], device=self.device)

    def flags(self, waits: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.ends == "never":
            return {"terminated": torch.zeros_like(waits), "truncated": torch.zeros_like(waits)}
        far = self.place.norm(dim=-1, keepdim=True) > 1.5
        return {"terminated": far & ~waits, "truncated": (self.age >= self.limit) & ~waits}

    def at_once(self, done: torch.Tensor) -> torch.Tensor:
        if self.ends == "next step":
            return torch.zeros_like(done)
        if self.ends == "both":  # odd rows reset in the env step after
            return done & (torch.arange(len(done), device=done.device) % 2 == 0).unsqueeze(-1)
        return done


def random_actions(env: Env, count: int, seed: int = 7) -> list[torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [env.action_spec.rand(torch.Size([env.num_envs])) for _ in range(count)]


def play(env: Any, actions: list[torch.Tensor], seed: int = 3) -> list[dict[str, torch.Tensor]]:
    """Copies of the first observations and of every row, flat, of one reset and some env steps."""
    if hasattr(env, "seed"):
        env.seed(seed)
    else:
        torch.manual_seed(seed)
    rows = [flat({"obs": env.reset()})]
    for action in actions:
        rows.append(flat(dict(env.step(action).items())))
    return rows


def flat(row: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    found = {}
    for key, value in row.items():
        if isinstance(value, torch.Tensor):
            found[prefix + key] = value.clone()
        else:
            found |= flat(value, f"{prefix}{key}.")
    return found
