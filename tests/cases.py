"""Cases of one law: some for the README's test command, all for `.ci/run`."""

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], fast: int) -> list[Any]:
    """Parameters of a test; all but `fast` of them, evenly spread, are marked `slow`."""
    cases = [*cases]
    step = max(1, len(cases) // fast)
    chosen = {*range(0, len(cases), step)}
    return [
        case
        if i in chosen
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for i, case in enumerate(cases)
    ]
