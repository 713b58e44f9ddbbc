"""Autoreset modes: where they are declared, wrong declarations, and the probe."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from everstep.errors import AdapterError, EnvError
from everstep_adapters import GymnasiumEnv
from everstep_adapters.gymnasium.modes import resolve_mode
from tests.everstep_adapters.gymnasium.gymnasium_toys import (
    MODES,
    Behaving,
    Columns,
    in_processes,
    scripted,
)

# Python 3.12 and JAX warn of forks in a process that has threads, which `AsyncVectorEnv` does.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]

SAME = AutoresetMode.SAME_STEP


def play(env: GymnasiumEnv, count: int = 12) -> list[Any]:
    env.reset()
    action = env.action_spec.zero(torch.Size([env.num_envs]))
    return [env.step(action).clone() for _ in range(count)]


# Who says so.


def with_attribute(mode: Any, metadata: Any) -> VectorEnv:
    env = Columns(metadata)
    env.autoreset_mode = mode
    return env


def without_metadata() -> VectorEnv:
    env = Columns()
    env.metadata = None
    return env


@pytest.mark.parametrize(
    ("make", "source"),
    [
        (lambda: with_attribute(SAME, {}), "its attribute"),
        (lambda: with_attribute(SAME, {"autoreset_mode": "NextStep"}), "its attribute"),
        (lambda: Columns({"autoreset_mode": SAME}), "its metadata"),
        (lambda: with_attribute(None, {"autoreset_mode": SAME}), "its metadata"),
        (lambda: VectorWrapper(with_attribute(SAME, {})), "the attribute of what is wrapped"),
        (lambda: RecordEpisodeStatistics(Columns({"autoreset_mode": SAME})), "its metadata"),
    ],
)
def test_who_says_it_is_known(make: Callable[[], VectorEnv], source: str) -> None:
    assert resolve_mode(make(), None) == (SAME, source)
    override = AutoresetMode.DISABLED
    assert resolve_mode(make(), override) == (override, "the option `autoreset_mode`")


class Silent(VectorWrapper):
    """Hides the metadata of what it wraps."""

    @property
    def metadata(self) -> Any:
        return {}


def test_metadata_that_a_wrapper_hides_is_found_beneath_it() -> None:
    env = Silent(Columns({"autoreset_mode": SAME}))
    assert resolve_mode(env, None) == (SAME, "the metadata of what is wrapped")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Columns({}),
        lambda: Columns({"autoreseet-mode": SAME}),
        lambda: Columns({"autoreset_mode": None}),
        without_metadata,
    ],
    ids=["missing", "typo", "none", "no metadata"],
)
def test_where_nobody_says_it_the_option_is_asked_for(make: Callable[[], VectorEnv]) -> None:
    with pytest.raises(AdapterError, match=r"does not say when it resets.*`autoreset_mode=`"):
        GymnasiumEnv(make())
    assert GymnasiumEnv(make(), autoreset_mode="SAME_STEP").autoreset_mode is SAME


@pytest.mark.parametrize("value", [True, 3, "sometimes", ["NextStep"]])
def test_a_mode_of_the_wrong_type_or_value_is_an_error(value: Any) -> None:
    with pytest.raises(AdapterError, match=r"is not an autoreset mode.*`autoreset_mode=`"):
        GymnasiumEnv(Columns({"autoreset_mode": value}))


@pytest.mark.filterwarnings("ignore:.*is missing AutoresetMode metadata")
@pytest.mark.parametrize("name", ["phys2d/CartPole-v1", "phys2d/Pendulum-v0"])
def test_environments_in_jax_are_known_by_their_class(name: str) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("flax")
    env = GymnasiumEnv.make(name, 2)  # the latter's metadata lacks it
    assert env.autoreset_mode is AutoresetMode.NEXT_STEP
    play(env, 3)


# Who is wrong: what shows it while the environment is stepped.


@pytest.mark.parametrize("said", ["NEXT_STEP", "DISABLED"])
@pytest.mark.parametrize("final", ["dense", "objects"])
def test_a_reset_in_the_same_step_that_was_not_declared_is_found(said: str, final: str) -> None:
    class Inner(Behaving):
        def step(self, actions: Any) -> Any:
            *values, infos = super().step(actions)
            if final == "objects" and "final_obs" in infos:
                rows = np.empty(self.num_envs, dtype=object)
                rows[:] = list(infos["final_obs"])
                infos["final_obs"] = rows
            return *values, infos

    env = GymnasiumEnv(Inner("SAME_STEP"), autoreset_mode=said)
    with pytest.raises(EnvError, match=rf"Inner.*final observation.*{said}.*'SAME_STEP'"):
        play(env)
    play(GymnasiumEnv(Inner("SAME_STEP"), autoreset_mode="SAME_STEP"))


def test_a_final_observation_beside_a_later_reset_proves_nothing() -> None:
    class Inner(Behaving):
        def step(self, actions: Any) -> Any:
            obs, *values, _ = super().step(actions)
            return obs, *values, {"final_obs": obs}

    rows = play(GymnasiumEnv(Inner("NEXT_STEP"), autoreset_mode="NEXT_STEP"))
    assert [bool(row["first"].all()) for row in rows] == [False, False, False, True] * 3


def test_infos_of_resets_and_of_env_steps_may_have_different_keys() -> None:
    play(GymnasiumEnv(Behaving("SAME_STEP"), autoreset_mode="SAME_STEP"))


def test_a_scalar_flag_is_not_taken_for_all_rows() -> None:
    inner = Columns({"autoreset_mode": AutoresetMode.NEXT_STEP})
    inner.truncated = True  # as a time limit of single environments says around a batch
    with pytest.raises(EnvError, match=r"`truncated` must have shape \(3,\)"):
        play(GymnasiumEnv(inner))


# What playing shows.


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("behaviour", [*MODES, "SAME_STEP, lost"])
def test_the_probe_finds_what_an_environment_does(behaviour: str, length: int) -> None:
    if length == 1 and behaviour in ("DISABLED", "SAME_STEP, lost"):
        pytest.skip("where every env step ends an episode, neither can be seen")
    declared = "NEXT_STEP" if behaviour != "NEXT_STEP" else "SAME_STEP"
    env = GymnasiumEnv(Behaving(behaviour, length), autoreset_mode=declared)
    found, reason = env.probe()
    assert found is AutoresetMode[behaviour.split(",")[0]], reason


@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_own_classes_do_what_they_say_and_are_not_played(mode: str) -> None:
    for inner in (scripted("mixed", mode), in_processes("mixed", mode)):
        env = GymnasiumEnv(inner, autoreset_mode="SAME_STEP")
        assert env.probe().mode is AutoresetMode[mode]
        assert env.reset()[:, 1].tolist() == [0, 0, 0]  # the first of their episodes
        env.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "phys2d/CartPole-v1"])
def test_a_reset_after_the_probe_is_one(name: str) -> None:
    if name.startswith("phys2d"):
        pytest.importorskip("flax")  # its environments reset a row again that was done before
    env = GymnasiumEnv.make(name, 2)
    assert env.probe().mode is AutoresetMode.NEXT_STEP
    assert all(row["valid"].all() for row in play(env, 5))


def test_the_probe_says_why_it_cannot_tell() -> None:
    endless = GymnasiumEnv(Behaving("NEXT_STEP", 2000), autoreset_mode="NEXT_STEP")
    assert endless.probe() == (None, "no episode ended in 1000 vector steps of random actions")

    class Unseeded(Behaving):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return super().reset()

    found, reason = GymnasiumEnv(Unseeded("NEXT_STEP"), autoreset_mode="NEXT_STEP").probe()
    assert found is None
    assert "the same seed and actions gave other observations" in reason


# Copies that nobody needs.


@pytest.mark.parametrize("copies", [True, False])
def test_the_buffer_is_read_and_others_get_the_copies_that_they_asked_for(copies: bool) -> None:
    inner = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, copy=copies)
    env = GymnasiumEnv(inner)
    returned: list[Any] = []
    step = inner.step
    inner.step = lambda actions: (returned.append(step(actions)), returned[-1])[1]  # type: ignore
    env.seed(0)
    env.reset()
    play(env, 3)
    assert all(np.shares_memory(found[0], inner._observations) for found in returned)
    assert inner.copy is copies
    assert np.shares_memory(inner.reset()[0], inner._observations) is not copies


def test_an_env_step_that_fails_leaves_copies_on() -> None:
    inner = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    env = GymnasiumEnv(inner)
    env.reset()
    inner.envs[0].unwrapped.step = None  # type: ignore[assignment, method-assign]
    with pytest.raises(EnvError, match="failed in `step`"):
        play(env, 1)
    assert inner.copy
