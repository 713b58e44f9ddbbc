"""Results of checks: passed, a violation of a rule, or not applicable with a reason."""

from dataclasses import dataclass
from typing import Literal

from ..errors import EverstepError


class Violation(EverstepError, AssertionError):
    """An environment breaks a rule of the protocol.

    Args:
        what: The thing that is wrong, such as `rewards`.
        rule: The rule that it breaks.
        received: Its value.
        fix: How to fix it.

    """

    #: The thing that is wrong, such as `rewards`.
    what: str

    #: The rule that it breaks.
    rule: str

    #: Its value.
    received: str

    #: How to fix it.
    fix: str

    def __init__(self, what: str, rule: str, received: object, fix: str) -> None:
        self.what, self.rule, self.received, self.fix = what, rule, str(received), fix
        super().__init__(f"{what}: {rule} Received: {self.received}. {fix}")


class Unplayable(Violation):
    """A violation that other checks depend on: the environment cannot be played at all."""

    #: Name of the check that reports it.
    owner = "rows"


class Unresettable(Unplayable):
    """An environment cannot be reset."""

    owner = "reset"


class Unmakeable(Unplayable):
    """An environment cannot be made, or lacks what it needs to be played."""

    owner = "specs"


class NotApplicable(Exception):
    """A rule does not concern this environment, or what was played does not show it."""


@dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    #: Name of the check; `EnvConformance` has it as `test_<name>`.
    name: str

    #: The rule that was checked.
    rule: str

    #: Result.
    status: Literal["passed", "failed", "not applicable"]

    #: Why the rule does not apply.
    reason: str = ""

    #: The broken rule.
    violation: None | Violation = None
