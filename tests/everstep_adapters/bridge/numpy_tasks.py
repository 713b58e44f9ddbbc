"""Tasks with IsaacGym's interfaces in NumPy, for servers without PyTorch; Python 3.6 runs it.

They are the worlds of `isaacgym_tasks`, of which `torch_task` makes the ones in PyTorch.
"""

import numpy as np


class World:
    """Scripted environments, in place."""

    def __init__(self, scripts):
        self.num_envs, self.scripts = len(scripts), scripts
        self.name = np.arange(self.num_envs, dtype=np.float64)
        self.episode, self.elapsed, self.place = (np.zeros(self.num_envs) for _ in "123")

    def move(self, actions):
        self.place += actions.reshape(-1)
        self.elapsed += 1

    def start(self, rows):
        self.episode += rows
        self.elapsed[rows] = 0
        self.place[rows] = 0

    def observe(self):
        return np.stack([self.name, self.episode, self.elapsed, self.place], -1)

    def rewards(self):
        return np.sin(1 + 3 * self.name + 1.7 * self.episode + 0.9 * self.elapsed + self.place)

    def failed(self):
        pairs = zip(self.scripts, self.episode.astype(int))  # noqa: B905
        after = [script[episode % len(script)] for script, episode in pairs]
        return self.elapsed >= np.array(after)


class VecTask:
    """A VecTask that is reset in the next env step after the physics (A) or before them (B), in
    the same one (C), or by `reset_done` (D)."""

    num_actions = 1

    def __init__(self, style, scripts, max_episode_length=7, fails_at=None):
        self.world, self.style = World(scripts), style
        self.num_envs, self.max_episode_length = len(scripts), max_episode_length
        self.progress_buf = np.zeros(self.num_envs, np.int64)
        self.reset_buf = np.ones(self.num_envs, np.int64)
        if style == "D":
            self._terminate_buf = np.ones(self.num_envs, np.int64)
        self.obs_buf = self.world.observe()
        self.extras = {}
        self._steps, self._fails_at = 0, fails_at

    def step(self, actions):
        assert isinstance(actions, np.ndarray)
        self._steps += 1
        if self._steps == self._fails_at:
            raise ZeroDivisionError("the physics exploded")
        world = self.world
        if self.style == "B":
            self.reset_idx(np.flatnonzero(self.reset_buf))
        world.move(np.clip(actions, -1.0, 1.0))
        self.progress_buf += 1
        if self.style == "A":
            self.reset_idx(np.flatnonzero(self.reset_buf))
        failed = world.failed()
        self.reset_buf = (failed | (self.progress_buf >= self.max_episode_length - 1)).astype(int)
        rewards = world.rewards()
        if self.style == "C":
            ended = self.reset_buf
            self.reset_idx(np.flatnonzero(ended))
            self.reset_buf = ended
        if self.style == "D":
            self._terminate_buf[:] = failed
            self.extras["terminate"] = self._terminate_buf
        self.obs_buf = world.observe()
        self.extras["log"] = {"speed": np.float32(2.5), "text": "no number"}
        return {"obs": self.obs_buf}, rewards, self.reset_buf, self.extras

    def reset_idx(self, env_ids):
        rows = np.zeros(self.num_envs, bool)
        rows[env_ids] = True
        self._reset(rows)

    def _reset(self, rows):
        self.world.start(rows)
        self.progress_buf[rows] = 0
        self.reset_buf = self.reset_buf * ~rows

    def compute_observations(self):
        self.obs_buf = self.world.observe()

    def reset_done(self):
        rows = self.reset_buf != 0
        self._reset(rows)
        self._terminate_buf[rows] = 0
        self.compute_observations()
        return {"obs": self.obs_buf}, rows

    def seed(self, seed):
        self.seeded = seed


class Legged:
    """legged_gym's five parts; reset in the same env step."""

    def __init__(self, scripts, max_episode_length=5):
        self.world = World(scripts)
        self.num_envs, self.num_actions = len(scripts), 1
        self.max_episode_length = max_episode_length
        self.episode_length_buf = np.zeros(self.num_envs, np.int64)
        self.extras = {}

    def get_observations(self):
        return self.world.observe()

    def reset(self):
        self.world.start(np.ones(self.num_envs, bool))
        self.episode_length_buf[:] = 0
        return self.step(np.zeros((self.num_envs, 1)))[:2]

    def step(self, actions):
        world = self.world
        world.move(actions)
        self.episode_length_buf += 1
        self.time_out_buf = self.episode_length_buf > self.max_episode_length
        rewards, done = world.rewards(), world.failed() | self.time_out_buf
        world.start(done)
        self.episode_length_buf[done] = 0
        self.extras = {"time_outs": self.time_out_buf}
        return world.observe(), None, rewards, done, self.extras


def vec_task(num_envs, style, scripts, **options):
    return VecTask(style, scripts[:num_envs], **options)


def legged(num_envs, scripts):
    return Legged(scripts)


def torch_task(num_envs, style, scripts, float64=False, **options):
    """One of `isaacgym_tasks`, where the other interpreter has PyTorch and this package."""
    import torch

    from tests.everstep_adapters.isaacgym import isaacgym_tasks as tasks

    if float64:
        torch.set_default_dtype(torch.float64)
    if style in tasks.TASKS:
        return tasks.TASKS[style](scripts, **options)
    return {"legged": tasks.LeggedTask, "rsl": tasks.RslEnv, "lab": tasks.LabEnv}[style](
        scripts, **options
    )
