"""Processes of environments that end with the process that made them, also if that is killed."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

#: Seconds between two looks at the parent.
_PERIOD = 1.0


class EndsWithParent:
    """A function that makes an environment; the process it is called in ends with its parent.

    In the process that made this object, it only calls the function.

    Args:
        make: The function.

    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._maker = os.getpid()

    def __call__(self, **kwargs: Any) -> Any:
        """The environment."""
        if os.getpid() != self._maker:
            watch = threading.Thread(target=_watch, args=[os.getppid()], daemon=True)
            watch.start()
        return self._make(**kwargs)


def _watch(parent: int) -> None:
    """End this process once it has another parent: its own has ended."""
    while os.getppid() == parent:
        time.sleep(_PERIOD)
    os._exit(1)
