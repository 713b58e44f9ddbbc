"""Everstep environments as TorchRL environments."""

import gc
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, OneHot, Unbounded
from torchrl.envs import (
    Compose,
    InitTracker,
    RewardSum,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)

import everstep
from everstep import ContinuousDummyEnv, DiscreteDummyEnv, Env
from everstep.adapters import to_torchrl
from everstep.errors import AdapterError
from tests.everstep_adapters.export.export_toys import Walk, flat, random_actions
from tests.toys import ConstantEnv

STEPS = 30


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """`check_env_specs` reports its success."""
    logger = logging.getLogger("torchrl")
    level = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(level)


ENVS: dict[str, Any] = {
    f"{ends}, {'mapping' if mapping else 'plain'}, {'real' if real else 'discrete'}": (
        lambda ends=ends, mapping=mapping, real=real: to_torchrl(
            Walk(3, ends=ends, mapping=mapping, continuous=real), invalid_rows="keep"
        )
    )
    for ends in ("never", "same step", "lost", "next step", "both")
    for mapping in (False, True)
    for real in (False, True)
}
ENVS |= {
    "the discrete point": lambda: to_torchrl(DiscreteDummyEnv(3)),
    "the continuous point": lambda: to_torchrl(ContinuousDummyEnv(3), horizon=2),
    "CartPole": lambda: to_torchrl(
        everstep.make("gymnasium:CartPole-v1", 3, autoreset_mode="SAME_STEP")
    ),
    "under a key": lambda: to_torchrl(Walk(3, mapping=True), observation_key="seen"),
}


@pytest.mark.parametrize("make", ENVS.values(), ids=ENVS.keys())
def test_torchrls_own_checks(make: Any) -> None:
    env = make()
    check_env_specs(env, break_when_any_done="both")
    check_env_specs(env, seed=0)
    check_env_specs(TransformedEnv(env, Compose(RewardSum(), StepCounter())))
    env.close()


def test_keys_and_shapes() -> None:
    env = to_torchrl(Walk(3, mapping=True))
    assert env.batch_size == torch.Size([3])
    assert env.batch_locked
    assert set(env.observation_spec.keys(True, True)) == {"place", ("clock", "age")}
    assert env.observation_spec["place"].shape == (3, 2)
    assert (env.action_keys, env.reward_keys) == (["action"], ["reward"])
    assert env.reset_keys == ["_reset"]
    assert env.action_spec.shape == (3, 1)
    assert set(to_torchrl(Walk(3)).observation_spec.keys()) == {"observation"}
    assert set(to_torchrl(Walk(3), observation_key="seen").observation_spec.keys()) == {"seen"}


# Rows.


def replay(env: Any, actions: list[torch.Tensor]) -> Any:
    """Rollout of TorchRL's own loop with these actions."""
    upcoming = iter(actions)
    env.set_seed(3)
    return env.rollout(
        len(actions),
        lambda tensordict: tensordict.set("action", next(upcoming)),
        break_when_any_done=False,
    )


@pytest.mark.parametrize("mapping", [False, True], ids=["plain", "mapping"])
def test_rollouts_are_the_environments(mapping: bool) -> None:
    native = Walk(3, mapping=mapping)
    actions = random_actions(native, STEPS)
    rollout = replay(to_torchrl(Walk(3, mapping=mapping), observation_key="obs"), actions)
    native.seed(3)
    obs = native.reset()
    ended = 0
    for t, action in enumerate(actions):
        acted_on = flat({"obs": obs})
        row = native.step(action)
        done = row["terminated"] | row["truncated"]
        ended += int(done.sum())
        for key, value in acted_on.items():
            assert torch.equal(rollout[tuple(key.split("."))][:, t], value)
            final, next_obs = (flat({"obs": row[name]})[key] for name in ("final_obs", "obs"))
            expected = torch.where(done.view(-1, *(1,) * (final.ndim - 1)), final, next_obs)
            assert torch.equal(rollout["next"][tuple(key.split("."))][:, t], expected)
        assert torch.equal(rollout["next", "reward"][:, t], row["rewards"])
        assert torch.equal(rollout["next", "terminated"][:, t], row["terminated"])
        assert torch.equal(rollout["next", "truncated"][:, t], row["truncated"])
        assert torch.equal(rollout["next", "done"][:, t], done)
        assert not rollout["done"][:, t].any()
        obs = row["obs"]
    assert ended > 10


def test_what_was_returned_is_never_written_to() -> None:
    env = to_torchrl(Walk(3))
    data = env.reset()
    kept = []
    for _ in range(STEPS):
        data, upcoming = env.step_and_maybe_reset(env.rand_action(data))
        kept.append((data, data.clone()))
        data = upcoming
    assert any(data["next", "done"].any() for data, _ in kept)
    assert all((data == copy).all() for data, copy in kept)


def test_lost_final_observations_are_nan_where_they_are_asked_for() -> None:
    rollout = replay(to_torchrl(Walk(3, ends="lost")), random_actions(Walk(3), 60))
    following = rollout["next"]
    asked = (following["truncated"] & ~following["terminated"]).squeeze(-1)
    assert asked.any()
    assert following["terminated"].any()
    assert following["observation"][asked].isnan().all()
    assert following["observation"][~asked].isfinite().all()
    assert rollout["observation"].isfinite().all()


def test_horizons_truncate_and_reset() -> None:
    env = to_torchrl(ContinuousDummyEnv(2), horizon=3)
    rollout = replay(env, [torch.ones(2, 1)] * 6)
    expected = torch.tensor([False, False, True] * 2)
    assert torch.equal(rollout["next", "truncated"][0, :, 0], expected)
    assert not rollout["next", "terminated"].any()
    steps = rollout["next", "observation"] - rollout["observation"]
    torch.testing.assert_close(steps, torch.ones_like(steps))
    assert (rollout["observation"][:, 3] - rollout["next", "observation"][:, 2]).abs().min() > 1e-3


# Invalid rows.


def test_environments_that_cannot_reset_single_rows_are_refused_by_default() -> None:
    with pytest.raises(AdapterError, match=r"no transition.*autoreset_mode='SAME_STEP'"):
        to_torchrl(Walk(2, ends="next step"))
    with pytest.raises(AdapterError, match=r"`invalid_rows` must be .* got 'drop'"):
        to_torchrl(Walk(2), invalid_rows="drop")  # type: ignore[arg-type]


@pytest.mark.parametrize("ends", ["next step", "both"])
def test_invalid_rows_are_marked_and_what_opens_an_episode_is_initial(ends: str) -> None:
    native = Walk(4, ends=ends)
    actions = random_actions(native, 60)
    rollout = replay(to_torchrl(Walk(4, ends=ends), invalid_rows="keep"), actions)
    native.seed(3)
    obs = native.reset().clone()
    opens = torch.ones(4, 1, dtype=torch.bool)
    invalid = 0
    for t, action in enumerate(actions):
        assert torch.equal(rollout["observation"][:, t], obs)
        row = native.step(action)
        assert torch.equal(rollout["next", "valid"][:, t], row["valid"])
        assert torch.equal(rollout["is_init"][:, t], opens)
        invalid += int((~row["valid"]).sum())
        obs, opens = row["obs"].clone(), row["first"]
    assert invalid > 5


# Resets.


def until_done(env: Any) -> Any:
    """Data after an env step that ended the episodes of some rows, not of all."""
    data = env.reset()
    while True:
        data = env.step(env.rand_action(data))
        done = data["next", "done"]
        if done.any() and not done.all():
            return env.step_mdp(data)
        data = env.reset() if done.all() else env.step_mdp(data)


def test_resets_of_the_rows_that_are_done_hand_over_what_was_reset() -> None:
    walk = Walk(3)
    env = to_torchrl(walk)
    env.set_seed(0)
    data = until_done(env)
    mask = data["done"].clone()
    before, resets = data["observation"].clone(), len(walk.configs)
    after = env.reset(data.set("_reset", mask))
    assert torch.equal(after["observation"], walk.place)
    assert torch.equal(after["observation"][~mask[:, 0]], before[~mask[:, 0]])
    assert not torch.equal(after["observation"], before)
    assert not after["done"].any()
    assert len(walk.configs) == resets
    env.step(env.rand_action(after))


def test_a_mask_of_other_rows_is_refused() -> None:
    env = to_torchrl(Walk(3))
    env.set_seed(0)
    data = until_done(env)
    rows = data["done"].flatten().nonzero().flatten().tolist()
    other = ~data["done"]
    message = rf"to be reset, but episodes ended in rows \{rows}: Walk resets those itself"
    with pytest.raises(AdapterError, match=message.replace("]", r"\]")):
        env.reset(data.set("_reset", other))


def test_a_transform_that_ends_episodes_is_told_so() -> None:
    env = TransformedEnv(to_torchrl(Walk(3)), StepCounter(max_steps=2))
    with pytest.raises(AdapterError, match="StepCounter"):
        env.rollout(STEPS, break_when_any_done=False)
    never = TransformedEnv(to_torchrl(DiscreteDummyEnv(3)), StepCounter(max_steps=2))
    rollout = never.rollout(6, break_when_any_done=False)  # of all rows together it may
    assert rollout["next", "truncated"].sum() == 9


def test_full_resets() -> None:
    walk = Walk(3)
    env = to_torchrl(walk)
    data, resets = until_done(env), len(walk.configs)
    env.reset(config={"bounds": 2})
    assert walk.configs[resets:] == [{"bounds": 2}]
    everything = torch.ones(3, 1, dtype=torch.bool)
    env.reset(data.set("_reset", everything))
    assert len(walk.configs) == resets + 2


def test_stepping_on_without_a_reset_is_refused() -> None:
    env = to_torchrl(Walk(3))
    data = until_done(env)
    with pytest.raises(AdapterError, match="have to be reset before the next env step"):
        env.step(env.rand_action(data))


def test_steps_of_some_rows_are_refused() -> None:
    env = to_torchrl(Walk(8, limit=100))
    with pytest.raises(AdapterError, match="no row can be left out by `_step`"):
        env.rollout(STEPS, break_when_all_done=True)


# Seeds and life.


def test_seeds() -> None:
    env = to_torchrl(Walk(3))
    rollouts = []
    for _ in range(2):
        env.set_seed(5)
        torch.manual_seed(0)
        rollouts.append(env.rollout(STEPS, break_when_any_done=False))
    assert (rollouts[0] == rollouts[1]).all()
    env.set_seed(6)
    assert not torch.equal(env.reset()["observation"], rollouts[0]["observation"][:, 0])
    env.set_seed(None)


def test_an_environment_without_a_seed_draws_from_pytorch() -> None:
    env = to_torchrl(DiscreteDummyEnv(3))
    env.set_seed(11)
    first = env.reset()["observation"]
    torch.manual_seed(11)
    assert torch.equal(first, DiscreteDummyEnv(3).reset())


def test_life() -> None:
    walk = Walk(3)
    env = to_torchrl(walk)
    assert env.render() == "a picture"
    assert env.to("cpu") is env
    with pytest.raises(AdapterError, match="was made on cpu and cannot be moved to meta"):
        env.to("meta")
    assert not env.is_closed
    env.close()
    env.close()
    assert (walk.closed, env.is_closed) == (1, True)


def test_an_environment_outlives_what_it_was_exported_as() -> None:
    walk = Walk(3)
    check_env_specs(to_torchrl(walk))
    gc.collect()
    assert walk.closed == 0


def collector(env: Any, policy: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torchrl, importing itself
        warnings.simplefilter("ignore", FutureWarning)
        from torchrl.collectors import Collector

        return Collector(env, policy, **options)


def test_a_collector_without_a_policy() -> None:
    env = TransformedEnv(to_torchrl(Walk(4)), Compose(InitTracker(), RewardSum()))
    frames = collector(env, None, frames_per_batch=40, total_frames=120)
    returns, seen = [], 0
    for data in frames:
        seen += data.numel()
        assert data.batch_size == (4, 10)
        done = data["next", "done"]
        returns.append(data["next", "episode_reward"][done])
        followed = data["is_init"][:, 1:][done[:, :-1]]
        assert followed.all()
    frames.shutdown()
    assert seen == 120
    assert torch.cat(returns).numel() > 5


# Specs.


class Odd(Env):
    """Whatever specs it is given."""

    def __init__(self, observation_spec: Any, action_spec: Any) -> None:
        super().__init__(2)
        self.observation_spec, self.action_spec = observation_spec, action_spec

    def reset(self, *, config: Any = None) -> Any:
        return self.observation_spec.rand([2])

    def step(self, action: Any) -> Any:
        return {"obs": self.reset(), "rewards": torch.zeros(2, 1, dtype=torch.float64)}


def test_mappings_of_actions() -> None:
    both = Composite(move=Unbounded(2), jump=Categorical(2, shape=torch.Size([1])))
    env = to_torchrl(Odd(OneHot(3), both))
    assert set(env.action_keys) == {("action", "move"), ("action", "jump")}
    check_env_specs(env)


def test_keys_that_torchrl_takes_are_refused() -> None:
    spec = Composite(reward=Unbounded(1), place=Unbounded(1))
    with pytest.raises(AdapterError, match=r"\['reward'\], which mean something else"):
        to_torchrl(Odd(spec, Unbounded(1)))
    check_env_specs(to_torchrl(Odd(spec, Unbounded(1)), observation_key="observation"))
    with pytest.raises(AdapterError, match=r"\['done'\]"):
        to_torchrl(Odd(Unbounded(1), Unbounded(1)), observation_key="done")


def test_integer_observations_cannot_be_lost_unmarked() -> None:
    flags = frozenset({"terminated", "truncated", "first"})
    env = ConstantEnv(episode_keys=flags)
    env.observation_spec = Categorical(3, shape=torch.Size([1]))
    with pytest.raises(AdapterError, match="integer observations cannot mark"):
        to_torchrl(env)


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(AdapterError, match=r"must be an `everstep\.Env`; got int"):
        to_torchrl(3)  # type: ignore[arg-type]
    with pytest.raises(AdapterError, match="`horizon` is for environments without episode keys"):
        to_torchrl(Walk(2), horizon=4)


@pytest.mark.gpu
def test_on_an_accelerator() -> None:
    env = to_torchrl(Walk(4, device="cuda", continuous=True))
    check_env_specs(env)
    rollout = env.rollout(STEPS, break_when_any_done=False)
    assert rollout.device == env.device == torch.device("cuda:0")
    assert rollout["next", "done"].any()


class Waiting(ConstantEnv):
    """Ends an episode in one row and resets in the next; `final_obs` is only meant at the end."""

    def __init__(self, num_envs: int) -> None:
        keys = frozenset({"terminated", "truncated", "first", "final_obs", "valid"})
        super().__init__(num_envs, episode_keys=keys)

    def reset(self, *, config: Any = None) -> Any:
        self.t = 0
        return torch.zeros(self.num_envs, 3)

    def step(self, action: Any) -> TensorDict:
        self.t += 1
        ends, resets = self.t % 3 == 2, self.t % 3 == 0
        found = {"obs": float(self.t), "rewards": 1.0, "final_obs": -1.0}
        sizes = {"obs": 3, "rewards": 1, "final_obs": 3}
        row = {key: torch.full((self.num_envs, sizes[key]), x) for key, x in found.items()}
        flags = {"terminated": ends, "truncated": False, "first": resets, "valid": not resets}
        row |= {key: torch.full((self.num_envs, 1), bool(x)) for key, x in flags.items()}
        return TensorDict(row, [self.num_envs])


def test_final_observations_are_of_rows_that_ended() -> None:
    """A row that opens an episode has its own observation, whatever `final_obs` holds then."""
    env = to_torchrl(Waiting(2), invalid_rows="keep")
    data = env.reset()
    found = []
    for _ in range(6):
        data["action"] = env.action_spec.zero()
        stepped, data = env.step_and_maybe_reset(data)
        found.append(
            (stepped["next", "observation"][0, 0].item(), stepped["next", "is_init"][0].item())
        )
    assert found == [(1, False), (2, False), (3, True), (4, False), (5, False), (6, True)]
