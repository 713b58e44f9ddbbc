"""EnvPool: order of rows, next-step resets, seeds, dtypes, and refusals."""

import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torchrl.data import Bounded, Categorical, Composite, Unbounded

import everstep
from everstep.env import Env, is_asynchronous
from everstep.errors import AdapterError, EnvError
from everstep.testing import EnvConformance
from everstep_adapters import EnvPoolEnv, GymnasiumEnv

envpool = pytest.importorskip("envpool")

# EnvPool's own spaces make Gymnasium warn.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")


def pool(name: str = "CartPole-v1", num_envs: int = 3, **options: Any) -> Any:
    return envpool.make_gymnasium(
        name, num_envs=num_envs, **{"seed": 1, "num_threads": 1, **options}
    )


class Conformance(EnvConformance):
    name: str
    options: dict[str, Any]

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Env:
        options = {"num_threads": 1, **self.options}
        return EnvPoolEnv.make(self.name, num_envs, horizon=horizon, device=device, **options)


class TestCartPole(Conformance):
    name, options, episodes_end = "CartPole-v1", {"max_episode_steps": 15}, True


class TestHalfCheetah(Conformance):
    name, options, episodes_end = "HalfCheetah-v4", {"max_episode_steps": 9}, True
    num_envs_choices = (2,)
    num_steps = 24


class TestPong(Conformance):
    name, episodes_end = "Pong-v5", True
    options: ClassVar = {
        "max_episode_steps": 7,
        "img_height": 16,
        "img_width": 16,
        "stack_num": 2,
        "noop_max": 1,
        "frame_skip": 2,
    }
    num_envs_choices = (1,)  # making one takes a third of a second
    num_steps = 16


class TestDictObservations(Conformance):
    name, options = "CheetahRun-v1", {"max_episode_steps": 9}
    num_envs_choices = (2,)
    num_steps = 24


# The law: what EnvPool returns, with its reset rows marked.


def actions_of(inner: Any, rng: np.random.Generator) -> Any:
    inner.action_space.seed(int(rng.integers(2**31)))
    return np.stack([inner.action_space.sample() for _ in range(inner.num_envs)])


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v4", "Pong-v5"])
def test_rows_are_the_pools_and_every_row_after_an_end_is_a_reset(name: str) -> None:
    by_hand = pool(name, max_episode_steps=12)
    env = EnvPoolEnv(pool(name, max_episode_steps=12), action_bounds="clip")
    rng, pending, resets = np.random.default_rng(0), np.zeros(3, bool), 0
    first = env.reset()
    np.testing.assert_array_equal(first, by_hand.reset()[0].astype(first.numpy().dtype))
    for _ in range(40):
        action = actions_of(by_hand, rng)
        row = env.step(torch.from_numpy(action).reshape(3, -1))
        obs, rewards, terminated, truncated, infos = by_hand.step(action)
        np.testing.assert_array_equal(row["obs"], obs.astype(row["obs"].numpy().dtype))
        np.testing.assert_array_equal(row["rewards"][:, 0], np.where(pending, 0, rewards))
        np.testing.assert_array_equal(row["terminated"][:, 0], terminated)
        np.testing.assert_array_equal(row["truncated"][:, 0], truncated)
        np.testing.assert_array_equal(row["first"][:, 0], pending)
        np.testing.assert_array_equal(row["valid"][:, 0], ~pending)
        np.testing.assert_array_equal(infos["elapsed_step"] == 0, pending)
        pending = terminated | truncated
        resets += int(pending.sum())
    assert resets >= 9


def test_a_reset_of_all_rows_forgets_which_were_done() -> None:
    env = EnvPoolEnv(pool(max_episode_steps=2))
    env.reset()
    action = torch.zeros(3, 1, dtype=torch.int64)
    env.step(action)
    assert env.step(action)["truncated"].all()
    env.reset()
    row = env.step(action)
    assert row["valid"].all()
    assert not row["first"].any()


class Shuffled(VectorWrapper):
    """Returns rows in another order in each call, as a pool may."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.rng = np.random.default_rng(0)

    def shuffle(self, *values: Any) -> Any:
        order = self.rng.permutation(self.num_envs)

        def take(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: take(child) for key, child in value.items()}
            return value[order]

        return tuple(take(value) for value in values)

    def reset(self, **options: Any) -> Any:
        return self.shuffle(*self.env.reset(**options))

    def step(self, actions: Any) -> Any:
        return self.shuffle(*self.env.step(actions))


@pytest.mark.parametrize("name", ["CartPole-v1", "CheetahRun-v1"])
@pytest.mark.parametrize("adapter", [EnvPoolEnv, GymnasiumEnv])
def test_rows_are_put_in_their_places(adapter: Any, name: str) -> None:
    shuffled, plain = adapter(Shuffled(pool(name))), adapter(pool(name))
    rng = np.random.default_rng(0)
    assert (shuffled.reset() == plain.reset()).all()
    for _ in range(30):
        action = torch.from_numpy(actions_of(plain.env, rng)).reshape(3, -1)
        assert (shuffled.step(action) == plain.step(action)).all()


# Seeds.


@pytest.mark.parametrize("name", ["CartPole-v1", "Pong-v5"])
def test_a_seed_makes_the_pool_anew(name: str) -> None:
    def stream(seed: int) -> list[torch.Tensor]:
        env = EnvPoolEnv.make(name, 2, num_threads=1)
        env.reset()
        env.seed(seed)
        rows = [env.reset().clone()]
        rows += [env.step(torch.ones(2, 1, dtype=torch.int64))["obs"].clone() for _ in range(9)]
        return [*rows, env.reset().clone(), env.reset().clone()]

    one, same, other = stream(2**40), stream(2**40), stream(7)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    if name == "CartPole-v1":  # Pong's screens begin alike
        assert not torch.equal(one[0], one[-1])
        assert not torch.equal(one[-2], one[-1])


def test_a_pool_that_was_made_elsewhere_keeps_its_seed_and_says_so() -> None:
    env = everstep.wrap(pool())
    env.seed(5)
    with pytest.warns(RuntimeWarning, match=r"keeps the seed.*`envpool.make_gymnasium`"):
        obs = env.reset()
    np.testing.assert_array_equal(obs, pool().reset()[0])


def test_making_a_pool_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = EnvPoolEnv.make("CartPole-v1", 2)
        env.seed(1)
        env.reset()


# Spaces, dtypes, options.


def test_spaces_are_those_of_one_environment() -> None:
    cart = EnvPoolEnv.make("CartPole-v1", 3)
    low = cart.observation_spec.space.low  # of the position and the angle alone
    assert low.isfinite().tolist() == [True, False, True, False]
    assert isinstance(cart.action_spec, Categorical)
    assert (tuple(cart.observation_spec.shape), cart.num_envs) == ((4,), 3)
    cheetah = EnvPoolEnv.make("HalfCheetah-v4", 2, action_bounds="rescale")
    assert isinstance(cheetah.action_spec, Bounded)
    assert cheetah.observation_spec.dtype == cheetah.reset().dtype == torch.float32
    pong = EnvPoolEnv.make("Pong-v5", 2)
    assert isinstance(pong.observation_spec, Bounded)
    assert (pong.reset().dtype, tuple(pong.reset().shape)) == (torch.uint8, (2, 4, 84, 84))
    assert isinstance(EnvPoolEnv.make("CheetahRun-v1", 2).observation_spec, Composite)


def test_bounds_that_are_a_dtypes_extremes_are_none() -> None:
    walker = EnvPoolEnv.make("BipedalWalker-v3", 1)  # EnvPool: [1e-38, 3e38]
    assert isinstance(walker.observation_spec, Unbounded)
    assert walker.reset().min() < 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_actions_of_any_integer_dtype_and_stride_are_sent(dtype: torch.dtype) -> None:
    env, other = EnvPoolEnv(pool()), EnvPoolEnv(pool())
    env.reset()
    other.reset()
    strided = torch.tensor([[1, 0, 1], [0, 0, 0]], dtype=dtype).T[:, :1]
    row = env.step(strided)
    want = other.step(torch.tensor([[1], [0], [1]]))
    assert torch.equal(row["obs"], want["obs"])


def test_options_go_to_the_pool() -> None:
    env = EnvPoolEnv.make("Pong-v5", 1, img_height=42, img_width=42, stack_num=2)
    assert tuple(env.observation_spec.shape) == (2, 42, 42)


def test_wrappers_are_seen_through() -> None:
    env = everstep.wrap(RecordEpisodeStatistics(pool()), horizon=7)
    assert type(env) is EnvPoolEnv
    assert env.horizon == 7
    env.reset()
    env.step(torch.zeros(3, 1, dtype=torch.int64))


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v4", "Pong-v5"])
def test_a_train_step(name: str) -> None:
    env = everstep.make(f"envpool:{name}", 2, horizon=16, max_episode_steps=7, num_threads=1)
    trainer = everstep.Trainer(env, run_dir=None)
    stats = trainer.step()
    assert stats["env/steps"] == 2 * 16 - 2 * 2  # the reset rows are not counted
    assert np.isfinite(stats["losses/total"])


# What is refused.


def test_a_pool_of_some_rows_is_refused() -> None:
    with pytest.raises(AdapterError, match=r"returns 2 of its 4 rows.*without `batch_size`"):
        EnvPoolEnv.make("CartPole-v1", 4, batch_size=2)


def test_several_players_are_refused() -> None:
    inner = pool()
    config = inner.spec.config._replace(max_num_players=2)
    inner.spec = type("Spec", (), {"config": config})()
    with pytest.raises(AdapterError, match="up to 2 players"):
        EnvPoolEnv(inner)


def test_other_semantics_are_refused_with_the_way_out() -> None:
    inner = envpool.make("CartPole-v1", env_type="dm", num_envs=2)
    for wrap in (everstep.wrap, EnvPoolEnv):
        with pytest.raises(AdapterError, match=r"`envpool.make_gymnasium`"):
            wrap(inner)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("CartPol-v1", {}, r"cannot make 'CartPol-v1'.*not supported"),
        ("CartPole-v1", {"lenght": 3}, r"cannot make 'CartPole-v1'.*'lenght'"),
    ],
)
def test_what_envpool_cannot_make_is_said(name: str, options: Any, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        EnvPoolEnv.make(name, 2, **options)


def test_a_step_before_a_reset_is_an_error() -> None:
    env = EnvPoolEnv(pool())  # the pool would take it for a reset
    with pytest.raises(EnvError, match="was not reset"):
        env.step(torch.zeros(3, 1, dtype=torch.int64))


def test_closing_twice_is_fine_and_stepping_afterwards_is_not() -> None:
    env = EnvPoolEnv(pool())
    env.reset()
    env.close()
    env.close()
    with pytest.raises(EnvError, match="was closed"):
        env.step(torch.zeros(3, 1, dtype=torch.int64))


def test_unknown_reset_options_are_an_error_of_the_environment() -> None:
    with pytest.raises(EnvError, match="Unsupported Gymnasium reset options"):
        EnvPoolEnv(pool()).reset(config={"low": 1})


def test_threads_step_while_the_caller_goes_on() -> None:
    whole, halves = (EnvPoolEnv(pool(num_threads=2, max_episode_steps=9)) for _ in range(2))
    assert is_asynchronous(halves)
    with pytest.raises(EnvError, match="was not reset"):
        halves.step_async(torch.zeros(3, 1, dtype=torch.int64))
    whole.reset(), halves.reset()
    for t in range(24):
        action = torch.tensor([[t % 2], [1], [0]])
        row = whole.step(action)
        halves.step_async(action)
        for key, value in halves.step_wait().items():
            assert torch.equal(row[key], value)
    halves.close()
    with pytest.raises(EnvError, match="was closed"):
        halves.step_async(action)


def test_wrappers_wait_for_the_threads() -> None:
    """They know `step` alone."""
    env = EnvPoolEnv(RecordEpisodeStatistics(pool()))
    assert not is_asynchronous(env)
    env.reset()
    env.step_async(torch.zeros(3, 1, dtype=torch.int64))
    assert env.step_wait()["rewards"].tolist() == [[1.0]] * 3


def test_a_pool_whose_step_is_somebodys_own_is_stepped_by_it() -> None:
    env = EnvPoolEnv(pool())
    inner: Any = env.env
    own, calls = inner.step, []
    inner.step = lambda *args: (calls.append(1), own(*args))[1]
    assert not is_asynchronous(env)
    env.reset()
    env.step(torch.zeros(3, 1, dtype=torch.int64))
    assert calls == [1]


def test_an_env_step_that_nobody_waited_for_is_over_with_the_next_reset() -> None:
    """An error may have come between its halves."""
    env, twin = (EnvPoolEnv(pool()) for _ in range(2))
    action = torch.zeros(3, 1, dtype=torch.int64)
    for each in (env, twin):
        each.reset()
        each.step_async(action)
    env._is_stepping = False  # as an interrupt would leave it
    twin.step_wait()
    assert torch.equal(env.reset(), twin.reset())
    row, expected = env.step(action), twin.step(action)
    for key, value in expected.items():
        assert torch.equal(row[key], value)


def test_infos_are_metrics_over_valid_rows() -> None:
    env = EnvPoolEnv.make("HalfCheetah-v4", 2, num_threads=1, max_episode_steps=5)
    env.seed(0)
    env.reset()
    found: dict[str, list[float]] = {}
    step = env._calls.step

    def recorded(actions: Any) -> Any:
        returned = step(actions)
        valid = returned[4]["elapsed_step"] > 0  # 0 after a reset
        for name in ("reward_run", "reward_ctrl", "x_position", "x_velocity"):
            found.setdefault(name, []).extend(returned[4][name][valid].tolist())
        return returned

    env._calls.step = recorded  # type: ignore[method-assign]
    for _ in range(14):
        env.step(torch.rand(2, 6) * 2 - 1)
    assert len(found["reward_run"]) < 28  # resets are left out
    assert env.metrics() == pytest.approx({name: np.mean(x) for name, x in found.items()})


def test_an_ataris_lives_are_a_metric() -> None:
    env = EnvPoolEnv.make("Breakout-v5", 2, num_threads=1, metrics=["lives"])
    env.reset()
    env.step(torch.zeros(2, 1, dtype=torch.int64))
    assert env.metrics() == {"lives": 5.0}


def test_the_old_pool_stands_until_the_new_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    env: Any = everstep.make("envpool:CartPole-v1", 2, num_threads=1)
    env.reset()
    action, old = torch.zeros(2, 1, dtype=torch.int64), env.env
    closed: list[Any] = []
    monkeypatch.setattr(old, "close", lambda: closed.append(old), raising=False)
    make_pool = env._make_pool

    def fail(seed: int) -> None:
        raise AdapterError("EnvPool cannot make it: out of memory")

    env._make_pool = fail
    env.seed(3)
    with pytest.raises(AdapterError, match="out of memory"):
        env.reset()
    assert env.env is old
    assert not closed
    env.step(action)
    env._make_pool = make_pool
    env.seed(3)
    env.reset()
    assert env.env is not old
    assert closed == [old]
    env.step(action)


def test_a_pool_whose_spaces_cannot_be_made_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Pool:
        closed = False

        @property
        def unwrapped(self) -> Any:
            return self

        @property
        def observation_space(self) -> Any:
            raise RuntimeError("no space")

        def close(self) -> None:
            self.closed = True

    def make_gymnasium(*args: Any, **options: Any) -> Any:
        made.append(Pool())
        return made[0]

    monkeypatch.setattr(envpool, "make_gymnasium", make_gymnasium)
    with pytest.raises(RuntimeError, match="no space"):
        everstep.make("envpool:CartPole-v1", 2)
    assert made[0].closed
