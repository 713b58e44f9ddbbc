"""Conformance checks of the environment protocol.

`EnvConformance` is a test suite to inherit, `run_checks` the same as a function, and the command
`everstep check` runs them on an installed environment. Only `EnvConformance`'s tests need pytest.
"""

from ._oracle import Transition, known_values, oracle_advantages, transitions_of
from ._player import Row
from ._results import CheckResult, NotApplicable, Violation
from ._subject import Subject, random_actions
from ._suite import CHECKS, EnvConformance, iterate_checks, run_checks

__all__ = [
    "CHECKS",
    "CheckResult",
    "EnvConformance",
    "NotApplicable",
    "Row",
    "Subject",
    "Transition",
    "Violation",
    "iterate_checks",
    "known_values",
    "oracle_advantages",
    "random_actions",
    "run_checks",
    "transitions_of",
]
