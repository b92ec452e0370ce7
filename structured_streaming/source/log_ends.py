"""Where several logs end now, asked together by who reads them up to there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from store.log_source import LogSource, LogState
from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source.access import Access
from structured_streaming.source.logs import by_broker, open_log
from structured_streaming.source.name_servers import NameServers

FLUSH_WAIT_MS = 5000
"""For the flush of what a broker has answered to already."""


class LogEnds:
    """The logs at `targets`, which stay open, and those that name servers know at the time, which are asked each time.

    `tell` gets a line about what name servers do not tell, once.
    """

    def __init__(
        self,
        targets: Sequence[str],
        access: Access,
        name_servers: Sequence[str] = (),
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._named = targets
        self._targets = targets
        self._access = access
        self._name_servers = NameServers(name_servers) if name_servers else None
        self._tell = tell
        self._told: set[str] = set()
        self._open: dict[str, LogSource] = {}

    def now(self) -> dict[str, tuple[str, LogState]]:
        """Target and state of each log by broker; every record that a broker had when it was asked is readable.

        By path only the broker says what is readable, and is not asked: the newest may be as old as its flush interval.
        Raises SourceError when one does not answer, or name servers know none.
        """
        self._look()
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

    def _look(self) -> None:
        """While no name server answers, those count that were known before."""
        if self._name_servers is None:
            return
        try:
            found = self._name_servers.look()
        except SourceError as error:
            if not self._targets:
                raise
            self._tell_once(f"{error}; the brokers that were known are read")
            return
        for line in found.left_out.values():
            self._tell_once(line)
        self._targets = list(dict.fromkeys([*self._named, *found.targets.values()]))
        if not self._targets:
            reasons = "".join(f"; {each}" for each in found.left_out.values())
            raise SourceError(f"the name servers know no lakebroker{reasons}")

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)

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
