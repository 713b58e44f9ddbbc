"""Tasks in PyTorch with IsaacGym's interfaces, and the rows that are expected of them.

One small world is behind all of them. An environment counts its episodes and its env steps, and
adds up the actions that it is given; a script says after how many env steps each episode fails. A
task puts a clock around it and resets what has ended, at one of four times.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

NEVER = 10**6

#: Env steps after which each episode of an environment fails, over and over.
Script = list[int]


class World:
    """Simulation of `num_envs` scripted environments, in place."""

    def __init__(self, scripts: list[Script], device: Any, dtype: Any) -> None:
        self.num_envs = len(scripts)
        kind = {"device": device, "dtype": dtype or torch.get_default_dtype()}
        length = math.lcm(*map(len, scripts))
        fails = [[script[i % len(script)] for i in range(length)] for script in scripts]
        self.fails = torch.tensor(fails, **kind)
        self.name = torch.arange(self.num_envs, **kind)
        self.episode, self.elapsed, self.place = (torch.zeros(self.num_envs, **kind) for _ in "123")

    def move(self, actions: torch.Tensor) -> None:
        self.place += actions.flatten()
        self.elapsed += 1

    def start(self, rows: torch.Tensor) -> None:
        self.episode += rows
        for x in (self.elapsed, self.place):
            x.masked_fill_(rows, 0)

    def observe(self) -> torch.Tensor:
        return torch.stack([self.name, self.episode, self.elapsed, self.place], -1)

    def states(self) -> torch.Tensor:
        return torch.stack([self.elapsed, 10 * self.episode], -1)

    def rewards(self) -> torch.Tensor:
        return torch.sin(1 + 3 * self.name + 1.7 * self.episode + 0.9 * self.elapsed + self.place)

    def failed(self) -> torch.Tensor:
        episode = self.episode.long().remainder(self.fails.shape[1])
        return self.elapsed >= self.fails.gather(1, episode.unsqueeze(-1)).squeeze(-1)


class VecTask:
    """The surface of a VecTask. Subclasses say what comes before and after the physics.

    Like the original: `reset_buf` is all ones and observations are zeros at first, `reset` resets
    nothing, the same dictionary is returned each time, and so are the buffers of rewards and
    resets.
    """

    def __init__(
        self,
        scripts: list[Script],
        max_episode_length: float = 7,
        *,
        num_states: int = 0,
        reset_dtype: torch.dtype = torch.long,
        dtype: None | torch.dtype = None,
        clip_obs: float = math.inf,
        device: str = "cpu",
        rl_device: str = "cpu",
        report: str = "true",
        alias: bool = False,
        compute: bool = True,
    ) -> None:
        self.world = World(scripts, device, dtype)
        self.device, self.rl_device = device, rl_device
        self.num_environments, self.num_states = len(scripts), num_states
        self.num_observations, self.num_actions = 4, 1
        self.max_episode_length = max_episode_length
        self.clip_obs, self.clip_actions = clip_obs, 1.0
        self.obs_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.act_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.report, self.alias = report, alias
        self.obs_buf = torch.zeros_like(self.world.observe())
        self.states_buf = torch.zeros_like(self.world.states())
        self.rew_buf = torch.zeros_like(self.world.name)
        counters = torch.zeros(self.num_envs, dtype=torch.long, device=device)
        self.reset_buf = torch.ones_like(counters, dtype=reset_dtype)
        self.progress_buf = counters
        self.extras: dict[str, Any] = {}
        self.obs_dict: dict[str, torch.Tensor] = {}
        self.control_steps = 0
        if not compute:
            self.compute_observations = None  # type: ignore[method-assign, assignment]

    @property
    def num_envs(self) -> int:
        return self.num_environments

    @property
    def num_acts(self) -> int:
        return self.num_actions

    def zero_actions(self) -> torch.Tensor:
        return torch.zeros(self.num_envs, self.num_actions, device=self.rl_device)

    def step(self, actions: torch.Tensor) -> Any:
        self.pre_physics_step(actions.clamp(-self.clip_actions, self.clip_actions).to(self.device))
        self.world.move(self.actions)
        self.post_physics_step()
        self.control_steps += 1
        self.report_time_outs()
        rewards, resets = self.rew_buf.to(self.rl_device), self.reset_buf.to(self.rl_device)
        return self.reset(), rewards, resets, self.extras

    def report_time_outs(self) -> None:
        up = (self.progress_buf >= self.max_episode_length - 1) & (self.reset_buf != 0)
        if self.report == "true":
            self.extras["time_outs"] = up.to(self.rl_device)
        elif self.report == "stale":  # whatever ended last is reported for ever
            self.extras["time_outs"] = up | self.extras.get("time_outs", up)
        elif self.report == "never":
            self.extras["time_outs"] = torch.zeros_like(up)

    def reset(self) -> dict[str, torch.Tensor]:
        obs = self.obs_buf if self.alias else self.obs_buf.clamp(-self.clip_obs, self.clip_obs)
        self.obs_dict["obs"] = obs.to(self.rl_device)
        if self.num_states > 0:
            self.obs_dict["states"] = self.get_state()
        return self.obs_dict

    def get_state(self) -> torch.Tensor:
        return self.states_buf.clamp(-self.clip_obs, self.clip_obs).to(self.rl_device)

    def reset_done(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        self.reset_idx(self.reset_buf != 0)
        return self.reset(), self.reset_buf

    def reset_idx(self, env_ids: torch.Tensor) -> None:
        """By index or by mask: the originals use `nonzero`, which waits for a device."""
        rows = env_ids
        if env_ids.dtype is not torch.bool:
            rows = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
            rows[env_ids] = True
        self.reset_rows(rows)

    def reset_rows(self, rows: torch.Tensor) -> None:
        self.world.start(rows)
        self.progress_buf.masked_fill_(rows, 0)
        self.reset_buf.masked_fill_(rows, 0)

    def pre_physics_step(self, actions: torch.Tensor) -> None:
        self.actions = actions.clone()

    def post_physics_step(self) -> None:
        raise NotImplementedError

    def compute_observations(self) -> None:
        self.obs_buf.copy_(self.world.observe())
        self.states_buf.copy_(self.world.states())

    def compute_reward(self) -> None:
        self.rew_buf.copy_(self.world.rewards())

    def check_ends(self) -> None:
        up = self.progress_buf >= self.max_episode_length - 1
        self.reset_buf.copy_(self.world.failed() | up)


class LazyAfter(VecTask):
    """A: reset in the next env step, after the physics."""

    def post_physics_step(self) -> None:
        self.progress_buf += 1
        self.reset_idx(self.reset_buf != 0)
        VecTask.compute_observations(self)
        self.compute_reward()
        self.check_ends()


class LazyBefore(VecTask):
    """B: reset in the next env step, before the physics. `reset_idx` wants more than indices."""

    def pre_physics_step(self, actions: torch.Tensor) -> None:
        ended = self.reset_buf != 0
        self.reset_idx(ended, ended)
        self.actions = actions.clone()

    def reset_idx(self, env_ids: torch.Tensor, goal_env_ids: torch.Tensor) -> None:  # type: ignore[override]
        super().reset_idx(env_ids)

    def post_physics_step(self) -> None:
        self.progress_buf += 1
        VecTask.compute_observations(self)
        self.compute_reward()
        self.check_ends()


class AtOnce(VecTask):
    """C: reset in the same env step; `reset_buf` is a new tensor each time, and stays set."""

    final_key: None | str = None

    def reset_rows(self, rows: torch.Tensor) -> None:
        self.world.start(rows)
        self.progress_buf.masked_fill_(rows, 0)
        self.reset_buf = self.reset_buf.masked_fill(rows, 1)

    def post_physics_step(self) -> None:
        self.progress_buf += 1
        up = self.progress_buf >= self.max_episode_length - 1
        self.reset_buf = (self.world.failed() | up).to(self.reset_buf.dtype)
        self.compute_reward()
        if self.final_key is not None:
            self.extras[self.final_key] = self.world.observe()
        self.reset_idx(self.reset_buf != 0)
        VecTask.compute_observations(self)


class Overwriting(AtOnce):
    """C: what `extras` hold of the ends lies in the buffer that the reset fills again."""

    def post_physics_step(self) -> None:
        self.extras["final_obs"] = self.obs_buf
        self.obs_buf.copy_(self.world.observe())
        self.final_key = None
        super().post_physics_step()


class Waiting(VecTask):
    """D: reset when somebody asks for it. With `terminate`, failures have a buffer of their own."""

    def __init__(self, *args: Any, terminate: bool = True, fresh: bool = True, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.fresh = fresh
        if terminate:
            self._terminate_buf = torch.ones_like(self.progress_buf)

    def reset_rows(self, rows: torch.Tensor) -> None:
        super().reset_rows(rows)
        if hasattr(self, "_terminate_buf"):
            self._terminate_buf.masked_fill_(rows, 0)
        if self.fresh:
            VecTask.compute_observations(self)

    def post_physics_step(self) -> None:
        self.progress_buf += 1
        VecTask.compute_observations(self)
        self.compute_reward()
        self.check_ends()
        if hasattr(self, "_terminate_buf"):
            self._terminate_buf.copy_(self.world.failed())
            self.extras["terminate"] = self._terminate_buf


TASKS: dict[str, type[VecTask]] = {"A": LazyAfter, "B": LazyBefore, "C": AtOnce, "D": Waiting}


class LeggedTask:
    """legged_gym's: five parts, reports that go stale, a clock that goes one further."""

    def __init__(self, scripts: list[Script], max_episode_length: float = 6, critic: bool = True):
        self.world = World(scripts, "cpu", None)
        self.num_envs, self.num_actions, self.device = len(scripts), 1, "cpu"
        self.num_privileged_obs = 2 if critic else None
        self.max_episode_length = max_episode_length
        self.obs_buf = torch.zeros_like(self.world.observe())
        self.privileged_obs_buf: None | torch.Tensor = None
        self.rew_buf = torch.zeros_like(self.world.name)
        self.reset_buf = torch.ones(self.num_envs, dtype=torch.long)
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.extras: dict[str, Any] = {}

    def get_observations(self) -> torch.Tensor:
        return self.obs_buf

    def get_privileged_observations(self) -> None | torch.Tensor:
        return self.privileged_obs_buf

    def reset(self) -> tuple[torch.Tensor, None | torch.Tensor]:
        self.reset_idx(torch.arange(self.num_envs))
        obs, privileged, *_ = self.step(torch.zeros(self.num_envs, 1))
        return obs, privileged

    def reset_idx(self, env_ids: torch.Tensor) -> None:
        if len(env_ids) == 0:
            return
        rows = torch.zeros(self.num_envs, dtype=torch.bool)
        rows[env_ids] = True
        self.world.start(rows)
        self.episode_length_buf[env_ids] = 0
        self.reset_buf[env_ids] = 1
        self.extras["time_outs"] = self.time_outs()

    def time_outs(self) -> torch.Tensor:
        self.up = getattr(self, "up", torch.zeros(self.num_envs, dtype=torch.bool))
        return self.up

    def step(self, actions: torch.Tensor) -> Any:
        self.world.move(actions)
        self.episode_length_buf += 1
        self.up = self.episode_length_buf > self.max_episode_length
        self.reset_buf = self.world.failed() | self.up
        self.rew_buf.copy_(self.world.rewards())
        self.reset_idx(self.reset_buf.nonzero().flatten())
        self.obs_buf = self.world.observe()
        if self.num_privileged_obs is not None:
            self.privileged_obs_buf = self.world.states()
        return self.obs_buf, self.privileged_obs_buf, self.rew_buf, self.reset_buf, self.extras


class RslEnv:
    """rsl_rl's protocol and nothing else: there is no `reset` in it."""

    def __init__(self, scripts: list[Script], max_episode_length: Any = 7, critic: bool = True):
        self.world = World(scripts, "cpu", None)
        self.num_envs, self.num_actions, self.device = len(scripts), 1, "cpu"
        self.max_episode_length, self.critic = max_episode_length, critic
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.cfg: dict[str, Any] = {}
        self.extras: dict[str, Any] = {}

    def get_observations(self) -> TensorDict:
        obs = {"policy": self.world.observe()}
        if self.critic:
            obs["critic"] = self.world.states()
        return TensorDict(obs, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> Any:
        self.world.move(actions)
        self.episode_length_buf = self.episode_length_buf + 1
        up = self.episode_length_buf >= self.max_episode_length
        dones, rewards = self.world.failed() | up, self.world.rewards()
        self.world.start(dones)
        self.episode_length_buf = self.episode_length_buf.masked_fill(dones, 0)
        self.extras["time_outs"] = up
        return self.get_observations(), rewards, dones.long(), self.extras


class LabEnv:
    """Isaac Lab's: flags that come apart and are written in place."""

    def __init__(self, scripts: list[Script], max_episode_length: int = 7, final: bool = False):
        self.world = World(scripts, "cpu", None)
        self.num_envs, self.device, self.final = len(scripts), "cpu", final
        self.max_episode_length = max_episode_length
        self.single_action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.reset_terminated = torch.zeros(self.num_envs, dtype=torch.bool)
        self.reset_time_outs = torch.zeros(self.num_envs, dtype=torch.bool)
        self.reward_buf = torch.zeros_like(self.world.name)
        self.extras: dict[str, Any] = {}
        self.seeds: list[int] = []

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        everything = torch.ones(self.num_envs, dtype=torch.bool)
        self.world.start(everything)
        self.episode_length_buf.zero_()
        return self.observations(), self.extras

    def observations(self) -> dict[str, torch.Tensor]:
        return {"policy": self.world.observe(), "critic": self.world.states()}

    def step(self, actions: torch.Tensor) -> Any:
        self.world.move(actions)
        self.episode_length_buf += 1
        self.reset_terminated[:] = self.world.failed()
        self.reset_time_outs[:] = self.episode_length_buf >= self.max_episode_length - 1
        self.reward_buf[:] = self.world.rewards()
        if self.final:
            self.extras["final_obs"] = self.observations()
        done = self.reset_terminated | self.reset_time_outs
        self.world.start(done)
        self.episode_length_buf.masked_fill_(done, 0)
        flags = self.reset_terminated, self.reset_time_outs
        return self.observations(), self.reward_buf, *flags, self.extras


# ---- the same, one environment at a time ------------------------------------------------------


@dataclass
class Row:
    """One row of one environment, as it must be."""

    #: What the policy saw.
    seen: list[float]
    #: What the action led to, before any reset; None where it was thrown away.
    led_to: None | list[float]
    #: What the row returns.
    obs: list[float]
    reward: float
    terminated: bool
    truncated: bool
    first: bool
    valid: bool


class Plain:
    """One environment of the world, stepped by hand."""

    def __init__(self, script: Script, start: list[float]) -> None:
        self.script = script
        self.name, self.episode, self.elapsed, self.place = start

    def move(self, action: float) -> None:
        self.place += max(-1.0, min(1.0, action))
        self.elapsed += 1

    def restart(self) -> None:
        self.episode, self.elapsed, self.place = self.episode + 1, 0.0, 0.0

    def obs(self) -> list[float]:
        return [self.name, self.episode, self.elapsed, self.place]

    def reward(self) -> float:
        phase = 1 + 3 * self.name + 1.7 * self.episode + 0.9 * self.elapsed
        return math.sin(phase + self.place)

    def failed(self) -> bool:
        return self.elapsed >= self.script[int(self.episode) % len(self.script)]


def expected_rows(
    style: str,
    script: Script,
    start: list[float],
    actions: list[float],
    limit: int,
    *,
    knows_failures: bool = False,
) -> list[Row]:
    """The rows of one environment, from nothing but stepping it by hand.

    Args:
        style: When it is reset.
        script: Its failures.
        start: The observation after a full reset.
        actions: One an env step.
        limit: Env steps of an episode.
        knows_failures: Whether a failure in an episode's last env step is told from a time-out.

    """
    env, rows, seen = Plain(script, start), [], start
    pending = style in "AB" and env.failed()  # where it was put
    for action in actions:
        invalid = pending
        if invalid:  # in A its physics are thrown away
            env.restart()
        if not invalid:
            env.move(action)
        elif style == "B":
            env.move(0.0)
        failed, up = env.failed(), env.elapsed >= limit
        led_to, reward, done = env.obs(), env.reward(), failed or up
        terminated = failed and (knows_failures or not up)
        truncated = done and not terminated
        first = invalid
        if style in "CD" and done:
            env.restart()
            first = True
        pending = style in "AB" and done
        rows.append(
            Row(seen, led_to, env.obs(), reward, terminated, truncated, first, True)
            if not invalid
            else Row(seen, None, env.obs(), 0.0, False, False, True, False)
        )
        seen = env.obs()
    return rows


# ---- playing ----------------------------------------------------------------------------------

WORDS = {
    "A": "next_step_after_physics",
    "B": "next_step_before_physics",
    "C": "same_step",
    "D": "external",
}

#: `max_episode_length` of the tasks, and the env steps of an episode that follow from it.
LONGEST, LIMIT = 7, 6

SCRIPTS: dict[str, list[Script]] = {
    "failures": [[3], [2, 4]],
    "time-outs": [[NEVER], [NEVER]],
    "both": [[NEVER, 3], [1, NEVER, 5]],
    "failures in the last env step": [[LIMIT], [LIMIT, 2]],
    "one-step episodes": [[1], [1], [NEVER]],
    "where it was put": [[0, 3, NEVER], [0, 0, 2], [NEVER]],
    "all together": [[4], [4], [4]],
}


def play(env: Any, actions: torch.Tensor) -> tuple[Any, list[TensorDict]]:
    """The first observations and copies of the rows of actions `[T, N]`."""
    first = env.reset().clone()
    return first, [env.step(action.unsqueeze(-1)).clone() for action in actions]


def some_actions(steps: int, num_envs: int) -> torch.Tensor:
    """Between -1 and 1."""
    generator = torch.Generator().manual_seed(0)
    return 2 * torch.rand(steps, num_envs, generator=generator) - 1


def check_rows(
    env: Any, style: str, scripts: list[Script], limit: int = LIMIT, **knows: bool
) -> None:
    """Compare 30 rows with those of environments stepped by hand."""
    actions = some_actions(30, len(scripts))
    first, rows = play(env, actions)
    for n, script in enumerate(scripts):
        moves = actions[:, n].tolist()
        expected = expected_rows(style, script, first[n].tolist(), moves, limit, **knows)
        for t, (row, want) in enumerate(zip(rows, expected, strict=True)):
            check_row(row[n], want, f"row {t} of environment {n}: {want}")


def check_row(row: TensorDict, want: Row, which: str) -> None:
    torch.testing.assert_close(row["obs"], torch.tensor(want.obs), msg=which)
    assert row["rewards"].item() == pytest.approx(want.reward, abs=1e-9), which
    for key in ("terminated", "truncated", "first"):
        assert row[key].item() is getattr(want, key), f"{key} in {which}"
    if "valid" in row:
        assert row["valid"].item() is want.valid, which
    if "final_obs" in row:
        torch.testing.assert_close(row["final_obs"], torch.tensor(want.led_to), msg=which)
