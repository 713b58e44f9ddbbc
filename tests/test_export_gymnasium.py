"""Everstep environments as Gymnasium vector environments."""

import gc
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
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
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Unbounded,
)

import everstep
from everstep import ContinuousDummyEnv, DiscreteDummyEnv
from everstep.adapters import to_gymnasium
from everstep.env import Env
from everstep.errors import AdapterError, EnvError
from toys import ConstantEnv
from way_back_toys import Walk, random_actions

STEPS = 30


def check_vector_env(env: VectorEnv) -> int:
    """What Gymnasium demands of single environments, of a vector environment; episodes seen."""
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
    same, following = to_gymnasium(Walk(2)), to_gymnasium(Walk(2, ends="next step"))
    assert same.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert following.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert VectorEnv.metadata == {}
    assert type(same).metadata == {}


# Rows.


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
    with pytest.raises(AdapterError, match=r"manner of SAME_STEP or NEXT_STEP. Pass"):
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


@pytest.mark.parametrize("ends", ["same step", "lost", "next step"])
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
    with pytest.raises(ValueError, match="Expected"):  # of Gymnasium's own environments, too
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


# Spaces.


class Told(Env):
    """Observes the action that it was given, as its specs say."""

    def __init__(self, observation_spec: Any, action_spec: Any, num_envs: int = 3) -> None:
        super().__init__(num_envs)
        self.observation_spec, self.action_spec = observation_spec, action_spec
        self.actions: list[Any] = []

    def reset(self, *, config: Any = None) -> Any:
        return self.observation_spec.rand([self.num_envs])

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return {"obs": self.reset(), "rewards": torch.zeros(self.num_envs, 1)}


def shape(*sizes: int) -> torch.Size:
    return torch.Size(sizes)


BOUNDS = torch.tensor([[-1.0, 0.0], [2.0, 5.0]])

SPECS: dict[str, tuple[Any, spaces.Space]] = {
    "unbounded": (Unbounded(3), spaces.Box(-np.inf, np.inf, (3,), np.float32)),
    "double": (
        Unbounded(2, dtype=torch.float64),
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
    ),
    "bfloat16": (
        Bounded(-1, 1, shape(2), dtype=torch.bfloat16),
        spaces.Box(-1, 1, (2,), np.float32),
    ),
    "bounds by element": (
        Bounded(low=BOUNDS[0], high=BOUNDS[1]),
        spaces.Box(BOUNDS[0].numpy(), BOUNDS[1].numpy(), dtype=np.float32),
    ),
    "image": (
        Bounded(0, 255, shape(3, 4, 4), dtype=torch.uint8),
        spaces.Box(0, 255, (3, 4, 4), np.uint8),
    ),
    "bytes": (Unbounded(3, dtype=torch.uint8), spaces.Box(0, 255, (3,), np.uint8)),
    "no dimension": (Unbounded(shape()), spaces.Box(-np.inf, np.inf, (), np.float32)),
    "one choice": (Categorical(4, shape=shape(1)), spaces.Discrete(4)),
    "one choice without a dimension": (Categorical(4, shape=shape()), spaces.Discrete(4)),
    "choices alike": (Categorical(4, shape=shape(2)), spaces.MultiDiscrete([4, 4])),
    "choices": (MultiCategorical([2, 5]), spaces.MultiDiscrete([2, 5])),
    "binary": (Binary(3), spaces.MultiBinary(3)),
    "bool": (Binary(3, dtype=torch.bool), spaces.MultiBinary(3)),
    "mapping": (
        Composite(b=Unbounded(1), a=Composite(c=Categorical(2, shape=shape(1)))),
        spaces.Dict(
            [
                ("b", spaces.Box(-np.inf, np.inf, (1,), np.float32)),
                ("a", spaces.Dict(c=spaces.Discrete(2))),
            ]
        ),
    ),
}

ONE_HOTS = {
    "one-hot": (OneHot(4), spaces.MultiBinary(4), spaces.Discrete(4)),
    "one-hot rows": (
        OneHot(4, shape=shape(2, 4)),
        spaces.MultiBinary([2, 4]),
        spaces.MultiDiscrete([4, 4]),
    ),
    "one-hots": (MultiOneHot([2, 3]), spaces.MultiBinary(5), spaces.MultiDiscrete([2, 3])),
}


@pytest.mark.parametrize(("spec", "space"), SPECS.values(), ids=SPECS.keys())
def test_spaces(spec: Any, space: spaces.Space) -> None:
    env = to_gymnasium(Told(spec, spec))
    assert env.single_observation_space == space
    assert env.single_action_space == space
    assert [*getattr(space, "spaces", ())] == [*getattr(env.single_action_space, "spaces", ())]
    check_values(env, spec)


@pytest.mark.parametrize(("spec", "seen", "chosen"), ONE_HOTS.values(), ids=ONE_HOTS.keys())
def test_spaces_of_one_hots(spec: Any, seen: spaces.Space, chosen: spaces.Space) -> None:
    env = to_gymnasium(Told(spec, spec))
    assert env.single_observation_space == seen
    assert env.single_action_space == chosen
    check_values(env, spec)


def check_values(env: Any, spec: Any) -> None:
    """Observations are in their space; whatever is in the action space is a value of the spec."""
    assert env.observation_space.contains(env.reset()[0])
    batched = spec.expand(env.num_envs, *spec.shape)
    for _ in range(20):
        assert env.observation_space.contains(env.step(env.action_space.sample())[0])
        assert batched.is_in(env.env.actions[-1])


def test_choices_are_the_same_choices() -> None:
    env = to_gymnasium(Told(Unbounded(1), MultiOneHot([2, 3]), num_envs=2))
    env.reset()
    env.step(np.array([[1, 0], [0, 2]]))
    expected = torch.tensor([[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]], dtype=torch.bool)
    assert torch.equal(env.env.actions[-1], expected)


def test_actions_that_do_not_fit() -> None:
    env = to_gymnasium(Walk(3))
    env.reset()
    with pytest.raises(AdapterError, match=r"`action` must have shape \(3,\); got \(3, 1\)"):
        env.step(np.zeros((3, 1), np.int64))
    with pytest.raises(AdapterError, match=r"`action` must have the dtype int64 .* got float64"):
        env.step(np.zeros(3))
    both = Composite(move=Unbounded(1), jump=Binary(1))
    env = to_gymnasium(Told(Unbounded(1), both))
    with pytest.raises(AdapterError, match=r"mapping of \['jump', 'move'\]; got \['move'\]"):
        env.step({"move": np.zeros((3, 1), np.float32)})
    with pytest.raises(AdapterError, match=r"`action\['jump'\]` must have shape \(3, 1\)"):
        env.step({"move": np.zeros((3, 1), np.float32), "jump": np.zeros(3, np.int8)})


def test_an_empty_mapping_is_refused() -> None:
    with pytest.raises(AdapterError, match="`observation` is an empty `Composite`"):
        to_gymnasium(Told(Composite(), Unbounded(1)))


def test_rewards_of_any_precision_are_doubles() -> None:
    env = to_gymnasium(ConstantEnv(outcome={"rewards": torch.full((4, 1), 0.5).bfloat16().float()}))
    env.reset()
    assert env.step(env.action_space.sample())[1].dtype == np.float64


@pytest.mark.gpu
def test_from_an_accelerator() -> None:
    env = to_gymnasium(Walk(4, device="cuda", mapping=True, continuous=True))
    assert check_vector_env(env) > 0
