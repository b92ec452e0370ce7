"""How much was sent and received lately: sums and rates over a minute, an hour and a day, as the original keeps them.

Counters are copied every 10 s (kept for a minute), every 10 minutes (an hour) and every hour (a day); a figure is the
difference between the newest copy and the oldest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from broker_gateway.metrics import Metrics
from broker_gateway.remoting.errors import RequestError

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


class Figure(NamedTuple):
    """Of a period: how many, how many a second, and of what size on average (1 where nothing has a size)."""

    total: int = 0
    per_second: float = 0.0
    average: float = 0.0


class _Copies:
    """Copies of the counters, the newest last, one each `period_ms`."""

    def __init__(self, period_ms: int, kept: int) -> None:
        self._period_ms = period_ms
        self.kept: deque[tuple[int, dict[str, dict[tuple[str, ...], int]]]] = deque(maxlen=kept)

    def take(self, now_ms: int, counters: Mapping[str, Counters]) -> None:
        if not self.kept or now_ms - self.kept[-1][0] >= self._period_ms * 0.9:
            self.kept.append((now_ms, {name: dict(values) for name, values in counters.items()}))


class Statistics:
    """`sample` is called every 10 s or so."""

    def __init__(self, metrics: Metrics, cluster: str, now_ms: int) -> None:
        self._metrics = metrics
        self._cluster = cluster
        self._periods = [_Copies(_MINUTE, 7), _Copies(_HOUR, 7), _Copies(_DAY, 25)]
        self.sample(now_ms)

    def sample(self, now_ms: int) -> None:
        counters = self._metrics.counters()
        for each in self._periods:
            each.take(now_ms, counters)

    def totals(self) -> dict[str, int]:
        """Sums of the counters by name, since the start."""
        return {name: sum(values.values()) for name, values in self._metrics.counters().items()}

    def figures(self, name: str, key: str) -> list[Figure]:
        """Of the last minute, hour and day. Raises RequestError for statistics that are not kept."""
        counter, parts = _STATISTICS.get(name, ("", -1))
        found = tuple(key.split("@", parts - 1)) if parts > 1 else (key,)
        missing = RequestError(f"The stats <{name[:80]}> <{key[:300]}> not exist")
        if parts < 0 or (parts == 0 and key != self._cluster) or (parts > 0 and len(found) != parts):
            raise missing
        wanted = found if parts else None
        if wanted is not None and wanted not in self._metrics.counters()[counter]:
            raise missing
        return [_figure(list(each.kept), counter, wanted) for each in self._periods]

    def rate(self, counter: str, key: tuple[str, ...]) -> float:
        """Of one key over the last minute, a second."""
        return _figure(list(self._periods[0].kept), counter, key).per_second


def _figure(
    kept: list[tuple[int, dict[str, dict[tuple[str, ...], int]]]], counter: str, key: tuple[str, ...] | None
) -> Figure:
    if len(kept) < 2:
        return Figure()
    (begin_ms, first), (end_ms, last) = kept[0], kept[-1]
    total = _count(last[counter], key) - _count(first[counter], key)
    return Figure(total, total * 1000 / max(end_ms - begin_ms, 1), 1.0 if total else 0.0)


def _count(values: Mapping[tuple[str, ...], int], key: tuple[str, ...] | None) -> int:
    return sum(values.values()) if key is None else values.get(key, 0)
