"""The libraries themselves: what they return, and policies that are trained on them."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import everstep
from everstep import Trainer
from everstep.conditions import HitsUpperBound
from everstep.env import plugins
from everstep.errors import AdapterError
from everstep.testing import EnvConformance
from everstep_adapters import GymnaxEnv

jax = pytest.importorskip("jax")
gymnax: Any = pytest.importorskip("gymnax")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]


def make(name: str, num_envs: int = 4, **options: Any) -> Any:
    prefix = name.partition(":")[0]
    module = {"playground": "mujoco_playground"}.get(prefix, prefix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(module)
        return everstep.make(name, num_envs, **options)


@pytest.fixture(autouse=True)
def of_this_source() -> None:
    """Skip where the package was installed before it had these adapters."""
    if "gymnax" not in plugins.prefixes():
        pytest.skip("install the repository again: entry points are of an older version")


def test_final_observations_are_those_of_an_unwrapped_run() -> None:
    """gymnax's own `step` loses them; `step_env` has them."""
    env, params = gymnax.make("CartPole-v1")
    wrapped = everstep.wrap((env, params), num_envs=3)
    wrapped.seed(5)
    obs = wrapped.reset()
    key, following = jax.random.split(jax.random.PRNGKey(5))
    reset, step = jax.jit(env.reset_env), jax.jit(env.step_env)
    states = [reset(one, params) for one in jax.random.split(key, 3)]
    assert [x.tolist() for x, _ in states] == obs.tolist()
    states, ends = [state for _, state in states], 0
    for _ in range(80):
        action = torch.randint(2, (3, 1))
        row = wrapped.step(action)
        following, stepping, resetting = jax.random.split(following, 3)
        for n, one in enumerate(jax.random.split(stepping, 3)):
            seen, states[n], reward, done, _ = step(one, states[n], int(action[n]), params)
            torch.testing.assert_close(row["final_obs"][n], torch.tensor(seen.tolist()))
            assert row["rewards"][n].item() == float(reward)
            assert row["terminated"][n].item() == bool(done)
            if done:
                seen, states[n] = reset(jax.random.fold_in(resetting, n), params)
                ends += 1
            torch.testing.assert_close(row["obs"][n], torch.tensor(seen.tolist()))
    assert ends > 5


def test_the_clock_truncates_and_the_task_terminates() -> None:
    env, params = gymnax.make("CartPole-v1")
    short = everstep.wrap(env, num_envs=16, params=params.replace(max_steps_in_episode=12))
    assert "12 env steps, its `max_steps_in_episode`" in short.describe()["limit"]
    short.reset()
    elapsed = torch.zeros(16, 1, dtype=torch.int64)
    seen = {"terminated": 0, "truncated": 0}
    for _ in range(60):
        row = short.step(torch.randint(2, (16, 1)))
        elapsed += 1
        fell = (row["final_obs"][:, [0]].abs() > 2.4) | (
            row["final_obs"][:, [2]].abs() > 0.20943951
        )
        assert torch.equal(row["terminated"], fell)
        assert torch.equal(row["truncated"], (elapsed >= 12) & ~fell)
        elapsed[row["first"]] = 0
        for key in seen:
            seen[key] += int(row[key].sum())
    assert min(seen.values()) > 0


@pytest.mark.parametrize(
    ("own", "given", "limit"), [(12, None, 12), (12, 5, 5), (12, 20, 12), (2**31 - 2, None, None)]
)
def test_the_limit_of_the_environment_or_of_the_adapter_is_known(
    own: int, given: None | int, limit: None | int
) -> None:
    env, params = gymnax.make("Pendulum-v1")
    params = params.replace(max_steps_in_episode=own)
    made = everstep.wrap(env, num_envs=3, params=params, max_episode_steps=given)
    assert made.max_episode_steps == limit
    made.reset()
    ends = [bool(made.step(torch.zeros(3, 1))["truncated"].all()) for _ in range(30)]
    assert ends == [limit is not None and (t + 1) % limit == 0 for t in range(30)]
    counted = "" if given is None else f"; {given} env steps, counted by the adapter"
    assert made.describe()["limit"].endswith(f"its `max_steps_in_episode`{counted}")


@pytest.mark.parametrize(
    ("value", "limit"),
    [(100.0, 100), (np.int32(7), 7), (np.ones(1), 1), (None, None), ("100", None), (0, None)],
)
def test_limits_are_numbers_of_any_library(value: Any, limit: None | int) -> None:
    maze = pytest.importorskip("jumanji").make("Maze-v0")
    maze.time_limit = value
    assert everstep.wrap(maze, num_envs=2).max_episode_steps == limit


def test_flags_that_a_state_keeps_do_not_hide_a_truncation() -> None:
    """MinAtar's states remember `terminal`, that of the clock included."""
    env, params = gymnax.make("Freeway-MinAtar")
    short = everstep.wrap(env, num_envs=2, params=params.replace(max_steps_in_episode=3))
    short.reset()
    rows = [short.step(torch.zeros(2, 1, dtype=torch.int64)).clone() for _ in range(7)]
    assert [int(row["truncated"].sum()) for row in rows] == [0, 0, 2, 0, 0, 2, 0]
    assert not any(row["terminated"].any() for row in rows)


NAMES = [
    "gymnax:CartPole-v1",
    "gymnax:Pendulum-v1",
    "gymnax:Breakout-MinAtar",
    "jumanji:Snake-v1",
    "brax:inverted_pendulum",
    "craftax:Craftax-Classic-Symbolic-v1",
    "playground:CartpoleBalance",
]


@pytest.mark.parametrize("name", NAMES)
def test_environments_are_played_saved_and_continued(name: str) -> None:
    env = make(name, max_episode_steps=2)
    size = torch.Size([4])
    obs = env.reset()
    assert obs.shape[0] == 4
    actions = [env.action_spec.rand(size) for _ in range(24)]
    for action in actions[:12]:
        env.step(action)
    state = env.state_dict()
    rows = [env.step(action).clone() for action in actions[12:]]
    assert sum(int(row["truncated"].sum()) for row in rows) > 0
    assert all(bool((row["first"] == (row["terminated"] | row["truncated"])).all()) for row in rows)
    env.load_state_dict(state)
    for action, row in zip(actions[12:], rows, strict=True):
        again = env.step(action)
        leaves = row.keys(True, True)
        assert all(torch.equal(again[key], row[key]) for key in leaves)


def test_rows_of_playground_are_those_of_an_unwrapped_run() -> None:
    """MuJoCo Warp's contacts are a buffer that the rows share."""
    registry = pytest.importorskip("mujoco_playground").registry
    raw = registry.load("CartpoleBalance")
    env = everstep.wrap(raw, num_envs=3, max_episode_steps=4)
    env.seed(5)
    obs = env.reset()
    key, following = jax.random.split(jax.random.PRNGKey(5))
    reset, step = jax.jit(jax.vmap(raw.reset)), jax.jit(jax.vmap(raw.step))
    state, ends = reset(jax.random.split(key, 3)), 0
    seen = lambda: torch.tensor(state.obs.tolist())  # noqa: E731
    torch.testing.assert_close(obs, seen())
    for _ in range(13):
        action = env.action_spec.rand(torch.Size([3]))
        row = env.step(action)
        following, _, resetting = jax.random.split(following, 3)
        state = step(state, jax.numpy.array(action.numpy()))
        torch.testing.assert_close(row["final_obs"], seen())
        torch.testing.assert_close(row["rewards"].flatten(), torch.tensor(state.reward.tolist()))
        if row["first"].all():
            keys = [jax.random.fold_in(resetting, i) for i in range(3)]
            state, ends = reset(jax.numpy.stack(keys)), ends + 1
        torch.testing.assert_close(row["obs"], seen())
    assert ends == 3


def test_brax_starts_every_episode_in_a_new_state() -> None:
    """Its own wrapper starts them all in the first one."""
    env = make("brax:inverted_pendulum", 2, max_episode_steps=2)
    firsts = [env.reset()[0].tolist()]
    for _ in range(6):
        row = env.step(torch.zeros(2, 1))
        if row["first"][0]:
            firsts.append(row["obs"][0].tolist())
            assert row["final_obs"][0].tolist() != firsts[-1]
    assert len(firsts) > 2
    assert len({tuple(x) for x in firsts}) == len(firsts)


def test_training_wrappers_of_brax_are_taken_off() -> None:
    envs = pytest.importorskip("brax.envs")
    env = everstep.wrap(envs.create("fast", episode_length=7), num_envs=3)
    assert "7 env steps, counted by the adapter" in env.describe()["limit"]
    env.reset()
    rows = [env.step(torch.zeros(env.action_spec.rand(torch.Size([3])).shape)) for _ in range(7)]
    assert rows[-1]["truncated"].all()
    repeated = everstep.wrap(envs.create("fast", episode_length=7, action_repeat=2), num_envs=3)
    assert "4 env steps, counted by the adapter" in repeated.describe()["limit"]


def test_wrappers_that_cannot_be_taken_off_are_refused() -> None:
    envs = pytest.importorskip("brax.envs")
    training = pytest.importorskip("brax.envs.wrappers.training")
    randomized = training.DomainRandomizationVmapWrapper.__new__(
        training.DomainRandomizationVmapWrapper
    )
    randomized.env = envs.get_environment("fast")
    with pytest.raises(AdapterError, match="its `DomainRandomizationVmapWrapper` loses"):
        everstep.wrap(training.EpisodeWrapper(randomized, 7, 1), num_envs=3)
    jumanji: Any = pytest.importorskip("jumanji")
    wrappers: Any = pytest.importorskip("jumanji.wrappers")
    inside = wrappers.AutoResetWrapper(jumanji.make("LevelBasedForaging-v0"))
    with pytest.raises(AdapterError, match="its `AutoResetWrapper` loses final observations"):
        everstep.wrap(wrappers.MultiToSingleWrapper(inside), num_envs=2)


def test_the_configuration_of_playground_repeats_actions() -> None:
    registry = pytest.importorskip("mujoco_playground").registry
    raw = registry.load("CartpoleBalance", config_overrides={"action_repeat": 4, "impl": "jax"})
    found = everstep.wrap(raw, num_envs=2).describe()["limit"]
    assert "with 4 of its steps for each action; 250 env steps" in found


def test_functions_that_make_one_are_given_to_trainers() -> None:
    trainer = Trainer(lambda: gymnax.make("CartPole-v1")[0], num_envs=4, horizon=8, run_dir=None)
    assert isinstance(trainer.algorithm.env, GymnaxEnv)
    assert trainer.step()["env/steps"] == 32


def test_rewards_of_several_agents_are_added_up_as_the_error_says() -> None:
    jumanji: Any = pytest.importorskip("jumanji")
    wrappers: Any = pytest.importorskip("jumanji.wrappers")
    env = jumanji.make("LevelBasedForaging-v0")
    with pytest.raises(AdapterError, match=r"with `jumanji\.wrappers\.MultiToSingleWrapper`"):
        everstep.wrap(env, num_envs=2)
    single = everstep.wrap(wrappers.MultiToSingleWrapper(env), num_envs=2)
    single.reset()
    row = single.step(single.action_spec.rand(torch.Size([2])))
    assert row["rewards"].shape == (2, 1)


class TestGymnaxConforms(EnvConformance):
    episodes_end = True

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Any:
        return GymnaxEnv.make("CartPole-v1", num_envs, horizon=horizon, device=device)


@pytest.mark.learning
def test_cartpole_of_gymnax_is_solved() -> None:
    """500 is the most; the threshold of Gymnasium's registry is 475."""
    trainer = Trainer("gymnax:CartPole-v1", seed=0, run_dir=None)
    solved = HitsUpperBound("episodes/return_mean_100", 475.0)
    stats = trainer.run(total_env_steps=500_000, stop_conditions=[solved])
    assert stats["episodes/return_mean_100"] >= 475


@pytest.mark.learning
def test_craftax_is_played_better_than_at_random() -> None:
    """Returns of 2 and more; random actions reach 1.4."""
    pytest.importorskip("craftax")
    env = everstep.make("craftax:Craftax-Classic-Symbolic-v1", 64)
    env.seed(0)
    env.reset()
    returns, ended = torch.zeros(64, 1), []
    generator = torch.Generator().manual_seed(0)
    while len(ended) < 300:
        row = env.step(torch.randint(int(env.action_spec.space.n), (64, 1), generator=generator))
        returns += row["rewards"]
        over = row["terminated"] | row["truncated"]
        ended += returns[over].tolist()
        returns[over] = 0.0
    at_random = torch.tensor(ended)
    trainer = Trainer(
        "craftax:Craftax-Classic-Symbolic-v1", num_envs=64, horizon=64, seed=0, run_dir=None
    )
    stats = trainer.run(total_env_steps=65_536)
    print(f"\nCraftax: {stats['episodes/return_mean_100']}, at random {at_random.mean()}")
    assert stats["episodes/return_mean_100"] >= at_random.mean() + 0.5
