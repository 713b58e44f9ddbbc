"""Errors of benchmarks."""

from everstep.errors import EverstepError


class BenchmarkError(EverstepError, RuntimeError):
    """A benchmark cannot run here."""


class PeerError(BenchmarkError):
    """A side of a benchmark could not be started, failed, or did not answer in time.

    Args:
        peer: The side's name.
        python: Its interpreter.
        what: The failure, and how to fix it.

    """

    #: The side's name.
    peer: str

    #: Its interpreter.
    python: str

    def __init__(self, peer: str, python: str, what: str) -> None:
        self.peer, self.python = peer, python
        super().__init__(f"{peer} ({python}): {what}")
