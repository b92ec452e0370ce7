"""Events that come in masses, and when one of them is to be logged."""

from __future__ import annotations

import time

LOG_EVERY_S = 10.0


class Seldom:
    """Counts events; lets one through every `LOG_EVERY_S`."""

    def __init__(self) -> None:
        self._since = 0
        self._logged: float | None = None

    def count(self) -> int:
        """How many came since the last that was logged, this one too; 0 while it is not yet time for another."""
        self._since += 1
        now = time.monotonic()
        if self._logged is not None and now - self._logged < LOG_EVERY_S:
            return 0
        count, self._since, self._logged = self._since, 0, now
        return count
