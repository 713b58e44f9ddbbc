"""The time of records, which does not go back."""

import time


class Clock:
    """Seconds since the epoch that never decrease, also if the machine's clock is set back.

    What was set back is added from then on, so that differences stay those of elapsed time. A
    clock that is set forward, or a machine that slept, is followed.

    Args:
        after: Time that the first one does not go below, seconds since the epoch.

    """

    def __init__(self, after: float = 0.0) -> None:
        self._shift = 0.0
        self._last = after
        self._elapsed = time.monotonic()

    def __call__(self) -> float:
        """The time now."""
        now, elapsed = time.time() + self._shift, time.monotonic()
        if now < self._last:
            back = self._last + (elapsed - self._elapsed) - now
            self._shift, now = self._shift + back, now + back
        self._last, self._elapsed = now, elapsed
        return now
