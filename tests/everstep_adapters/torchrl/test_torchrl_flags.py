"""Flags of TorchRL environments, and the options that override them."""

from importlib import import_module
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Composite
from torchrl.envs import EnvBase, InitTracker, TransformedEnv

from everstep.adapters import to_torchrl
from everstep.errors import AdapterError
from everstep_adapters import TorchRLEnv
from tests.everstep_adapters.export.export_toys import Walk
from tests.everstep_adapters.torchrl.torchrl_toys import (
    NEVER,
    SCRIPTS,
    ScriptedEnv,
    check_stream,
    flag_spec,
    zeros,
)
from tests.toys import TERMINATED, TRUNCATED, Episode

MIXED = SCRIPTS["mixed"]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("flags", "options", "changed"),
    [
        (("done",), {}, {"terminated": lambda e: e.first, "truncated": lambda e: False}),
        (("terminated", "done"), {}, {"truncated": lambda e: e.first and not e.terminated}),
        (("done", "truncated"), {}, {"terminated": lambda e: e.first and not e.truncated}),
        (("terminated", "truncated"), {}, {}),
        (
            ("done", "terminated", "truncated"),
            {"done_is": "truncated"},
            {"terminated": lambda e: False, "truncated": lambda e: e.first},
        ),
        (
            ("done",),
            {"done_is": "terminated"},
            {"terminated": lambda e: e.first, "truncated": lambda e: False},
        ),
        (
            ("done",),
            {"time_limit": 3},
            {
                "terminated": lambda e: e.first and e.final_obs[2] < 3,
                "truncated": lambda e: e.first and e.final_obs[2] >= 3,
            },
        ),
    ],
)
def test_flags_and_what_they_leave_out(flags: Any, options: Any, changed: Any) -> None:
    env = TorchRLEnv(ScriptedEnv(MIXED, flags=flags), **options)
    check_stream(env, MIXED, **changed)


@pytest.mark.usefixtures("float64")
def test_flags_of_other_names() -> None:
    class Named(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__(MIXED)
            spec = {"over": flag_spec(4), "failed": flag_spec(4)}
            self.full_done_spec = Composite(spec, shape=(4,))

        def _step(self, tensordict: Any) -> Any:
            data = super()._step(tensordict)
            data["over"], data["failed"] = data["done"], data["terminated"]
            return data.exclude("done", "terminated", "truncated")

    by_name = TorchRLEnv(Named(), terminated_key="failed")
    check_stream(by_name, MIXED, truncated=lambda e: e.first and not e.terminated)
    assert "the task's by failed" in by_name.describe()["resets"]
    unnamed = TorchRLEnv(Named())
    check_stream(unnamed, MIXED, terminated=lambda e: e.first, truncated=lambda e: False)


def test_an_end_without_a_reset_is_done_and_not_first() -> None:
    class Going(ScriptedEnv):
        """Truncates without being done, so TorchRL does not reset it."""

        def _step(self, tensordict: Any) -> Any:
            data = super()._step(tensordict)
            data["done"] = data["terminated"]
            return data

    env = TorchRLEnv(Going([[Episode(2, TRUNCATED)], [Episode(2, TERMINATED)]]))
    env.reset()
    env.step(zeros(env))
    row = env.step(zeros(env))
    assert row["truncated"].flatten().tolist() == [True, False]
    assert row["first"].flatten().tolist() == [False, True]
    assert torch.equal(row["obs"][0], row["final_obs"][0])


def posing_as(name: str, module: str) -> EnvBase:
    """A scripted environment with a wrapper's name: the libraries behind them are not installed."""
    wrapper = getattr(import_module(f"torchrl.envs.libs.{module}"), name)
    names = {"__module__": wrapper.__module__, "__qualname__": wrapper.__qualname__}
    return type(name, (ScriptedEnv,), names)(MIXED)


@pytest.mark.parametrize(
    ("name", "module", "told"),
    [
        ("BraxWrapper", "brax", "terminated"),
        ("IsaacGymWrapper", "isaacgym", "truncated"),
        ("JumanjiWrapper", "jumanji", "terminated"),
        ("MujocoPlaygroundWrapper", "mujoco_playground", "terminated"),
        ("SMACv2Wrapper", "smacv2", "terminated"),
        ("VmasWrapper", "vmas", "terminated"),
    ],
)
def test_wrappers_that_do_not_tell_ends_apart_are_told_of(
    name: str, module: str, told: str
) -> None:
    env = TransformedEnv(posing_as(name, module), InitTracker())
    with pytest.warns(RuntimeWarning, match=rf"`{name}` reports every end.*{told}.*time_limit"):
        TorchRLEnv(env)
    TorchRLEnv(env, time_limit=5)
    TorchRLEnv(env, done_is="truncated")


def test_envpool_is_not_wrapped_twice() -> None:
    with pytest.raises(AdapterError, match=r"in the env step after .* `everstep.make\('envpool"):
        TorchRLEnv(posing_as("MultiThreadedEnvWrapper", "envpool"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"done_is": "over"},
            "`done_is` of TorchRLEnv: expected 'terminated' or 'truncated'.*; got 'over'",
        ),
        ({"time_limit": 0}, "`time_limit` of TorchRLEnv: expected int > 0.*; got 0"),
        ({"time_limit": 3, "done_is": "truncated"}, "Pass one of them"),
        ({"terminated_key": "failed"}, "`terminated_key` must be one of done, .*; got failed"),
        ({"done_key": ("a", "done")}, "`done_key` must be one of done, .*; got a.done"),
        ({"observation_keys": ["pixels"]}, "must be among observation; got pixels"),
        ({"action_key": "moves"}, "`action_key` must be one of action; got moves"),
        ({"reward_key": "gain"}, "`reward_key` must be one of reward; got gain"),
        ({"max_episode_steps": 0}, "expected int > 0.*; got 0"),
        ({"random_phase": True}, "needs `max_episode_steps`"),
        ({"num_envs": 4}, r"`num_envs` is for stateless.*ScriptedEnv has \[4\].*SerialEnv"),
        ({"step_timeout": 1.0}, "`ParallelEnv` may take to answer; got 1.0 for ScriptedEnv"),
        ({"action_bounds": "wrap"}, "'clip' or 'rescale'; got 'wrap'"),
        ({"action_bounds": "rescale"}, "needs actions of floating point; got Categorical"),
    ],
)
def test_options_without_sense_are_errors(options: Any, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        TorchRLEnv(ScriptedEnv(MIXED), **options)


def test_rows_start_at_random_phases_and_then_keep_the_limit() -> None:
    scripts = [[Episode(NEVER, TERMINATED)]] * 32
    env = TorchRLEnv(ScriptedEnv(scripts), max_episode_steps=10, random_phase=True)

    def ends(seed: int) -> torch.Tensor:
        env.seed(seed)
        env.reset()
        return torch.cat([env.step(zeros(env))["truncated"] for _ in range(20)], dim=1)

    truncated = ends(5)
    assert truncated[:, :10].sum(1).tolist() == [1] * 32
    assert truncated[:, :10].any(0).sum() > 5
    assert torch.equal(truncated[:, :10], truncated[:, 10:])
    assert torch.equal(truncated, ends(5))
    assert not torch.equal(truncated, ends(6))


@pytest.mark.parametrize(
    "flags",
    [
        ("done",),
        ("done", "terminated"),
        ("done", "truncated"),
        ("terminated", "truncated"),
        ("done", "terminated", "truncated"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"done_is": "truncated"}, {"time_limit": 3}], ids=str)
def test_flags_that_the_environment_overwrites_are_copied(flags: Any, options: Any) -> None:
    env = TorchRLEnv(ScriptedEnv(MIXED, flags=flags), **options)
    check_flags_are_copied(
        env,
        TensorDict(
            {flag: torch.zeros(env.num_envs, 1, dtype=torch.bool) for flag in flags}, [env.num_envs]
        ),
    )


def test_flags_of_exported_rows_are_copied() -> None:
    env = TorchRLEnv(to_torchrl(Walk(3, ends="next step"), invalid_rows="keep"))
    names = ("done", "terminated", "truncated", "valid", "is_init")
    check_flags_are_copied(
        env,
        TensorDict({name: torch.zeros(env.num_envs, 1, dtype=torch.bool) for name in names}, [3]),
    )


def check_flags_are_copied(env: Any, outcome: TensorDict) -> None:
    found = env._endings.read(outcome, outcome)
    before = {key: flag.clone() for key, flag in found.items()}
    for flag in outcome.values():
        flag.logical_not_()
    assert all(torch.equal(flag, before[key]) for key, flag in found.items())
