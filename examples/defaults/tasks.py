"""The tasks of `compare.py` in eight sets, and how one environment of a task is made.

`known` are those that the defaults were first chosen on, `choosing` further ones to choose on.
`held-out` to `held-out 6` have tasks of the same kinds to judge a choice by: nothing is chosen by
their results. Each was written before anything of it was trained, and, but for the fourth and the
sixth, before the choice or the trials that it was first looked at after.
"""

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

#: Kinds of environments of our own: classes of `environments.py`; ids whose velocities are hidden,
#: or whose tuples are made vectors; ids of EnvPool, one environment each. (`envpool:` has ids of
#: EnvPool, many environments each, `torch:` a class here.)
KINDS = ("small", "hidden", "flat", "pool")


class Task(NamedTuple):
    """A task, and the env steps that it is trained for."""

    #: Id of a Gymnasium environment, or `KIND:` and a name; see `KINDS`.
    env: str
    env_steps: int
    #: Whether the policy needs a recurrent state.
    recurrent: bool = False
    #: MiniGrid: `"flat"` for the symbols of the view as a vector, `"pixels"` for its picture.
    view: None | str = None
    #: Arguments of `gym.make`.
    options: None | dict[str, Any] = None
    #: What rewards are multiplied with in training; scores are in the environment's own units.
    reward_scale: float = 1.0
    #: Episodes of an evaluation: more where chance decides them.
    episodes: int = 20
    #: Env steps of an evaluation's episode, if it never ends.
    cut: None | int = None


_KNOWN = {
    "CartPole-v1": Task("CartPole-v1", 50_000),
    "Acrobot-v1": Task("Acrobot-v1", 150_000),
    "Pendulum-v1": Task("Pendulum-v1", 200_000),
    "MountainCarContinuous-v0": Task("MountainCarContinuous-v0", 300_000),
    "LunarLander-v3": Task("LunarLander-v3", 500_000),
    "HalfCheetah-v4": Task("envpool:HalfCheetah-v4", 1_000_000),
    "Hopper-v4": Task("envpool:Hopper-v4", 1_000_000),
    "Walker2d-v4": Task("envpool:Walker2d-v4", 1_000_000),
    "MiniGrid-Empty-5x5-v0": Task("MiniGrid-Empty-5x5-v0", 200_000, view="flat"),
    "MiniGrid-DoorKey-5x5-v0": Task("MiniGrid-DoorKey-5x5-v0", 200_000, view="flat"),
    "MiniGrid-Empty-5x5-v0 in pixels": Task("MiniGrid-Empty-5x5-v0", 50_000, view="pixels"),
    "Pendulum-v1 in PyTorch": Task("torch:TorchPendulum", 200_000),
    "CartPole-v1 without velocities": Task("hidden:CartPole-v1", 100_000, recurrent=True),
}

_CHOOSING = {
    "FrozenLake-v1 8x8, not slippery": Task(
        "FrozenLake-v1", 50_000, options={"map_name": "8x8", "is_slippery": False}
    ),
    "point to be held, never-ending": Task("small:PointToHold", 30_000, cut=200),
    "Pendulum-v1, rewards × 1e-3": Task("Pendulum-v1", 50_000, reward_scale=1e-3),
    "Pendulum-v1, rewards × 1e4": Task("Pendulum-v1", 50_000, reward_scale=1e4),
    "CliffWalking-v1": Task("CliffWalking-v1", 30_000, options={"max_episode_steps": 200}),
    "Taxi-v4": Task("Taxi-v4", 60_000),
    "goal in a Dict": Task("small:DictGoal", 30_000),
    "bits to repeat (MultiBinary)": Task("small:Bits", 20_000),
    "two choices (MultiDiscrete), one step": Task("small:TwoChoices", 20_000),
    "bandit with a context, one step": Task("small:Bandit", 20_000, episodes=200),
    "T-maze of length 10": Task("small:TMaze", 40_000, recurrent=True),
    "InvertedPendulum-v5": Task("InvertedPendulum-v5", 30_000),
    "CartPole-v1 of 2,000 env steps": Task(
        "CartPole-v1", 40_000, options={"max_episode_steps": 2_000}
    ),
    "queues to serve, never-ending": Task("small:Queues", 30_000, cut=300),
    "room to be heated, never-ending": Task("small:Room", 20_000, cut=300),
    "height to be followed, never-ending": Task("small:Balloon", 20_000, cut=300),
    "reservoir to be kept, never-ending": Task("small:Reservoir", 30_000, cut=300),
    "Pendulum-v1 without a limit": Task(
        "Pendulum-v1", 50_000, cut=200, options={"max_episode_steps": -1}
    ),
    "quadrant of a picture, one step": Task("small:Quadrant", 10_000, episodes=200),
    "dot to reach in 48x48 pixels": Task("small:DotToReach", 20_000, episodes=50),
    "stripes in 40x40 pixels": Task("small:Stripes", 15_000),
    "gauge and number in a Dict": Task("small:Gauge", 15_000),
    "road to be followed in 40x40 pixels": Task("small:Road", 15_000),
    "berries to be gathered in 42x42 pixels": Task("small:Berries", 20_000, episodes=50),
    "MiniGrid-Empty-5x5-v0 in pixels, 20,000 env steps": Task(
        "MiniGrid-Empty-5x5-v0", 20_000, view="pixels"
    ),
    "dice to be thrown or kept": Task("small:Dice", 20_000, episodes=2_000),
    "arms with noise, one step": Task("small:NoisyArms", 20_000, episodes=2_000),
    "fish to be caught": Task("small:Fishery", 30_000, episodes=200),
    "shots with a shaking hand": Task("small:ShakingHand", 20_000, episodes=200),
    "ferry in gusts": Task("small:Ferry", 30_000, episodes=1_000),
    "BipedalWalker-v3": Task("BipedalWalker-v3", 50_000),
    "Humanoid-v5": Task("Humanoid-v5", 40_000),
    "HumanoidStandup-v5": Task("HumanoidStandup-v5", 30_000),
    "cheetah to run (dm_control)": Task("pool:CheetahRun-v1", 30_000),
    "walker to stand (dm_control)": Task("pool:WalkerStand-v1", 30_000),
    "walker to walk (dm_control)": Task("pool:WalkerWalk-v1", 30_000),
    "cart pole to swing up (dm_control)": Task("pool:CartpoleSwingup-v1", 30_000),
    "cart pole to balance (dm_control)": Task("pool:CartpoleBalance-v1", 30_000),
    "swimmer of six links (dm_control)": Task("pool:SwimmerSwimmer6-v1", 30_000),
    "four legs to walk (dm_control)": Task("pool:QuadrupedWalk-v1", 30_000),
    "fish to be upright (dm_control)": Task("pool:FishUpright-v1", 30_000),
    "worm of three links": Task("small:Worm", 30_000, options={"max_episode_steps": 1_000}),
    "house through a year": Task("small:Year", 30_000, options={"max_episode_steps": 1_000}),
    "voyage of three parts": Task("small:Voyage", 30_000, options={"max_episode_steps": 1_000}),
    "camera that follows, never-ending": Task("small:Camera", 20_000, cut=300),
    "dog beside a flock, never-ending": Task("small:Shepherd", 30_000, cut=300),
    "belt and parcels, never-ending": Task("small:Belt", 20_000, cut=300),
}

_HELD_OUT = {
    "FrozenLake-v1 4x4, slippery": Task("FrozenLake-v1", 30_000, episodes=200),
    "target to be tracked, never-ending": Task("small:Tracking", 20_000, cut=300),
    "Acrobot-v1, rewards × 1e3": Task("Acrobot-v1", 40_000, reward_scale=1e3),
    "CartPole-v1, rewards × 1e-2": Task("CartPole-v1", 20_000, reward_scale=1e-2),
    "Blackjack-v1": Task("flat:Blackjack-v1", 20_000, episodes=2_000),
    "corridor with one reward": Task("small:Corridor", 20_000),
    "picture and place in a Dict": Task("small:PictureAndPlace", 10_000),
    "five choices of 16 (MultiDiscrete)": Task("small:ManyChoices", 20_000),
    "switches and lamps (MultiBinary)": Task("small:Switches", 20_000),
    "catch in 40x40 pixels": Task("small:Catch", 20_000),
    "first cue to recall": Task("small:RecallTheFirst", 16_000, recurrent=True, episodes=100),
    "throw at a target, one step": Task("small:OneThrow", 20_000, episodes=200),
    "Swimmer-v5": Task("Swimmer-v5", 30_000),
    "Reacher-v5": Task("Reacher-v5", 30_000, episodes=50),
}

_HELD_OUT_2 = {
    "ring with one reward": Task("small:Ring", 15_000),
    "FrozenLake-v1 4x4, not slippery": Task(
        "FrozenLake-v1", 30_000, options={"is_slippery": False}
    ),
    "inventory to keep, never-ending": Task("small:Inventory", 30_000, cut=300),
    "buoy to be held, never-ending": Task("small:Buoy", 30_000, cut=300),
    "LunarLander-v3 in real numbers, rewards × 1e2": Task(
        "LunarLander-v3", 50_000, options={"continuous": True}, reward_scale=1e2
    ),
    "InvertedDoublePendulum-v5, rewards × 1e-3": Task(
        "InvertedDoublePendulum-v5", 40_000, reward_scale=1e-3
    ),
    "levers by a signal (MultiDiscrete)": Task("small:Levers", 20_000),
    "signs beside the mean (MultiBinary)": Task("small:Signs", 20_000),
    "tanks to be filled, in a Dict": Task("small:Tanks", 30_000),
    "bar under a light in 36x36 pixels": Task("small:Bar", 15_000),
    "which of two came first": Task("small:WhichCameFirst", 20_000, recurrent=True, episodes=100),
    "products to aim at, one step": Task("small:Aim", 20_000, episodes=200),
    "Hopper-v5": Task("Hopper-v5", 40_000),
    "MiniGrid-Empty-Random-6x6-v0": Task("MiniGrid-Empty-Random-6x6-v0", 40_000, view="flat"),
}

_HELD_OUT_3 = {
    "CliffWalking-v1, slippery": Task(
        "CliffWalking-v1", 30_000, options={"max_episode_steps": 200, "is_slippery": True}
    ),
    "key and door in 5x5 cells": Task("small:KeyAndDoor", 40_000),
    "spring to be calmed, never-ending": Task("small:Spring", 20_000, cut=300),
    "greenhouse to be kept, never-ending": Task("small:Greenhouse", 30_000, cut=300),
    "Pusher-v5, rewards × 1e-2": Task("Pusher-v5", 30_000, reward_scale=1e-2),
    "Walker2d-v5": Task("Walker2d-v5", 40_000),
    "largest of six numbers, one step": Task("small:Largest", 20_000, episodes=200),
    "pairs that differ (MultiBinary)": Task("small:Pairs", 20_000),
    "dials to be turned (MultiDiscrete)": Task("small:Dials", 20_000),
    "parcel to be brought, in a Dict": Task("small:Parcel", 30_000),
    "flashes to be counted": Task("small:Flashes", 20_000, recurrent=True, episodes=100),
    "walk to a goal in 42x42 pixels": Task("small:WalkToGoal", 15_000, episodes=50),
    "blocks to be dodged in 36x36 pixels": Task("small:Dodge", 15_000),
    "MiniGrid-LavaGapS5-v0": Task("MiniGrid-LavaGapS5-v0", 40_000, view="flat"),
}

_HELD_OUT_4 = {
    "ladder to be climbed": Task("small:Ladder", 20_000, episodes=500),
    "cruise at a speed, never-ending": Task("small:Cruise", 20_000, cut=300),
    "chase of a prey, never-ending": Task("small:Chase", 30_000, cut=300),
    "junction with a light, never-ending": Task("small:Junction", 30_000, cut=300),
    "HalfCheetah-v5, rewards × 1e-3": Task("HalfCheetah-v5", 40_000, reward_scale=1e-3),
    "Ant-v5, rewards × 10": Task("Ant-v5", 40_000, reward_scale=10),
    "colours to be mixed (MultiDiscrete)": Task("small:Mixer", 20_000),
    "numbers that rise (MultiBinary)": Task("small:Slopes", 20_000),
    "oven for a dish, in a Dict": Task("small:Oven", 30_000, episodes=100),
    "price to be asked, one step": Task("small:Offer", 20_000, episodes=2_000),
    "symbol of two env steps ago": Task("small:TwoAgo", 20_000, recurrent=True, episodes=50),
    "cross onto a spot in 40x40 pixels": Task("small:Crosshair", 15_000),
    "fuller half of 36x36 pixels, one step": Task("small:Fuller", 10_000, episodes=500),
    "MiniGrid-Dynamic-Obstacles-5x5-v0": Task(
        "MiniGrid-Dynamic-Obstacles-5x5-v0", 40_000, view="flat", episodes=100
    ),
}

_HELD_OUT_5 = {
    "bridge in the wind": Task("small:Bridge", 20_000, episodes=1_000),
    "pressure of a boiler, never-ending": Task("small:Boiler", 20_000, cut=300),
    "satellite to be turned, never-ending": Task("small:Satellite", 30_000, cut=300),
    "lift for five floors, never-ending": Task("small:Lift", 30_000, cut=300),
    "walker to run (dm_control), rewards × 1e2": Task(
        "pool:WalkerRun-v1", 40_000, reward_scale=1e2
    ),
    "four legs to run (dm_control)": Task("pool:QuadrupedRun-v1", 40_000),
    "sliders that add up (MultiDiscrete)": Task("small:Panel", 20_000),
    "four largest of nine (MultiBinary)": Task("small:Votes", 20_000),
    "boat in a current, in a Dict": Task("small:Pilot", 30_000, episodes=50),
    "interval around a number, one step": Task("small:Span", 20_000, episodes=2_000),
    "odd or even so far": Task("small:Parity", 20_000, recurrent=True, episodes=50),
    "basket for balls in 40x40 pixels": Task("small:Basket", 15_000),
    "slope of a bar in 36x36 pixels, one step": Task("small:Tilt", 10_000, episodes=500),
    "MiniGrid-SimpleCrossingS9N1-v0": Task("MiniGrid-SimpleCrossingS9N1-v0", 50_000, view="flat"),
}

_HELD_OUT_6 = {
    "mine of two ends": Task("small:Shafts", 20_000, episodes=100),
    "kite at a height, never-ending": Task("small:Kite", 30_000, cut=300),
    "crane over a ship, never-ending": Task("small:Crane", 30_000, cut=300),
    "battery and price, never-ending": Task("small:Battery", 20_000, cut=300),
    "finger that spins (dm_control), rewards × 1e-2": Task(
        "pool:FingerSpin-v1", 30_000, reward_scale=1e-2
    ),
    "arm that reaches (dm_control)": Task("pool:ReacherEasy-v1", 30_000),
    "watches to be set (MultiDiscrete)": Task("small:Watches", 20_000),
    "lanterns beside a walker (MultiBinary)": Task("small:Lanterns", 20_000),
    "garden to be watered, in a Dict": Task("small:Garden", 20_000, episodes=50),
    "lens to be focused, one step": Task("small:Lens", 20_000, episodes=500),
    "colour when a bell rang": Task("small:Bell", 20_000, recurrent=True, episodes=100),
    "pointer to a mark in 40x40 pixels": Task("small:Pointer", 15_000),
    "blobs in 36x36 pixels, one step": Task("small:Blobs", 10_000, episodes=500),
    "MiniGrid-DistShift1-v0": Task("MiniGrid-DistShift1-v0", 30_000, view="flat"),
}

SETS: dict[str, dict[str, Task]] = {
    "known": _KNOWN,
    "choosing": _CHOOSING,
    "held-out": _HELD_OUT,
    "held-out 2": _HELD_OUT_2,
    "held-out 3": _HELD_OUT_3,
    "held-out 4": _HELD_OUT_4,
    "held-out 5": _HELD_OUT_5,
    "held-out 6": _HELD_OUT_6,
}

TASKS: dict[str, Task] = {name: task for tasks in SETS.values() for name, task in tasks.items()}


# ---- environments -----------------------------------------------------------------------------


class OneOfAPool(gym.Env):
    """One environment of EnvPool as a Gymnasium environment, whose observations are vectors."""

    def __init__(self, name: str) -> None:
        self.name, self.pool = name, self.make(name, 0)
        limit = self.pool.spec.config.max_episode_steps
        self.spec = gym.envs.registration.EnvSpec(name, max_episode_steps=limit)
        size = gym.spaces.flatdim(self.pool.observation_space)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = self.pool.action_space

    @staticmethod
    def make(name: str, seed: int) -> Any:
        """A pool, which takes its seed only here."""
        import envpool

        return envpool.make_gymnasium(name, num_envs=1, seed=seed)

    def row(self, obs: Any) -> Any:
        """The only row, as one vector."""
        one = {key: x[0] for key, x in obs.items()} if isinstance(obs, dict) else obs[0]
        return gym.spaces.flatten(self.pool.observation_space, one)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is not None:
            self.pool.close()
            self.pool = self.make(self.name, seed)
        return self.row(self.pool.reset()[0]), {}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = self.pool.step(np.asarray(action)[None])
        return self.row(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


def torch_env(task: Task) -> Any:
    """The class of an environment in PyTorch."""
    from torchrl.data import Bounded

    from examples.adapter_training.tasks import Native, PendulumDynamics

    class TorchPendulum(Native):
        """Pendulum-v1, all rows in one tensor."""

        def __init__(self, num_envs: int, /, horizon: None | int = None, **kwargs: Any) -> None:
            spec = Bounded(-2.0, 2.0, [1])
            super().__init__(PendulumDynamics, spec, num_envs, horizon, **kwargs)

    return {"TorchPendulum": TorchPendulum}[task.env.removeprefix("torch:")]


class OneRow(gym.Env):
    """An environment in PyTorch with one row as a Gymnasium environment."""

    def __init__(self, env: Any) -> None:
        self.env = env
        shape, space = env.observation_spec.shape, env.action_spec.space
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, tuple(shape), np.float32)
        self.action_space = gym.spaces.Box(space.low.numpy(), space.high.numpy())

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        import torch

        if seed is not None:
            torch.manual_seed(seed)
        return self.env.reset()[0].numpy(), {}

    def step(self, action: Any) -> Any:
        import torch

        done = self.env.step(torch.as_tensor(action)[None])
        reward, ends = float(done["rewards"]), (bool(done["terminated"]), bool(done["truncated"]))
        return done["final_obs"][0].numpy(), reward, *ends, {}


def make_env(task: Task) -> gym.Env:
    """One environment of a task."""
    kind, _, name = task.env.rpartition(":")
    if kind == "envpool":
        return OneOfAPool(name)
    if kind == "torch":
        return OneRow(torch_env(task)(1))
    if kind == "small":
        from examples.defaults import environments

        env = getattr(environments, name)()
        return gym.wrappers.TimeLimit(env, **task.options) if task.options else env
    if task.view:  # the import registers the environments
        from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper
    env = OneOfAPool(name) if kind == "pool" else gym.make(name, **(task.options or {}))
    if task.view:
        if task.view == "pixels":
            return ImgObsWrapper(RGBImgPartialObsWrapper(env))
        return gym.wrappers.FlattenObservation(ImgObsWrapper(env))
    if kind == "hidden":  # positions without their velocities
        space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        see = lambda x: np.asarray(x[::2], np.float32)  # noqa: E731
        env = gym.wrappers.TransformObservation(env, see, space)
    if kind == "flat":  # a tuple of choices as one vector of them
        counts = gym.spaces.MultiDiscrete([space.n for space in env.observation_space])
        env = gym.wrappers.TransformObservation(env, np.array, counts)
    if task.reward_scale != 1:
        env = gym.wrappers.TransformReward(env, lambda reward: reward * task.reward_scale)
    return env
