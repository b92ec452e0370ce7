"""What a broker says of itself: DescribeBroker."""

from __future__ import annotations

import shutil

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.factory import Messaging
from broker_gateway.observability.dispatch_lag import DispatchLag
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.running_version import RUNNING
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb
from store.message_store import MessageStore


class DescribedBroker:
    """One broker; it is made when the broker starts."""

    def __init__(
        self, config: GatewayConfig, store: MessageStore, parts: Messaging, dispatch_lag: DispatchLag
    ) -> None:
        self._role = config.store.broker_role
        self._store = store
        self._parts = parts
        self._lag = dispatch_lag
        self._started_ms = now_ms()

    def now(self) -> pb.DescribeBrokerResponse:
        """Raises OSError when the disk cannot be looked at."""
        store, lag, parts = self._store, self._lag, self._parts
        disks = {folder.stat().st_dev: shutil.disk_usage(folder) for folder in store.folders}.values()
        answer = pb.DescribeBrokerResponse(
            cluster=store.cluster,
            broker=store.broker,
            version=RUNNING,
            role=self._role,
            started_ms=self._started_ms,
            log_id=store.log_id,
            min_offset=store.min_offset,
            max_offset=store.max_offset,
            flushed_offset=store.flushed_offset,
            disk_total=sum(each.total for each in disks),
            disk_free=sum(each.free for each in disks),
            hours_left=lag.hours_left,
            waiting_messages=parts.timers.count,
            half_messages=parts.transactions.count,
        )
        if lag.behind_bytes is not None:
            answer.behind_bytes = lag.behind_bytes
            answer.behind_records = lag.behind_records
            answer.behind_s = lag.behind_s
        return answer
