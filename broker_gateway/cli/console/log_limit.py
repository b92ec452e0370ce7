"""What the page's library logs of what tabs send has an end: anybody who may open a tab can send what it has no answer for."""

from __future__ import annotations

import logging
import time

MOST = 20
"""Records of these loggers together in a period."""
PERIOD_S = 60.0
_LOGGERS = ("nicegui", "socketio.server", "engineio.server", "uvicorn.error", "asyncio")


class LogLimit(logging.Filter):
    """Takes so many records in a period. The last of them says that others are left out, and the first of a later one how many were."""

    def __init__(self, most: int = MOST, period_s: float = PERIOD_S) -> None:
        super().__init__()
        self._most = most
        self._period_s = period_s
        self._ends_s = 0.0
        self._taken = 0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now >= self._ends_s:
            self._ends_s, self._taken = now + self._period_s, 0
            if self._left_out:
                _add(record, f"{self._left_out:,} records were left out before this one")
                self._left_out = 0
        if self._taken == self._most:
            self._left_out += 1
            return False
        self._taken += 1
        if self._taken == self._most:
            _add(record, f"what else comes within {self._period_s:.0f} s of the first is left out")
        return True


def limit_logs() -> None:
    """Of the libraries that answer tabs, together."""
    limit = LogLimit()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(limit)


def _add(record: logging.LogRecord, said: str) -> None:
    record.msg, record.args = f"{record.getMessage()} ({said})", ()
