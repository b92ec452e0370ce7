"""What the page's library logs of what tabs send has an end: anybody who may open a tab can send what it has no answer for."""

from __future__ import annotations

import logging
import time

from broker_gateway.runtime.printable import printable

MOST = 20
"""Records of one level of one logger in a period."""
PERIOD_S = 60.0
MOST_CHARACTERS = 2_000
"""Of a record, beside its traceback."""
_LOGGERS = ("nicegui", "socketio.server", "engineio.server", "uvicorn.error", "asyncio")


class _Count:
    """Of a logger's records of a level."""

    def __init__(self) -> None:
        self.ends_s = 0.0
        self.taken = 0
        self.left_out = 0


class LogLimit(logging.Filter):
    """Takes so many records in a period, of each logger and level, so that warnings that tabs cause hide no error of the server. The
    last of them says that others are left out, and the first of a later period how many were."""

    def __init__(self, most: int = MOST, period_s: float = PERIOD_S) -> None:
        super().__init__()
        self._most = most
        self._period_s = period_s
        self._counts: dict[tuple[str, int], _Count] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _bounded(record.getMessage()), ()
        now = time.monotonic()
        count = self._counts.setdefault((record.name, record.levelno), _Count())
        if now >= count.ends_s:
            count.ends_s, count.taken = now + self._period_s, 0
            if count.left_out:
                _add(record, f"{count.left_out:,} records were left out before this one")
                count.left_out = 0
        if count.taken == self._most:
            count.left_out += 1
            return False
        count.taken += 1
        if count.taken == self._most:
            _add(record, f"what else comes within {self._period_s:.0f} s of the first is left out")
        return True


def limit_logs() -> None:
    """Of the libraries that answer tabs."""
    limit = LogLimit()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(limit)


def _bounded(text: str) -> str:
    """Fit for a terminal, whoever wrote it."""
    return printable(text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ...")


def _add(record: logging.LogRecord, said: str) -> None:
    record.msg = f"{record.msg} ({said})"
