"""Environments made from a file alone: wrappers and keys by name."""

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torchrl.data import Bounded, Categorical, Composite

import everstep
from everstep import Policy, TrainConfig
from everstep.env.specs import is_bound
from everstep.errors import AdapterError
from everstep_adapters import GymnasiumEnv

HERE = __name__


class Room(gymnasium.Env[Any, Any]):
    """An image, a direction, and an order in words, as MiniGrid has them."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            image=spaces.Box(0, 255, (3, 3, 3), np.uint8),
            direction=spaces.Discrete(4),
            mission=spaces.Text(20),
        )
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), 1.0, self.t == 5, False, {}

    def observe(self) -> dict[str, Any]:
        image = np.full((3, 3, 3), self.t, np.uint8)
        return {"image": image, "direction": self.t % 4, "mission": "go to the door"}


class OnlyImage(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Images, plus a number."""

    def __init__(self, env: Any, plus: int = 0) -> None:
        super().__init__(env)
        self.observation_space = env.observation_space["image"]
        self.plus = plus

    def observation(self, observation: Any) -> Any:
        return observation["image"] + np.uint8(self.plus)


def make(**options: Any) -> GymnasiumEnv:
    env = everstep.make(Room, 2, **options)
    assert isinstance(env, GymnasiumEnv)
    return env


def test_an_observation_of_words_names_a_way_out_that_works() -> None:
    with pytest.raises(AdapterError, match="'mission'") as error:
        make()
    named = str(error.value).partition("`observation_keys=")[2].partition("`")[0]
    assert named == "['image', 'direction']"
    assert set(make(observation_keys=eval(named)).observation_spec.keys()) == {
        "direction",
        "image",
    }


def test_one_key_is_a_plain_tensor() -> None:
    env = make(observation_keys=["image"])
    assert isinstance(env.observation_spec, Bounded)
    obs = env.reset()
    assert isinstance(obs, torch.Tensor)
    assert obs.shape == (2, 3, 3, 3)
    row = env.step(torch.zeros(2, 1, dtype=torch.int64))
    assert row["obs"].unique().tolist() == [1]


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_keys_are_read_in_every_mode(mode: str) -> None:
    env = make(observation_keys=["direction", "image"], autoreset_mode=mode)
    env.reset()
    for t in range(1, 5):
        row = env.step(torch.zeros(2, 1, dtype=torch.int64))
        assert row["obs", "direction"].flatten().tolist() == [t % 4] * 2
        assert row["obs", "image"].unique().tolist() == [t]
    row = env.step(torch.zeros(2, 1, dtype=torch.int64))
    final = row["obs"] if mode == "NEXT_STEP" else row["final_obs"]
    assert final["image"].unique().tolist() == [5]


def test_keys_that_are_not_there_are_named() -> None:
    with pytest.raises(AdapterError, match=r"`observation_keys`.*image.*got 'picture'"):
        make(observation_keys=["picture"])
    with pytest.raises(AdapterError, match="at least one"):
        make(observation_keys=[])


def test_nested_keys() -> None:
    space = spaces.Dict(body=spaces.Dict(arm=spaces.Box(-9, 9, (2,)), leg=spaces.Discrete(3)))

    class Nested(gymnasium.Env[Any, Any]):
        observation_space, action_space = space, spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return space.sample(), {}

        def step(self, action: Any) -> Any:
            return space.sample(), 0.0, False, False, {}

    assert everstep.make(Nested, 2, observation_keys=[("body", "arm")]).observation_spec.shape == (
        2,
    )
    both = everstep.make(Nested, 2, observation_keys=["body"]).observation_spec
    assert isinstance(both, Composite)
    assert set(both.keys(True, True)) == {("body", "arm"), ("body", "leg")}


@pytest.mark.parametrize(
    ("wrappers", "plus"),
    [
        ([f"{HERE}.OnlyImage"], 0),
        ([f"{HERE}:OnlyImage"], 0),
        (f"{HERE}.OnlyImage", 0),
        ([{f"{HERE}.OnlyImage": {"plus": 7}}], 7),
        ([{f"{HERE}.OnlyImage": None}], 0),
        ([OnlyImage], 0),
        ([f"{HERE}.OnlyImage", {"TimeLimit": {"max_episode_steps": 3}}], 0),
    ],
)
def test_wrappers_by_name(wrappers: Any, plus: int) -> None:
    env = make(wrappers=wrappers)
    assert env.observation_spec.shape == (3, 3, 3)
    assert env.reset().unique().tolist() == [plus]


@pytest.mark.parametrize(
    ("wrappers", "match"),
    [
        (["nowhere.Wrapper"], "'nowhere.Wrapper' cannot be imported.*minigrid.wrappers"),
        (["NoSuchWrapper"], "names without a dot are those of `gymnasium.wrappers`"),
        ([{"TimeLimit": 3}], "mapping of their names; got 3"),
        ([{"TimeLimit": {}, "OnlyImage": {}}], "mapping of one name"),
        ([3], "got 3"),
        (3, "`wrappers` are a list"),
        ([f"{HERE}.HERE"], "expected a subclass of gymnasium.Wrapper, or a function"),
    ],
)
def test_wrappers_that_are_none(wrappers: Any, match: str) -> None:
    with pytest.raises(AdapterError, match=match):
        make(wrappers=wrappers)


@pytest.mark.slow
def test_a_file_alone_trains(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(
        f"""
env_cls: {HERE}.Room
env_kwargs: {{wrappers: [{{{HERE}.OnlyImage: {{plus: 1}}}}]}}
model_config: {{image_layout: channels_last}}
num_envs: 2
horizon: 4
run_dir: {tmp_path / "run"}
total_env_steps: 16
""",
        encoding="utf-8",
    )
    with TrainConfig.from_file(path).build() as trainer:
        assert trainer.run()["env/steps"] > 0
    policy = Policy.load(tmp_path / "run" / "policy")
    action, _ = policy.predict(np.full((3, 3, 3), 1, np.uint8))
    assert 0 <= int(action) < 3


@pytest.mark.slow
def test_policies_take_the_environments_own_observations(tmp_path: Path) -> None:
    env = make(observation_keys=["image"])
    layout = {"image_layout": "channels_last"}
    with everstep.Trainer(env, horizon=4, model_config=layout, run_dir=tmp_path / "run") as trainer:
        trainer.run(total_env_steps=8)
    obs, _ = Room().reset()
    action, _ = Policy.load(tmp_path / "run" / "policy").predict(obs)
    assert 0 <= int(action) < 3


class Unbatched(VectorEnv):
    """Has the spaces of one environment, and no others, as SuperSuit's classes."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self) -> None:
        self.env = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
        self.num_envs = 2
        self.observation_space = self.env.single_observation_space
        self.action_space = self.env.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        return self.env.step(actions)


def test_spaces_of_one_environment_under_the_name_of_the_batch() -> None:
    env = everstep.wrap(Unbatched())
    assert isinstance(env.observation_spec, Bounded)
    assert env.observation_spec.shape == (4,)
    assert is_bound(env.observation_spec.space.high).tolist() == [True, False, True, False]
    assert isinstance(env.action_spec, Categorical)
    assert env.reset().shape == (2, 4)
    assert env.step(torch.zeros(2, 1, dtype=torch.int64))["rewards"].tolist() == [[1.0], [1.0]]
    assert env.probe().mode is AutoresetMode.NEXT_STEP


def test_the_device_is_the_environments_unless_it_is_given() -> None:
    class Simulator(Unbatched):
        device = torch.device("meta")

    assert str(GymnasiumEnv(Simulator(), device="cpu").device) == "cpu"
    assert str(GymnasiumEnv(Unbatched()).device) == "cpu"


@pytest.mark.slow
def test_importing_everstep_leaves_the_start_method_alone(tmp_path: Path) -> None:
    """A script without a main guard, whose workers are forked: nothing imports it again."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("workers are always spawned here")
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing
import everstep
from everstep import DiscreteDummyEnv, Trainer
import torchrl

Trainer(DiscreteDummyEnv, num_envs=2, horizon=2, run_dir=None).step()
print(multiprocessing.get_start_method(allow_none=True))
""",
        encoding="utf-8",
    )
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "None"


def test_own_workers_are_spawned_unless_the_process_chose(monkeypatch: Any) -> None:
    from everstep_adapters.gymnasium.wrappers import start_method

    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: None)
    assert start_method() == {"context": "spawn"}
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "fork")
    assert start_method() == {}


class Own(gymnasium.Env[Any, Any]):
    """Arguments that have the names of those of `make` and `make_vec`, and are seen."""

    observation_space = spaces.Box(0, 99, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(
        self, max_episode_steps: int, num_envs: int = 1, wrappers: int = 0, size: int = 0
    ) -> None:
        self.seen = np.array([max_episode_steps, num_envs + wrappers, size], np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.seen[0])
        return self.seen.copy(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return self.seen.copy(), 1.0, self.left == 0, False, {}


@pytest.mark.parametrize("mode", [None, "sync", "async"])
def test_registered_arguments_reach_the_constructor(
    mode: None | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `gymnasium.make`; `make_vec` takes them for its own."""
    given = {"max_episode_steps": 3, "num_envs": 7, "wrappers": 5, "size": 2}
    spec = gymnasium.envs.registration.EnvSpec("Own-v0", entry_point=Own, kwargs=given)
    monkeypatch.setitem(gymnasium.registry, "Own-v0", spec)
    for options, size in (({}, 2), ({"size": 9}, 9)):
        single, _ = gymnasium.make("Own-v0", **options).reset()
        with everstep.make("Own-v0", 2, vectorization_mode=mode, **options) as env:
            assert env.reset().tolist() == [[3, 12, size]] * 2 == [single.tolist()] * 2
            for t in range(3):
                row = env.step(torch.zeros(2, 1, dtype=torch.int64))
                assert row["terminated"].tolist() == [[t == 2]] * 2
                assert not row["truncated"].any()
    assert spec.kwargs == given


def test_arguments_that_are_registered_are_not_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Own-v0", entry_point=Own, kwargs={"size": 3})
    monkeypatch.setitem(gymnasium.registry, "Own-v0", spec)
    with pytest.raises(AdapterError, match=r"are missing: max_episode_steps\. Give"):
        everstep.make("Own-v0", 2)
