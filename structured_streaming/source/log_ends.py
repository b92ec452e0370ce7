"""Where several logs end now, asked together by who reads them up to there."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from store.log_source import LogSource, LogState
from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source.access import Access
from structured_streaming.source.logs import by_broker, open_log

FLUSH_WAIT_MS = 5000
"""For the flush of what a broker has answered to already."""


class LogEnds:
    """The logs at `targets`, which stay open."""

    def __init__(self, targets: Sequence[str], access: Access) -> None:
        self._targets = targets
        self._access = access
        self._open: dict[str, LogSource] = {}

    def now(self) -> dict[str, tuple[str, LogState]]:
        """Target and state of each log by broker; every record that a broker had when it was asked is readable.

        By path only the broker says what is readable, and is not asked: the newest may be as old as its flush interval.
        Raises SourceError when one does not answer.
        """
        with ThreadPoolExecutor(len(self._targets)) as pool:
            answers = list(pool.map(self._ask, self._targets))
        failed = [answer for answer in answers if isinstance(answer, SourceError)]
        if failed:
            said = "; ".join(map(str, failed))
            raise UnreachableError(
                f"{said}; start what is down, leave it out of the logs that are read, or read the tables alone"
            )
        return by_broker(
            {
                target: answer
                for target, answer in zip(self._targets, answers, strict=True)
                if isinstance(answer, LogState)
            }
        )

    def close(self) -> None:
        """Gives back what it holds."""
        for log in self._open.values():
            log.close()
        self._open.clear()

    def _ask(self, target: str) -> LogState | SourceError:
        try:
            if target not in self._open:
                self._open[target] = open_log(target, self._access)
            return _flushed(self._open[target])
        except SourceError as error:
            return error


def _flushed(log: LogSource) -> LogState:
    """Its state when all that is written now can be read. Raises SourceError."""
    state = log.describe()
    written = state.written
    if written is None or state.end >= written:
        return state
    state = log.describe(FLUSH_WAIT_MS, written - 1)
    if state.end < written:
        raise UnreachableError(
            f"broker {log.address} did not flush {written - state.end} bytes within {FLUSH_WAIT_MS} ms"
        )
    return state
