"""TorchRL environments: every row, every kind of end, and refusals."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torchrl.data import (
    Categorical,
)
from torchrl.envs import (
    Compose,
    EnvBase,
    GymEnv,
    GymWrapper,
    InitTracker,
    ParallelEnv,
    RenameTransform,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

import everstep
from everstep import AlgorithmConfig, RecurrentTrainer, Trainer
from everstep.errors import AdapterError, EnvError
from everstep_adapters import TorchRLEnv
from tests.everstep.policies.test_memory import KnownMemory, recurrent
from tests.everstep_adapters.torchrl.torchrl_toys import (
    SCRIPTS,
    Overwriting,
    ScriptedEnv,
    SelfResetting,
    check_stream,
    zeros,
)
from tests.toys import TRUNCATED, Episode, KnownValue, Script, oracle_advantages, stream

# Python 3.12 warns of forks in a process that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

MIXED = SCRIPTS["mixed"]


def one(i: int) -> ScriptedEnv:
    """The environment of one row, without a batch."""
    return ScriptedEnv([MIXED[i]], [], first_row=i)


def serial() -> SerialEnv:
    return SerialEnv(4, [partial(one, i) for i in range(4)])


def parallel(**options: Any) -> ParallelEnv:
    # A new interpreter would import PyTorch: seconds each.
    return ParallelEnv(4, [partial(one, i) for i in range(4)], mp_start_method="fork", **options)


# The law: rows are those of environments stepped by hand.


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SCRIPTS)
def test_rows_are_those_of_environments_stepped_by_hand(name: str) -> None:
    check_stream(TorchRLEnv(ScriptedEnv(SCRIPTS[name])), SCRIPTS[name])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("batch_size", [[4], [2, 2], [1, 4, 1]])
def test_batches_of_any_shape_are_rows(batch_size: list[int]) -> None:
    env = TorchRLEnv(ScriptedEnv(MIXED, batch_size))
    assert env.num_envs == 4
    check_stream(env, MIXED)


@pytest.mark.usefixtures("float64")
def test_an_environment_without_a_batch_is_one_row() -> None:
    check_stream(TorchRLEnv(one(0)), MIXED[:1])


@pytest.mark.usefixtures("float64")
def test_rows_of_environments_one_after_the_other() -> None:
    check_stream(TorchRLEnv(serial()), MIXED)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_rows_of_processes() -> None:
    env = TorchRLEnv(parallel())
    check_stream(env, MIXED)
    workers = list(env.env._workers)
    env.close()
    env.close()
    assert not any(process.is_alive() for process in workers)
    with pytest.raises(EnvError, match="was closed"):
        env.reset()


TRANSFORMS = {
    "notes": lambda: Compose(InitTracker(), StepCounter(), RewardSum()),
    "renamed": lambda: RenameTransform(
        ["observation", "reward"], [("data", "seen"), ("data", "paid")], create_copy=False
    ),
    "a longer clock": lambda: StepCounter(max_steps=50),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("inner", [lambda: ScriptedEnv(MIXED), serial], ids=["batch", "serial"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_stay_and_change_no_row(name: str, inner: Any) -> None:
    env = TorchRLEnv(TransformedEnv(inner(), TRANSFORMS[name]()))
    assert env.observation_spec.shape == (3,)
    check_stream(env, MIXED)


@pytest.mark.few(3)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("wrap", [serial, lambda: ScriptedEnv(MIXED)], ids=["serial", "batch"])
@pytest.mark.parametrize("by_adapter", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limit_truncates_and_resets_single_rows(limit: int, by_adapter: bool, wrap: Any) -> None:
    scripts = [[limited(episode, limit) for episode in script] for script in MIXED]
    if by_adapter:
        env = TorchRLEnv(wrap(), max_episode_steps=limit)
    else:
        env = TorchRLEnv(TransformedEnv(wrap(), StepCounter(limit)))
    check_stream(env, scripts)


def limited(episode: Episode, limit: int) -> Episode:
    if episode.length < limit:
        return episode
    both = episode.length == limit and episode.end != TRUNCATED
    return Episode(limit, "both" if both else TRUNCATED)


@pytest.mark.parametrize("max_episode_steps", [None, 30])
def test_the_stream_of_a_gym_env_is_that_of_gymnasium(max_episode_steps: int | None) -> None:
    options = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    env = everstep.make("torchrl:CartPole-v1", 1, categorical_action_encoding=False, **options)
    assert env.action_spec == Categorical(2, shape=torch.Size([1]))
    by_hand = gymnasium.make("CartPole-v1", **options)
    env.seed(7)
    by_hand.reset(seed=7)  # `GymEnv.set_seed` resets
    np.testing.assert_array_equal(env.reset()[0], by_hand.reset()[0])
    ends = 0
    for action in np.random.default_rng(0).integers(2, size=300).tolist():
        row = env.step(torch.tensor([[action]]))
        obs, reward, terminated, truncated, _ = by_hand.step(action)
        np.testing.assert_array_equal(row["final_obs"][0], obs)
        if terminated or truncated:
            obs, ends = by_hand.reset()[0], ends + 1
        np.testing.assert_array_equal(row["obs"][0], obs)
        flags = [row[key].item() for key in ("terminated", "truncated", "first")]
        assert (row["rewards"].item(), *flags) == (
            reward,
            terminated,
            truncated,
            terminated or truncated,
        )
    assert ends > 5


# What is learned from the rows.

HORIZON, ROLLOUTS, GAMMA, LAMBDA = 6, 4, 0.9, 0.8
EXACT: dict[str, Any] = {
    "gamma": GAMMA,
    "gae_lambda": LAMBDA,
    "normalize_advantages": False,
    "normalize_rewards": False,
    "horizons_per_env_reset": -1,
}


def check_advantages(algorithm: Any, scripts: list[Script], value_of: Any) -> None:
    streams = [stream(s, HORIZON * ROLLOUTS, with_reset_rows=False) for s in scripts]
    for rollout in range(ROLLOUTS):
        algorithm.collect()
        algorithm.estimate()
        window = slice(rollout * HORIZON, (rollout + 1) * HORIZON)
        for n, script in enumerate(scripts):
            expected = torch.tensor(
                oracle_advantages(
                    n,
                    script,
                    streams[n][window],
                    gamma=GAMMA,
                    gae_lambda=LAMBDA,
                    value_of=value_of,
                )
            )
            found = algorithm.buffer["advantages"][n, :-1, 0]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.few(1)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SCRIPTS)
def test_advantages_equal_the_oracle(name: str) -> None:
    env = everstep.wrap(ScriptedEnv(SCRIPTS[name]), horizon=HORIZON)
    algorithm = AlgorithmConfig(model_cls=KnownValue, **EXACT).build(env)
    check_advantages(algorithm, SCRIPTS[name], lambda obs: KnownValue.value_of(obs[-1:]))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["mixed", "done on the last row of a horizon"])
def test_memory_ends_where_episodes_do(name: str) -> None:
    env = everstep.wrap(ScriptedEnv(SCRIPTS[name]), horizon=HORIZON)
    algorithm = recurrent(3).build(env)
    check_advantages(algorithm, SCRIPTS[name], KnownMemory.value_of)


class Forgetful(ScriptedEnv):
    """Has lost what it would have returned where an episode ended, and says so."""

    def _step(self, tensordict: Any) -> Any:
        data = super()._step(tensordict)
        data["observation"] = data["observation"].where(~data["done"], math.nan)
        return data


def native(scripts: list[Script]) -> EnvBase:
    env = SelfResetting(scripts)
    env._torchrl_native_autoreset = True
    return env


LOSING = {
    "NaN": (Forgetful, True),
    "auto_reset": (partial(SelfResetting, auto_reset=True), False),
    "auto_reset, not replaced": (
        partial(SelfResetting, auto_reset=True, auto_reset_replace=False),
        False,
    ),
    "native": (native, False),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", LOSING)
def test_lost_final_observations_are_nan_or_undeclared(name: str) -> None:
    make, declared = LOSING[name]
    env = TorchRLEnv(make(MIXED))
    assert ("final_obs" in env.episode_keys) is declared
    if not declared:
        check_stream(env, MIXED)
        return
    env.reset()
    row = env.step(zeros(env))
    assert row["final_obs"].isnan().all(-1).tolist() == [False, True, False, False]
    assert row["obs"].isfinite().all()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", LOSING)
@pytest.mark.parametrize("answer", ["mask", "approximate", "terminate"])
def test_lost_final_observations_are_answered(answer: str, name: str) -> None:
    env = TorchRLEnv(LOSING[name][0]([[Episode(2, TRUNCATED)]] * 2), HORIZON)
    algorithm = AlgorithmConfig(model_cls=KnownValue, on_missing_final=answer, **EXACT).build(env)
    algorithm.collect()
    algorithm.step()
    rewards = algorithm.buffer["rewards"][:, 1:6:2, 0]
    values = algorithm.buffer["values"][:, 1:6:2, 0]
    expected = {
        "mask": 0 * values,
        "approximate": rewards + GAMMA * values - values,
        "terminate": rewards - values,
    }
    found = algorithm.buffer["advantages"][:, 1:6:2, 0]
    torch.testing.assert_close(found, expected[answer], rtol=0, atol=1e-12)
    assert (algorithm.rollout.known[1::2] == (answer != "mask")).all()


@pytest.mark.parametrize("name", LOSING)
def test_lost_final_observations_can_be_an_error(name: str) -> None:
    env = TorchRLEnv(LOSING[name][0]([[Episode(2, TRUNCATED)]]), HORIZON)
    algorithm = AlgorithmConfig(on_missing_final="error").build(env)
    with pytest.raises(EnvError, match="3 truncated rows have no final observation"):
        algorithm.collect()


def test_a_limit_cannot_reset_what_resets_itself() -> None:
    with pytest.raises(AdapterError, match="resets itself"):
        TorchRLEnv(native(MIXED), max_episode_steps=3)


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_a_wrapped_vector_environment_keeps_its_final_observations(mode: str) -> None:
    kwargs = {"autoreset_mode": gymnasium.vector.AutoresetMode[mode]}
    inner = gymnasium.make_vec(
        "CartPole-v1", 3, vectorization_mode="sync", vector_kwargs=kwargs, max_episode_steps=9
    )
    env = TorchRLEnv(GymWrapper(inner))
    env.seed(0)
    before = env.reset().clone()
    for t in range(1, 10):
        row = env.step(torch.full((3, 1), t % 2))
    assert row["truncated"].all()
    assert row["first"].all()
    assert row["final_obs"].isfinite().all()
    assert not torch.equal(row["final_obs"], row["obs"])
    assert (row["obs"].abs() <= 0.05).all()  # where CartPole begins
    assert not torch.equal(row["obs"], before)


def test_one_train_step() -> None:
    env = everstep.wrap(SerialEnv(2, partial(GymEnv, "CartPole-v1")), horizon=32)
    stats = Trainer(env, run_dir=None).step()
    assert stats["env/steps"] == 64
    assert math.isfinite(stats["losses/total"])
    pendulum = everstep.make("torchrl:Pendulum-v1", 2, horizon=16, action_bounds="rescale")
    assert RecurrentTrainer(pendulum, run_dir=None).step()["env/steps"] == 32


def test_chosen_keys_are_metrics_and_sums_of_rewards_count_where_episodes_end() -> None:
    inner = everstep.make("torchrl:CartPole-v1", 2).env
    summed = TransformedEnv(inner, RewardSum())
    with pytest.raises(AdapterError, match="`metrics` must be among"):
        TorchRLEnv(summed, metrics=["speed"])
    with pytest.raises(AdapterError, match="one number each; `observation` has more"):
        TorchRLEnv(summed, metrics=["observation"])
    env = TorchRLEnv(summed, metrics=["episode_reward"])
    stats: dict[str, Any] = {**AlgorithmConfig(horizon=64).build(env).collect()}
    assert stats["episodes/count"] > 1
    assert stats["env/episode_reward"] == pytest.approx(stats["episodes/return_mean"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Overwriting("observation"),
        lambda: Overwriting("observation", alternates=True),
        lambda: Overwriting("reward", "done"),
        lambda: TransformedEnv(Overwriting("observation", "reward", "done"), RewardSum()),
        lambda: SerialEnv(3, lambda: Overwriting("observation", "reward", "done", batch_size=())),
    ],
    ids=["observation", "one of two", "reward and flags", "transformed", "serial"],
)
def test_what_a_reset_overwrites_is_that_of_the_env_step(make: Callable[[], Any]) -> None:
    """An environment may reset in the memory that `step` has returned."""
    inner = make()
    env = TorchRLEnv(inner)
    env.reset()
    rows = [env.step(zeros(env)).clone() for _ in range(6)]
    assert [row["final_obs"][0].tolist() for row in rows] == [[1, 1], [2, 2], [3, 3]] * 2
    assert [row["obs"][0].tolist() for row in rows] == [[1, 1], [2, 2], [0, 0]] * 2
    assert [row["rewards"][0].item() for row in rows] == [1, 2, 3] * 2
    assert [row["truncated"][0].item() for row in rows] == [False, False, True] * 2
    assert "reset" not in vars(inner)  # the caller's environment is as it was
