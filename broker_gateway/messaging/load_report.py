"""Water marks: how many calls of each kind are under way, and how late the event loop is (the original's `printWaterMark`).

The original logs every queue every second. Here a kind of call is logged when it rises above `HIGH` of its capacity and
when it is below `LOW` again; all of them at the log level debug, and in the metrics at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from broker_gateway.messaging.admission import Admission, Bulkhead

log = structlog.get_logger(__name__)
HIGH = 0.8
LOW = 0.5


class LoadReport:
    """`check` every `period_s` seconds, by the event loop's clock."""

    def __init__(
        self, admission: Admission, period_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._admission = admission
        self._period_s = period_s
        self._clock = clock
        self._last: float | None = None
        self._high: set[str] = set()
        self.late_s = 0.0
        """How much later than due the last check came: what every call waited then."""

    def check(self) -> None:
        now = self._clock()
        if self._last is not None:
            self.late_s = max(now - self._last - self._period_s, 0.0)
        self._last = now
        for bulkhead in self._admission.bulkheads():
            self._mark(bulkhead)
        log.debug(
            "water marks",
            late_ms=round(self.late_s * 1000, 1),
            **{
                bulkhead.name.replace(" ", "_"): bulkhead.under_way
                for bulkhead in self._admission.bulkheads()
            },
        )

    def _mark(self, bulkhead: Bulkhead) -> None:
        known = bulkhead.name in self._high
        if not known and bulkhead.under_way > bulkhead.capacity * HIGH:
            self._high.add(bulkhead.name)
            log.warning(
                "many calls are under way",
                kind=bulkhead.name,
                count=bulkhead.under_way,
                capacity=bulkhead.capacity,
            )
        elif known and bulkhead.under_way < bulkhead.capacity * LOW:
            self._high.discard(bulkhead.name)
            log.info("fewer calls are under way again", kind=bulkhead.name, count=bulkhead.under_way)
