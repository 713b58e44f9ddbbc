"""Scripted TorchRL environments, and the rows that are expected of them."""

import math
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from tests.toys import BOTH, TERMINATED, TRUNCATED, Episode, Script, obs_of, reward_of, stream

NEVER = 1_000

SCRIPTS: dict[str, list[Script]] = {
    "mixed": [
        [Episode(3, TERMINATED), Episode(2, TRUNCATED), Episode(1, BOTH), Episode(1, TERMINATED)],
        [Episode(1, TRUNCATED), Episode(1, TRUNCATED), Episode(3, BOTH), Episode(2, TERMINATED)],
        [Episode(NEVER, TERMINATED)],
        [Episode(6, TRUNCATED), Episode(6, TERMINATED), Episode(5, TRUNCATED)],
    ],
    "one-step episodes": [[Episode(1, TERMINATED)], [Episode(1, TRUNCATED)], [Episode(1, BOTH)]],
    "all done together": [
        [Episode(3, TERMINATED)],
        [Episode(3, TRUNCATED)],
        [Episode(3, BOTH)],
        [Episode(3, TRUNCATED)],
    ],
    "none done": [[Episode(NEVER, TERMINATED)], [Episode(NEVER, TRUNCATED)]],
    "done on the last row of a horizon": [
        [Episode(6, TRUNCATED)],
        [Episode(6, TERMINATED)],
        [Episode(1, TRUNCATED), Episode(5, TRUNCATED)],
        [Episode(7, TRUNCATED)],
    ],
}


def flag_spec(*shape: int) -> Categorical:
    return Categorical(2, shape=torch.Size([*shape, 1]), dtype=torch.bool)


def zeros(env: Any) -> torch.Tensor:
    return env.action_spec.zero(torch.Size([env.num_envs]))


class ScriptedEnv(EnvBase):
    """Ends the episodes of each row as it is told; observes (which row, which episode, env step).

    Args:
        scripts: One a row of the batch.
        batch_size: Batch size; `[len(scripts)]` where not given.
        flags: Flags that it has and returns, of "done", "terminated" and "truncated".
        first_row: What the first row calls itself.

    """

    auto_complete_done_specs = False

    def __init__(
        self,
        scripts: list[Script],
        batch_size: Any = None,
        *,
        flags: tuple[str, ...] = ("done", "terminated", "truncated"),
        first_row: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(batch_size=[len(scripts)] if batch_size is None else batch_size)
        assert math.prod(self.batch_size) == len(scripts)
        self.scripts, self.flags, self.first_row, self.dtype = scripts, flags, first_row, dtype
        self.episodes, self.elapsed = [-1] * len(scripts), [0] * len(scripts)
        shape = self.batch_size
        self.observation_spec = Composite(
            observation=Unbounded((*shape, 3), dtype=dtype), shape=shape
        )
        self.action_spec = Categorical(2, shape=torch.Size([*shape, 1]))
        self.reward_spec = Unbounded((*shape, 1), dtype=dtype)
        self.full_done_spec = Composite({flag: flag_spec(*shape) for flag in flags}, shape=shape)

    def _set_seed(self, seed: int | None) -> None:
        self.episodes = [(seed or 0) % 7 - 1] * len(self.scripts)

    def _observe(self) -> torch.Tensor:
        rows = [
            obs_of(self.first_row + i, episode, t)
            for i, (episode, t) in enumerate(zip(self.episodes, self.elapsed, strict=True))
        ]
        return torch.tensor(rows, dtype=self.dtype).reshape(*self.batch_size, 3)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        reset = torch.ones(len(self.scripts), dtype=torch.bool)
        if tensordict is not None and "_reset" in tensordict.keys():  # noqa: SIM118
            reset = tensordict["_reset"].flatten()
        for i in reset.nonzero().flatten().tolist():
            self.episodes[i], self.elapsed[i] = self.episodes[i] + 1, 0
        return TensorDict({"observation": self._observe()}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rewards, terminated, truncated = [], [], []
        for i, script in enumerate(self.scripts):
            rewards.append(reward_of(self.first_row + i, self.episodes[i], self.elapsed[i]))
            self.elapsed[i] += 1
            episode = script[self.episodes[i] % len(script)]
            ended = self.elapsed[i] == episode.length
            terminated.append(ended and episode.end in (TERMINATED, BOTH))
            truncated.append(ended and episode.end in (TRUNCATED, BOTH))
        flags = {"terminated": torch.tensor(terminated), "truncated": torch.tensor(truncated)}
        flags["done"] = flags["terminated"] | flags["truncated"]
        shape = (*self.batch_size, 1)
        return TensorDict(
            {
                "observation": self._observe(),
                "reward": torch.tensor(rewards, dtype=self.dtype).reshape(shape),
                **{flag: flags[flag].reshape(shape) for flag in self.flags},
            },
            self.batch_size,
        )


class SelfResetting(ScriptedEnv):
    """Returns the next episode's observation where an episode ended, as simulators do."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        data = super()._step(tensordict)
        reset = TensorDict({"_reset": data["done"]}, self.batch_size)
        data["observation"] = super()._reset(reset)["observation"]
        return data

    def _reset(self, tensordict: TensorDictBase | None = None, **options: Any) -> TensorDictBase:
        if tensordict is not None and "_reset" in tensordict.keys():  # noqa: SIM118
            return TensorDict({"observation": self._observe()}, self.batch_size)
        return super()._reset(tensordict, **options)


class ExpectedRow(NamedTuple):
    obs: list[float]
    rewards: float
    terminated: bool
    truncated: bool
    first: bool
    final_obs: list[float]


def expected_rows(script: Script, row: int, num_steps: int) -> list[ExpectedRow]:
    """The rows of one environment, from nothing but its script."""
    rows = []
    for step in stream(script, num_steps, with_reset_rows=False):
        episode = script[step.episode % len(script)]
        ended = step.t + 1 == episode.length
        final = obs_of(row, step.episode, step.t + 1)
        rows.append(
            ExpectedRow(
                obs=obs_of(row, step.episode + 1, 0) if ended else final,
                rewards=reward_of(row, step.episode, step.t),
                terminated=ended and episode.end in (TERMINATED, BOTH),
                truncated=ended and episode.end in (TRUNCATED, BOTH),
                first=ended,
                final_obs=final,
            )
        )
    return rows


def check_stream(env: Any, scripts: list[Script], num_steps: int = 25, **changed: Any) -> None:
    """Play an environment of scripted rows, and compare every element of every row.

    Args:
        env: Wrapped environment.
        scripts: One a row.
        num_steps: Env steps.
        changed: For each flag that differs from the scripts', a function of the expected row.

    """
    streams = [expected_rows(script, i, num_steps) for i, script in enumerate(scripts)]
    obs = env.reset()
    assert obs.tolist() == [obs_of(i, 0, 0) for i in range(len(scripts))]
    for t in range(num_steps):
        row = env.step(env.action_spec.rand(torch.Size([env.num_envs])))
        assert set(row.keys()) == {"obs", "rewards"} | env.episode_keys
        for key in row.keys():  # noqa: SIM118  a TensorDict
            read = changed.get(key, lambda expected, key=key: getattr(expected, key))
            want = [read(rows[t]) for rows in streams]
            got = row[key] if isinstance(want[0], list) else row[key].squeeze(-1)
            assert got.tolist() == want, f"{key} at {t}"


class Recorder(EnvBase):
    """An environment of any specs: it returns zeros, and keeps the action that it was sent.

    Args:
        action: Spec of the action, with the batch.
        observation: Specs of the observations, with the batch.
        batch_size: Batch size.
        values: What it returns instead of zeros, by key.

    """

    def __init__(
        self,
        action: TensorSpec,
        observation: Composite,
        batch_size: Any = (),
        values: dict[str, torch.Tensor] | None = None,
        reward: TensorSpec | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size)
        self.observation_spec = observation
        self.action_spec = action
        self.reward_spec = Unbounded((*self.batch_size, 1)) if reward is None else reward
        self.values, self.sent = values or {}, None
        self.resets: list[dict[str, Any]] = []

    def _set_seed(self, seed: int | None) -> None:
        self.seeded = seed

    def _observe(self) -> TensorDictBase:
        data = self.observation_spec.zero()
        for key, value in self.values.items():
            data[key] = value
        return data

    def _reset(self, tensordict: TensorDictBase | None = None, **options: Any) -> TensorDictBase:
        self.resets.append(options)
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.sent = tensordict[self.action_key]
        data = self._observe()
        data.update(self.full_reward_spec.zero())
        data.update(self.full_done_spec.zero())
        return data


def observing(batch_size: Any = (2,), values: Any = None, **leaves: Any) -> Recorder:
    """A `Recorder` of two choices, with these specs of observations."""
    shape = torch.Size(batch_size)
    action = Categorical(2, shape=shape)
    return Recorder(action, Composite(leaves, shape=shape), shape, values)


class InPlace(EnvBase):
    """Steps its state in place and hands it out, as simulators do."""

    def __init__(self, batch_size: Any = (3,)) -> None:
        super().__init__(batch_size=batch_size)
        shape = self.batch_size
        self.observation_spec = Composite(observation=Unbounded((*shape, 2)), shape=shape)
        self.action_spec = Unbounded((*shape, 2))
        self.reward_spec = Unbounded((*shape, 1))
        self.state = torch.zeros(*shape, 2)
        self.rewards, self.flags = torch.zeros(*shape, 1), torch.zeros(*shape, 1, dtype=torch.bool)
        self.kept: list[torch.Tensor] = []

    def _set_seed(self, seed: int | None) -> None:
        pass

    def _reset(self, tensordict: Any = None, **_: Any) -> Any:
        return TensorDict({"observation": self.state.zero_()}, self.batch_size)

    def _step(self, tensordict: Any) -> Any:
        self.kept.append(tensordict["action"])
        self.state += tensordict["action"]
        self.rewards += 1
        data = {"observation": self.state, "reward": self.rewards, "done": self.flags}
        return TensorDict({**data, "terminated": self.flags}, self.batch_size)


class Team(EnvBase):
    """Agents that die when they are told to, in environments that end when they are told to.

    Observes (which environment, which agent, which episode, env step), zeros once dead, and a
    camera that all agents share.

    Args:
        lives: For each environment, how many env steps each agent lives.
        lengths: For each environment, env steps after which it is truncated and reset; it is
            reset earlier where all agents are dead.
        team_reward: Reward the team rather than each agent.
        own_flags: Say which agents are done, not only which environments.
        root_flags: Say which environments are done; where not, each agent is reset by itself.

    """

    def __init__(
        self,
        lives: list[list[int]],
        lengths: list[int],
        *,
        team_reward: bool = False,
        own_flags: bool = True,
        root_flags: bool = True,
    ) -> None:
        n, a = len(lives), len(lives[0])
        super().__init__(batch_size=[n])
        self.lives, self.lengths = torch.tensor(lives), torch.tensor(lengths)
        self.team_reward, self.own_flags, self.root_flags = team_reward, own_flags, root_flags
        self.episode = torch.full((n, a), -1)
        self.t = torch.zeros(n, a, dtype=torch.int64)
        self.dead = torch.zeros(n, a, dtype=torch.bool)
        group = {"observation": Unbounded((n, a, 4))}
        self.observation_spec = Composite(
            agents=Composite(group, shape=(n, a)), camera=Unbounded((n, 2)), shape=(n,)
        )
        action = Composite({"action": Categorical(3, shape=(n, a))}, shape=(n, a))
        self.action_spec = Composite(agents=action, shape=(n,))
        reward = Composite({"reward": Unbounded((n, a, 1))}, shape=(n, a))
        self.reward_spec = (
            Unbounded((n, 1)) if team_reward else Composite(agents=reward, shape=(n,))
        )
        flags = ("done", "terminated", "truncated")
        done: dict[str, Any] = {flag: flag_spec(n) for flag in flags} if root_flags else {}
        if own_flags:
            done["agents"] = Composite({flag: flag_spec(n, a) for flag in flags}, shape=(n, a))
        self.full_done_spec = Composite(done, shape=(n,))

    def _set_seed(self, seed: int | None) -> None:
        self.episode = torch.full_like(self.episode, (seed or 0) % 7 - 1)

    def _observe(self) -> dict[str, Any]:
        n, a = self.t.shape
        grid = torch.meshgrid(torch.arange(n), torch.arange(a), indexing="ij")
        obs = torch.stack([*grid, self.episode, self.t], -1).float()
        agents = TensorDict({"observation": obs * ~self.dead[..., None]}, (n, a))
        return {"agents": agents, "camera": obs[:, 0, 2:]}

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        reset = torch.ones_like(self.dead)
        if tensordict is not None:
            key = "_reset" if self.root_flags else ("agents", "_reset")
            reset = tensordict[key].view(len(reset), -1).expand_as(reset)
        self.episode = self.episode + reset
        self.t = self.t.masked_fill(reset, 0)
        self.dead = self.dead & ~reset
        return TensorDict(self._observe(), self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rewards = (self.t + 1.0 + tensordict["agents", "action"]) * ~self.dead
        self.t = self.t + 1
        died = ~self.dead & (self.t >= self.lives)
        timeout = (self.t >= self.lengths[:, None]) & ~self.dead
        out = TensorDict(self._observe(), self.batch_size)
        self.dead = self.dead | died
        if self.team_reward:
            out["reward"] = rewards.sum(1, keepdim=True)
        else:
            out["agents", "reward"] = rewards[..., None]
        if self.own_flags:
            flags = {"done": self.dead, "terminated": died, "truncated": torch.zeros_like(died)}
            for flag, value in flags.items():
                out["agents", flag] = value[..., None]
        if self.root_flags:
            out["terminated"] = self.dead.all(1, keepdim=True)
            out["truncated"] = timeout.any(1, keepdim=True)
            out["done"] = out["terminated"] | out["truncated"]
        return out


class Overwriting(InPlace):
    """Ends every third env step, in memory of which its reset writes to all that it names.

    Args:
        overwritten: What the reset writes to: any of `"observation"`, `"reward"`, `"done"`.
        alternates: Return one of two arrays in turn.

    """

    def __init__(self, *overwritten: str, batch_size: Any = (3,), alternates: bool = False) -> None:
        super().__init__(batch_size)
        self.full_done_spec = Composite(
            {key: flag_spec(*self.batch_size, 1) for key in ("done", "terminated", "truncated")},
            shape=self.batch_size,
        )
        self.overwritten, self.never = overwritten, torch.zeros_like(self.flags)
        self.buffers = [torch.zeros_like(self.state) for _ in range(1 + alternates)]
        self.t = 0

    def _observed(self) -> torch.Tensor:
        buffer = self.buffers[self.t % len(self.buffers)].copy_(self.state)
        return buffer if "observation" in self.overwritten else buffer.clone()

    def _reset(self, tensordict: Any = None, **_: Any) -> Any:
        self.t = 0
        for key, value in (("reward", self.rewards), ("done", self.flags)):
            value.zero_() if key in self.overwritten else None
        self.state.zero_()
        flags = dict.fromkeys(("done", "terminated", "truncated"), self.never)
        return TensorDict({"observation": self._observed(), **flags}, self.batch_size)

    def _step(self, tensordict: Any) -> Any:
        self.t += 1
        self.state += 1
        self.rewards.fill_(self.t)
        self.flags.fill_(self.t == 3)
        data = {"observation": self._observed(), "terminated": self.never}
        for key, value in (("reward", self.rewards), ("done", self.flags)):
            data[key] = value if key in self.overwritten else value.clone()
        return TensorDict({**data, "truncated": data["done"]}, self.batch_size)


class Hunt(EnvBase):
    """Groups of agents that observe and do different things, in environments that end by a clock.

    An agent observes (which environment, which agent of its group, env step), and then zeros up to
    its group's width. Its reward is its first action; an agent whose action is `killed_by` dies.

    Args:
        num_envs: Number of environments.
        widths: Numbers that an agent of each group observes, at least 3.
        actions: Spec of an action of each group.
        counts: Agents of each group.
        length: Env steps of an episode.
        killed_by: First action after which an agent is done; None for no flags of agents.

    """

    def __init__(
        self,
        num_envs: int,
        widths: list[int],
        actions: list[TensorSpec],
        counts: list[int],
        length: int = 4,
        killed_by: float | None = None,
    ) -> None:
        n = num_envs
        super().__init__(batch_size=[n])
        names = ["hunter", "prey", "bystander"][: len(counts)]
        self.counts, self.length, self.killed_by = (
            dict(zip(names, counts, strict=True)),
            length,
            killed_by,
        )
        self.group_map = {x: [f"{x}_{i}" for i in range(k)] for x, k in self.counts.items()}
        self.t, self.sent = torch.zeros(n, dtype=torch.int64), {}
        self.dead = {x: torch.zeros(n, k, 1, dtype=torch.bool) for x, k in self.counts.items()}
        sizes = dict(zip(names, widths, strict=True))
        acted = dict(zip(names, actions, strict=True))

        def each(key: str, make: Any) -> Composite:
            groups = {
                x: Composite({key: make(x, (n, k))}, shape=(n, k)) for x, k in self.counts.items()
            }
            return Composite(groups, shape=(n,))

        self.observation_spec = each("observation", lambda x, b: Unbounded((*b, sizes[x])))
        self.action_spec = each("action", lambda x, b: acted[x].expand(*b, *acted[x].shape))
        self.reward_spec = each("reward", lambda x, b: Unbounded((*b, 1)))
        done: dict[str, Any] = {flag: flag_spec(n) for flag in ("done", "terminated", "truncated")}
        if killed_by is not None:
            for x, k in self.counts.items():
                flags = {flag: flag_spec(n, k) for flag in ("done", "terminated")}
                done[x] = Composite(flags, shape=(n, k))
        self.full_done_spec = Composite(done, shape=(n,))

    def _set_seed(self, seed: int | None) -> None: ...

    def _observe(self) -> dict[str, Any]:
        n, data = len(self.t), {}
        for x, k in self.counts.items():
            obs = self.observation_spec[x, "observation"].zero()
            obs[..., 0], obs[..., 1] = torch.arange(n)[:, None], torch.arange(k)
            obs[..., 2] = self.t[:, None]
            data[x] = TensorDict({"observation": obs}, (n, k))
        return data

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        reset = torch.ones_like(self.t, dtype=torch.bool)
        if tensordict is not None and "_reset" in tensordict.keys():  # noqa: SIM118
            reset = tensordict["_reset"].squeeze(-1)
        self.t = self.t.masked_fill(reset, 0)
        for x, dead in self.dead.items():
            self.dead[x] = dead & ~reset[:, None, None]
        return self.full_done_spec.zero().update(self._observe())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.t = self.t + 1
        data = self._observe()
        for x, k in self.counts.items():
            action = tensordict[x, "action"]
            self.sent[x] = action.clone()
            chosen = action.long().argmax(-1) if action.dtype is torch.bool else action
            first = chosen.reshape(len(self.t), k, -1)[..., :1].float()
            data[x]["reward"] = first
            if self.killed_by is not None:
                self.dead[x] = self.dead[x] | (first == self.killed_by)
                data[x]["done"] = data[x]["terminated"] = self.dead[x]
        ends = (self.t >= self.length)[:, None]
        flags = {"done": ends, "terminated": torch.zeros_like(ends), "truncated": ends}
        return TensorDict({**data, **flags}, self.batch_size)
