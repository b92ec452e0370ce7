"""The last half hour of what was polled, in memory: rates, and lag by group and topic."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from broker_gateway.cli.questions.rows import Row

KEPT = 900
"""Points of a line."""
MOST_LINES = 1_000
"""Of lag: beyond it those go of which nothing was taken down for longest."""
Points = deque[tuple[int, float]]
"""Times in ms since the epoch, and values."""


class History:
    """Written by the poll, read by pages: each reading is a copy."""

    def __init__(self) -> None:
        self._lag: OrderedDict[tuple[str, str], Points] = OrderedDict()
        self._rates: dict[str, Points] = {"in": deque(maxlen=KEPT), "out": deque(maxlen=KEPT)}

    def take_rates(self, at_ms: int, incoming: float, outgoing: float) -> None:
        """Messages a second, of all brokers together."""
        self._rates["in"].append((at_ms, incoming))
        self._rates["out"].append((at_ms, outgoing))

    def take_lag(self, at_ms: int, rows: Iterable[Row]) -> None:
        """Rows of `TOTALS`; what is unknown leaves a gap."""
        for row in rows:
            if row["lag"] is None:
                continue
            key = row["consumer_group"], row["topic"]
            points = self._lag.pop(key, None)
            self._lag[key] = points = deque(maxlen=KEPT) if points is None else points
            points.append((at_ms, float(row["lag"])))
        while len(self._lag) > MOST_LINES:
            self._lag.popitem(last=False)

    def rates(self) -> dict[str, list[tuple[int, float]]]:
        """`in` and `out`."""
        return {name: list(points) for name, points in self._rates.items()}

    def lag(self, group: str) -> dict[str, list[tuple[int, float]]]:
        """Of a group, by topic."""
        return {topic: list(points) for (of, topic), points in list(self._lag.items()) if of == group}
