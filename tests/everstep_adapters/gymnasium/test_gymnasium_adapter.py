"""The Gymnasium adapter: modes, seeds, options, memory, errors, making and wrapping."""

import math
import multiprocessing
import subprocess
import sys
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorWrapper,
)
from gymnasium.wrappers.vector import NormalizeObservation, RecordEpisodeStatistics

from everstep import AlgorithmConfig
from everstep.env import is_asynchronous
from everstep.errors import AdapterError, EnvError
from everstep_adapters import GymnasiumEnv
from tests.everstep_adapters.gymnasium.gymnasium_toys import (
    ACTION,
    MODES,
    Columns,
    Scripted,
    scripted,
    zeros,
)

# Where the mode is found.


def attribute(mode: Any) -> VectorEnv:
    env = Columns({})
    env.autoreset_mode = mode
    return env


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "declare",
    [
        attribute,
        lambda mode: attribute(mode.name),
        lambda mode: Columns({"autoreset_mode": mode}),
        lambda mode: Columns({"autoreset_mode": mode.value}),
        lambda mode: Columns({"autoreset_mode": mode.name.lower()}),
        lambda mode: RecordEpisodeStatistics(scripted("mixed", mode.name)),
        lambda mode: VectorWrapper(attribute(mode)),
    ],
    ids=["attribute", "name", "metadata", "value", "snake", "wrapped", "wrapped attribute"],
)
def test_the_mode_is_what_the_environment_declares(declare: Any, mode: str) -> None:
    assert GymnasiumEnv(declare(AutoresetMode[mode])).autoreset_mode is AutoresetMode[mode]


def test_the_override_wins_over_the_attribute_and_the_attribute_over_metadata() -> None:
    env = Columns({"autoreset_mode": AutoresetMode.NEXT_STEP})
    env.autoreset_mode = AutoresetMode.SAME_STEP
    assert GymnasiumEnv(env).autoreset_mode is AutoresetMode.SAME_STEP
    assert GymnasiumEnv(env, autoreset_mode="Disabled").autoreset_mode is AutoresetMode.DISABLED
    override = AutoresetMode.NEXT_STEP
    assert GymnasiumEnv(env, autoreset_mode=override).autoreset_mode is override


def test_an_undeclared_mode_is_an_error_that_names_the_override() -> None:
    with pytest.raises(AdapterError, match=r"does not say when it resets.*`autoreset_mode=`"):
        GymnasiumEnv(Columns())
    assert GymnasiumEnv(Columns(), autoreset_mode="SAME_STEP").episode_keys >= {"final_obs"}


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(AdapterError, match=r"'sometimes' is not.*'NEXT_STEP'"):
        GymnasiumEnv(Columns({"autoreset_mode": "sometimes"}))


def test_a_mode_in_the_metadata_that_all_classes_share_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(VectorEnv.metadata, "autoreset_mode", AutoresetMode.SAME_STEP)
    with pytest.raises(AdapterError, match="does not say"):
        GymnasiumEnv(Columns())


# Seeds, options, memory.


@pytest.mark.parametrize("vectorization_mode", ["sync", "vector_entry_point"])
def test_a_seed_fixes_the_stream_and_later_resets_draw_new_states(vectorization_mode: str) -> None:
    def stream(seed: int) -> list[torch.Tensor]:
        env = GymnasiumEnv.make("CartPole-v1", 2, vectorization_mode=vectorization_mode)
        env.seed(seed)
        observations = [env.reset().clone()]
        observations += [env.step(zeros(env))["obs"].clone() for _ in range(30)]
        return [*observations, env.reset().clone(), env.reset().clone()]

    one, same, other = stream(1), stream(1), stream(2)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one[0], other[0])
    starts = [one[0], one[-1], one[-2]]
    assert not any(torch.equal(starts[i], starts[i - 1]) for i in range(3))


class Greedy(Columns):
    """Takes apart the options that it is given, as Gymnasium does with its own."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask")
        if mask is not None:
            mask[:] = False
        (options or {}).clear()
        return super().reset()


def test_options_and_masks_are_not_shared_with_the_environment() -> None:
    inner = Greedy({"autoreset_mode": AutoresetMode.DISABLED})
    inner.terminated[1] = True
    env = GymnasiumEnv(inner)
    config = {"low": 0.5}
    env.reset(config=config)
    assert config == {"low": 0.5}
    assert env.step(ACTION)["first"].flatten().tolist() == [False, True, False]


def test_config_is_the_options_of_one_reset() -> None:
    env = GymnasiumEnv.make("CartPole-v1", 4)
    config = {"low": 0.5, "high": 0.6}
    assert env.reset(config=config).min() >= 0.5
    assert env.reset().max() <= 0.05


def test_what_is_returned_outlives_the_environments_buffers() -> None:
    inner = Columns({"autoreset_mode": AutoresetMode.NEXT_STEP})
    env = GymnasiumEnv(inner)
    env.reset()
    row = env.step(ACTION)
    before = row.clone()
    inner.buffer += 7
    inner.rewards += 7
    inner.terminated[:] = True
    assert all(torch.equal(row[key], before[key]) for key in ("obs", "rewards", "terminated"))


def test_rows_are_written_to_the_same_memory() -> None:
    env = GymnasiumEnv(scripted("mixed", "SAME_STEP"))
    obs = env.reset()
    row = env.step(ACTION)
    keys = {"obs", "rewards"} | env.episode_keys
    addresses = {key: row[key].data_ptr() for key in keys}
    for _ in range(10):
        assert env.step(ACTION) is row
    assert {key: row[key].data_ptr() for key in keys} == addresses
    assert env.reset().data_ptr() == obs.data_ptr() == addresses["obs"]
    with pytest.raises(RuntimeError, match="locked"):
        row["rewards"] = row["rewards"] * 2


def test_the_action_of_a_row_is_never_written_to_again() -> None:
    sent = []

    class Keeper(Columns):
        def step(self, actions: Any) -> Any:
            sent.append(actions)
            return super().step(actions)

    env = GymnasiumEnv(Keeper({"autoreset_mode": AutoresetMode.NEXT_STEP}))
    env.reset()
    action = ACTION.clone()
    for value in (0, 1, 0):
        env.step(action.fill_(value))
    assert [array.tolist() for array in sent] == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]


# What an environment may not return.


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("buffer", np.zeros((2, 4), np.float32), r"`obs` must have shape \(3, 2\).*\(4, 2\)"),
        ("buffer", np.zeros((2, 3), np.complex64), "`obs` must have a dtype that fits float32"),
        ("rewards", np.zeros((3, 1)), r"`rewards` must have shape \(3,\).*\(3, 1\)"),
        ("truncated", np.True_, r"`truncated` must have shape \(3,\).*got \(\)"),
        ("terminated", np.zeros(3), "`terminated` must have a dtype that fits bool; got float64"),
    ],
)
def test_values_that_do_not_fit_are_named(name: str, value: Any, message: str) -> None:
    inner = Columns({"autoreset_mode": AutoresetMode.NEXT_STEP})
    env = GymnasiumEnv(inner)
    env.reset()
    setattr(inner, name, value)
    with pytest.raises(EnvError, match=message):
        env.step(ACTION)


# Making and wrapping.


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_registered_environments_are_made_and_stepped(name: str) -> None:
    env = GymnasiumEnv.make(name, 3, horizon=16)
    assert (env.num_envs, env.horizon, env.device) == (3, 16, "cpu")
    assert env.observation_spec.is_in(env.reset()[0])
    for _ in range(5):
        row = env.step(env.action_spec.rand(torch.Size([3])))
        assert row["obs"].shape == (3, *env.observation_spec.shape)
        assert row["rewards"].isfinite().all()
    env.close()


def test_gymnasiums_default_is_kept_unless_an_option_needs_another() -> None:
    def made(**kwargs: Any) -> str:
        return type(GymnasiumEnv.make("CartPole-v1", 2, **kwargs).env.unwrapped).__name__

    assert made() == "CartPoleVectorEnv"
    assert made(sutton_barto_reward=True) == "CartPoleVectorEnv"
    assert made(autoreset_mode="SAME_STEP") == "SyncVectorEnv"
    assert made(max_episode_steps=9) == "SyncVectorEnv"
    assert made(wrappers=[gymnasium.wrappers.FlattenObservation]) == "SyncVectorEnv"


@pytest.mark.parametrize("limit", [3, 700])
@pytest.mark.parametrize("vectorization_mode", [None, "vector_entry_point"])
def test_a_limit_replaces_the_registered_one(vectorization_mode: str | None, limit: int) -> None:
    options = {"vectorization_mode": vectorization_mode, "max_episode_steps": limit}
    env = GymnasiumEnv.make("CartPole-v1", 1, **options)
    env.env.unwrapped.__dict__.update(theta_threshold_radians=math.inf, x_threshold=math.inf)
    for inner in getattr(env.env.unwrapped, "envs", []):
        vars(inner.unwrapped).update(theta_threshold_radians=math.inf, x_threshold=math.inf)
    env.reset()
    truncated = [env.step(zeros(env))["truncated"].item() for _ in range(limit)]
    assert truncated == [False] * (limit - 1) + [True]


def test_what_gymnasium_cannot_make_is_an_error_that_says_why() -> None:
    with pytest.raises(AdapterError, match=r"cannot make 'CartPol-v1'.*CartPole"):
        GymnasiumEnv.make("CartPol-v1", 2)


def test_an_environment_that_cannot_be_represented_is_closed() -> None:
    closed = []

    class Texts(Scripted):
        def __init__(self) -> None:
            super().__init__([("terminated", 1)], 0)
            self.observation_space = spaces.Text(5)

        def close(self) -> None:
            closed.append(True)

    gymnasium.register("Texts-v0", entry_point=Texts)
    try:
        with pytest.raises(AdapterError, match=r"`observation_space` cannot be a tensor.*Text"):
            GymnasiumEnv.make("Texts-v0", 2, disable_env_checker=True)
    finally:
        del gymnasium.registry["Texts-v0"]
    assert closed == [True, True]


def test_close_closes_the_environment() -> None:
    env = GymnasiumEnv(scripted("mixed", "NEXT_STEP"))
    env.close()
    env.close()
    assert env.env.closed


def test_render_is_the_environments() -> None:
    inner = Columns({"autoreset_mode": AutoresetMode.NEXT_STEP})
    inner.render = lambda: ("picture",)
    assert GymnasiumEnv(inner).render() == ("picture",)


def test_a_single_environment_is_told_how_to_become_many() -> None:
    with pytest.raises(AdapterError, match=r"make_vec\('CartPole-v1', num_envs=8\)"):
        GymnasiumEnv(gymnasium.make("CartPole-v1"))
    with pytest.raises(AdapterError, match="its id, its class, or a function that makes one"):
        GymnasiumEnv(Scripted([("terminated", 1)], 0))


def test_matching_is_by_type() -> None:
    assert GymnasiumEnv.matches(Columns())
    assert GymnasiumEnv.matches(RecordEpisodeStatistics(scripted("mixed", "SAME_STEP")))
    assert not GymnasiumEnv.matches(gymnasium.make("CartPole-v1"))
    assert not GymnasiumEnv.matches(object())


def test_the_repr_shows_what_was_detected() -> None:
    env = GymnasiumEnv(scripted("mixed", "DISABLED"), 8)
    assert repr(env) == (
        "GymnasiumEnv(SyncVectorEnv(num_envs=3), horizon=8, device='cpu', "
        "autoreset_mode='DISABLED')"
    )


@pytest.mark.slow
def test_gymnasium_is_imported_late_and_its_absence_explained() -> None:
    code = """
import sys
sys.modules["gymnasium"] = None
from everstep.adapters import GymnasiumEnv
from everstep.errors import AdapterError
assert not GymnasiumEnv.matches(object())
for call in (lambda: GymnasiumEnv.make("CartPole-v1", 1), lambda: GymnasiumEnv(object())):
    try:
        call()
    except AdapterError as error:
        assert "pip install 'gymnasium" in str(error)
    else:
        raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_rows_on_a_gpu_are_those_on_the_host(mode: str) -> None:
    host, gpu = (GymnasiumEnv(scripted("mixed", mode), device=device) for device in ("cpu", "cuda"))
    assert torch.equal(host.reset(), gpu.reset().cpu())
    for t in range(25):
        on_host, on_gpu = host.step(ACTION + t % 5), gpu.step((ACTION + t % 5).cuda())
        for key in {"obs", "rewards"} | host.episode_keys:
            assert on_gpu[key].device.type == "cuda"
            assert torch.equal(on_host[key], on_gpu[key].cpu())


def test_what_was_detected_is_told() -> None:
    env = GymnasiumEnv(scripted("mixed", "SAME_STEP"), max_episode_steps=7)
    told = env.describe()
    assert list(told) == [
        "family",
        "environment",
        "num_envs",
        "observation",
        "action",
        "resets",
        "final observations",
        "limit",
        "hand-off",
        "seeding",
    ]
    assert told["resets"] == "SAME_STEP, from its attribute"
    assert told["observation"] == "Unbounded [4] float32"
    assert told["action"] == "Categorical(5) [1] int64"
    assert told["limit"] == "7 env steps, counted by the adapter"


class Waiting(gymnasium.Env[np.ndarray, int]):
    """Steps when it is told to, through an event that processes share."""

    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, go: Any) -> None:
        self.go = go

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        assert self.go.wait(30)
        return np.ones(1, np.float32), float(action), False, False, {}


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX and Python 3.12 warn of forks
def test_processes_step_while_the_caller_goes_on() -> None:
    context = multiprocessing.get_context("fork")
    go = context.Event()
    workers = AsyncVectorEnv([partial(Waiting, go)] * 2, context="fork")
    env = GymnasiumEnv(workers)
    env.reset()
    env.step_async(torch.ones(2, 1, dtype=torch.int64))  # returns though nobody has stepped
    go.set()
    assert env.step_wait()["rewards"].tolist() == [[1], [1]]
    env.close()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_who_is_stepped_while_the_caller_goes_on() -> None:
    """Processes are; wrappers know `step` alone, and what steps in this process has nothing to do
    meanwhile.
    """
    fns = [partial(Scripted, [("terminated", 3)], i) for i in range(3)]
    envs = [
        GymnasiumEnv(AsyncVectorEnv(fns, context="fork")),
        GymnasiumEnv(RecordEpisodeStatistics(AsyncVectorEnv(fns, context="fork"))),
        GymnasiumEnv(SyncVectorEnv(fns)),
    ]
    assert [is_asynchronous(env) for env in envs] == [True, False, False]
    rows = []
    for env in envs:
        algorithm = AlgorithmConfig(horizon=8, seed=0, num_sgd_iters=1).build(env)
        algorithm.collect()
        rows.append([x.clone() for x in (*algorithm.rollout.obs, algorithm.rollout.rewards)])
        env.close()
    for found in rows[1:]:
        for x, y in zip(rows[0], found, strict=True):
            assert torch.equal(x, y)


class Generous(AsyncVectorEnv):
    """Overrides `step` alone."""

    def step(self, actions: Any) -> Any:
        observation, rewards, *rest = super().step(actions)
        return observation, 100 * rewards, *rest


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_step_of_ones_own_is_called() -> None:
    fns = [partial(Scripted, [("terminated", 50)], i) for i in range(3)]
    env = GymnasiumEnv(Generous(fns, context="fork"))
    assert not is_asynchronous(env)
    algorithm = AlgorithmConfig(horizon=4, normalize_rewards=False).build(env)
    algorithm.collect()
    assert (algorithm.rollout.rewards[:4] >= 100).all()
    env.close()


@pytest.mark.parametrize("mode", MODES)
def test_halves_of_an_env_step_make_a_whole(mode: str) -> None:
    whole, halves = (GymnasiumEnv(scripted("mixed", mode)) for _ in range(2))
    assert torch.equal(whole.reset(), halves.reset())
    for t in range(12):
        action = ACTION + t % 5
        row = whole.step(action)
        halves.step_async(action)
        for key, value in halves.step_wait().items():
            assert torch.equal(row[key], value)


def test_halves_of_an_env_step_alternate() -> None:
    env = GymnasiumEnv(scripted("mixed", "NEXT_STEP"))
    env.reset()
    with pytest.raises(AdapterError, match="call `step_async` before"):
        env.step_wait()
    env.step_async(ACTION)
    for call in (env.reset, lambda: env.step_async(ACTION), lambda: env.step(ACTION)):
        with pytest.raises(AdapterError, match="call `step_wait` before"):
            call()
    assert env.step_wait()["obs"][0].tolist() == [0, 0, 1, 0]
    env.reset()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("vector", [SyncVectorEnv, partial(AsyncVectorEnv, context="fork")])
def test_observations_that_alias_the_environments_buffer_are_copied(vector: Any) -> None:
    """`copy=False`: the buffer changes in the next env step; in processes, before `step_wait`."""
    fns = [partial(Scripted, [("terminated", 50)], i) for i in range(3)]
    env = GymnasiumEnv(vector(fns, copy=False))
    obs = env.reset()
    before = obs.clone()
    env.step_async(ACTION + 1)
    assert torch.equal(obs, before)
    row = env.step_wait()
    assert row["obs"].tolist() == [[i, 0, 1, 1] for i in range(3)]
    env.close()


class Reusing(VectorEnv):
    """Returns the same objects in every env step, and writes to those that it has returned."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self) -> None:
        self.num_envs = 2
        self.single_observation_space = spaces.Dict({"a": spaces.Box(-9, 9, (1,))})
        self.single_action_space = spaces.Discrete(2)
        self.observation = {"a": np.zeros((2, 1), np.float32)}
        self.returned = (self.observation, np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {})

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.observation, self.returned[-1]

    def step(self, actions: Any) -> Any:
        for array in (self.observation["a"], self.returned[1]):
            array += 1
        return self.returned


def test_environments_may_return_the_same_objects_every_time() -> None:
    inner = Reusing()
    env = GymnasiumEnv(inner)
    obs = env.reset()
    inner.observation["a"] += 0.5
    assert obs["a"].tolist() == [[0], [0]]
    for t in (1, 2, 3):
        row = env.step(ACTION[:2])
        assert row["obs", "a"].tolist() == [[t + 0.5]] * 2
        assert row["rewards"].tolist() == [[t]] * 2
        row["obs", "a"].add_(100)  # what was returned is not the environment's either


def test_statistics_of_episodes_are_the_wrappers() -> None:
    wrapped = RecordEpisodeStatistics(scripted("mixed", "SAME_STEP"))
    env, plain = GymnasiumEnv(wrapped), GymnasiumEnv(scripted("mixed", "SAME_STEP"))
    assert torch.equal(env.reset(), plain.reset())
    episodes = 0
    for _ in range(20):
        row, expected = env.step(ACTION), plain.step(ACTION)
        for key, value in expected.items():
            assert torch.equal(row[key], value)
        episodes += int(row["first"].sum())
    assert wrapped.episode_count == episodes > 10


def test_normalised_observations_are_the_wrappers() -> None:
    """In NEXT_STEP; the wrapper refuses the other modes."""
    inner, other = (NormalizeObservation(gymnasium.make_vec("CartPole-v1", 3)) for _ in range(2))
    env = GymnasiumEnv(inner)
    env.seed(0)
    np.testing.assert_array_equal(env.reset(), other.reset(seed=0)[0].astype(np.float32))
    for _ in range(20):
        row = env.step(ACTION)
        expected = other.step(np.zeros(3, np.int64))[0]
        np.testing.assert_array_equal(row["obs"], expected.astype(row["obs"].numpy().dtype))
