"""Round trips: an environment that is exported and wrapped again returns the same rows."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torchrl.envs import RewardSum, TransformedEnv

import everstep
from everstep import AlgorithmConfig, ContinuousDummyEnv, DiscreteDummyEnv, Env
from everstep.adapters import GymnasiumEnv, TorchRLEnv, to_gymnasium, to_torchrl
from everstep.errors import AdapterError
from everstep.testing import EnvConformance, run_checks
from everstep_adapters.export.horizon import HorizonEnv
from tests.everstep_adapters.export.export_toys import Walk, play, random_actions
from tests.everstep_adapters.gymnasium.gymnasium_toys import scripted

pytestmark = pytest.mark.slow

NUM_ENVS, STEPS = 3, 40

ENVS: dict[str, Any] = {
    f"{ends}, {'mapping' if mapping else 'plain'}, {'real' if real else 'discrete'}": partial(
        Walk, NUM_ENVS, ends=ends, mapping=mapping, continuous=real
    )
    for ends in ("never", "same step", "lost", "next step")
    for mapping in (False, True)
    for real in (False, True)
}
ENVS["the discrete point"] = partial(DiscreteDummyEnv, NUM_ENVS)
ENVS["the continuous point"] = partial(ContinuousDummyEnv, NUM_ENVS)

SAME_STEP_ENVS = {name: make for name, make in ENVS.items() if not name.startswith("next step")}
#: Those with rows that no action caused; no one of Gymnasium's modes is that of both.
NEXT_STEP_ENVS = {name: make for name, make in ENVS.items() if name.startswith("next step")}
NEXT_STEP_ENVS["both"] = partial(Walk, NUM_ENVS, ends="both", mapping=True)

EXPORTS: dict[str, Any] = {
    "gymnasium": lambda env: everstep.wrap(to_gymnasium(env)),
    "torchrl": lambda env: everstep.wrap(to_torchrl(env, invalid_rows="keep")),
}


def compare(native: Env, returned: Env) -> None:
    """Every row of the one is, bit for bit, what the other returns."""
    actions = random_actions(native, STEPS)
    expected, found = play(native, actions), play(returned, actions)
    assert len(expected) == len(found) == STEPS + 1
    for t, (want, got) in enumerate(zip(expected, found, strict=True)):
        for name in want:
            rows: Any = slice(None)
            if name.startswith("final_obs"):  # it means nothing elsewhere
                done = want["terminated"] | want["truncated"]
                rows = (want["first"] & done).squeeze(-1)
            assert torch.equal(want[name][rows], got[name][rows]), f"{name} of row {t}"
            assert want[name].dtype == got[name].dtype
        if not native.episode_keys and t:
            assert not any(got[flag].any() for flag in ("terminated", "truncated", "first"))


@pytest.mark.parametrize("make", ENVS.values(), ids=ENVS.keys())
def test_through_gymnasium(make: Any) -> None:
    returned = everstep.wrap(to_gymnasium(make()))
    assert isinstance(returned, GymnasiumEnv)
    compare(make(), returned)


def test_through_gymnasium_without_copies() -> None:
    native, other = (Walk(NUM_ENVS, mapping=True) for _ in range(2))
    compare(native, everstep.wrap(to_gymnasium(other, copy=False)))


@pytest.mark.parametrize("make", SAME_STEP_ENVS.values(), ids=SAME_STEP_ENVS.keys())
def test_through_torchrl(make: Any) -> None:
    returned = everstep.wrap(to_torchrl(make()))
    assert isinstance(returned, TorchRLEnv)
    compare(make(), returned)


@pytest.mark.parametrize("make", NEXT_STEP_ENVS.values(), ids=NEXT_STEP_ENVS.keys())
def test_invalid_rows_through_torchrl(make: Any) -> None:
    native, returned = make(), everstep.wrap(to_torchrl(make(), invalid_rows="keep"))
    assert isinstance(returned, TorchRLEnv)
    assert returned.episode_keys == native.episode_keys
    assert returned.observation_spec == native.observation_spec
    compare(native, returned)


def test_invalid_rows_through_torchrl_and_a_transform() -> None:
    exported = to_torchrl(Walk(NUM_ENVS, ends="next step"), invalid_rows="keep")
    returned = everstep.wrap(TransformedEnv(exported, RewardSum()))
    compare(Walk(NUM_ENVS, ends="next step"), returned)
    assert "`valid` and `is_init`" in returned.describe()["resets"]
    with pytest.raises(AdapterError, match="`time_limit` counts every row"):
        everstep.wrap(exported, time_limit=5)


@pytest.mark.parametrize("export", EXPORTS.keys())
@pytest.mark.parametrize("make", SAME_STEP_ENVS.values(), ids=SAME_STEP_ENVS.keys())
def test_specs(make: Any, export: str) -> None:
    native, returned = make(), EXPORTS[export](make())
    assert returned.observation_spec == native.observation_spec
    assert returned.action_spec == native.action_spec
    assert returned.num_envs == native.num_envs
    assert torch.device(returned.device) == torch.device(native.device)
    assert native.episode_keys <= returned.episode_keys


@pytest.mark.parametrize("export", EXPORTS.keys())
def test_final_observations_stay_lost(export: str) -> None:
    native, returned = Walk(NUM_ENVS, ends="lost"), EXPORTS[export](Walk(NUM_ENVS, ends="lost"))
    actions = random_actions(native, STEPS)
    lost = 0
    for want, got in zip(play(native, actions)[1:], play(returned, actions)[1:], strict=True):
        asked = (want["truncated"] & ~want["terminated"]).squeeze(-1)
        lost += int(asked.sum())
        assert got["final_obs"][asked].isnan().all()
    assert lost > 0


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
@pytest.mark.parametrize("make", [DiscreteDummyEnv, ContinuousDummyEnv])
def test_horizons_through_gymnasium(make: Any, mode: str) -> None:
    """At which every row is truncated: the rows of the way there, and a reset where it says."""
    env = everstep.wrap(to_gymnasium(make(2), autoreset_mode=mode, horizon=3))
    rows = play(env, random_actions(env, 8))[1:]
    cycle = 3 if mode == "SAME_STEP" else 4
    for t, row in enumerate(rows):
        assert row["truncated"].all() == row["truncated"].any() == (t % cycle == 2)
        opens = t % cycle == (2 if mode == "SAME_STEP" else 3)
        assert row["first"].all() == row["first"].any() == opens


@pytest.mark.parametrize("export", EXPORTS.keys())
@pytest.mark.parametrize("ends", ["same step", "lost", "next step"])
def test_what_is_learned(export: str, ends: str) -> None:
    advantages = []
    for env in (Walk(4, horizon=16, ends=ends), EXPORTS[export](Walk(4, ends=ends))):
        algorithm = AlgorithmConfig(horizon=16, seed=1).build(env)
        for _ in range(2):
            algorithm.collect()
            algorithm.step()
        advantages.append(algorithm.buffer["advantages"].clone())
    assert torch.equal(*advantages)


# The other way round: from Gymnasium, and back to it.


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_from_gymnasium_and_back(mode: str) -> None:
    native = scripted("mixed", mode)
    returned = to_gymnasium(everstep.wrap(scripted("mixed", mode)))
    assert returned.autoreset_mode is AutoresetMode[mode]
    assert returned.single_observation_space == native.single_observation_space
    assert returned.single_action_space == native.single_action_space
    np.testing.assert_array_equal(native.reset()[0], returned.reset()[0])
    finals = 0
    for actions in np.random.default_rng(0).integers(5, size=(STEPS, native.num_envs)):
        *want, infos = native.step(actions)
        *got, found = returned.step(actions)
        for one, two in zip(want, got, strict=True):
            np.testing.assert_array_equal(one, two)
            assert one.dtype == two.dtype
        assert ("final_obs" in infos) == ("final_obs" in found)
        if "final_obs" in infos:
            np.testing.assert_array_equal(infos["_final_obs"], found["_final_obs"])
            for one, two in zip(infos["final_obs"], found["final_obs"], strict=True):
                finals += one is not None
                np.testing.assert_array_equal(one, two)
    assert (finals > 10) is (mode == "SAME_STEP")


# The protocol's own rules.


class OfWalks(EnvConformance):
    """The checks for an environment that was exported and wrapped again."""

    num_envs_choices = (1, 3)
    episodes_end = True


class TestThroughGymnasium(OfWalks):
    def make_env(self, num_envs: int, horizon: int, device: Any) -> Env:
        env = Walk(num_envs, mapping=True, device=device)
        return everstep.wrap(to_gymnasium(env), horizon=horizon, device=device)


class TestNextStepThroughGymnasium(OfWalks):
    def make_env(self, num_envs: int, horizon: int, device: Any) -> Env:
        env = Walk(num_envs, ends="next step", continuous=True, device=device)
        return everstep.wrap(to_gymnasium(env), horizon=horizon, device=device)


class TestNextStepThroughTorchRL(OfWalks):
    def make_env(self, num_envs: int, horizon: int, device: Any) -> Env:
        env = Walk(num_envs, ends="next step", mapping=True, device=device)
        return everstep.wrap(to_torchrl(env, invalid_rows="keep"), horizon=horizon, device=device)


class TestThroughTorchRL(OfWalks):
    def make_env(self, num_envs: int, horizon: int, device: Any) -> Env:
        env = Walk(num_envs, mapping=True, continuous=True, device=device)
        return everstep.wrap(to_torchrl(env), horizon=horizon, device=device)


@pytest.mark.parametrize("next_step", [False, True])
def test_an_end_at_the_horizon_obeys_the_protocol(next_step: bool) -> None:
    def make_env(num_envs: int, horizon: int, device: Any) -> Env:
        env = Walk(num_envs, ends="never", mapping=True, device=device)
        return HorizonEnv(env, 5, next_step=next_step)

    results = list(run_checks(make_env, episodes_end=True))
    assert [result for result in results if result.status == "failed"] == []
    assert sum(result.status == "passed" for result in results) > 10
