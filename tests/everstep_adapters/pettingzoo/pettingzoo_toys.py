"""PettingZoo environments whose agents end as a script says."""

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

T, U = "terminated", "truncated"


class Team(ParallelEnv):  # type: ignore[type-arg]
    """Agents observe themselves, the env step, and the sum of their actions.

    Args:
        ends: Env step and kind of each agent's end.
        joins: Env step in which an agent joins; 0 for those that are there.
        wide: Agents whose observations have another size.

    """

    render_mode = None

    def __init__(self, ends: dict[str, tuple[int, str]], joins: Any = None, wide: Any = ()) -> None:
        self.ends, self.joins, self.wide = ends, joins or {}, wide
        self.metadata = {"name": "team"}
        self.possible_agents = list(ends)
        self.spaces = {x: spaces.Discrete(2) for x in ends}
        self.seeds: list[Any] = []
        self.episode = 0
        self.received: list[dict[str, int]] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-100, 100, (5 if agent in self.wide else 3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return self.spaces[agent]

    def seen(self, agent: str) -> Any:
        values = np.zeros(self.observation_space(agent).shape, np.float32)
        values[:3] = self.possible_agents.index(agent), self.t, self.sums[agent]
        return values

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.t, self.sums = 0, dict.fromkeys(self.possible_agents, 0)
        self.agents = [x for x in self.possible_agents if not self.joins.get(x)]
        return {x: self.seen(x) for x in self.agents}, {x: {} for x in self.agents}

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.agents)
        self.received.append({key: int(value) for key, value in actions.items()})
        self.t += 1
        for agent, action in actions.items():
            self.sums[agent] += int(action)
        flags = [{x: self.ends[x] == (self.t, kind) for x in self.agents} for kind in (T, U)]
        rewards = {x: 1.0 + self.possible_agents.index(x) for x in self.agents}
        infos = {x: {"speed": float(self.t)} for x in self.agents}
        new = [x for x in self.possible_agents if self.joins.get(x) == self.t]
        obs = {x: self.seen(x) for x in [*self.agents, *new]}
        self.agents = [x for x in self.agents if not (flags[0][x] or flags[1][x])] + new
        return obs, rewards, *flags, infos


TEAM = {"a_0": (2, T), "a_1": (4, U), "b_0": (3, T)}
