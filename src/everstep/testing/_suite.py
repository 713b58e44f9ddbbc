"""All checks, as a test suite to inherit and as functions that return results."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ..data import Device
from ..env import Env
from . import _checks_asynchronous as asynchronous
from . import _checks_bootstrap as bootstrap
from . import _checks_capture as capture
from . import _checks_episodes as episodes
from . import _checks_final as final
from . import _checks_independence as independence
from . import _checks_lifecycle as lifecycle
from . import _checks_memory as memory
from . import _checks_reset_rows as reset_rows
from . import _checks_rows as rows
from . import _checks_state as state
from ._player import forked_generators
from ._results import CheckResult, NotApplicable, Unplayable, Violation
from ._structure import attempt
from ._subject import Subject

#: A check: returns if an environment follows its rule, and raises otherwise.
Check = Callable[[Subject], None]

#: All checks by name, in the order in which they are worth reading.
CHECKS: dict[str, Check] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        lifecycle.check_process,  # first: later checks may already see changed settings
        rows.check_specs,
        rows.check_rows,
        episodes.check_none_end,
        episodes.check_some_end,
        episodes.check_all_end,
        final.check_final_obs,
        final.check_invalid_rows,
        bootstrap.check_bootstrap,
        lifecycle.check_seed,
        lifecycle.check_reseed,
        lifecycle.check_later_resets,
        lifecycle.check_reset,
        reset_rows.check_reset_rows,
        independence.check_independence,
        memory.check_memory,
        memory.check_actions_unwritten,
        memory.check_action_forms,
        state.check_state,
        capture.check_capturable,
        asynchronous.check_asynchronous,
        lifecycle.check_close,
        rows.check_description,
    )
}


class EnvConformance(Subject):
    """The protocol's rules as tests, for suites to inherit.

    A subclass whose name begins with `Test` implements `make_env`, and pytest runs `test_<name>`
    for each of `CHECKS`. A rule that cannot be observed in an environment is skipped with a reason,
    never passed. The attributes of `Subject` configure the suite.
    """


def _as_test(name: str, check: Check) -> Callable[[EnvConformance], None]:
    def test(self: EnvConformance) -> None:
        try:
            run_check(self, check)
        except NotApplicable as reason:
            import pytest  # here, because the checks themselves do not need it

            pytest.skip(f"not applicable: {reason}")

    test.__name__, test.__doc__ = f"test_{name}", f"See `check_{name}`."
    test.__qualname__ = f"EnvConformance.test_{name}"
    return test


for _name, _check in CHECKS.items():
    setattr(EnvConformance, f"test_{_name}", _as_test(_name, _check))


def run_check(subject: Subject, check: Check) -> None:
    """Run a check; PyTorch's generators are as before when it is done.

    Raises:
        NotApplicable: If the rule does not apply, or the environment cannot be played and another
            check reports it.
        Violation: If the environment breaks the rule.

    """
    try:
        with forked_generators(subject.device):
            check(subject)
    except Unplayable as error:
        owner = CHECKS[error.owner]
        if check is owner or _passes(subject, owner):
            raise
        raise NotApplicable(
            f"the environment cannot be played; see the check `{error.owner}`"
        ) from error


def _passes(subject: Subject, check: Check) -> bool:
    try:
        check(subject)
    except Violation:
        return False
    return True


def run_checks(make_env: Callable[[int, int, Device], Env], **attributes: Any) -> list[CheckResult]:
    """Results of all checks.

    Args:
        make_env: Makes an environment of (num_envs, horizon, device).
        **attributes: Attributes of `Subject`, such as `num_steps=200`.

    Raises:
        TypeError: If `Subject` has no such attribute.

    """
    return list(iterate_checks(make_env, **attributes))


def iterate_checks(
    make_env: Callable[[int, int, Device], Env], **attributes: Any
) -> Iterator[CheckResult]:
    """Iterator of the results of all checks, each run when it is asked for; see `run_checks`."""
    subject = subject_of(make_env, **attributes)
    return (_result(subject, name, check) for name, check in CHECKS.items())


def subject_of(make_env: Callable[[int, int, Device], Env], **attributes: Any) -> Subject:
    """The environment under test; see `run_checks`."""
    subject: Subject = type("Subject", (Subject,), {"make_env": staticmethod(make_env)})()
    for name, value in attributes.items():
        if not hasattr(Subject, name):
            raise TypeError(f"`run_checks` has no option {name!r}.")
        setattr(subject, name, value)
    return subject


def _result(subject: Subject, name: str, check: Check) -> CheckResult:
    rule = (inspect.getdoc(check) or name).splitlines()[0]
    try:
        attempt(f"`{name}`", lambda: run_check(subject, check), Violation)
    except NotApplicable as reason:
        return CheckResult(name, rule, "not applicable", reason=str(reason))
    except Violation as broken:
        return CheckResult(name, rule, "failed", violation=broken)
    return CheckResult(name, rule, "passed")
