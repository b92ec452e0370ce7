"""What a broker says of itself: DescribeBroker."""

from __future__ import annotations

import shutil
from importlib.metadata import version

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.factory import Messaging
from broker_gateway.observability.dispatch_lag import DispatchLag
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb
from store.message_store import MessageStore


class DescribedBroker:
    """One broker; it is made when the broker starts."""

    def __init__(
        self, config: GatewayConfig, store: MessageStore, parts: Messaging, dispatch_lag: DispatchLag
    ) -> None:
        self._root = config.store.store_path_root_dir
        self._role = config.store.broker_role
        self._store = store
        self._parts = parts
        self._lag = dispatch_lag
        self._started_ms = now_ms()
        self._version = version("lakebroker")  # it is looked up in files

    def now(self) -> pb.DescribeBrokerResponse:
        """Raises OSError when the disk cannot be looked at."""
        store, lag, parts = self._store, self._lag, self._parts
        disk = shutil.disk_usage(self._root)
        answer = pb.DescribeBrokerResponse(
            cluster=store.cluster,
            broker=store.broker,
            version=self._version,
            role=self._role,
            started_ms=self._started_ms,
            log_id=store.log_id,
            min_offset=store.min_offset,
            max_offset=store.max_offset,
            flushed_offset=store.flushed_offset,
            disk_total=disk.total,
            disk_free=disk.free,
            hours_left=lag.hours_left,
            waiting_messages=parts.timers.count,
            half_messages=parts.transactions.count,
        )
        if lag.behind_bytes is not None:
            answer.behind_bytes = lag.behind_bytes
            answer.behind_records = lag.behind_records
            answer.behind_s = lag.behind_s
        return answer
