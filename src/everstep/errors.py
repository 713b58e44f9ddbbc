"""Exceptions, all derived from `EverstepError`.

Each also derives from the built-in exception for the same mistake, so that code that catches
`ValueError` or `RuntimeError` keeps working.
"""

from collections.abc import Sequence
from typing import Any

from .core.plain_files import printable


class EverstepError(Exception):
    """Base class of Everstep's exceptions.

    Names and values in a message may be those of a stranger's file: control characters, which a
    terminal would obey, are written as escapes.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*(printable(x) if isinstance(x, str) else x for x in arguments))


class ConfigError(EverstepError, ValueError):
    """A configuration breaks one or more rules; the message lists all of them.

    Args:
        problems: One message per broken rule.

    """

    #: One message per broken rule.
    problems: tuple[str, ...]

    def __init__(self, problems: str | Sequence[str]) -> None:
        given = (problems,) if isinstance(problems, str) else problems
        self.problems = tuple(map(printable, given))
        super().__init__("\n".join(self.problems))


class EnvError(EverstepError, RuntimeError):
    """An environment violated its protocol, or failed in `step`."""


class NonFiniteError(EnvError):
    """An environment returned NaN or infinity."""


class DivergedError(EverstepError, RuntimeError):
    """All gradients of an update were NaN or infinite, so no optimizer step was taken."""


class NotBufferedError(EverstepError, RuntimeError):
    """`Algorithm.step` was called before `Algorithm.collect`."""


class RankError(EverstepError, RuntimeError):
    """Another rank of the training failed, or has ended, so this one cannot go on.

    Args:
        reason: The rank and its error.
        trace: The traceback of that rank; empty if there is none.

    """

    #: The rank and its error, without the traceback.
    reason: str

    def __init__(self, reason: str, trace: str = "") -> None:
        self.reason = printable(reason)
        super().__init__(f"{reason}\n\nThere:\n{trace}".rstrip() if trace else reason)


class CheckpointError(EverstepError, RuntimeError):
    """A saved policy or checkpoint is unreadable, or does not fit the object that loads it."""


class ExportError(EverstepError, RuntimeError):
    """A policy cannot be exported because its model does more than PyTorch operations."""


class AdapterError(EverstepError, TypeError):
    """No adapter supports this object, or an adapter cannot represent part of it."""
