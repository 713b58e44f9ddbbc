"""Small environments whose every number is known beforehand, and the oracle that knows them."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

from everstep.env import Env
from everstep.models import Model

TERMINATED, TRUNCATED, BOTH = "terminated", "truncated", "both"


@dataclass(frozen=True)
class Episode:
    """Length in env steps, and how it ends."""

    length: int
    end: str


Script = list[Episode]


def obs_of(env: int, episode: int, t: int) -> list[float]:
    """The observation that says where it comes from."""
    return [float(env), float(episode), float(t)]


def reward_of(env: int, episode: int, t: int) -> float:
    """The reward of the action taken at `obs_of(env, episode, t)`."""
    return float(np.sin(1.0 + 3.0 * env + 1.7 * episode + 0.9 * t))


class ScriptedEnv(gym.Env):
    """One environment whose episodes follow a script, over and over."""

    def __init__(
        self, index: int, script: Script, dtype: Any = np.float64, choices: int = 2
    ) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), dtype)
        self.action_space = gym.spaces.Discrete(choices)
        self.index, self.script, self.episode = index, script, -1

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = reward_of(self.index, self.episode, self.t)
        self.t += 1
        episode = self.script[self.episode % len(self.script)]
        ended = self.t == episode.length
        return (
            self._obs(),
            reward,
            ended and episode.end in (TERMINATED, BOTH),
            ended and episode.end in (TRUNCATED, BOTH),
            {},
        )

    def _obs(self) -> np.ndarray:
        return np.array(obs_of(self.index, self.episode, self.t), self.observation_space.dtype)


def scripted_vector_env(
    scripts: list[Script], mode: AutoresetMode, choices: int = 2
) -> SyncVectorEnv:
    """A real Gymnasium vector environment of scripted ones."""
    makers = [lambda i=i, s=s: ScriptedEnv(i, s, choices=choices) for i, s in enumerate(scripts)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


class KnownValue(Model):
    """Values that are a fixed function of the observation; the policy is uniform."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.logit = torch.nn.Parameter(torch.zeros(1))

    @staticmethod
    def value_of(obs: torch.Tensor) -> torch.Tensor:
        return torch.cos(obs @ torch.tensor([[0.3], [1.1], [0.7]], dtype=obs.dtype))

    def forward(self, batch: TensorDict, /) -> TensorDict:
        obs = batch["obs"]
        self._value = self.value_of(obs) + 0 * self.logit
        logits = torch.zeros(len(obs), 1, 2, dtype=obs.dtype) + 0 * self.logit
        return TensorDict({"logits": logits}, batch_size=[len(obs)])

    def value_function(self) -> torch.Tensor:
        return self._value


@dataclass
class Row:
    """One row of an environment's stream: an action's cause and consequence, or a reset."""

    episode: int
    t: int
    is_reset: bool


def stream(script: Script, rows: int, *, with_reset_rows: bool) -> list[Row]:
    """The first `rows` rows that an environment with this script gives, from its first reset."""

    def endless() -> Iterator[Row]:
        for episode in itertools.count():
            for t in range(script[episode % len(script)].length):  # may be millions: lazily
                yield Row(episode, t, False)
            if with_reset_rows:
                yield Row(episode, -1, True)

    return list(itertools.islice(endless(), rows))


def oracle_advantages(
    env: int,
    script: Script,
    window: list[Row],
    *,
    gamma: float,
    gae_lambda: float,
    value_of: Callable[[torch.Tensor], torch.Tensor] = lambda obs: KnownValue.value_of(obs[-1:]),
) -> list[float]:
    """Advantages of a window of rows, episode by episode, as sums over what follows.

    Written from the definition: each row's advantage is the discounted sum of the temporal
    differences to the end of its episode, or of the window.

    `value_of` gets the episode's observations up to the one that is valued, `[t + 1, 3]`.
    """

    def value(episode: int, t: int) -> float:
        return float(value_of(torch.tensor([obs_of(env, episode, i) for i in range(t + 1)])))

    def difference(row: Row) -> float:
        length, end = (
            script[row.episode % len(script)].length,
            script[row.episode % len(script)].end,
        )
        terminal = row.t + 1 == length and end in (TERMINATED, BOTH)
        following = 0.0 if terminal else value(row.episode, row.t + 1)
        reward = reward_of(env, row.episode, row.t)
        return reward + gamma * following - value(row.episode, row.t)

    advantages = []
    for i, row in enumerate(window):
        if row.is_reset:
            advantages.append(float("nan"))
            continue
        rest = [r for r in window[i:] if r.episode == row.episode and not r.is_reset]
        advantages.append(
            sum((gamma * gae_lambda) ** k * difference(r) for k, r in enumerate(rest))
        )
    return advantages


class ConstantEnv(Env):
    """Gives what it is told to; for saying the wrong thing at the wrong time."""

    def __init__(
        self,
        num_envs: int = 4,
        /,
        horizon: None | int = 8,
        *,
        device: Any = "cpu",
        outcome: None | dict[str, Any] = None,
        reset_obs: Any = None,
        episode_keys: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(3, device=torch.device(device))
        self.action_spec = Categorical(2, shape=torch.Size([1]), device=torch.device(device))
        self.episode_keys = episode_keys
        self.outcome = {"obs": torch.zeros(num_envs, 3), "rewards": torch.ones(num_envs, 1)}
        self.outcome |= {
            key: torch.zeros(num_envs, 1, dtype=torch.bool)
            for key in episode_keys - {"final_obs", "valid"}
        }
        self.outcome |= outcome or {}
        self.reset_obs = torch.zeros(num_envs, 3) if reset_obs is None else reset_obs
        self.steps = 0

    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        return self.reset_obs

    def step(self, action: Any) -> Any:
        self.steps += 1
        return dict(self.outcome)


class RecordedEnv(Env):
    """Plays rows that are written down beforehand, whatever the actions are; offers its state.

    Args:
        obs: Observations `[T + 1, N, D]`; the first are those of a reset.
        horizon: Env steps of a rollout.
        rows: `rewards` `[T, N, 1]`, and each episode key that the environment declares.

    """

    def __init__(self, obs: torch.Tensor, horizon: int, **rows: torch.Tensor) -> None:
        super().__init__(obs.shape[1], horizon)
        self.observation_spec = Unbounded(obs.shape[2:], dtype=obs.dtype)
        self.action_spec = Categorical(2, shape=torch.Size([1]))
        self.episode_keys = frozenset(rows) - {"rewards"}
        self.obs, self.rows, self.t = obs, rows, 0

    def reset(self, *, config: Any = None) -> torch.Tensor:
        self.t = 0
        return self.obs[0]

    def step(self, action: Any) -> TensorDict:
        row = {key: x[self.t] for key, x in self.rows.items()}
        self.t += 1
        return TensorDict({"obs": self.obs[self.t], **row}, [self.num_envs])

    def state_dict(self) -> dict[str, Any]:
        return {"t": self.t}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.t = state["t"]


def flags(num_steps: int, num_envs: int, *rows: tuple[int, int]) -> torch.Tensor:
    """Flags `[T, N, 1]` that are True in these rows: (env step, environment)."""
    out = torch.zeros(num_steps, num_envs, 1, dtype=torch.bool)
    for t, env in rows:
        out[t, env] = True
    return out
