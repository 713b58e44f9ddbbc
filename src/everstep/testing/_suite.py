"""All checks: as a suite to inherit, and as a function that returns what came out."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ..data import Device
from ..env import Env
from ._checks_asynchronous import check_asynchronous
from ._checks_bootstrap import check_bootstrap
from ._checks_capture import check_capturable
from ._checks_episodes import check_all_end, check_none_end, check_some_end
from ._checks_final import check_final_obs, check_invalid_rows
from ._checks_lifecycle import (
    check_close,
    check_later_resets,
    check_process,
    check_reseed,
    check_reset,
    check_seed,
)
from ._checks_memory import check_action_forms, check_actions_unwritten, check_memory
from ._checks_rows import check_description, check_rows, check_specs
from ._checks_state import check_state
from ._player import forked_generators
from ._results import CheckResult, NotApplicable, Unplayable, Violation
from ._subject import Subject

#: A check: returns where an environment obeys its rule, and raises otherwise.
Check = Callable[[Subject], None]

#: All checks by name, in the order in which they are worth reading.
CHECKS: dict[str, Check] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_process,  # first, for what others see may have been set by then
        check_specs,
        check_rows,
        check_none_end,
        check_some_end,
        check_all_end,
        check_final_obs,
        check_invalid_rows,
        check_bootstrap,
        check_seed,
        check_reseed,
        check_later_resets,
        check_reset,
        check_memory,
        check_actions_unwritten,
        check_action_forms,
        check_state,
        check_capturable,
        check_asynchronous,
        check_close,
        check_description,
    )
}


class EnvConformance(Subject):
    """The protocol's rules as tests, for suites to inherit.

    A subclass whose name begins with `Test` says how its environment is made, and pytest runs one
    test a rule. What cannot be seen in an environment is skipped, with the reason: it is never
    passed. The attributes of `Subject` say what a suite expects.
    """

    def test_specs(self) -> None:
        """See `check_specs`."""
        _test(self, check_specs)

    def test_rows(self) -> None:
        """See `check_rows`."""
        _test(self, check_rows)

    def test_none_end(self) -> None:
        """See `check_none_end`."""
        _test(self, check_none_end)

    def test_some_end(self) -> None:
        """See `check_some_end`."""
        _test(self, check_some_end)

    def test_all_end(self) -> None:
        """See `check_all_end`."""
        _test(self, check_all_end)

    def test_final_obs(self) -> None:
        """See `check_final_obs`."""
        _test(self, check_final_obs)

    def test_invalid_rows(self) -> None:
        """See `check_invalid_rows`."""
        _test(self, check_invalid_rows)

    def test_bootstrap(self) -> None:
        """See `check_bootstrap`."""
        _test(self, check_bootstrap)

    def test_seed(self) -> None:
        """See `check_seed`."""
        _test(self, check_seed)

    def test_reseed(self) -> None:
        """See `check_reseed`."""
        _test(self, check_reseed)

    def test_later_resets(self) -> None:
        """See `check_later_resets`."""
        _test(self, check_later_resets)

    def test_reset(self) -> None:
        """See `check_reset`."""
        _test(self, check_reset)

    def test_memory(self) -> None:
        """See `check_memory`."""
        _test(self, check_memory)

    def test_actions_unwritten(self) -> None:
        """See `check_actions_unwritten`."""
        _test(self, check_actions_unwritten)

    def test_action_forms(self) -> None:
        """See `check_action_forms`."""
        _test(self, check_action_forms)

    def test_state(self) -> None:
        """See `check_state`."""
        _test(self, check_state)

    def test_capturable(self) -> None:
        """See `check_capturable`."""
        _test(self, check_capturable)

    def test_asynchronous(self) -> None:
        """See `check_asynchronous`."""
        _test(self, check_asynchronous)

    def test_close(self) -> None:
        """See `check_close`."""
        _test(self, check_close)

    def test_process(self) -> None:
        """See `check_process`."""
        _test(self, check_process)

    def test_description(self) -> None:
        """See `check_description`."""
        _test(self, check_description)


def _test(subject: Subject, check: Check) -> None:
    """Run a check as a test.

    Raises:
        Violation: Where the environment breaks the rule.
        pytest.skip.Exception: Where the rule does not apply.

    """
    try:
        run_check(subject, check)
    except NotApplicable as reason:
        import pytest  # whoever runs tests has it; checks themselves do without

        pytest.skip(f"not applicable: {reason}")


def run_check(subject: Subject, check: Check) -> None:
    """Run a check; PyTorch's generators are as before when it is done.

    Raises:
        NotApplicable: Where the rule does not apply, or the environment cannot be played and
            another check says so.
        Violation: Where the environment breaks the rule.

    """
    try:
        with forked_generators(subject.device):
            check(subject)
    except Unplayable as error:
        owner = CHECKS[error.told_by]
        if check is owner or _passes(subject, owner):
            raise
        raise NotApplicable(
            f"the environment cannot be played, as the check `{error.told_by}` says"
        ) from error


def _passes(subject: Subject, check: Check) -> bool:
    try:
        check(subject)
    except Violation:
        return False
    return True


def run_checks(make_env: Callable[[int, int, Device], Env], **attributes: Any) -> list[CheckResult]:
    """What comes out of every check.

    Args:
        make_env: Makes an environment of (num_envs, horizon, device).
        **attributes: Attributes of `Subject`, such as `num_steps=200`.

    Raises:
        TypeError: Where `Subject` has no such attribute.

    """
    return list(iterate_checks(make_env, **attributes))


def iterate_checks(
    make_env: Callable[[int, int, Device], Env], **attributes: Any
) -> Iterator[CheckResult]:
    """What comes out of one check after the other, each made when it is asked for.

    See `run_checks`.
    """
    subject = _Given(make_env, attributes)
    return (_result(subject, name, check) for name, check in CHECKS.items())


class _Given(Subject):
    def __init__(
        self, make_env: Callable[[int, int, Device], Env], attributes: dict[str, Any]
    ) -> None:
        for name, value in attributes.items():
            if not hasattr(Subject, name):
                raise TypeError(f"`run_checks` has no option {name!r}.")
            setattr(self, name, value)
        self._make_env = make_env

    def make_env(self, num_envs: int, horizon: int, device: Device) -> Env:
        return self._make_env(num_envs, horizon, device)


def _result(subject: Subject, name: str, check: Check) -> CheckResult:
    rule = (inspect.getdoc(check) or name).splitlines()[0]
    try:
        run_check(subject, check)
    except NotApplicable as reason:
        return CheckResult(name, rule, "not applicable", reason=str(reason))
    except Violation as broken:
        return CheckResult(name, rule, "failed", violation=broken)
    except Exception as error:  # of the environment, in a place where nobody expects it
        received = f"{type(error).__name__}: {error}"
        raised = Violation(f"`{name}`", "Nothing must be raised.", received, "Mend what raises.")
        return CheckResult(name, rule, "failed", violation=raised)
    return CheckResult(name, rule, "passed")
