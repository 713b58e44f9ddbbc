"""Python's trace function for a block."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def traced(trace: Callable[..., Any]) -> Iterator[None]:
    """Context with a trace function; the one before it, such as coverage's, is put back."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
