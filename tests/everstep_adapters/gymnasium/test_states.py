"""States of Gymnasium environments: rows after one is set are those that followed it."""

import copy
import pickle
import tempfile
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformReward

import everstep
from everstep.core.checkpoints import load_file, save_file
from everstep.errors import CheckpointError
from everstep_adapters import GymnasiumEnv
from everstep_adapters.gymnasium import values
from everstep_adapters.gymnasium.state import read, write

STEPS = 40


def stored(state: Any) -> Any:
    """The state, as a checkpoint of another process has it."""
    with tempfile.TemporaryDirectory() as directory:
        save_file(f"{directory}/state", state)
        return load_file(f"{directory}/state")


def play(env: Any, actions: torch.Tensor) -> list[Any]:
    return [env.step(action).clone() for action in actions]


def check_continues(name: str, **options: Any) -> None:
    """A second environment continues from the state of the first, through ends of episodes."""
    first, second = (everstep.make(f"gymnasium:{name}", 3, **options) for _ in range(2))
    torch.manual_seed(0)
    actions = torch.stack(
        [torch.stack([first.action_spec.rand() for _ in range(3)]) for _ in range(2 * STEPS)]
    )
    first.seed(1)
    first.reset()
    play(first, actions[:STEPS])
    state = stored(first.state_dict())  # type: ignore[attr-defined]
    expected = play(first, actions[STEPS:])
    second.seed(7)
    second.load_state_dict(state)  # type: ignore[attr-defined]
    for ours, theirs in zip(play(second, actions[STEPS:]), expected, strict=True):
        assert all(ours[key].tolist() == theirs[key].tolist() for key in theirs.keys())  # noqa: SIM118
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"vectorization_mode": "sync"}),
        ("CartPole-v1", {"autoreset_mode": "SAME_STEP"}),
        ("CartPole-v1", {"autoreset_mode": "DISABLED"}),
        ("CartPole-v1", {"max_episode_steps": 9, "random_phase": True}),
        ("Pendulum-v1", {}),
        ("Acrobot-v1", {}),
        ("MountainCar-v0", {}),
        ("MountainCarContinuous-v0", {}),
    ],
)
def test_classic_control_continues_from_its_state(name: str, options: Any) -> None:
    check_continues(name, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Hopper-v5", "Reacher-v5", "Pusher-v5"]
)
def test_mujoco_continues_from_its_state(name: str) -> None:
    pytest.importorskip("mujoco")
    check_continues(name)


def broken_at(state: Any, place: str) -> Any:
    """A state that does not fit at one place."""
    row = state["env"]["rows"][-1] if state["env"]["rows"] else state["env"]
    if place == "the last row":
        row["layers"][-1]["attributes"]["state"] = torch.zeros(7)
    elif place == "a generator":
        row["layers"][-1]["random"]["state"] = {"state": -1, "inc": 0}
    elif place == "the number of rows":
        state["env"]["rows"].append(row)
    elif place == "the clock":
        state["clock"]["elapsed"] = torch.zeros(9, dtype=torch.int64)
    elif place == "pending":
        state["pending"] = torch.zeros(2)
    elif place == "a key":
        del row["layers"][-1]["attributes"]
    else:
        state["was_reset"] = {"scalar": None}
    return state


@pytest.mark.parametrize("options", [{}, {"vectorization_mode": "sync"}], ids=["vector", "sync"])
@pytest.mark.parametrize(
    "place",
    ["the last row", "a generator", "the number of rows", "the clock", "pending", "a key", "reset"],
)
def test_a_state_that_does_not_fit_changes_nothing(place: str, options: Any) -> None:
    env: Any = everstep.make("gymnasium:CartPole-v1", 3, **options)
    env.seed(0)
    env.reset()
    other = broken_at(stored(env.state_dict()), place)
    play(env, torch.zeros(12, 3, 1, dtype=torch.int64))
    before = repr(env.state_dict())
    with pytest.raises(CheckpointError, match="The state is not of"):
        env.load_state_dict(other)
    assert repr(env.state_dict()) == before
    env.close()


def test_rows_before_one_that_refuses_its_state_get_theirs_back() -> None:
    class Refusing(CartPoleEnv):
        def state_dict(self) -> Any:
            return {"gravity": self.gravity}

        def load_state_dict(self, state: Any) -> None:
            if state["gravity"] < 0:
                raise ValueError("gravity")
            self.gravity = state["gravity"]

    env: Any = everstep.wrap(SyncVectorEnv([Refusing, Refusing]))
    env.reset()
    state = env.state_dict()
    for row, gravity in zip(state["env"]["rows"], (3.0, -1.0), strict=True):
        row["layers"][-1]["own"]["gravity"] = gravity
    with pytest.raises(ValueError, match="gravity"):
        env.load_state_dict(state)
    assert [row.gravity for row in env.env.envs] == [9.8, 9.8]
    env.close()


def test_an_environment_with_an_unknown_part_has_no_state() -> None:
    def make() -> Any:
        return TransformReward(gymnasium.make("CartPole-v1"), lambda reward: 2 * reward)

    env: Any = everstep.wrap(SyncVectorEnv([make, make]))
    env.reset()
    assert env.state_dict() is None
    env.close()


def test_an_environment_of_ones_own_has_the_state_that_it_returns() -> None:
    class Own(gymnasium.Wrapper[Any, Any, Any, Any]):
        @property
        def unwrapped(self) -> Any:
            return self

        def state_dict(self) -> Any:
            return {"x": 3}

        def load_state_dict(self, state: Any) -> None:
            self.loaded = state

    env: Any = everstep.wrap(SyncVectorEnv([lambda: Own(gymnasium.make("CartPole-v1"))]))
    env.reset()
    env.load_state_dict(stored(env.state_dict()))
    assert env.env.envs[0].loaded == {"x": 3}
    env.close()


@pytest.mark.parametrize("name", ["default_rng", "seed", "BitGenerator", "Generator", "nothing"])
def test_a_file_names_bit_generators_only(name: str) -> None:
    state = values.encode_generator(np.random.default_rng(0))
    with pytest.raises(CheckpointError, match=f"no bit generator '{name}'"):
        values.decode_generator({**state, "bit_generator": name})


def test_a_file_sets_only_the_attributes_that_are_listed() -> None:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    state = read(env)
    assert state is not None
    state["layers"][-1]["attributes"]["gravity"] = 0.0
    write(env, state)
    assert env.unwrapped.gravity == 9.8  # type: ignore[attr-defined]


class Whole(gymnasium.Env[Any, Any]):
    """Its state is all that it has; it refuses others' attributes."""

    observation_space = spaces.Box(0, 99, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.t = 0

    def __setattr__(self, name: str, value: Any) -> None:
        assert name in ("t", "_np_random", "_np_random_seed"), name
        super().__setattr__(name, value)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == 20, False, {}

    def state_dict(self) -> Any:
        return {name: x for name, x in vars(self).items() if name != "_np_random"}

    def load_state_dict(self, state: Any) -> None:
        vars(self).clear()
        vars(self).update(state)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_state_of_all_attributes_is_what_the_environment_made(
    mode: AutoresetMode, is_wrapped: bool
) -> None:
    """Checks of the first episode leave no trace in it, nor in copies, and outlast its loading."""

    def make() -> Any:
        return gymnasium.wrappers.TimeLimit(Whole(), 30) if is_wrapped else Whole()

    vector = SyncVectorEnv([make] * 2, autoreset_mode=mode)
    with GymnasiumEnv(vector) as env:
        env.reset()
        actions = torch.zeros(2, 1, dtype=torch.int64)
        env.step(actions)
        state = env.state_dict()
        assert state is not None
        assert [row["layers"][-1]["own"]["t"] for row in state["env"]["rows"]] == [1, 1]
        assert all(
            {*row["layers"][-1]["own"]} <= {"t", "_np_random_seed"} for row in state["env"]["rows"]
        )
        hooks = [{*vars(single)} for single in vector.envs]
        copied = copy.deepcopy(vector.envs[0])
        copied.step(0)
        copied.reset()
        pickle.loads(pickle.dumps(vector.envs[0])).reset()
        assert vector.envs[0].unwrapped.t == 1
        for _ in range(5):
            env.step(actions)
        env.load_state_dict(state)
        assert [{*vars(single)} for single in vector.envs] == hooks
        assert env.step(actions)["obs"].tolist() == [[2.0]] * 2
        for _ in range(18):
            row = env.step(actions)
        assert row["terminated"].all()
        last = row["obs"] if mode == AutoresetMode.NEXT_STEP else row["final_obs"]
        assert last.tolist() == [[20.0]] * 2
