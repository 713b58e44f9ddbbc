"""ALE's vector environment: both modes, its metadata, seeds, and refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torchrl.data import Bounded, Categorical

import everstep
from everstep.env import Env
from everstep.errors import AdapterError, EnvError
from everstep.testing import EnvConformance
from everstep_adapters import ALEEnv, GymnasiumEnv
from tests.everstep_adapters.gymnasium.gymnasium_toys import Columns

pytest.importorskip("ale_py")

MODES = ["NEXT_STEP", "SAME_STEP"]

#: Small screens and short episodes.
SMALL: dict[str, Any] = {
    "img_height": 12,
    "img_width": 12,
    "stack_num": 2,
    "num_threads": 1,
    "max_num_frames_per_episode": 20,
    "noop_max": 3,
    "frameskip": 2,
}


@pytest.fixture(autouse=True)
def metadata_of_all_classes() -> Any:
    """ALE writes into what all classes without metadata share."""
    before = dict(VectorEnv.metadata)
    yield
    VectorEnv.metadata.clear()
    VectorEnv.metadata.update(before)


def atari(game: str = "pong", num_envs: int = 3, mode: str = "NEXT_STEP", **options: Any) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(game, num_envs, autoreset_mode=AutoresetMode[mode], **SMALL | options)


class Conformance(EnvConformance):
    mode: str
    num_envs_choices = (2,)
    num_steps = 20
    episodes_end = True

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Env:
        options = {"autoreset_mode": self.mode, **SMALL}
        return ALEEnv.make("pong", num_envs, horizon=horizon, device=device, **options)


class TestNextStep(Conformance):
    mode = "NEXT_STEP"


class TestSameStep(Conformance):
    mode = "SAME_STEP"
    num_envs_choices = (1,)  # making one takes a sixth of a second


# The law: what ALE returns.


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_those_of_the_vector_environment(mode: str) -> None:
    by_hand, env = atari(mode=mode), ALEEnv(atari(mode=mode))
    env.seed(3)
    obs, infos = by_hand.reset(seed=3)
    np.testing.assert_array_equal(env.reset(), obs)
    rng, pending, ends = np.random.default_rng(0), np.zeros(3, bool), 0
    for _ in range(35):
        action, frames = rng.integers(6, size=3), infos["episode_frame_number"]
        row = env.step(torch.from_numpy(action)[:, None])
        obs, rewards, terminated, truncated, infos = by_hand.step(action)
        done = terminated | truncated
        first = pending if mode == "NEXT_STEP" else done
        np.testing.assert_array_equal(row["obs"], obs)
        np.testing.assert_array_equal(row["rewards"][:, 0], np.where(pending, 0, rewards))
        np.testing.assert_array_equal(row["truncated"][:, 0], truncated)
        np.testing.assert_array_equal(row["first"][:, 0], first)
        np.testing.assert_array_equal(infos["episode_frame_number"] < frames, first)
        if mode == "NEXT_STEP":
            pending = done
            np.testing.assert_array_equal(row["valid"][:, 0], ~first)
        elif done.any():
            np.testing.assert_array_equal(row["final_obs"][done], infos["final_obs"][done])
            assert not np.array_equal(row["final_obs"][done], obs[done])
        ends += int(done.sum())
    assert ends >= 9


@pytest.mark.parametrize("mode", MODES)
def test_a_seed_fixes_the_stream(mode: str) -> None:
    def stream(seed: int) -> list[torch.Tensor]:
        env = ALEEnv.make("breakout", 2, autoreset_mode=mode, **SMALL)
        env.seed(seed)
        rows = [env.reset().clone()]
        return rows + [
            env.step(torch.ones(2, 1, dtype=torch.int64))["obs"].clone() for _ in range(9)
        ]

    one, same = stream(2**40), stream(2**40)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))


def test_lives_are_episodes_where_they_are_asked_for() -> None:
    options = {"life_loss_info": True, "max_num_frames_per_episode": 10_000}
    env = ALEEnv.make("breakout", 2, autoreset_mode="SAME_STEP", **SMALL | options)
    env.seed(0)
    env.reset()
    rows = [env.step(torch.full((2, 1), t % 4))["terminated"].clone() for t in range(200)]
    assert torch.cat(rows, 1).sum(1).min() >= 3  # five lives, and far from two games
    with pytest.raises(AdapterError, match=r"`life_loss_info`.*'SAME_STEP'.*`episodic_life`"):
        ALEEnv.make("breakout", 2, life_loss_info=True, **SMALL)


# Whose metadata it is.


def test_what_it_writes_into_the_metadata_of_all_misleads_nobody() -> None:
    atari(mode="SAME_STEP")
    assert VectorEnv.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP  # else this can go
    with pytest.raises(AdapterError, match="does not say when it resets itself"):
        GymnasiumEnv(Columns())
    assert ALEEnv(atari()).autoreset_mode is AutoresetMode.NEXT_STEP


def test_two_of_different_modes_keep_theirs() -> None:
    one, other = atari(mode="SAME_STEP"), atari(mode="NEXT_STEP")
    assert ALEEnv(one).autoreset_mode is AutoresetMode.SAME_STEP
    assert ALEEnv(RecordEpisodeStatistics(one)).autoreset_mode is AutoresetMode.SAME_STEP
    assert ALEEnv(RecordEpisodeStatistics(other)).autoreset_mode is AutoresetMode.NEXT_STEP


def test_making_one_leaves_the_metadata_of_all_as_it_was() -> None:
    before = dict(VectorEnv.metadata)
    env = ALEEnv.make("pong", 2, autoreset_mode="SAME_STEP", **SMALL)
    assert VectorEnv.metadata == before
    assert env.env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


# Wrapping, spaces, training.


def test_both_ways_to_wrap_give_the_adapter() -> None:
    assert type(everstep.wrap(atari())) is ALEEnv
    made = everstep.make("ale:pong", 4, horizon=8)
    assert type(made) is ALEEnv
    assert (made.num_envs, made.horizon) == (4, 8)
    assert isinstance(made.observation_spec, Bounded)
    assert (tuple(made.observation_spec.shape), made.observation_spec.dtype) == (
        (4, 84, 84),
        torch.uint8,
    )
    assert isinstance(made.action_spec, Categorical)


def test_continuous_actions_are_sent_as_float32() -> None:
    env = ALEEnv.make("pong", 2, continuous=True, **SMALL)
    env.reset()
    assert env.action_spec.dtype == torch.float32
    assert env.step(torch.full((2, 3), 9.0, dtype=torch.float64))["obs"].shape == (2, 2, 12, 12)


@pytest.mark.parametrize("mode", MODES)
def test_a_train_step(mode: str) -> None:
    options = {**SMALL, "img_height": 36, "img_width": 36, "autoreset_mode": mode}
    env = everstep.make("ale:pong", 2, horizon=32, **options)
    stats = everstep.Trainer(env, run_dir=None).step()
    assert np.isfinite(stats["losses/total"])
    assert (stats["env/steps"] < 64) == (mode == "NEXT_STEP")  # its reset rows are not counted


# What is refused.


def test_games_without_a_common_action_space_are_refused() -> None:
    inner = atari()
    inner.single_action_space = None
    with pytest.raises(AdapterError, match=r"no action space in common.*`full_action_space=True`"):
        ALEEnv(inner)


def test_some_of_the_rows_are_refused() -> None:
    with pytest.raises(AdapterError, match=r"returns 2 of its 4 rows"):
        ALEEnv.make("pong", 4, batch_size=2)


@pytest.mark.parametrize(
    ("game", "options", "message"),
    [
        ("Pong", {}, r"cannot make 'Pong'.*snake_case"),
        ("pong", {"colour": True}, r"cannot make 'pong'.*'colour'"),
        ("pong", {"autoreset_mode": "DISABLED"}, r"cannot make 'pong'.*Disabled"),
    ],
)
@pytest.mark.filterwarnings("ignore:Rom Pong not supported")
def test_what_ale_cannot_make_is_said(game: str, options: Any, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        ALEEnv.make(game, 2, **options)


def test_another_environment_is_refused() -> None:
    with pytest.raises(AdapterError, match=r"must be an `ale_py.vector_env.AtariVectorEnv`"):
        ALEEnv(Columns())


def test_steps_before_a_reset_or_after_close_are_errors() -> None:
    env = ALEEnv.make("pong", 2, **SMALL)
    with pytest.raises(EnvError, match="was not reset"):
        env.step(torch.zeros(2, 1, dtype=torch.int64))
    env.reset()
    env.close()
    env.close()
    with pytest.raises(EnvError, match="was closed"):
        env.step(torch.zeros(2, 1, dtype=torch.int64))


@pytest.mark.parametrize("mode", MODES)
def test_lives_are_a_metric_and_frame_counters_are_not(mode: str) -> None:
    env = ALEEnv.make("breakout", 2, autoreset_mode=mode, **SMALL)
    env.reset()
    for _ in range(15):  # episodes are cut short
        env.step(torch.zeros(2, 1, dtype=torch.int64))
    assert env.metrics() == {"lives": 5.0}
    assert env.metrics() == {}
