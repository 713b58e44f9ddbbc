"""Environments that a server hosts in tests: NumPy and whatever they name, in any Python."""

import os
import sys
import time

import numpy as np


class Space:
    """A space that no version of gym has, for the test of a refusal."""


def gymnasium_env(id="CartPole-v1", **kwargs):
    import gymnasium

    return gymnasium.make(id, **kwargs)


def gymnasium_vector(num_envs, mode="NEXT_STEP", id="CartPole-v1"):
    import gymnasium
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    make = lambda: gymnasium.make(id)  # noqa: E731
    return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode[mode])


def picture(shape):
    """Pictures, each as bright as the env step's number."""
    import gymnasium

    class Picture(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            self.t = 0
            return np.zeros(shape, np.uint8), {}

        def step(self, action):
            self.t += 1
            return np.full(shape, self.t, np.uint8), 0.0, False, False, {}

    return Picture()


def mixed(**options):
    """A class made here, because Gymnasium is imported by what hosts it alone."""
    import gymnasium
    from gymnasium import spaces

    class Mixed(gymnasium.Env):
        """Every kind of space; one array is reused by `step` and overwritten by `reset`."""

        def __init__(self):
            self.observation_space = spaces.Dict(
                {
                    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
                    "state": spaces.Box(
                        np.array([0.0, -5.0]), np.array([np.inf, 5.0]), dtype=np.float64
                    ),
                    "parts": spaces.Tuple([spaces.Discrete(4, start=2), spaces.MultiBinary(3)]),
                    "many": spaces.MultiDiscrete([3, 7]),
                }
            )
            self.action_space = spaces.MultiDiscrete([3, 4])
            self._state = np.zeros(2)
            self._t = 0

        def _obs(self):
            random = self.np_random
            return {
                "image": random.integers(0, 256, (4, 5, 3)).astype(np.uint8),
                "state": self._state,
                "parts": (int(random.integers(2, 6)), random.integers(0, 2, 3).astype(np.int8)),
                "many": random.integers([3, 7]),
            }

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            self._state[:] = 0 if options is None else options["start"]
            self._t = 0
            return self._obs(), {}

        def step(self, action):
            self._t += 1
            self._state[:] = np.clip(self._state + action, [0, -5], [np.inf, 5])
            over = bool(self.np_random.random() < 0.2)
            info = {"speed": float(self._t), "deep": {"x": np.float32(2)}, "text": "no number"}
            return self._obs(), float(self._state.sum()), over, self._t >= 6, info

        def render(self):
            return np.full((2, 3, 3), self._t, np.uint8)

    return Mixed()


class Old:
    """gym's interface before 0.26, without gym: `seed`, observations alone, `done`."""

    def __init__(self, limit=5, fails_at=None, hangs_at=None, dies_at=None, noise=False):
        from gymnasium import spaces

        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._limit, self._noise = limit, noise
        self._at = {"fail": fails_at, "hang": hangs_at, "die": dies_at}
        self._random = np.random.RandomState(0)
        self.state = np.zeros(2, np.float32)

    def seed(self, seed=None):
        self._random = np.random.RandomState(seed)
        return [seed]

    def reset(self):
        self._t = 0
        self.state[:] = self._random.rand()
        return self.state

    def step(self, action):
        self._t += 1
        if self._noise:
            print("a line on standard output", flush=True)
            sys.stderr.write("another\n")
            if os.fork() == 0:
                time.sleep(0.2)
                os._exit(0)
        if self._t == self._at["fail"]:
            raise ZeroDivisionError("the physics exploded")
        if self._t == self._at["hang"]:
            time.sleep(1000)
        if self._t == self._at["die"]:
            os._exit(7)
        self.state[1] = self._t
        clocked = self._t >= self._limit
        failed = self._t == 3 and action == 1
        info = {"TimeLimit.truncated": not failed} if clocked else {}
        return self.state, 1.0, clocked or failed, info

    def close(self):
        pass


class Stateful(Old):
    """Offers its state: of its generator, too."""

    def state_dict(self):
        name, keys, at, has_gauss, gauss = self._random.get_state()
        generator = [name, keys, at, has_gauss, gauss]
        return {"state": self.state, "t": self._t, "random": generator}

    def load_state_dict(self, state):
        self._random.set_state(tuple(state["random"]))
        self.state[:] = state["state"]
        self._t = state["t"]


def limited(**options):
    import gymnasium

    class Limited(gymnasium.Env):
        """Offers its state, inside of Gymnasium's wrappers."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            self.place = self.np_random.random()
            return np.array([self.place], np.float32), {}

        def step(self, action):
            self.place += 1
            return np.array([self.place], np.float32), self.place, False, False, {}

        def state_dict(self):
            return {"place": self.place, "random": self.np_random.bit_generator.state}

        def load_state_dict(self, state):
            self.place = state["place"]
            self.np_random.bit_generator.state = state["random"]

    return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.OrderEnforcing(Limited()), 4)


class OldVector:
    """The interface of stable-baselines' `VecEnv`: resets rows itself, one info a row."""

    def __init__(self, num_envs, terminal=True):
        self.num_envs, self._terminal = num_envs, terminal
        self.envs = [Old() for _ in range(num_envs)]
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space

    def seed(self, seed):
        for i, env in enumerate(self.envs):
            env.seed(seed + i)

    def reset(self):
        return np.stack([env.reset().copy() for env in self.envs])

    def step(self, actions):
        rows = []
        for env, action in zip(self.envs, actions):  # noqa: B905  Python 3.6
            obs, reward, done, info = env.step(action)
            if done:
                if self._terminal:
                    info = dict(info, terminal_observation=obs.copy())
                obs = env.reset()
            rows.append((obs.copy(), reward, done, info))
        obs, rewards, done, infos = zip(*rows)  # noqa: B905
        return np.stack(obs), np.array(rewards), np.array(done), list(infos)

    def close(self):
        pass


def stable_baselines(num_envs, id="CartPole-v1"):
    """The old `DummyVecEnv` itself; only its algorithms and TensorBoard need TensorFlow."""
    import importlib.util
    import types

    import gym

    folder = os.path.dirname(importlib.util.find_spec("stable_baselines").origin)
    for name, path in (
        ("stable_baselines", folder),
        ("stable_baselines.common", folder + "/common"),
    ):
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package
    package = sys.modules["stable_baselines"]
    package.logger = sys.modules["stable_baselines.logger"] = types.ModuleType("logger")
    from stable_baselines.common.vec_env import DummyVecEnv

    return DummyVecEnv([lambda: gym.make(id)] * num_envs)


_SAME = []


def same(**options):
    if not _SAME:
        _SAME.append(Old())
    return _SAME[0]


def nothing():
    return 3


def odd_space():
    env = Old()
    env.observation_space = Space()
    return env


def wrong_shape():
    env = Old()
    env.reset = lambda: np.zeros(3)
    return env


class Household(Old):
    """An environment with a process and a named segment of shared memory of its own."""

    def __init__(self):
        import subprocess
        from multiprocessing import resource_tracker
        from multiprocessing.shared_memory import SharedMemory

        super().__init__()
        self.child = subprocess.Popen(["sleep", "1000"])
        name = "{}-{}-{}".format(os.environ["EVERSTEP_TEST_MARK"], os.getpid(), id(self))
        # Python registers a segment after making it, so a kill between the two would leave it.
        resource_tracker.register("/" + name, "shared_memory")
        self.segment = SharedMemory(name, create=True, size=64)


class Runaway(Old):
    """Its `step` forks; the fork goes on as if it were the server, while that is in the next step.

    Of two rows, the first is written by then.
    """

    def step(self, action):
        time.sleep(0.35 if os.fork() == 0 else 0.1)
        return super().step(action)


class Shrinks(Old):
    """Tries to cut off the memory that it shares with the client."""

    def step(self, action):
        obs, *rest = super().step(action)
        refused = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                if "everstep-bridge" in os.readlink("/proc/self/fd/" + name):
                    os.ftruncate(int(name), 0)
            except OSError:
                refused = 1
        self.state[0] = refused
        return (obs, *rest)


def without_flags():
    """An environment whose `terminated` is None."""
    inner = picture((2,))
    step = inner.step
    inner.step = lambda action: (*step(action)[:2], None, False, {})
    return inner


def odd(dtype="float32", obs="np.zeros(2, np.float32)", reward="0.0", info="{}", step="0"):
    """An environment that returns what these expressions give."""
    import gymnasium

    known = {"np": np, "os": os, "sys": sys}

    class Odd(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (2,), np.dtype(dtype))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2, dtype), {}

        def step(self, action):
            eval(step, known)
            return eval(obs, known), eval(reward, known), False, False, eval(info, known)

    return Odd()


def parses():
    """Reads the options of its program, as tasks of Isaac Gym do."""
    import argparse

    argparse.ArgumentParser().parse_args()
    return Old()


def sleeps():
    time.sleep(1000)


def leaves():
    sys.exit("no licence for the simulator")


class Estranged(Old):
    """Starts a process that leaves its group and session, as simulators in Java do."""

    def __init__(self):
        import subprocess

        super().__init__()
        self.child = subprocess.Popen(["sleep", "1000"], start_new_session=True)


def isaacgym_project(num_envs, project, name, module, config, longest):
    """A task of IsaacGymEnvs, or of legged_gym (no module), over the stand-in simulator."""
    from pathlib import Path

    from tests.everstep_adapters.isaacgym import isaacgym_stand_in as stand_in

    context = stand_in.loaded(Path(project))
    context.__enter__()
    _OPEN.append(context)
    stand_in.set_seed(0)
    if module is None:
        task = stand_in.legged(Path(project), name, num_envs)
    else:
        task = stand_in.vec_task(Path(project), module, name, config, num_envs)
    task.max_episode_length = longest
    return task


#: Contexts that stay open while a server runs.
_OPEN = []
