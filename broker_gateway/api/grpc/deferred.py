"""EndTransaction and RecallMessage."""

from __future__ import annotations

from collections.abc import Callable

from broker_gateway.api.grpc.fields import topic_name
from broker_gateway.api.grpc.status import status
from broker_gateway.messaging.delays import Delays
from broker_gateway.messaging.outcome import OK, Outcome, Reason, ServiceError
from broker_gateway.messaging.resources import Resources
from broker_gateway.messaging.transactions import Resolution, Transactions
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

_RESOLUTIONS = {pb.COMMIT: Resolution.COMMIT, pb.ROLLBACK: Resolution.ROLLBACK}


class DeferredService:
    """Translates both calls. Each answers once what it did is kept; it raises ServiceError when it did nothing."""

    def __init__(self, delays: Delays, transactions: Transactions, resources: Resources) -> None:
        self._delays = delays
        self._transactions = transactions
        self._resources = resources

    def end_transaction(
        self, request: rpc.EndTransactionRequest, answer: Callable[[rpc.EndTransactionResponse], None]
    ) -> None:
        topic = topic_name(request.topic)
        self._resources.check_topic(topic)
        if not request.transaction_id.strip():
            raise ServiceError(
                Reason.INVALID_TRANSACTION_ID,
                "the transaction id is empty; use that of the send or of the check",
            )
        self._transactions.end(
            topic,
            request.transaction_id,
            _RESOLUTIONS.get(request.resolution, Resolution.UNKNOWN),
            lambda outcome: answer(rpc.EndTransactionResponse(status=status(outcome))),
            from_check=request.source == pb.SOURCE_SERVER_CHECK,
        )

    def recall(
        self, request: rpc.RecallMessageRequest, answer: Callable[[rpc.RecallMessageResponse], None]
    ) -> None:
        topic = self._resources.known_topic(topic_name(request.topic)).name

        def done(outcome: Outcome, message_id: str) -> None:
            recalled = message_id if outcome is OK else ""
            answer(rpc.RecallMessageResponse(status=status(outcome), message_id=recalled))

        self._delays.recall(topic, request.recall_handle, done)
