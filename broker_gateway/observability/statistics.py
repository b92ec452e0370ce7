"""How much was sent and received lately: sums and rates over a minute, an hour and a day, as the original keeps them.

Counters only grow, in keys and values. They are copied every 10 s (kept for a minute), every 10 minutes (an hour) and every hour (a day); a figure is the
difference between the newest copy and the oldest.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from broker_gateway.observability.metrics import Metrics

Counters = Mapping[tuple[str, ...], int]
_MINUTE, _HOUR, _DAY = 10_000, 600_000, 3_600_000
_STATISTICS = {
    "TOPIC_PUT_NUMS": ("messages_in", 1),
    "TOPIC_PUT_SIZE": ("bytes_in", 1),
    "GROUP_GET_NUMS": ("messages_out", 2),
    "GROUP_GET_SIZE": ("bytes_out", 2),
    "GROUP_ACK_NUMS": ("acked", 2),
    "BROKER_PUT_NUMS": ("messages_in", 0),
    "BROKER_GET_NUMS": ("messages_out", 0),
}
"""RocketMQ's names: which counter, and of how many names its key is made (`topic@group`); 0: of the cluster's."""


class UnknownStatisticsError(Exception):
    """Statistics that are not kept; the text names them."""


class Figure(NamedTuple):
    """Of a period: how many, how many a second, and of what size on average (1 where nothing has a size)."""

    total: int = 0
    per_second: float = 0.0
    average: float = 0.0


class _Counts(NamedTuple):
    """A counter's values at a time, in the order in which its keys came."""

    values: array[int]
    total: int

    def of(self, position: int | None) -> int:
        """Of the key at that position; None: of all."""
        if position is None:
            return self.total
        return self.values[position] if position < len(self.values) else 0


Copy = Mapping[str, _Counts]


class _Copies:
    """Copies of the counters, the newest last, one each `period_ms`."""

    def __init__(self, period_ms: int, kept: int) -> None:
        self._period_ms = period_ms
        self.kept: deque[tuple[int, Copy]] = deque(maxlen=kept)

    def is_due(self, now_ms: int) -> bool:
        return not self.kept or now_ms - self.kept[-1][0] >= self._period_ms * 0.9


class Statistics:
    """`sample` is called every 10 s or so, with the time by a clock that never goes back."""

    def __init__(self, metrics: Metrics, cluster: str, now_ms: int) -> None:
        self._metrics = metrics
        self._cluster = cluster
        self._positions: dict[str, dict[tuple[str, ...], int]] = {}
        self._newest: Copy = {}
        self._periods = [_Copies(_MINUTE, 7), _Copies(_HOUR, 7), _Copies(_DAY, 25)]
        self.sample(now_ms)

    def sample(self, now_ms: int) -> None:
        due = [each for each in self._periods if each.is_due(now_ms)]
        if not due:
            return
        self._newest = {name: self._copy(name, values) for name, values in self._metrics.counters().items()}
        for each in due:
            each.kept.append((now_ms, self._newest))

    def _copy(self, name: str, values: Counters) -> _Counts:
        """Shared with the copy before where nothing was counted since."""
        positions = self._positions.setdefault(name, {})
        for key in itertools.islice(values, len(positions), None):
            positions[key] = len(positions)
        found = array("q", values.values())
        before = self._newest.get(name)
        return before if before is not None and before.values == found else _Counts(found, sum(found))

    def totals(self) -> dict[str, int]:
        """Sums of the counters by name, since the start."""
        return {name: sum(values.values()) for name, values in self._metrics.counters().items()}

    def figures(self, name: str, key: str) -> list[Figure]:
        """Of the last minute, hour and day. Raises UnknownStatisticsError."""
        counter, parts = _STATISTICS.get(name, ("", -1))
        found = tuple(key.split("@", parts - 1)) if parts > 1 else (key,)
        missing = UnknownStatisticsError(f"The stats <{name[:80]}> <{key[:300]}> not exist")
        if parts < 0 or (parts == 0 and key != self._cluster) or (parts > 0 and len(found) != parts):
            raise missing
        wanted = found if parts else None
        if wanted is not None and wanted not in self._metrics.counters()[counter]:
            raise missing
        return [self._figure(list(each.kept), counter, wanted) for each in self._periods]

    def rate(self, counter: str, key: tuple[str, ...] | None) -> float:
        """Of one key, None: of all, over the last minute, a second."""
        return self._figure(list(self._periods[0].kept), counter, key).per_second

    def _figure(self, kept: list[tuple[int, Copy]], counter: str, key: tuple[str, ...] | None) -> Figure:
        position = self._positions[counter].get(key) if key is not None else None
        if len(kept) < 2 or (key is not None and position is None):
            return Figure()
        (begin_ms, first), (end_ms, last) = kept[0], kept[-1]
        total = last[counter].of(position) - first[counter].of(position)
        return Figure(total, total * 1000 / max(end_ms - begin_ms, 1), 1.0 if total else 0.0)
