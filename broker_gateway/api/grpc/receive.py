"""ReceiveMessage: a request's wishes, and the reply: status, messages, delivery timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_gateway.api.grpc import shortcuts
from broker_gateway.api.grpc.fields import (
    client_id_of,
    duration_ms,
    filter_of,
    group_name,
    patience_of,
    topic_name,
)
from broker_gateway.api.grpc.status import status
from broker_gateway.messaging.long_polling import LongPolling
from broker_gateway.messaging.outcome import Outcome, Reason
from broker_gateway.messaging.poll import Poll, Polls, UsualWriter, Wanted
from broker_gateway.messaging.stored_message import StoredMessage
from broker_gateway.runtime.reply import Reply
from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

if TYPE_CHECKING:
    from broker_gateway.api.grpc.receive_columns import ReceiveColumns

Response = rpc.ReceiveMessageResponse | bytes


class ReceiveService:
    """Reads requests of consumers and writes what they get; the ReplyWriter of gRPC."""

    def __init__(self, polls: Polls, long_polling: LongPolling) -> None:
        self._polls = polls
        self._long_polling = long_polling
        self._columns: ReceiveColumns | None = None

    def load_compiled(self) -> None:
        """Loads the shortcut for usual messages, some seconds the first time on a machine. To be called on a thread."""
        from broker_gateway.api.grpc.receive_columns import ReceiveColumns

        self._columns = ReceiveColumns()

    def receive(
        self, request: rpc.ReceiveMessageRequest, context: CallContext, request_timeout_ms: int | None
    ) -> Reply[list[Response]]:
        """Status, messages, delivery timestamp; raises ServiceError when the call cannot be served."""
        self._long_polling.check(context.peer)
        wanted = _wanted(request, context, request_timeout_ms)
        return self._long_polling.receive(self._polls.make(wanted, self))

    @property
    def usual(self) -> UsualWriter | None:
        """In compiled code, once it is loaded."""
        return None if self._columns is None else self._columns.take

    def message(
        self, stored: StoredMessage, topic: str, handle: str, attempt: int, invisible_ms: int
    ) -> bytes:
        """One response."""
        return shortcuts.received(stored, topic, handle, attempt, invisible_ms)

    def answer(self, poll: Poll, outcome: Outcome, now_ms: int) -> None:
        """All responses of the call."""
        if outcome.reason is Reason.OK:
            poll.reply.set([shortcuts.RECEIVE_OK, *poll.messages, shortcuts.delivered_at(now_ms)])
            return
        refused = rpc.ReceiveMessageResponse(status=status(outcome))
        if outcome.reason is Reason.MESSAGE_NOT_FOUND:
            poll.reply.set([refused, shortcuts.delivered_at(now_ms)])
        else:
            poll.reply.set([refused])


def _wanted(
    request: rpc.ReceiveMessageRequest, context: CallContext, request_timeout_ms: int | None
) -> Wanted:
    """What a request asks for. Raises ServiceError for a malformed one."""
    client_id = client_id_of(context)
    invisible = request.invisible_duration
    return Wanted(
        topic_name(request.message_queue.topic),
        group_name(request.group),
        filter_of(request.filter_expression),
        request.batch_size,
        None
        if request.auto_renew
        else duration_ms(invisible, "the invisible duration", Reason.ILLEGAL_INVISIBLE_TIME),
        client_id,
        request.attempt_id,
        context.peer,
        patience_of(request, context, request_timeout_ms),
    )
