"""Scripted Gymnasium environments, and the rows that are expected of them."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from everstep_adapters import GymnasiumEnv

MODES = ["NEXT_STEP", "SAME_STEP", "DISABLED"]

#: Episodes of one environment, repeated: what ends each, and after how many env steps.
SCRIPTS: dict[str, list[list[tuple[str, int]]]] = {
    "mixed": [
        [("terminated", 3), ("truncated", 2), ("both", 1), ("terminated", 1), ("truncated", 4)],
        [("truncated", 1), ("truncated", 1), ("both", 3), ("terminated", 2)],
        [("terminated", 50)],
    ],
    "all done, always": [[("terminated", 1)], [("truncated", 1)], [("both", 1)]],
    "all done together": [[("terminated", 3)], [("truncated", 3)], [("both", 3)]],
    "none done": [[("terminated", 50)], [("truncated", 50)], [("both", 50)]],
}


class Scripted(gymnasium.Env[np.ndarray, int]):
    """Ends its episodes as it is told; observes (which env, which episode, env step, action)."""

    def __init__(self, script: list[tuple[str, int]], name: int) -> None:
        self.observation_space = spaces.Box(-math.inf, math.inf, (4,), dtype=np.float32)
        self.action_space = spaces.Discrete(5)
        self.script, self.name, self.episode = script, name, -1

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return self.observe(0), {}

    def step(self, action: int) -> Any:
        self.t += 1
        kind, length = self.script[self.episode % len(self.script)]
        done = self.t >= length
        terminated = done and kind in ("terminated", "both")
        truncated = done and kind in ("truncated", "both")
        reward = 100.0 * self.episode + self.t + 0.25 * action
        return self.observe(action), reward, terminated, truncated, {"t": self.t}

    def observe(self, action: int) -> np.ndarray:
        return np.array([self.name, self.episode, self.t, action], dtype=np.float32)


class ExpectedRow(NamedTuple):
    obs: np.ndarray
    rewards: float
    terminated: bool
    truncated: bool
    first: bool
    valid: bool
    final_obs: np.ndarray


def expected_rows(
    script: list[tuple[str, int]], name: int, actions: list[int], mode: str, limit: float
) -> list[ExpectedRow]:
    """The rows of one environment, from nothing but stepping it by hand."""
    env = Scripted(script, name)
    env.reset()
    rows, elapsed, pending = [], 0, False
    for action in actions:
        if pending:
            obs, _ = env.reset()
            rows.append(ExpectedRow(obs, 0.0, False, False, True, False, obs))
            elapsed, pending = 0, False
            continue
        obs, reward, terminated, truncated, _ = env.step(action)
        final, first, elapsed = obs, False, elapsed + 1
        ended, expired = terminated or truncated, elapsed >= limit
        if expired or (ended and mode != "NEXT_STEP"):
            obs, first, elapsed = env.reset()[0], True, 0
        else:
            pending = ended
        rows.append(ExpectedRow(obs, reward, terminated, truncated or expired, first, True, final))
    return rows


def scripted(name: str, mode: str) -> SyncVectorEnv:
    fns = [partial(Scripted, script, i) for i, script in enumerate(SCRIPTS[name])]
    return SyncVectorEnv(fns, autoreset_mode=AutoresetMode[mode])


def in_processes(name: str, mode: str, shared_memory: bool = True) -> AsyncVectorEnv:
    fns = [partial(Scripted, script, i) for i, script in enumerate(SCRIPTS[name])]
    return AsyncVectorEnv(
        fns,
        autoreset_mode=AutoresetMode[mode],
        shared_memory=shared_memory,
        context="fork",  # a new interpreter would import PyTorch: 3 s each
    )


def check_stream(env: GymnasiumEnv, name: str, mode: str, limit: float = math.inf) -> None:
    actions = np.random.default_rng(0).integers(5, size=(25, env.num_envs))
    streams = [
        expected_rows(script, i, actions[:, i].tolist(), mode, limit)
        for i, script in enumerate(SCRIPTS[name])
    ]
    env.reset()
    for t, action in enumerate(actions):
        row = env.step(torch.from_numpy(action).unsqueeze(-1))
        want = [np.array(column) for column in zip(*(rows[t] for rows in streams), strict=True)]
        got = dict(zip(ExpectedRow._fields, want, strict=True))
        np.testing.assert_array_equal(row["obs"], got["obs"])
        np.testing.assert_array_equal(row["rewards"][:, 0], got["rewards"])
        for key in env.episode_keys - {"final_obs"}:
            np.testing.assert_array_equal(row[key][:, 0], got[key], err_msg=f"{key} at {t}")
        if "final_obs" in env.episode_keys:
            np.testing.assert_array_equal(row["final_obs"], got["final_obs"])


class Columns(VectorEnv):
    """A vector environment with the attributes and returns that a test gives it.

    Observations are columns of one buffer, so they are neither contiguous nor new.
    """

    def __init__(self, metadata: dict[str, Any] | None = None, num_envs: int = 3) -> None:
        if metadata is not None:
            self.metadata = metadata
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(-math.inf, math.inf, (2,), dtype=np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.buffer = np.zeros((2, num_envs), dtype=np.float32)
        self.rewards = np.zeros(num_envs)
        self.terminated = np.zeros(num_envs, dtype=np.bool_)
        self.truncated = np.zeros(num_envs, dtype=np.bool_)
        self.infos: dict[str, Any] = {}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.buffer.T, {}

    def step(self, actions: Any) -> Any:
        self.buffer += 1
        return self.buffer.T, self.rewards, self.terminated, self.truncated, self.infos


class Behaving(VectorEnv):
    """Truncates every episode after `length` env steps, and then does as `behaviour` says.

    Observes (where it began, env steps, sum of the actions). Declares nothing by itself.
    """

    def __init__(self, behaviour: str, length: int = 3, num_envs: int = 2) -> None:
        self.metadata = {}
        self.num_envs, self.length, self.behaviour = num_envs, length, behaviour
        self.single_observation_space = spaces.Box(-math.inf, math.inf, (3,), dtype=np.float32)
        self.single_action_space = spaces.Discrete(4)
        self.state = np.zeros((num_envs, 3), dtype=np.float32)
        self.done = np.zeros(num_envs, dtype=np.bool_)

    def restart(self, rows: np.ndarray) -> None:
        self.state[rows] = 0
        self.state[rows, 0] = self.np_random.uniform(size=int(rows.sum()))
        self.done[rows] = False

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.restart(np.ones(self.num_envs, dtype=np.bool_))
        return self.state.copy(), {"a key of resets": 1}

    def step(self, actions: Any) -> Any:
        acts = ~self.done
        if self.behaviour == "NEXT_STEP":
            self.restart(self.done.copy())
        self.state[acts, 1] += 1
        self.state[acts, 2] += np.asarray(actions)[acts]
        self.done = self.state[:, 1] >= self.length
        truncated, infos = self.done.copy(), {}
        if self.behaviour.startswith("SAME_STEP") and self.done.any():
            if self.behaviour != "SAME_STEP, lost":
                infos["final_obs"] = self.state.copy()
            self.restart(truncated)
        return (
            self.state.copy(),
            np.ones(self.num_envs),
            np.zeros_like(truncated),
            truncated,
            infos,
        )


class Faulty(gymnasium.Env[np.ndarray, int]):
    """Does `fault` in the env step in which it is sent the action 1."""

    def __init__(self, fault: Callable[[], Any]) -> None:
        self.observation_space = spaces.Box(-math.inf, math.inf, (2,), dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self.fault = fault

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if options:
            self.fault()
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: int) -> Any:
        if action == 1:
            self.fault()
        return np.ones(2, dtype=np.float32), 1.0, False, False, {}


ACTION = torch.zeros(3, 1, dtype=torch.int64)


def zeros(env: GymnasiumEnv) -> torch.Tensor:
    return env.action_spec.zero(torch.Size([env.num_envs]))
