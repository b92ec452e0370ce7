"""Where several logs end now, asked together by who reads them up to there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from store.log.erased import NOTHING, Offsets
from store.log_source import LogSource, LogState
from structured_streaming.erased import Erased
from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source.access import Access
from structured_streaming.source.logs import by_broker, open_log
from structured_streaming.source.name_servers import NameServers

FLUSH_WAIT_MS = 5000
"""For the flush of what a broker has answered to already."""


class Asked(NamedTuple):
    """`logs`: target and state of each by broker. `away`: why some do not answer, or do not tell what of them is erased. `erased`: records
    of each log that ever told them; of those in `logs`, as of their state there."""

    logs: dict[str, tuple[str, LogState]]
    away: list[SourceError]
    erased: Erased


class _Answer(NamedTuple):
    state: LogState
    erased: Offsets


class _Open:
    """A log, and whose turn it is where it is read from a folder, which one thread at a time may."""

    def __init__(self, target: str, access: Access) -> None:
        self.log = open_log(target, access)
        self._turn = threading.Lock() if target.startswith("store:") else contextlib.nullcontext()

    def asked(self, erased: Callable[[LogSource, LogState], Offsets]) -> _Answer:
        with self._turn:
            state = _flushed(self.log)
            return _Answer(state, erased(self.log, state))


class LogEnds:
    """The logs at `targets`, which stay open, and those that name servers know at the time, which are asked each time. Several threads may
    ask.

    `tell` gets a line about what name servers do not tell: once, or with `repeats` each time.
    """

    def __init__(
        self,
        targets: Sequence[str],
        access: Access,
        name_servers: Sequence[str] = (),
        tell: Callable[[str], None] = lambda line: None,
        *,
        repeats: bool = False,
    ) -> None:
        self._named = targets
        self._targets = targets
        self._access = access
        self._name_servers = NameServers(name_servers) if name_servers else None
        self._tell = tell
        self._repeats = repeats
        self._told: set[str] = set()
        self._opening = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._erased: dict[tuple[str, str], tuple[int, Offsets]] = {}

    def now(self) -> Asked:
        """Every record that a broker had when it was asked is readable.

        By path only the broker says what is readable, and is not asked: the newest may be as old as its flush interval.
        Raises SourceError when one does not answer, or name servers know none.
        """
        found = self.asked()
        if found.away:
            said = "; ".join(map(str, found.away))
            raise UnreachableError(
                f"{said}; start what is down, leave it out of the logs that are read, or read the tables alone"
            )
        return found

    def asked(self) -> Asked:
        """As `now`, with those that do not answer. Raises SourceError when name servers know none."""
        targets = self._looked()
        with ThreadPoolExecutor(len(targets)) as pool:
            answers = dict(zip(targets, pool.map(self._ask, targets), strict=True))
        told = {target: each for target, each in answers.items() if isinstance(each, _Answer)}
        erased = dict(self.erased().by_log)
        erased |= {(each.state.broker, each.state.log_id): each.erased for each in told.values()}
        return Asked(
            by_broker({target: each.state for target, each in told.items()}),
            [each for each in answers.values() if isinstance(each, SourceError)],
            Erased(erased),
        )

    def erased(self) -> Erased:
        """The erased records of each log that ever told them, as it did last."""
        return Erased({log: offsets for log, (_, offsets) in list(self._erased.items())})

    def _looked(self) -> Sequence[str]:
        """The targets of now; while no name server answers, those that were known before."""
        known = self._targets
        if self._name_servers is None:
            return known
        try:
            found = self._name_servers.look()
        except SourceError as error:
            if not known:
                raise
            self._tell_once(f"{error}; the brokers that were known are read")
            return known
        for line in found.left_out.values():
            self._tell_once(line)
        self._targets = targets = list(dict.fromkeys([*self._named, *found.targets.values()]))
        if not targets:
            reasons = "".join(f"; {each}" for each in found.left_out.values())
            raise SourceError(f"the name servers know no lakebroker{reasons}")
        return targets

    def _tell_once(self, line: str) -> None:
        if self._repeats or line not in self._told:
            self._told.add(line)
            self._tell(line)

    def close(self) -> None:
        """Gives back what it holds."""
        for each in self._open.values():
            each.log.close()
        self._open.clear()

    def _ask(self, target: str) -> _Answer | SourceError:
        try:
            with self._opening:
                if (opened := self._open.get(target)) is None:
                    opened = self._open[target] = _Open(target, self._access)
            return opened.asked(self._erased_of)
        except SourceError as error:
            return error

    def _erased_of(self, log: LogSource, state: LogState) -> Offsets:
        """Raises SourceError."""
        known, offsets = self._erased.get((state.broker, state.log_id), (0, NOTHING))
        if state.erased_version != known:
            offsets = log.erased(state.log_id) if state.erased_version else NOTHING
            self._erased[state.broker, state.log_id] = state.erased_version, offsets
        return offsets


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
