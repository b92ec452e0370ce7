"""Messages stored and delivered since the start, since midnight, and yesterday: the original's `BrokerStats`."""

from __future__ import annotations

from broker_gateway.metrics import Metrics


class BrokerStatistics:
    """`record` at midnight; what was before the start counts as nothing."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._put_midnight_before = self._put_midnight = 0
        self._get_midnight_before = self._get_midnight = 0

    def record(self) -> None:
        """A day ended."""
        self._put_midnight_before, self._put_midnight = self._put_midnight, self._metrics.messages_in
        self._get_midnight_before, self._get_midnight = self._get_midnight, self._metrics.messages_out

    @property
    def put_today(self) -> int:
        return self._metrics.messages_in - self._put_midnight

    @property
    def put_yesterday(self) -> int:
        return self._put_midnight - self._put_midnight_before

    @property
    def get_today(self) -> int:
        return self._metrics.messages_out - self._get_midnight

    @property
    def get_yesterday(self) -> int:
        return self._get_midnight - self._get_midnight_before
