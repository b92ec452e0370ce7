"""Events that come in masses: logged every `LOG_EVERY_S`, each counted in one of the lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from broker_gateway.runtime.delayed_report import DelayedReport, kept

LOG_EVERY_S = 10.0


class RateLimitedLog:
    """One kind of event. A line tells under the name `counted` how many came since the last line."""

    def __init__(self, counted: str) -> None:
        self._counted = counted
        self._untold = 0
        self._logged: float | None = None
        self._line: Callable[..., object] | None = None
        self._rest = DelayedReport(lambda _: self._tell())

    def happened(self, line: Callable[..., object], event: str, **details: Any) -> None:
        """Logs by `line`, such as `log.warning`: at once, or, with the details of the last one, when it is time."""
        self._untold += 1
        wait = 0.0 if self._logged is None else self._logged + LOG_EVERY_S - time.monotonic()
        if wait <= 0:
            self._line = partial(line, event, **details)
            self._tell()
        else:
            self._line = partial(line, event, **kept(details))
            self._rest.within(wait)

    def _tell(self) -> None:
        self._rest.cancel()
        line, count = self._line, self._untold
        self._line, self._untold, self._logged = None, 0, time.monotonic()
        if line is not None:
            line(**{self._counted: count})
