"""What a check can say: nothing, that a rule is broken, or why the rule does not apply."""

from dataclasses import dataclass
from typing import Literal

from ..errors import EverstepError


class Violation(EverstepError, AssertionError):
    """An environment breaks a rule of the protocol.

    Args:
        what: The thing that is wrong, such as `rewards`.
        rule: What it has to be.
        received: What it is.
        fix: What to do about it.

    """

    #: The thing that is wrong, such as `rewards`.
    what: str

    #: What it has to be.
    rule: str

    #: What it is.
    received: str

    #: What to do about it.
    fix: str

    def __init__(self, what: str, rule: str, received: object, fix: str) -> None:
        self.what, self.rule, self.received, self.fix = what, rule, str(received), fix
        super().__init__(f"{what}: {rule} Received: {self.received}. {fix}")


class Unplayable(Violation):
    """A broken rule that other checks rest on: an environment cannot be played at all."""

    #: Name of the check that is about this rule.
    told_by = "rows"


class Unresettable(Unplayable):
    """An environment cannot be reset."""

    told_by = "reset"


class Unmakeable(Unplayable):
    """An environment cannot be made, or lacks what it needs to be played."""

    told_by = "specs"


class NotApplicable(Exception):
    """A rule says nothing about this environment, or nothing that was seen shows it."""


@dataclass(frozen=True)
class CheckResult:
    """What came out of one check."""

    #: Name of the check; `EnvConformance` has it as `test_<name>`.
    name: str

    #: The rule that was checked.
    rule: str

    #: What came out.
    status: Literal["passed", "failed", "not applicable"]

    #: Why it does not apply.
    reason: str = ""

    #: The broken rule.
    violation: None | Violation = None
