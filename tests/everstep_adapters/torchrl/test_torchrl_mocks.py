"""Environments as wrappers of simulators make them for TorchRL."""

from functools import partial
from typing import Any

import pytest
import torch
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import ParallelEnv, PendulumEnv, SerialEnv

from everstep_adapters import TorchRLEnv
from tests.everstep_adapters.torchrl.torchrl_toys import SCRIPTS, Recorder, SelfResetting


def play(env: TorchRLEnv, steps: int = 12) -> None:
    """Random actions; shapes are those of the specs."""
    obs = env.reset()
    assert obs.shape[0] == env.num_envs
    for _ in range(steps):
        row = env.step(env.action_spec.rand(torch.Size([env.num_envs])))
        assert row["rewards"].shape == (env.num_envs, 1)


def with_inside(**states: Any) -> Recorder:
    """An environment whose observations list its state, as TorchRL's wrapper of Brax does."""
    shape = torch.Size([2])
    seen = Composite(
        observation=Unbounded((2, 4)),
        state=Composite(mass=Unbounded((2, 7, 7)), key=Unbounded((2, 2)), shape=shape),
        info=Composite(distance=Unbounded((2, 1)), shape=shape),
        shape=shape,
    )
    env = Recorder(Categorical(2, shape=shape), seen, shape)
    env.state_spec = Composite({"state": seen["state"].clone()}, shape=shape)
    return env


def test_the_inside_of_a_simulator_is_not_observed() -> None:
    env = TorchRLEnv(with_inside())
    assert env.observation_spec == Unbounded(4)
    left_out = env.describe()["observation"]
    assert all(name in left_out for name in ("state.mass", "state.key", "info.distance"))
    play(env)


def test_it_can_be_asked_for() -> None:
    env = TorchRLEnv(with_inside(), observation_keys=["observation", ("info", "distance")])
    assert set(env.observation_spec.keys(True, True)) == {"observation", ("info", "distance")}


def test_a_state_is_observed_where_nothing_else_is() -> None:
    env = TorchRLEnv(PendulumEnv(), num_envs=3)
    assert {"th", "thdot"} <= set(env.observation_spec.keys())
    play(env)


def test_bounded_scalars_without_a_batch() -> None:
    play(TorchRLEnv(PendulumEnv()))
    seen = Composite(angle=Bounded(-1.0, 1.0, shape=torch.Size([])), shape=torch.Size([]))
    env = TorchRLEnv(Recorder(Categorical(2, shape=torch.Size([])), seen, ()))
    assert env.observation_spec.space.low.tolist() == [-1.0]
    play(env)


class Counting(SelfResetting):
    """Resets itself, and observes integers."""

    def __init__(self, **options: Any) -> None:
        super().__init__([SCRIPTS["mixed"][1]], [], dtype=torch.int64)
        self.reward_spec = Unbounded((1,), dtype=torch.float32)


@pytest.mark.parametrize(
    "many",
    [
        SerialEnv,
        pytest.param(partial(ParallelEnv, mp_start_method="fork"), marks=pytest.mark.slow),
    ],
    ids=["serial", "parallel"],
)
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_fillers_of_integers_are_no_final_observations(many: Any) -> None:
    """TorchRL fills them with -1 where an environment inside of a batch resets itself."""
    env = TorchRLEnv(many(2, partial(Counting, auto_reset=True)))
    assert "final_obs" not in env.episode_keys
    assert "lost" in env.describe()["final observations"]
    env.close()
