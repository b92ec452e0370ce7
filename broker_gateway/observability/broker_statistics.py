"""Messages stored and delivered since the start, since midnight, and yesterday: the original's `BrokerStats`."""

from __future__ import annotations

from broker_gateway.observability.metrics import Metrics


class BrokerStatistics:
    """`record` at midnight; what was before the start counts as nothing.

    `put` and `get` are totals since the start, as they are now, were at the last midnight, and at the one before.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.put_midnight_before = self.put_midnight = 0
        self.get_midnight_before = self.get_midnight = 0

    @property
    def put(self) -> int:
        return self._metrics.messages_in

    @property
    def get(self) -> int:
        return self._metrics.messages_out

    def record(self) -> None:
        """A day ended."""
        self.put_midnight_before, self.put_midnight = self.put_midnight, self.put
        self.get_midnight_before, self.get_midnight = self.get_midnight, self.get

    @property
    def put_today(self) -> int:
        return self.put - self.put_midnight

    @property
    def put_yesterday(self) -> int:
        return self.put_midnight - self.put_midnight_before

    @property
    def get_today(self) -> int:
        return self.get - self.get_midnight

    @property
    def get_yesterday(self) -> int:
        return self.get_midnight - self.get_midnight_before
