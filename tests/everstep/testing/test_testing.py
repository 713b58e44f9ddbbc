"""The conformance suite: the honest pass, and each lie is told by the check that is about it."""

import importlib
import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    TensorSpec,
)

import everstep
from everstep.env import ContinuousDummyEnv, DiscreteDummyEnv, Env
from everstep.errors import EverstepError
from everstep.testing import (
    CHECKS,
    CheckResult,
    EnvConformance,
    Transition,
    oracle_advantages,
    random_actions,
    run_checks,
)
from tests.everstep.testing.lying_envs import (
    LIES,
    CannotBeMade,
    FlatRewards,
    ForgetfulWalk,
    HalvedWalk,
    NextStepWalk,
    Raises,
    Walk,
)

ROOT = Path(__file__).parents[3]


def results(make_env: Any, **attributes: Any) -> dict[str, CheckResult]:
    return {result.name: result for result in run_checks(make_env, **attributes)}


def made_by(cls: Callable[..., Any]) -> Any:
    return lambda num_envs, horizon, device: cls(num_envs, horizon, device=device)


def names_of(found: dict[str, CheckResult], status: str) -> set[str]:
    return {name for name, result in found.items() if result.status == status}


# The law: whoever is honest passes, and what cannot be seen is not passed.


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("cls", "unseen"),
    [
        (Walk, {"invalid_rows", "asynchronous", "independence"}),
        (NextStepWalk, {"asynchronous", "independence"}),
        (ForgetfulWalk, {"invalid_rows", "final_obs", "asynchronous", "independence"}),
        (HalvedWalk, {"invalid_rows", "independence"}),
    ],
)
def test_the_honest_pass(cls: Any, unseen: set[str]) -> None:
    found = results(made_by(cls))
    assert names_of(found, "failed") == set(), found
    assert names_of(found, "not applicable") == unseen
    assert all(found[name].reason for name in unseen)


@pytest.mark.parametrize("cls", [DiscreteDummyEnv, ContinuousDummyEnv])
def test_environments_without_episodes_pass_what_applies_to_them(cls: Any) -> None:
    found = results(made_by(cls))
    assert names_of(found, "failed") == set(), found
    assert names_of(found, "not applicable") == {
        *("none_end", "some_end", "all_end", "final_obs", "invalid_rows"),
        *("seed", "reseed", "reset_rows", "asynchronous", "independence", "description"),
    }


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", ["cartpole.CartPole", "mountain_car.MountainCar", "pendulum.Pendulum"]
)
def test_the_examples_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    module, cls = name.split(".")
    world = getattr(importlib.import_module(f"examples.{module}"), cls)
    found = results(made_by(world), num_envs_choices=(1, 3))
    assert names_of(found, "failed") == set(), found
    assert {"rows", "bootstrap", "memory", "action_forms"} <= names_of(found, "passed")


def test_an_environment_of_a_fixed_batch_passes() -> None:
    found = results(lambda n, h, d: Walk(4, h), num_envs_choices=(4,), exclusive=True)
    assert names_of(found, "failed") == set(), found


class TestWalk(EnvConformance):
    """The suite itself, as its users write it."""

    episodes_end = True

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Env:
        return NextStepWalk(num_envs, horizon, device=device)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
class TestCartPole(EnvConformance):
    """Every autoreset mode, by a fixture of the suite's own."""

    num_envs_choices = (1, 3)

    @pytest.fixture(autouse=True, params=["NEXT_STEP", "SAME_STEP", "DISABLED", None])
    def mode(self, request: pytest.FixtureRequest) -> None:
        self.autoreset_mode = request.param

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Env:
        return everstep.make(
            "gymnasium:CartPole-v1",
            num_envs,
            horizon=horizon,
            device=device,
            autoreset_mode=self.autoreset_mode,
        )


@pytest.mark.gpu
class TestWalkOnDevice(EnvConformance):
    device = "cuda"

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Env:
        return Walk(num_envs, horizon, device=device)


# Lies.


@pytest.fixture
def settings() -> Any:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("name", LIES)
def test_each_lie_is_told_by_the_check_that_is_about_it(name: str) -> None:
    cls, checks = LIES[name]
    found = results(
        made_by(cls),
        reset_config={"wind": 1},
        num_envs_choices=(1, 3),
        num_steps=24,
        horizon=8,
    )
    failed = {k: str(v.violation) for k, v in found.items() if v.violation is not None}
    assert set(failed) == checks, failed


def test_there_is_a_lie_for_every_check() -> None:
    told = set().union(*(checks for _, checks in LIES.values()))
    assert told == set(CHECKS)


# What is told.


def test_a_violation_names_the_thing_the_rule_the_value_and_the_way_out() -> None:
    violation = results(made_by(FlatRewards), num_envs_choices=(2,))["rows"].violation
    assert violation is not None
    assert violation.what == "`rewards`"
    assert violation.received == "[2]"
    for part in (violation.what, violation.rule, violation.received, violation.fix):
        assert part in str(violation)
    assert "[2, 1]" in violation.rule
    assert isinstance(violation, EverstepError)


def test_a_failure_in_the_environment_keeps_its_traceback() -> None:
    violation = results(made_by(Raises), num_envs_choices=(1,))["rows"].violation
    assert violation is not None
    assert "ValueError: lost the thread" in violation.received
    assert isinstance(violation.__cause__, ValueError)


def test_what_rests_on_a_broken_rule_is_not_applicable() -> None:
    found = results(made_by(FlatRewards), num_envs_choices=(2,))
    assert found["bootstrap"].status == "not applicable"
    assert "`rows`" in found["bootstrap"].reason
    found = results(made_by(CannotBeMade))
    assert names_of(found, "failed") == {"specs"}
    assert names_of(found, "passed") == set()


@pytest.mark.parametrize(("num_steps", "expected"), [(3, True), (24, False)])
def test_a_suite_may_say_whether_episodes_end(num_steps: int, expected: bool) -> None:
    found = results(made_by(Walk), num_steps=num_steps, horizon=2, episodes_end=expected)
    violation = found["all_end"].violation
    assert violation is not None
    assert violation.what == "`episodes_end`"
    assert f"{num_steps} vector steps" in violation.received
    right = results(made_by(Walk), num_steps=num_steps, horizon=2, episodes_end=not expected)
    assert right["all_end"].status == ("not applicable" if expected else "passed")


def test_ends_that_were_not_seen_are_not_passed() -> None:
    found = results(made_by(Walk), num_steps=2, horizon=2, num_envs_choices=(2,))
    for name in ("some_end", "all_end", "final_obs"):
        assert found[name].status == "not applicable"
        assert "num_steps" in found[name].reason


def test_actions_may_be_chosen() -> None:
    class Suite(EnvConformance):
        num_steps = 8
        num_envs_choices = (2,)

        def make_env(self, num_envs: int, horizon: int, device: Any) -> Env:
            env = Walk(num_envs, horizon, device=device)
            env.limit += 100
            return env

        def choose_action(self, env: Env, obs: Any, t: int) -> torch.Tensor:
            return obs[:, :1].sign()

    Suite().test_all_end()
    Suite.choose_action = EnvConformance.choose_action  # type: ignore[method-assign]
    with pytest.raises(pytest.skip.Exception, match="not applicable: in 8 vector steps of 2 env"):
        Suite().test_all_end()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("attribute", "value", "check"),
    [
        ("deterministic_by_seed", False, "seed"),
        ("reseedable", False, "reseed"),
        ("resets_draw_new_states", False, "later_resets"),
    ],
)
def test_what_a_suite_leaves_out_is_seen(attribute: str, value: Any, check: str) -> None:
    found = results(made_by(Walk), num_envs_choices=(1,), **{attribute: value})
    assert found[check].status == "not applicable"
    assert attribute in found[check].reason


def test_states_that_are_always_the_same_are_no_lie() -> None:
    class FixedStart(Walk):
        def reset(self, *, config: None | dict[str, Any] = None) -> Any:
            super().reset()
            self.position.zero_()
            return self.observe()

    found = results(made_by(FixedStart), num_envs_choices=(3,), num_steps=24)
    assert names_of(found, "failed") == set()
    assert "same observation" in found["later_resets"].reason


def test_an_option_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(TypeError, match="num_step"):
        run_checks(made_by(Walk), num_step=3)


def test_every_check_is_a_test_and_says_its_rule() -> None:
    tests = {name for name in dir(EnvConformance) if name.startswith("test_")}
    assert tests == {f"test_{name}" for name in CHECKS}
    for check in CHECKS.values():
        rule = (inspect.getdoc(check) or "").splitlines()[0]
        assert rule.endswith(".")
    assert all(result.rule for result in run_checks(made_by(CannotBeMade)))


@pytest.mark.slow
def test_checks_do_without_pytest() -> None:
    program = (
        "import sys, torch; from everstep import DiscreteDummyEnv\n"
        "from everstep.testing import EnvConformance, run_checks\n"
        "run_checks(lambda n, h, d: DiscreteDummyEnv(n, h), num_steps=4)\n"
        "sys.exit('pytest' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_checks_leave_generators_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run_checks(made_by(Walk), num_steps=24)
    assert torch.equal(before, torch.get_rng_state())


# Random actions.


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        (Categorical(4, shape=torch.Size([1])), [[False, True, False, False]]),
        (Categorical(2, shape=torch.Size([2])), [[True, False, False, True]]),
        (MultiCategorical([2, 3]), [[False, True, False, False, True]]),
        (Binary(3, dtype=torch.int8), [[False, False, False]]),
    ],
)
def test_random_actions_are_allowed_ones(spec: TensorSpec, allowed: list[list[bool]]) -> None:
    mask = torch.tensor(allowed).expand(50, -1)
    actions = random_actions(spec, TensorDict({"action_mask": mask}, [50]), 50)
    assert spec.is_in(actions)
    assert len(actions.unique(dim=0)) == 1


def test_actions_of_any_structure_are_drawn() -> None:
    spec = Composite(a=Bounded(-1.0, 1.0, shape=2), b=Categorical(3, shape=torch.Size([1])))
    actions = random_actions(spec, torch.zeros(5, 1), 5)
    assert actions["a"].shape == (5, 2)
    assert actions["b"].shape == (5, 1)


# The oracle: the law, then the number.


def transitions(*ends: bool) -> list[Transition]:
    return [
        Transition(0.5 * t, 1.0 + t, 0.5 * (t + 1) if not end else 0.0, end)
        for t, end in enumerate(ends)
    ]


def test_with_lambda_1_advantages_are_discounted_returns_less_values() -> None:
    rows = transitions(False, False, True)
    found = oracle_advantages(rows, gamma=0.9, gae_lambda=1.0)
    returns = 1 + 0.9 * 2 + 0.81 * 3
    assert found[0] == pytest.approx(returns - 0.0, abs=1e-12)


def test_with_lambda_0_advantages_are_temporal_differences() -> None:
    rows = transitions(False, True, False)
    found = oracle_advantages(rows, gamma=0.9, gae_lambda=0.0)
    assert found == pytest.approx([1 + 0.45, 2 - 0.5, 3 + 0.9 * 1.5 - 1.0], abs=1e-12)


def test_advantages_by_hand() -> None:
    rows: list[None | Transition] = [
        Transition(1.0, 2.0, 3.0, ended=False),  # δ = 2 + 1.5 - 1 = 2.5
        None,  # somebody else's doing: the episode goes on behind it
        Transition(3.0, 0.0, 8.0, ended=True),  # δ = 4 - 3 = 1
        Transition(0.0, 1.0, 2.0, ended=False),  # δ = 2
        Transition(2.0, 9.0, None, ended=True),  # lost
    ]
    found = oracle_advantages(rows, gamma=0.5, gae_lambda=0.5)
    assert found[0] == 2.5 + 0.25 * 1.0
    assert found[2:4] == [1.0, 2.0]
    assert math.isnan(found[1])
    assert math.isnan(found[4])


def test_the_oracle_needs_what_it_compares() -> None:
    """Advantages that ignore truncations are told from the oracle's."""

    def shifted(*arguments: Any, **options: Any) -> torch.Tensor:
        return advantages.bootstrap_values(*arguments, **options).roll(1, 0)

    advantages = importlib.import_module("everstep.core.advantages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everstep.core.fast.rows.bootstrap_values", shifted)
        found = results(made_by(Walk), num_envs_choices=(2,), num_steps=4)
    assert "bootstrap" in names_of(found, "failed")
