"""What each topic and group did in a minute, with a mergeable latency sketch."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from broker_gateway.journal.contributor import Contributor
from broker_gateway.journal.journal import Journal
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb

MINUTE_MS = 60_000
_LOG_BASE = math.log(1.04)
_SMALLEST_MS = 1e-3


@dataclass(slots=True)
class _Counters:
    messages: int = 0
    bytes: int = 0
    failures: int = 0
    latency: Counter[int] = field(default_factory=Counter)


class MinuteStatistics:
    """Counts by minute and (topic, consumer group; "" for puts). A call counts in the minute in which it is counted,
    however late the minute before is rolled."""

    def __init__(self) -> None:
        self._minutes: defaultdict[int, defaultdict[tuple[str, str], _Counters]]
        self._minutes = defaultdict(lambda: defaultdict(_Counters))

    def count(
        self,
        topic: str,
        group: str,
        messages: int,
        size: int,
        latency_s: float | None,
        *,
        calls: int = 1,
        failed: bool = False,
    ) -> None:
        """Adds calls: `size` in bytes, `latency_s` in seconds, what each of them took."""
        counters = self._minutes[_minute_ms()][topic, group]
        if failed:
            counters.failures += messages
        else:
            counters.messages += messages
            counters.bytes += size
        if latency_s is not None:
            value = max(latency_s * 1000, _SMALLEST_MS)
            counters.latency[math.ceil(math.log(value) / _LOG_BASE)] += calls

    def roll(self, *, closing: bool = False) -> list[pb.MinuteStats]:
        """The minutes that ended since the last time, as journal messages; with the one that runs, if `closing`."""
        running = None if closing else _minute_ms()
        ended = [minute_ms for minute_ms in self._minutes if minute_ms != running]
        return [
            pb.MinuteStats(
                topic=topic,
                consumer_group=group,
                minute_ms=minute_ms,
                messages=c.messages,
                bytes=c.bytes,
                failures=c.failures,
                latency=pb.LatencySketch(bucket=c.latency.keys(), count=c.latency.values()),
            )
            for minute_ms in ended
            for (topic, group), c in self._minutes.pop(minute_ms).items()
        ]


def _minute_ms() -> int:
    """The minute that runs."""
    at_ms = now_ms()
    return at_ms - at_ms % MINUTE_MS


class MinuteJournal(Contributor):
    """Minutes in the journal, for the lake alone: no start reads them, and what could not be appended is lost.

    Owns `Batch.stats`.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._minutes: list[pb.MinuteStats] = []

    def note(self, minutes: Iterable[pb.MinuteStats]) -> None:
        """Notes minutes, in as many records as they need."""
        for minute in minutes:
            self._journal.make_room(1)
            self._minutes.append(minute)
            self._journal.noted(1)

    def fill(self, record: pb.Batch) -> Sequence[pb.Batch]:
        record.stats.extend(self._minutes)
        return ()

    def written(self) -> None:
        self._minutes.clear()

    def lost(self) -> None:
        self._minutes.clear()

    def apply(self, record: pb.Batch) -> None:
        pass
