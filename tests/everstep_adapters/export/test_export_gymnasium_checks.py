"""Exported vector environments under Gymnasium's own checks and in its own wrappers."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import (
    DictInfoToList,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleAction,
    TransformReward,
    VectorizeTransformObservation,
)
from packaging.version import Version

import everstep
from everstep import ContinuousDummyEnv, DiscreteDummyEnv
from everstep.adapters import to_gymnasium
from tests.everstep_adapters.export.export_toys import Walk, random_actions

before_gymnasium_1_4 = Version(gym.__version__) < Version("1.4")
# Also of its own environments: of every episode but the first it leaves out the first step.
counts_same_step = pytest.mark.skipif(
    before_gymnasium_1_4,
    reason="before Gymnasium 1.4 RecordEpisodeStatistics takes same-step resets for next-step ones",
)

STEPS = 30


def check_vector_env(env: VectorEnv) -> int:
    """Gymnasium's checks of single environments, on a vector environment; episodes seen."""
    assert env.observation_space.contains(env.reset(seed=5)[0])
    again, other = (env.reset(seed=seed)[0] for seed in (5, 6))
    assert data_equivalence(again, env.reset(seed=5)[0], exact=True)
    assert not data_equivalence(again, other, exact=True)
    env.action_space.seed(0)
    env.reset(seed=5)
    ended = 0
    for _ in range(STEPS):
        actions = env.action_space.sample()
        assert env.action_space.contains(actions)
        obs, rewards, terminated, truncated, infos = env.step(actions)
        assert env.observation_space.contains(obs)
        assert (rewards.dtype, rewards.shape) == (np.float64, (env.num_envs,))
        for flags in (terminated, truncated):
            assert (flags.dtype, flags.shape) == (np.bool_, (env.num_envs,))
        for key in [key for key in infos if not key.startswith("_")]:
            mask = infos[f"_{key}"]
            assert (mask.dtype, mask.shape) == (np.bool_, (env.num_envs,))
        done = terminated | truncated
        ended += int(done.sum())
        if "final_obs" in infos:
            np.testing.assert_array_equal(infos["_final_obs"], done)
            for final, is_done in zip(infos["final_obs"], done, strict=True):
                assert env.single_observation_space.contains(final) if is_done else final is None
    return ended


@pytest.mark.parametrize("mapping", [False, True], ids=["plain", "mapping"])
@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "real"])
@pytest.mark.parametrize("ends", ["never", "same step", "lost", "next step"])
def test_vector_checks(ends: str, continuous: bool, mapping: bool) -> None:
    env = to_gymnasium(Walk(4, ends=ends, continuous=continuous, mapping=mapping))
    assert (check_vector_env(env) == 0) is (ends == "never")
    assert env.metadata["autoreset_mode"] is env.autoreset_mode
    expected = AutoresetMode.NEXT_STEP if ends == "next step" else AutoresetMode.SAME_STEP
    assert env.autoreset_mode is expected


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
@pytest.mark.parametrize("make", [DiscreteDummyEnv, ContinuousDummyEnv])
def test_vector_checks_at_a_horizon(make: Any, mode: str) -> None:
    env = to_gymnasium(make(4), autoreset_mode=mode, horizon=4)
    rows = STEPS // 4 if mode == "SAME_STEP" else STEPS // 5
    assert check_vector_env(env) == 4 * rows


def test_metadata_is_the_instances_own() -> None:
    shared = dict(VectorEnv.metadata)  # other libraries write to it
    same, following = to_gymnasium(Walk(2)), to_gymnasium(Walk(2, ends="next step"))
    assert same.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert following.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert VectorEnv.metadata == type(same).metadata == shared


@pytest.mark.gpu
def test_from_an_accelerator() -> None:
    env = to_gymnasium(Walk(4, device="cuda", mapping=True, continuous=True))
    assert check_vector_env(env) > 0


# Gymnasium's own wrappers.


def episodes(env: VectorEnv, steps: int = 200) -> list[tuple[float, int]]:
    """Return and length of every episode, row by row, counted by hand."""
    env.action_space.seed(0)
    env.reset(seed=0)
    total, length = np.zeros(env.num_envs), np.zeros(env.num_envs, int)
    waits, found = np.zeros(env.num_envs, bool), []
    for _ in range(steps):
        _, rewards, terminated, truncated, _ = env.step(env.action_space.sample())
        total, length = np.where(waits, 0, total + rewards), np.where(waits, 0, length + 1)
        done = terminated | truncated
        found += [(total[i], length[i]) for i in np.flatnonzero(done)]
        if env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP:
            waits = done
        else:
            total, length = np.where(done, 0, total), np.where(done, 0, length)
    return found


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param("same step", marks=counts_same_step),
        pytest.param("lost", marks=counts_same_step),
        "next step",
    ],
)
def test_record_episode_statistics(ends: str) -> None:
    expected = episodes(to_gymnasium(Walk(3, ends=ends)))
    env = RecordEpisodeStatistics(to_gymnasium(Walk(3, ends=ends)), buffer_length=10_000)
    assert episodes(env) == expected
    assert env.episode_count == len(expected) > 20
    np.testing.assert_allclose(list(env.return_queue), [value for value, _ in expected])
    assert list(env.length_queue) == [length for _, length in expected]


def test_normalizing_wrappers() -> None:
    env = NormalizeReward(NormalizeObservation(to_gymnasium(Walk(64, ends="next step"))))
    obs, _ = env.reset(seed=0)
    for _ in range(60):
        obs, rewards, *_ = env.step(env.action_space.sample())
        assert np.isfinite(rewards).all()
    np.testing.assert_allclose(obs.mean(0), 0, atol=0.5)
    np.testing.assert_allclose(obs.std(0), 1, atol=0.5)
    never = to_gymnasium(ContinuousDummyEnv(8), autoreset_mode="NEXT_STEP", horizon=9)
    assert np.isfinite(NormalizeObservation(never).reset(seed=0)[0]).all()


def test_wrappers_of_observations_want_next_step() -> None:
    class Doubled(gym.wrappers.TransformObservation):
        def __init__(self, env: Any) -> None:
            super().__init__(env, lambda obs: 2 * obs, env.observation_space)

    plain = to_gymnasium(Walk(3, ends="next step"))
    doubled = VectorizeTransformObservation(to_gymnasium(Walk(3, ends="next step")), Doubled)
    np.testing.assert_array_equal(2 * plain.reset(seed=0)[0], doubled.reset(seed=0)[0])
    for action in random_actions(Walk(3), STEPS):
        one, two = (env.step(action[:, 0].numpy())[0] for env in (plain, doubled))
        np.testing.assert_array_equal(2 * one, two)
    error = AssertionError if before_gymnasium_1_4 else ValueError
    with pytest.raises(error, match="" if before_gymnasium_1_4 else "Expected"):  # as of its own
        NormalizeObservation(to_gymnasium(Walk(3)))


def test_other_wrappers() -> None:
    env = DictInfoToList(TransformReward(to_gymnasium(Walk(3)), lambda reward: reward / 2))
    env.reset(seed=0)
    finals = [
        info["final_obs"]
        for _ in range(STEPS)
        for info in env.step(env.action_space.sample())[-1]
        if "final_obs" in info
    ]
    assert finals
    low, high = (np.full(2, bound, np.float32) for bound in (-10, 10))
    rescaled = RescaleAction(to_gymnasium(Walk(3, continuous=True)), low, high)
    rescaled.reset(seed=0)
    assert np.isfinite(rescaled.step(rescaled.action_space.sample())[1]).all()


def test_make_vec() -> None:
    gym.register(
        "EverstepWalk-v0",
        vector_entry_point=lambda num_envs, **kwargs: to_gymnasium(Walk(num_envs, **kwargs)),
    )
    try:
        env = gym.make_vec("EverstepWalk-v0", num_envs=3, continuous=True)
        assert env.spec.id == "EverstepWalk-v0"
        assert check_vector_env(env) > 0
        wrapped = everstep.make("gymnasium:EverstepWalk-v0", 3, limit=4)
        assert wrapped.episode_keys >= {"final_obs"}
    finally:
        del gym.registry["EverstepWalk-v0"]
