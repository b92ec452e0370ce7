"""Sends of messages that consumers do not get at once: with a delivery time, or of a transaction."""

from __future__ import annotations

from collections.abc import Sequence

from broker_gateway.api.grpc.send_checks import delivery_ms, recovery_s
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.delays import Delays
from broker_gateway.messaging.transactions import Transactions
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from store.log.record import PendingRecord


class PutOffSends:
    """Makes what is stored of such messages until their time has come."""

    def __init__(self, config: GatewayConfig, delays: Delays, transactions: Transactions) -> None:
        self._delays = delays
        self._transactions = transactions
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._longest_recovery_s = config.proxy.max_transaction_recovery_second

    def records(
        self,
        kind: pb.MessageType,
        messages: Sequence[pb.Message],
        records: Sequence[PendingRecord],
        now: int,
    ) -> tuple[list[PendingRecord], list[str]]:
        """Records to store for a call's messages, which are all of that type, and their recall handles. Raises ServiceError."""
        if kind == pb.TRANSACTION:
            self._transactions.check_room(len(records), _size(records))
            return self._halves(messages, records, now), []
        dues = [self._due(message, now) for message in messages]
        waiting = [record for record, due in zip(records, dues, strict=True) if due > now]
        self._delays.check_room(len(waiting), _size(waiting))
        stored, handles = [], []
        for message, record, due in zip(messages, records, dues, strict=True):
            stored.append(self._delays.put_off(record, due, now))
            message_id = message.system_properties.message_id
            handles.append(self._delays.recall_handle(record.topic, due, message_id) if due > now else "")
        return stored, handles

    def _halves(
        self, messages: Sequence[pb.Message], records: Sequence[PendingRecord], now: int
    ) -> list[PendingRecord]:
        halves = []
        for message, record in zip(messages, records, strict=True):
            system = message.system_properties
            if system.HasField("delivery_timestamp"):
                self._due(message, now)
            seconds = recovery_s(system, self._longest_recovery_s)
            halves.append(self._transactions.half(record, system.message_id, seconds))
        return halves

    def _due(self, message: pb.Message, now: int) -> int:
        due = delivery_ms(message.system_properties)
        self._delays.check(due, now)
        return due


def _size(records: Sequence[PendingRecord]) -> int:
    return sum(len(each.body) + len(each.properties) for each in records)
