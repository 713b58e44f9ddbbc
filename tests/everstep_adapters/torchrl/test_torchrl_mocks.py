"""Environments that others wrote for TorchRL: its mocks, and what wrappers of simulators list."""

import re
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, ParallelEnv, PendulumEnv, SerialEnv

from everstep.errors import AdapterError
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


def follow(env: EnvBase) -> TorchRLEnv:
    """The wrapped environment, with each option that an error names."""
    options: dict[str, Any] = {}
    for _ in range(5):
        try:
            return TorchRLEnv(env, **options)
        except AdapterError as error:
            named = re.search(r"`(\w+_key)=([^`]+)`", str(error))
            if named is not None:
                options[named[1]] = eval(named[2])  # as a reader would write it
            elif "observation_keys" in str(error):
                group = options["action_key"][:-1]
                own = [key for key in env.observation_spec.keys(True, True) if key[:-1] == group]
                options["observation_keys"] = own
            else:
                raise
    raise AssertionError(options)


def test_advice_on_several_actions_works_when_it_is_followed() -> None:
    mocks = pytest.importorskip("torchrl.testing.mocking_classes")
    env = follow(mocks.MultiKeyCountingEnv())
    assert "at random: " in env.describe()["action"]
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


def mocks() -> list[Any]:
    try:
        from torchrl.testing import mocking_classes
    except ImportError:  # an older version has none
        return []
    kinds = [kind for _, kind in sorted(vars(mocking_classes).items()) if isinstance(kind, type)]
    return [kind for kind in kinds if issubclass(kind, EnvBase) and kind is not EnvBase]


#: Mocks that fail by themselves.
BROKEN = {"AutoResettingCountingEnv", "EnvThatErrorsAfter10Iters", "MockSerialEnv"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", mocks(), ids=lambda kind: kind.__name__)
def test_mocks_of_torchrl_are_played_or_refused_with_a_reason(kind: Any) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inner = kind()
    except Exception as error:
        pytest.skip(f"needs arguments: {error}")
    if kind.__name__ in BROKEN:
        pytest.skip("fails by itself")
    try:
        env = TorchRLEnv(inner)
    except AdapterError as error:
        pytest.xfail(str(error))
    play(env)
