"""`Policy.predict` in single Gymnasium environments, beside the adapter in vector environments."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from torchrl.data import Unbounded

import everstep
from everstep import AlgorithmConfig, Policy, RecurrentAlgorithmConfig
from everstep.core.checkpoints import load_file, save_file
from everstep.env.formats import EnvFormat
from everstep.errors import CheckpointError
from everstep.evaluation import run_episodes
from everstep.policies import load_policy
from everstep_adapters import GymnasiumEnv

EPISODES = 3
LOW, HIGH = np.array([-1, 0, -np.inf]), np.array([3, 0.5, 2])


class Told(gymnasium.Env[Any, Any]):
    """Draws observations from its space; the reward depends on the action, which must fit."""

    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (3,), np.float64)
    action_space: spaces.Space[Any] = spaces.Discrete(4)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(np.asarray(action)), action
        self.t += 1
        reward = float(np.cos(np.asarray(action, np.float64)).sum())
        return self.observation_space.sample(), reward, False, self.t == 5, {}


class DictOfAll(Told):
    observation_space = spaces.Dict(
        {
            "position": spaces.Box(-1, 1, (2,), np.float64),
            "room": spaces.Discrete(3, start=5),
            "inner": spaces.Dict({"lamps": spaces.MultiBinary(2), "height": spaces.Box(0, 1, ())}),
            "pair": spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([2, 3])]),
        }
    )


class StartsAtTwo(Told):
    action_space = spaces.Discrete(3, start=2)


class ManyChoices(Told):
    observation_space = spaces.MultiDiscrete([3, 4])
    action_space = spaces.MultiDiscrete([2, 3], start=[1, -1])


class Flags(Told):
    observation_space = spaces.Discrete(6, start=-2)
    action_space = spaces.MultiBinary(3)


class Images(Told):
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class Doubles(Told):
    action_space = spaces.Box(LOW, HIGH, (3,), np.float64)


class Scalar(Told):
    observation_space = spaces.Box(-1, 1, (), np.float32)
    action_space = spaces.Box(-2, 4, (), np.float32)


class Grid(Told):
    action_space = spaces.Box(-2, 5, (2, 2), np.int32)


TASKS: dict[str, Any] = {
    "CartPole-v1": lambda: gymnasium.make("CartPole-v1"),
    "Pendulum-v1": lambda: gymnasium.make("Pendulum-v1"),
    "FrozenLake-v1": lambda: gymnasium.make("FrozenLake-v1", max_episode_steps=30),
    "Blackjack-v1": lambda: gymnasium.make("Blackjack-v1"),
    **{x.__name__: x for x in (DictOfAll, StartsAtTwo, ManyChoices, Flags, Images)},
    **{x.__name__: x for x in (Doubles, Scalar, Grid)},
}

CONFIG: dict[str, Any] = {"num_envs": 2, "horizon": 8, "device": "cpu"}


def build(make: Any, *, cls: Any = AlgorithmConfig, env_options: Any = None, **options: Any) -> Any:
    """An algorithm whose policy answers to its observations, beyond the bounds of its actions."""

    def make_env(num_envs: int, horizon: Any = None, *, device: Any = "cpu") -> GymnasiumEnv:
        env = SyncVectorEnv([make] * num_envs)
        return GymnasiumEnv(env, horizon, device=device, **(env_options or {}))

    torch.manual_seed(3)
    algorithm = cls(**CONFIG, **options).build(make_env)
    torch.nn.init.normal_(algorithm.policy.model.policy[-1].weight, std=5.0)
    return algorithm


def returns_alone(policy: Any, env: Any, seed: int) -> list[float]:
    """Returns of episodes in a single environment, stepped with `predict`."""
    found, rewards, state, start = [], 0.0, None, True
    obs, _ = env.reset(seed=seed)
    while len(found) < EPISODES:
        action, state = policy.predict(obs, state, start)
        assert env.action_space.contains(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        rewards, start = rewards + float(reward), terminated or truncated
        if start:
            found.append(rewards)
            rewards, obs = 0.0, env.reset()[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("cls", [AlgorithmConfig, RecurrentAlgorithmConfig])
@pytest.mark.parametrize("task", TASKS)
def test_a_single_environment_is_played_as_in_a_vector_environment(task: str, cls: Any) -> None:
    options: dict[str, Any] = {} if cls is AlgorithmConfig else {"seq_len": 4}
    make = TASKS[task]
    policy = build(make, cls=cls, **options).policy
    env = GymnasiumEnv(SyncVectorEnv([make]))
    env.seed(7)
    returns, _ = run_episodes(policy, env, episodes=EPISODES)
    found = returns_alone(policy, make(), seed=7)
    # The vector environment's rewards are in float32.
    np.testing.assert_allclose(found, returns.numpy(), rtol=1e-5)


@pytest.mark.parametrize("bounds", ["clip", "rescale"])
@pytest.mark.parametrize("make", [TASKS["Pendulum-v1"], Doubles, Scalar])
def test_real_actions_are_those_that_the_adapter_sends(make: Any, bounds: Any) -> None:
    algorithm = build(make, env_options={"action_bounds": bounds})
    policy, env = algorithm.policy, algorithm.env
    obs = env.env.single_observation_space
    obs = np.stack([obs.sample() for _ in range(64)])
    actions, _ = policy.predict(obs)
    rows = torch.tensor(obs, dtype=torch.float32).reshape(64, -1)
    with torch.no_grad():
        chosen = policy.act((rows,), (), deterministic=True).actions[0]
    sent = np.concatenate([env._actions.to_env(pair) for pair in chosen.split(2)])
    assert actions.dtype == env.env.single_action_space.dtype
    assert (actions != chosen.numpy().reshape(actions.shape)).any()
    np.testing.assert_array_equal(actions, sent)
    tensors, _ = policy.predict(torch.from_numpy(obs))
    np.testing.assert_array_equal(tensors.numpy(), actions)
    assert all(env.env.single_action_space.contains(np.asarray(x)) for x in actions)


def test_rescaled_actions_reach_the_bounds_of_the_space() -> None:
    policy = build(Doubles, env_options={"action_bounds": "rescale"}).policy
    actions, _ = policy.predict(np.random.default_rng(0).normal(size=(500, 3)) * 100)
    np.testing.assert_array_equal(actions.min(0)[:2], LOW[:2])
    np.testing.assert_array_equal(actions.max(0)[:2], HIGH[:2])


@pytest.mark.parametrize("task", ["FrozenLake-v1", "Flags"])
@pytest.mark.parametrize(
    ("form", "shape"),
    [
        (int, ()),
        (np.int64, ()),
        (np.array, ()),
        (lambda x: torch.tensor(x), ()),
        (lambda x: [x], (1,)),
        (lambda x: np.array([x]), (1,)),
        (lambda x: np.array([x, x, x], np.int32), (3,)),
        (lambda x: np.array([[x], [x]]), (2,)),
        (lambda x: torch.tensor([x, x]), (2,)),
    ],
)
def test_choices_are_observed_as_gymnasium_returns_them(task: str, form: Any, shape: Any) -> None:
    policy = build(TASKS[task]).policy
    expected, _ = policy.predict(1)
    action, _ = policy.predict(form(1))
    own = (3,) if task == "Flags" else ()
    assert tuple(action.shape) == (*shape, *own)
    assert isinstance(action, torch.Tensor) is isinstance(form(1), torch.Tensor)
    np.testing.assert_array_equal(action, np.broadcast_to(expected, action.shape))


def test_mappings_are_read_by_key_and_place() -> None:
    policy, space = build(DictOfAll).policy, DictOfAll.observation_space
    space.seed(0)
    rows = [space.sample() for _ in range(5)]
    singles = [policy.predict(row)[0] for row in rows]
    assert len(set(singles)) > 1
    batch = gymnasium.vector.utils.concatenate(
        space, rows, gymnasium.vector.utils.create_empty_array(space, 5)
    )
    actions, _ = policy.predict(batch)
    np.testing.assert_array_equal(actions, singles)
    del batch["inner"]["lamps"]
    with pytest.raises(ValueError, match=r"`obs\['inner'\]\['lamps'\]` is missing.*\['height'\]"):
        policy.predict(batch)
    with pytest.raises(ValueError, match=r"of a batch of the same size; got .*'room'\]: one"):
        policy.predict({**rows[0], "position": np.zeros((5, 2))})


def test_images_stay_bytes() -> None:
    policy = build(Images).policy
    image = Images.observation_space.sample()
    action, _ = policy.predict(image)
    turned, _ = policy.predict(image[::-1][::-1])  # no copy, but negative strides on the way
    image.flags.writeable = False
    assert action == turned == policy.predict(image)[0]
    with pytest.raises(ValueError, match=r"must have the dtype uint8 .*got float64"):
        policy.predict(image / 255)


IN_A_PROCESS = """
import json, sys
import numpy as np
from everstep.policies import load_policy
policy = load_policy(sys.argv[1])
actions, state = policy.predict(np.load(sys.argv[2]))
more, _ = policy.predict(np.load(sys.argv[2]), state)
loaded = [name for name in ("gymnasium", "everstep_adapters") if name in sys.modules]
print(json.dumps([actions.tolist(), more.tolist(), str(actions.dtype), loaded]))
"""


@pytest.mark.slow  # another process imports PyTorch
@pytest.mark.parametrize(
    ("make", "options", "cls"),
    [
        (StartsAtTwo, {}, AlgorithmConfig),
        (Doubles, {"action_bounds": "rescale"}, RecurrentAlgorithmConfig),
        (ManyChoices, {}, AlgorithmConfig),
    ],
)
def test_a_saved_policy_predicts_without_the_adapter(
    make: Any, options: Any, cls: Any, tmp_path: Path
) -> None:
    lengths: dict[str, Any] = {} if cls is AlgorithmConfig else {"seq_len": 4}
    policy = build(make, cls=cls, env_options=options, **lengths).policy
    obs = np.stack([make.observation_space.sample() for _ in range(9)])
    actions, state = policy.predict(obs)
    more, _ = policy.predict(obs, state)
    policy.save(tmp_path / "policy")
    np.save(tmp_path / "obs.npy", obs)
    command = [sys.executable, "-c", IN_A_PROCESS, tmp_path / "policy", tmp_path / "obs.npy"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *found, dtype, imported = json.loads(done.stdout)
    assert (dtype, imported) == (str(actions.dtype), [])
    for own, other in zip((actions, more), found, strict=True):
        # Kernels of another process may round differently: they depend on where tensors lie.
        np.testing.assert_allclose(other, own, rtol=1e-6)


def test_files_without_a_format_load_and_damaged_ones_are_told(tmp_path: Path) -> None:
    policy = build(Doubles, env_options={"action_bounds": "clip"}).policy
    policy.save(tmp_path / "policy")
    state = load_file(tmp_path / "policy")
    del state["env_format"]
    save_file(tmp_path / "older", state)
    obs = np.random.default_rng(0).normal(size=(20, 3))
    expected, _ = policy.predict(obs)
    actions, _ = load_policy(tmp_path / "older").predict(obs)
    assert actions.dtype == np.float32  # the spec's; the spec has no half-infinite bounds
    np.testing.assert_array_equal(
        np.clip(actions, LOW.astype(np.float32), HIGH.astype(np.float32)), expected
    )
    save_file(tmp_path / "damaged", {**state, "env_format": {"observation": []}})
    with pytest.raises(CheckpointError, match="Not a format"):
        load_policy(tmp_path / "damaged")


class Doubled(everstep.Env):
    """Observes everything twice, and hands out the attributes of the environment that it wraps."""

    def __init__(self, env: GymnasiumEnv) -> None:
        super().__init__(env.num_envs, 8)
        self.env, self.action_spec = env, env.action_spec
        self.observation_spec = Unbounded(6)
        self.env_format = env.env_format
        self.episode_keys = env.episode_keys - {"final_obs"}

    def reset(self, *, config: Any = None) -> Any:
        return self.env.reset(config=config).repeat(1, 2)

    def step(self, action: Any) -> Any:
        row = self.env.step(action).exclude("final_obs")
        return row.set("obs", row["obs"].repeat(1, 2))


def test_the_format_of_a_wrapped_environment_does_not_count() -> None:
    wrapped = GymnasiumEnv(SyncVectorEnv([Told] * 2), 8)
    policy: Policy = AlgorithmConfig(device="cpu").build(Doubled(wrapped)).policy
    assert policy.predict(np.zeros(6))[0].shape == (1,)
    with pytest.raises(ValueError, match=r"shape \[6\], one observation, or \[N, 6\], a batch"):
        policy.predict(np.zeros(3))


def test_a_format_is_described_and_read_again() -> None:
    form = build(Doubles, env_options={"action_bounds": "rescale"}).policy.env_format
    again = EnvFormat.from_description(form.describe())
    values = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    np.testing.assert_array_equal(again.action[0].to_numpy(values), form.action[0].to_numpy(values))
    assert [x.path for x in again.observation] == [()]


# ---- exported, and in MLflow ---------------------------------------------------------------------


def named_inputs(policy: Any, obs: Any) -> dict[str, Any]:
    """A batch of observations by the names of an exported program's inputs."""
    inputs = {}
    forms, leaves = policy.env_format.observation, policy._observation.leaves()
    for form, (path, shape, dtype) in zip(forms, leaves, strict=True):
        value = obs
        for index in form.path:
            value = value[index]
        tensor = torch.as_tensor(np.asarray(value)).to(dtype)
        inputs[".".join(("obs", *path))] = tensor.reshape(-1, *shape).numpy()
    return inputs


def nested(inputs: dict[str, Any]) -> Any:
    """The same as sequences of one row, for MLflow models that need Everstep."""
    found: Any = {}
    for name, value in inputs.items():
        *keys, last = name.split(".")
        inner = found
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[last] = value[:, None]
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*type hint:UserWarning")  # MLflow's, of its own
@pytest.mark.parametrize(
    "task",
    ["Pendulum-v1", "StartsAtTwo", "ManyChoices", "Flags", "DictOfAll", "Doubles", "Scalar"],
)
def test_exported_actions_are_those_of_predict(task: str, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    policy = build(TASKS[task]).policy
    vector = SyncVectorEnv([TASKS[task]] * 16)
    vector.observation_space.seed(0)
    obs = vector.observation_space.sample()
    expected, _ = policy.predict(obs)
    policy.export(tmp_path / "exported")
    inputs = named_inputs(policy, obs)
    found = mlflow.pyfunc.load_model(str(tmp_path / "exported")).predict(inputs)["actions"]
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    space = vector.single_action_space
    assert all(space.contains(np.asarray(x)) for x in found.astype(space.dtype))

    python_model = policy.save(tmp_path / "policy")
    context = type("Context", (), {"artifacts": {"policy": str(tmp_path / "policy")}})
    python_model.load_context(context)
    served = python_model.predict(None, nested(inputs))["actions"].tolist()
    np.testing.assert_allclose(np.array(served), expected, rtol=1e-5, atol=1e-6)
