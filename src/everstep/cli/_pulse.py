"""Signs of life of connected processes, in the launcher's store.

A process that is stopped, or in code that holds Python's lock, cannot say so: each rank looks at
the next one instead. A rank that ends properly says that it may be silent from then on.
"""

import math
import os
import signal
import socket
from contextlib import suppress

from ._processes import tell, told


class Pulse:
    """The signs of life of this process.

    Args:
        patience: Seconds that the others wait for the next sign.

    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._count = 0

    def give(self, patience: None | float = None) -> None:
        """Give a sign; `patience` is remembered, if given."""
        self.patience = self.patience if patience is None else patience
        self._count += 1
        tell(f"{self._count} {self.patience} {os.getpid()} {socket.gethostname()}")


class NextRank:
    """The rank after this one, as far as its signs of life tell."""

    def __init__(self) -> None:
        self.rank = (int(os.environ["RANK"]) + 1) % int(os.environ["WORLD_SIZE"])
        self._sign, self._silence = "", 0.0

    def is_lost(self, elapsed: float) -> bool:
        """Whether it has been silent for too long.

        Args:
            elapsed: Seconds that count as passed since the last call: the clock would also count
                those in which this process was stopped itself.

        """
        sign = told(self.rank)
        self._silence = 0.0 if sign != self._sign else self._silence + elapsed
        self._sign = sign
        return self._silence > self.patience

    @property
    def patience(self) -> float:
        """Seconds that it may be silent."""
        return float(self._sign.split()[1]) if self._sign else math.inf

    def end(self) -> bool:
        """Kill it; False if it is not a process of the same launcher."""
        import psutil

        _, _, pid, host = self._sign.split(maxsplit=3)
        with suppress(psutil.Error, OSError):
            is_ours = psutil.Process(int(pid)).ppid() == os.getppid()
            if host == socket.gethostname() and is_ours:
                os.kill(int(pid), getattr(signal, "SIGKILL", signal.SIGTERM))
                return True
        return False
