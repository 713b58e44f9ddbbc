"""Everstep environments as Gymnasium vector environments: rows, memory, seeds, resets."""

import gc
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torchrl.data import (
    NonTensor,
)

from everstep import ContinuousDummyEnv, DiscreteDummyEnv
from everstep.adapters import to_gymnasium
from everstep.errors import AdapterError, EnvError
from tests.everstep_adapters.export.export_toys import Walk, random_actions
from tests.toys import ConstantEnv

STEPS = 30


def test_same_step_rows_are_the_environments() -> None:
    native, env = Walk(3, mapping=True), to_gymnasium(Walk(3, mapping=True))
    native.seed(1)
    native.reset()
    env.reset(seed=1)
    ended = 0
    for action in random_actions(native, STEPS):
        row = native.step(action)
        obs, rewards, terminated, truncated, infos = env.step(action[:, 0].numpy())
        np.testing.assert_array_equal(obs["place"], row["obs", "place"])
        np.testing.assert_array_equal(obs["clock"]["age"], row["obs", "clock", "age"][:, 0])
        np.testing.assert_array_equal(rewards, row["rewards"][:, 0])
        np.testing.assert_array_equal(terminated, row["terminated"][:, 0])
        np.testing.assert_array_equal(truncated, row["truncated"][:, 0])
        assert ("final_obs" in infos) is bool(row["first"].any())
        for i in row["first"][:, 0].nonzero()[:, 0].tolist():
            ended += 1
            np.testing.assert_array_equal(
                infos["final_obs"][i]["place"], row["final_obs", "place"][i]
            )
    assert ended > 5


def test_a_next_step_reset_ignores_its_action_and_is_not_valid() -> None:
    env = to_gymnasium(ContinuousDummyEnv(2), autoreset_mode="NEXT_STEP", horizon=2)
    first, _ = env.reset(seed=0)
    one = np.ones((2, 1), np.float32)
    assert not env.step(one)[3].any()
    final, _, _, truncated, infos = env.step(one)
    np.testing.assert_array_equal(final, first + 1 + 1)
    assert truncated.all()
    assert infos["valid"].all()
    opened, rewards, terminated, truncated, infos = env.step(1e6 * one)
    assert np.abs(opened).max() <= 100
    np.testing.assert_array_equal(rewards, [0, 0])
    assert not (terminated | truncated | infos["valid"]).any()
    np.testing.assert_array_equal(env.step(one)[0], opened + 1)


def test_a_same_step_reset_at_the_horizon_keeps_the_final_observation() -> None:
    env = to_gymnasium(ContinuousDummyEnv(2), horizon=2)
    first, _ = env.reset(seed=0)
    one = np.ones((2, 1), np.float32)
    env.step(one)
    opened, rewards, terminated, truncated, infos = env.step(one)
    np.testing.assert_array_equal(np.stack(infos["final_obs"]), first + 1 + 1)
    np.testing.assert_array_equal(rewards, -np.abs(first + 1 + 1)[:, 0])
    assert truncated.all()
    assert not terminated.any()
    assert not np.isclose(opened, first + 2).any()


def test_without_a_horizon_nothing_ends() -> None:
    env = to_gymnasium(DiscreteDummyEnv(2, horizon=3))
    env.reset()
    for _ in range(20):
        *_, terminated, truncated, infos = env.step(env.action_space.sample())
        assert not (terminated | truncated).any()
        assert infos == {}


def test_rewards_of_any_precision_are_doubles() -> None:
    env = to_gymnasium(ConstantEnv(outcome={"rewards": torch.full((4, 1), 0.5).bfloat16().float()}))
    env.reset()
    assert env.step(env.action_space.sample())[1].dtype == np.float64


# Memory.


def test_observations_are_copies() -> None:
    env = to_gymnasium(Walk(3, mapping=True))
    before, _ = env.reset(seed=0)
    kept = before["place"].copy()
    after = env.step(env.action_space.sample())[0]
    np.testing.assert_array_equal(before["place"], kept)
    after["place"][:] = 99
    assert not (env.env.place == 99).any()


def test_observations_without_copies_are_the_environments_memory() -> None:
    walk = Walk(3)
    env = to_gymnasium(walk, copy=False)
    obs, _ = env.reset(seed=0)
    assert obs.__array_interface__["data"][0] == walk.place.data_ptr()
    final = None
    while final is None:  # final observations are kept in any case
        final = env.step(env.action_space.sample())[-1].get("final_obs")
    row = next(i for i, value in enumerate(final) if value is not None)
    kept = final[row].copy()
    env.step(env.action_space.sample())
    np.testing.assert_array_equal(final[row], kept)


def test_actions_are_neither_written_to_nor_kept() -> None:
    class Keeps(ContinuousDummyEnv):
        def step(self, action: Any) -> Any:
            self.kept = action
            return super().step(action.add_(1))

    keeps = Keeps(2)
    env = to_gymnasium(keeps)
    env.reset()
    action = np.zeros((2, 1), np.float32)
    action.flags.writeable = False
    env.step(action)
    np.testing.assert_array_equal(action, 0)
    np.testing.assert_array_equal(keeps.kept, 1)


# Seeds, options, life.


def test_seeds_and_options_reach_the_environment() -> None:
    walk = Walk(2)
    env = to_gymnasium(walk)
    options = {"bounds": 3}
    first, infos = env.reset(seed=np.int64(4), options=options)
    assert infos == {}
    assert (walk.configs, options) == ([{"bounds": 3}], {"bounds": 3})
    assert env.np_random_seed == 4
    other = Walk(2)
    other.seed(4)
    np.testing.assert_array_equal(other.reset(), first)
    env.reset()
    assert walk.configs[-1] is None


def test_an_environment_without_a_seed_draws_from_pytorch() -> None:
    env = to_gymnasium(DiscreteDummyEnv(3))
    with torch.random.fork_rng(devices=[]):
        first, _ = env.reset(seed=11)
        torch.manual_seed(11)
        np.testing.assert_array_equal(DiscreteDummyEnv(3).reset(), first)


def test_one_seed_for_all_rows() -> None:
    with pytest.raises(AdapterError, match=r"`seed` must be one integer .* got \[1, 2\]"):
        to_gymnasium(Walk(2)).reset(seed=[1, 2])


def test_a_reset_of_some_rows_is_refused_rather_than_ignored() -> None:
    env = to_gymnasium(Walk(2))
    env.reset()
    with pytest.raises(AdapterError, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False])})


def test_closing_closes_once() -> None:
    walk = Walk(2)
    env = to_gymnasium(walk)
    env.close()
    env.close()
    assert (walk.closed, env.closed) == (1, True)


def test_an_environment_outlives_what_it_was_exported_as() -> None:
    walk = Walk(2)
    to_gymnasium(walk).reset()
    gc.collect()
    assert walk.closed == 0


def test_what_cannot_be_exported_is_left_open() -> None:
    walk = Walk(2)
    walk.observation_spec = NonTensor(())
    with pytest.raises(AdapterError, match="`observation` has no Gymnasium space"):
        to_gymnasium(walk)
    gc.collect()
    assert walk.closed == 0


def test_rendering() -> None:
    assert to_gymnasium(Walk(2)).render() == "a picture"
    assert to_gymnasium(Walk(2, ends="never"), horizon=3).render() == "a picture"
    with pytest.raises(AdapterError, match="DiscreteDummyEnv has no `render`"):
        to_gymnasium(DiscreteDummyEnv(2)).render()


# Modes.


def test_modes_that_the_episode_keys_exclude() -> None:
    with pytest.raises(AdapterError, match=r"'NEXT_STEP' is not what Walk does.*use 'SAME_STEP'"):
        to_gymnasium(Walk(2), autoreset_mode="NEXT_STEP")
    with pytest.raises(AdapterError, match=r"'SAME_STEP' is not .*use 'NEXT_STEP'"):
        to_gymnasium(Walk(2, ends="next step"), autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(AdapterError, match="'DISABLED' is not"):
        to_gymnasium(Walk(2, ends="never"), autoreset_mode="DISABLED")
    with pytest.raises(AdapterError, match=r"may end as in SAME_STEP or NEXT_STEP. Pass"):
        to_gymnasium(Walk(2, ends="both"))


def take_steps(env: VectorEnv) -> None:
    for _ in range(STEPS):
        env.step(env.action_space.sample())


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_rows_that_end_in_another_manner_than_declared_are_found(mode: str) -> None:
    env = to_gymnasium(Walk(2, ends="both"), autoreset_mode=mode)
    env.reset(seed=0)
    with pytest.raises(EnvError, match=f"which {mode} does not allow"):
        take_steps(env)


def test_a_horizon_is_for_what_never_ends() -> None:
    with pytest.raises(AdapterError, match="`horizon` is for environments without episode keys"):
        to_gymnasium(Walk(2), horizon=4)
    with pytest.raises(AdapterError, match="`horizon` must be at least 1 env step; got 0"):
        to_gymnasium(DiscreteDummyEnv(2), horizon=0)
    with pytest.raises(AdapterError, match=r"must be an `everstep\.Env`; got int"):
        to_gymnasium(3)
