"""Advice that errors give in the form of code: done as it is written, it works."""

import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import TransformAction
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import LineariseRewards, PendulumEnv, SerialEnv, TransformedEnv, UnaryTransform

import everstep
from everstep.adapters import GymnasiumEnv, IsaacGymEnv, TorchRLEnv
from everstep.errors import EverstepError
from everstep_adapters.export import to_gymnasium, to_torchrl
from tests.everstep_adapters.export.export_toys import Walk
from tests.everstep_adapters.gymnasium.gymnasium_toys import Behaving, Columns
from tests.everstep_adapters.isaacgym.isaacgym_tasks import LazyAfter, LeggedTask
from tests.everstep_adapters.torchrl.torchrl_toys import (
    SCRIPTS,
    Recorder,
    SelfResetting,
    observing,
)


def play(env: Any, steps: int = 8) -> Any:
    """The environment after some env steps, in which episodes end."""
    env.reset()
    for _ in range(steps):
        env.step(env.action_spec.rand(torch.Size([env.num_envs])))
    return env


def cart(num_envs: int = 2, **options: Any) -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, **options)


class Changing(gymnasium.Env[Any, Any]):
    """Of any spaces; episodes of three env steps."""

    def __init__(self, observation: Any = None, action: Any = None) -> None:
        self.observation_space = observation or spaces.Box(-1, 1, (2,))
        self.action_space = action or spaces.Discrete(2)
        self.observation_space.seed(0)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.t += 1
        return self.observation_space.sample(), 1.0, False, self.t == 3, {}


def vector(observation: Any = None, action: Any = None, **options: Any) -> Any:
    return SyncVectorEnv([lambda: Changing(observation, action)] * 2, **options)


def words() -> Any:
    """Actions that are one of two words, as two choices."""
    return TransformAction(
        Changing(action=spaces.Text(1, charset="ab")), lambda x: "ab"[int(x)], spaces.Discrete(2)
    )


def rewarded(width: int) -> Recorder:
    shape = torch.Size([2])
    seen = Composite(seen=Unbounded((2, 1)), shape=shape)
    return Recorder(Categorical(2, shape=shape), seen, shape, reward=Unbounded((2, width)))


class Lost(Behaving):
    """Integer observations, and no final ones."""

    def __init__(self) -> None:
        super().__init__("SAME_STEP, lost")
        self.single_observation_space = spaces.Box(0, 9, (3,), np.int64)

    def step(self, actions: Any) -> Any:
        obs, *others = super().step(actions)
        return obs.astype(np.int64), *others

    def reset(self, **options: Any) -> Any:
        obs, infos = super().reset(**options)
        return obs.astype(np.int64), infos


class Reserved(Walk):
    """Its observation has a leaf that is called as TorchRL calls the reward."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.observation_spec = Composite(reward=Unbounded(2))

    def obs(self, leaves: Any) -> Any:
        return TensorDict({"reward": leaves[0]}, [self.num_envs])


def legged(**options: Any) -> IsaacGymEnv:
    return IsaacGymEnv(LeggedTask([[3], [2]]), **options)


#: What is refused, words of the advice, and the advised deed.
ADVICE: dict[str, tuple[Callable[[], Any], str, Callable[[], Any]]] = {
    # ---- finding an adapter
    "a single environment": (
        lambda: everstep.wrap(gymnasium.make("CartPole-v1")),
        r"`gymnasium.make_vec\('CartPole-v1', num_envs=8\)`",
        lambda: play(everstep.wrap(gymnasium.make_vec("CartPole-v1", num_envs=8))),
    ),
    "a single environment, made": (
        lambda: everstep.wrap(gymnasium.make("CartPole-v1")),
        r"give `everstep.make` or a trainer its id, its class, or a function",
        lambda: [
            play(everstep.make(x, 2))
            for x in ("CartPole-v1", Changing, lambda: gymnasium.make("CartPole-v1"))
        ],
    ),
    "an id that is wrapped": (
        lambda: everstep.wrap("CartPole-v1"),
        r"`everstep.make\('CartPole-v1', num_envs\)`",
        lambda: play(everstep.make("CartPole-v1", 2)),
    ),
    "a class that is wrapped": (
        lambda: everstep.wrap(Changing),
        r"`everstep.make\(Changing, num_envs\)`",
        lambda: play(everstep.make(Changing, 2)),
    ),
    "a batch that is made": (
        lambda: everstep.make(lambda: cart(2), 2),
        "pass it to `everstep.wrap`",
        lambda: play(everstep.wrap(cart(2))),
    ),
    "a wrong prefix": (
        lambda: everstep.make("gymnasum:CartPole-v1", 2),
        "Did you mean 'gymnasium'",
        lambda: play(everstep.make("gymnasium:CartPole-v1", 2)),
    ),
    "a factory's reserved options": (
        lambda: everstep.factory("CartPole-v1", num_envs=2),
        "is given num_envs when it is called",
        lambda: play(everstep.factory("CartPole-v1")(2)),
    ),
    # ---- Gymnasium
    "rescaled choices": (
        lambda: everstep.wrap(cart(), action_bounds="rescale"),
        "Use 'clip'",
        lambda: play(everstep.wrap(cart(), action_bounds="clip")),
    ),
    "rescaled unbounded actions": (
        lambda: everstep.wrap(
            vector(action=spaces.Box(-np.inf, np.inf, (1,))), action_bounds="rescale"
        ),
        "Use 'clip'",
        lambda: play(
            everstep.wrap(vector(action=spaces.Box(-np.inf, np.inf, (1,))), action_bounds="clip")
        ),
    ),
    "an unknown mode": (
        lambda: GymnasiumEnv(Columns({})),
        "Pass `autoreset_mode=`",
        lambda: [
            play(GymnasiumEnv(Behaving(mode), autoreset_mode=mode))
            for mode in ("NEXT_STEP", "SAME_STEP")
        ],
    ),
    "a wrong mode": (
        lambda: play(GymnasiumEnv(Behaving("SAME_STEP"), autoreset_mode="NEXT_STEP")),
        "Pass `autoreset_mode='SAME_STEP'`",
        lambda: play(GymnasiumEnv(Behaving("SAME_STEP"), autoreset_mode="SAME_STEP")),
    ),
    "final observations of integers that are lost": (
        lambda: play(GymnasiumEnv(Lost(), autoreset_mode="SAME_STEP")),
        "Use the mode NEXT_STEP or DISABLED",
        lambda: [
            play(everstep.wrap(vector(spaces.Box(0, 9, (3,), np.int64), autoreset_mode=mode)))
            for mode in (
                gymnasium.vector.AutoresetMode.NEXT_STEP,
                gymnasium.vector.AutoresetMode.DISABLED,
            )
        ],
    ),
    "a limit without resets of rows": (
        lambda: GymnasiumEnv(
            Behaving("NEXT_STEP"), autoreset_mode="NEXT_STEP", max_episode_steps=2
        ),
        "Set the limit in the environment",
        lambda: play(GymnasiumEnv(Behaving("NEXT_STEP", length=2), autoreset_mode="NEXT_STEP")),
    ),
    "a limit of processes without shared memory": (
        lambda: everstep.wrap(
            AsyncVectorEnv([Changing], shared_memory=False, context="fork"), max_episode_steps=2
        ),
        "`SyncVectorEnv`.*`vectorization_mode='sync'`",
        lambda: play(
            everstep.make(Changing, 2, max_episode_steps=2, vectorization_mode="sync"),
        ),
    ),
    "phases without a limit": (
        lambda: everstep.wrap(cart(), random_phase=True),
        "needs `max_episode_steps`",
        lambda: play(everstep.wrap(vector(), random_phase=True, max_episode_steps=3)),
    ),
    "another vectorization": (
        lambda: everstep.make(Changing, 2, vectorization_mode="vector_entry_point"),
        "'sync' or 'async'",
        lambda: play(everstep.make(Changing, 2, vectorization_mode="sync")),
    ),
    "keys that are not there": (
        lambda: everstep.wrap(
            vector(spaces.Dict(a=spaces.Box(0, 1, (2,)))), observation_keys=["b"]
        ),
        "among the keys of the observation space.*a",
        lambda: play(
            everstep.wrap(vector(spaces.Dict(a=spaces.Box(0, 1, (2,)))), observation_keys=["a"])
        ),
    ),
    "actions that are words": (
        lambda: everstep.wrap(vector(action=spaces.Text(1, charset="ab"))),
        r"`gymnasium.wrappers.TransformAction`",
        lambda: play(everstep.wrap(SyncVectorEnv([words]))),
    ),
    "a wrapper without a module": (
        lambda: everstep.make("CartPole-v1", 2, wrappers=["NoWrapper"]),
        "names without a dot are those of `gymnasium.wrappers`",
        lambda: play(everstep.make("CartPole-v1", 2, wrappers=["FlattenObservation"])),
    ),
    "a wrapper's arguments": (
        lambda: everstep.make("CartPole-v1", 2, wrappers=[{"FrameStackObservation": 4}]),
        "are a mapping of their names",
        lambda: play(
            everstep.make("CartPole-v1", 2, wrappers=[{"FrameStackObservation": {"stack_size": 4}}])
        ),
    ),
    # ---- TorchRL
    "rewards of several numbers": (
        lambda: TorchRLEnv(rewarded(3)),
        "Add them up in a transform, such as `LineariseRewards`",
        lambda: play(TorchRLEnv(TransformedEnv(rewarded(3), LineariseRewards(["reward"])))),
    ),
    "a number of environments": (
        lambda: TorchRLEnv(observing(seen=Unbounded((2, 1))), num_envs=4),
        "Use a `SerialEnv` or a `ParallelEnv`",
        lambda: play(TorchRLEnv(SerialEnv(2, lambda: observing(seen=Unbounded((2, 1)))))),
    ),
    "phases of a TorchRL environment": (
        lambda: TorchRLEnv(PendulumEnv(), random_phase=True),
        "needs `max_episode_steps`",
        lambda: play(TorchRLEnv(PendulumEnv(), random_phase=True, max_episode_steps=3)),
    ),
    "a limit of an environment that resets itself": (
        lambda: TorchRLEnv(
            SelfResetting([SCRIPTS["mixed"][0]], (), auto_reset=True), max_episode_steps=2
        ),
        "Set the limit in the environment",
        lambda: play(TorchRLEnv(SelfResetting([SCRIPTS["mixed"][0]], (), auto_reset=True))),
    ),
    "two kinds of an end": (
        lambda: TorchRLEnv(PendulumEnv(), done_is="truncated", time_limit=3),
        "Pass one of them",
        lambda: [
            play(TorchRLEnv(PendulumEnv(), **{key: value}))
            for key, value in {"done_is": "truncated", "time_limit": 3}.items()
        ],
    ),
    "metrics of several numbers": (
        lambda: TorchRLEnv(observing(seen=Unbounded((2, 3))), metrics=["seen"]),
        "Reduce it in a transform",
        lambda: play(
            TorchRLEnv(
                TransformedEnv(
                    observing(seen=Unbounded((2, 3))),
                    UnaryTransform(["seen"], ["mean"], fn=lambda x: x.mean(-1, keepdim=True)),
                ),
                metrics=["mean"],
            )
        ),
    ),
    "a wrong path of a class": (
        lambda: everstep.make("torchrl:torchrl.envs:NoEnv", 2),
        "Write 'module:Class', or the id",
        lambda: [
            play(everstep.make(f"torchrl:{name}", 2))
            for name in ("torchrl.envs:PendulumEnv", "CartPole-v1")
        ],
    ),
    # ---- IsaacGym
    "a style that is known": (
        lambda: legged(reset_style="A"),
        "Leave it out",
        lambda: play(legged()),
    ),
    "the key of final observations": (
        lambda: IsaacGymEnv(LazyAfter([[3], [2]]), final_obs_key="obs"),
        "Leave it out",
        lambda: play(IsaacGymEnv(LazyAfter([[3], [2]]))),
    ),
    # ---- export
    "a horizon of episodes": (
        lambda: to_gymnasium(Walk(2), horizon=4),
        "Leave it out",
        lambda: to_gymnasium(Walk(2)).reset(),
    ),
    "an exported mode": (
        lambda: to_gymnasium(Walk(2), autoreset_mode="NEXT_STEP"),
        "use 'SAME_STEP'",
        lambda: to_gymnasium(Walk(2), autoreset_mode="SAME_STEP").reset(),
    ),
    "rows that are no transition": (
        lambda: to_torchrl(Walk(2, ends="next step")),
        "pass `invalid_rows='keep'`",
        lambda: to_torchrl(Walk(2, ends="next step"), invalid_rows="keep").rollout(8),
    ),
    "names that TorchRL reserves": (
        lambda: to_torchrl(Reserved(2)),
        "`observation_key='observation'`",
        lambda: to_torchrl(Reserved(2), observation_key="observation").rollout(4),
    ),
}


@pytest.mark.few(8)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ADVICE)
def test_what_an_error_advises_works(case: str) -> None:
    refused, advice, deed = ADVICE[case]
    with pytest.raises(EverstepError) as error:
        refused()
    assert re.search(advice, str(error.value)), error.value
    deed()
