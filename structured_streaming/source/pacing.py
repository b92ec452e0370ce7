"""When the reput begins its next batch: as late as its target allows, so that batches are few and files large.

Every batch costs a Spark job and a file of each table, however small it is. So one that would be small waits, until
what it reads first is about to become older than the target, by what the last batches took:

    appended          begin                      in the lake
       |------ waits ---|-------- a batch --------|
       |------------------ at most _SHARE of the target

A batch begins at once when `target_bytes` wait, or when the one before did not take all there was.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_SHARE = 0.75
"""The rest is for batches that take longer than those before."""
_SEEN = 8
"""Batches whose longest the next one is expected to take."""
_FIRST_S = 0.25
_LOOK_S = 0.25
_FLUSH_S = 0.03
"""What a broker may take to flush what was appended until it is asked."""


class Pacing:
    """Of one reader, on the driver. `target_s`: age in seconds at which a record should be in the lake; 0: batches
    begin at once."""

    def __init__(
        self,
        target_s: float,
        target_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._target_s = target_s
        self._target_bytes = target_bytes
        self._clock = clock
        self._sleep = sleep
        self._took_s: deque[float] = deque([_FIRST_S], maxlen=_SEEN)
        self._planned_at: float | None = None
        self._looked_at = clock()
        self._since = float("-inf")
        """Everything older is in the lake, or in the batch that was planned last."""

    def begun(self) -> None:
        """The batch that was planned last has ended, and the next one is asked for."""
        now = self._clock()
        if self._planned_at is not None:
            self._took_s.append(now - self._planned_at)
            self._planned_at = None

    def looking(self) -> None:
        """The logs are about to be asked for their ends."""
        self._looked_at = self._clock()

    def nothing_there(self) -> None:
        """There is nothing that the lake does not hold, as far as one saw."""
        self._since = self._looked_at

    def planned(self, *, took_all: bool) -> None:
        """A batch was planned; whether it takes all that was seen."""
        self._planned_at = self._clock()
        self._since = self._looked_at if took_all else float("-inf")

    def gather(self, waiting_bytes: Callable[[], int]) -> None:
        """Waits until the next batch should begin. `waiting_bytes` looks at the logs, and says what a batch would read;
        after a wait it has looked last of all."""
        if not self._target_s:
            return
        begin = self._since + self._target_s * _SHARE - max(self._took_s)
        waited = False
        while (left_s := begin - self._clock()) > 0 and waiting_bytes() < self._target_bytes:
            waited = True
            # who looks asks brokers to flush: the last look before the end is for that
            self._sleep(min(_LOOK_S, left_s - _FLUSH_S if left_s > 2 * _FLUSH_S else left_s))
        if waited:
            waiting_bytes()
