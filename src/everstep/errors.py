"""Every error that Everstep raises for its users, in one tree.

Each also inherits the built-in error that the same mistake would raise elsewhere, so code that
catches `ValueError` or `RuntimeError` keeps working.
"""

from collections.abc import Sequence


class EverstepError(Exception):
    """Base of every error that Everstep raises for its users."""


class ConfigError(EverstepError, ValueError):
    """A configuration breaks a rule; lists every broken rule, not just the first.

    Args:
        problems: One message a broken rule.

    """

    #: One message a broken rule.
    problems: tuple[str, ...]

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class EnvError(EverstepError, RuntimeError):
    """An environment broke its protocol, or failed while it was stepped."""


class NonFiniteError(EnvError):
    """An environment returned NaN or infinity."""


class DivergedError(EverstepError, RuntimeError):
    """Every gradient of an update was NaN or infinite, so no optimizer step was taken."""


class NotBufferedError(EverstepError, RuntimeError):
    """`Algorithm.step` was called before `Algorithm.collect`."""


class CheckpointError(EverstepError, RuntimeError):
    """A saved policy or checkpoint cannot be read, or does not fit what it is loaded into."""


class ExportError(EverstepError, RuntimeError):
    """A policy cannot be exported: its model is not made of PyTorch operations alone."""


class AdapterError(EverstepError, TypeError):
    """No adapter can wrap this object, or the adapter cannot represent part of it."""
