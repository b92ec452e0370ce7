"""SendMessage: a request's messages, all checked before any is appended, and the reply to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from broker_gateway.api.extensions import AppendHook, run_append_hook
from broker_gateway.api.grpc import shortcuts
from broker_gateway.api.grpc.fields import topic_name
from broker_gateway.api.grpc.put_off_sends import PutOffSends
from broker_gateway.api.grpc.send_checks import (
    MAX_MESSAGES_A_CALL,
    PUT_OFF,
    Limits,
    check_types,
    has_placed,
    message_group_of,
    peer_of,
    pending_records,
    place_key,
    priority_of,
    type_of,
)
from broker_gateway.api.grpc.status import status, status_of, summary
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.broker_properties import BrokerProperties
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.lite_topics import LiteTopics
from broker_gateway.messaging.ordered_sends import OrderedSends, Place
from broker_gateway.messaging.outcome import OK, Outcome, Reason, ServiceError
from broker_gateway.messaging.produce import PendingBatch, Producer
from broker_gateway.metadata.catalog import Topic
from broker_gateway.metadata.message_types import accepts
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.reply import Reply
from broker_gateway.transport.context import CallContext
from broker_gateway.transport.request_limits import limits_of, parser
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

if TYPE_CHECKING:
    from broker_gateway.api.grpc.send_columns import SendColumns

log = structlog.get_logger(__name__)
_parse = parser(rpc.SendMessageRequest, limits_of("/apache.rocketmq.v2.MessagingService/SendMessage"))


@dataclass(slots=True, eq=False)
class _Call(PendingBatch):
    """A call, the ids that its clients gave its messages, and what those that wait can be recalled by."""

    message_ids: list[bytes] = field(default_factory=list)
    recall_handles: list[str] = field(default_factory=list)
    answer: Reply[bytes] = field(default_factory=Reply)

    def finish(self, outcome: Outcome) -> None:
        try:
            if outcome is OK and not self.recall_handles:
                reply = shortcuts.sent(self.message_ids, self.offsets)
            elif self.offsets:
                reply = send_response(
                    status(outcome), self.message_ids, self.offsets, self.recall_handles
                ).SerializeToString()
            else:
                reply = rpc.SendMessageResponse(status=status(outcome)).SerializeToString()
        except Exception as error:
            log.exception("an answer could not be made", call="SendMessage", topic=self.topic)
            reply = rpc.SendMessageResponse(status=status_of(error)).SerializeToString()
        self.answer.set(reply)


class SendService:
    """Takes requests of producers apart, usual ones in compiled code."""

    def __init__(
        self,
        config: GatewayConfig,
        producer: Producer,
        ordered: OrderedSends,
        put_off: PutOffSends,
        lite_topics: LiteTopics,
        append_hooks: Sequence[AppendHook] = (),
    ) -> None:
        self._producer = producer
        self._ordered = ordered
        self._put_off = put_off
        self._lite_topics = lite_topics
        self._under_way: set[asyncio.Task[None]] = set()
        self._append_hooks = append_hooks
        self._limits = Limits.of(config)
        self._brokers = BrokerProperties.of_config(config)
        self._columns: SendColumns | None = None

    def load_compiled(self) -> None:
        """Loads the shortcut for usual requests; takes a second, several the first time on a machine.

        To be called by another thread than the event loop's; until then all requests go the plain path.
        """
        from broker_gateway.api.grpc.send_columns import SendColumns

        if self._append_hooks:
            return  # hooks are given messages, which the shortcut does not make
        columns = SendColumns(self._limits)
        self._producer.load_compiled()
        self._columns = columns

    def send(self, request: bytes, context: CallContext) -> Reply[bytes]:
        """The reply's bytes, once what came in this tick of the event loop was appended, all in one go.

        `request` is a SendMessageRequest. Raises ServiceError when nothing of the call was taken, RpcError when
        the request is none.
        """
        columns, now, peer = self._columns, now_ms(), context.peer
        self._producer.check(peer, now)
        call = None if columns is None else self._usual(columns, request, peer, now)
        if call is None:
            return self._plain(request, peer, now)
        self._producer.produce(call)
        return call.answer

    def handed_over(self, request: bytes, topic: str, queue_id: int, peer: str) -> Reply[bytes]:
        """The same of messages for a queue of this broker's that came to another broker from `peer`. The reply counts in no
        bulkhead."""
        now = now_ms()
        self._producer.check(peer, now)
        messages = self._messages(request)
        known = self._producer.topic(topic_name(messages[0].topic))
        try:
            if known.name != topic or place_key(messages, self._limits) is None:
                raise ServiceError(
                    Reason.BAD_REQUEST,
                    f"what is handed over for topic {shown(topic)} is not messages of a message group or lite topic of it",
                )
            self._producer.check_queue(known, queue_id)
            call = self._checked(known, messages, peer, now, Reply(), queue_id)
        except ServiceError:
            self._producer.failed(known.name, len(messages))
            raise
        self._producer.produce(call)
        return call.answer

    def _usual(self, columns: SendColumns, request: bytes, peer: str, now: int) -> _Call | None:
        """The call, when it is a usual one, without an object for each of its messages."""
        usual = columns.take(request, peer_of(peer), now)
        if usual is None:
            return None
        topic = self._producer.topic(usual.topic)
        if not accepts(topic, "NORMAL"):
            return None  # the plain path says which are taken
        records = usual.records
        try:
            records.queue_id = self._producer.queue(topic)
        except ServiceError:
            self._producer.failed(topic.name, len(records))
            raise
        records.topic = topic.name
        records.tail = self._brokers.encoded(topic.name)
        answer: Reply[bytes] = Reply(None, self._producer.bulkhead, peer)
        return _Call(topic.name, records, usual.body_bytes, message_ids=usual.message_ids, answer=answer)

    def _messages(self, request: bytes) -> Sequence[pb.Message]:
        messages: Sequence[pb.Message] = _parse(request).messages
        if not messages:
            raise ServiceError(
                Reason.MESSAGE_CORRUPTED, "no message to send; put at least one in the request"
            )
        if len(messages) > MAX_MESSAGES_A_CALL:
            raise ServiceError(
                Reason.PAYLOAD_TOO_LARGE,
                f"{len(messages)} messages in one call, at most {MAX_MESSAGES_A_CALL} are taken; send fewer",
            )
        return messages

    def _plain(self, request: bytes, source: str, now: int) -> Reply[bytes]:
        """A request that is not a usual one."""
        messages = self._messages(request)
        topic = self._producer.topic(topic_name(messages[0].topic))
        answer: Reply[bytes] = Reply(None, self._producer.bulkhead, source)
        try:
            key = None
            if has_placed(messages):
                check_types(topic, messages)
                key = place_key(messages, self._limits)
            if key is None:
                self._producer.produce(self._checked(topic, messages, source, now, answer))
                return answer
        except BaseException as error:
            answer.abandon()
            if isinstance(error, ServiceError):
                self._producer.failed(topic.name, len(messages))
            raise
        sending = partial(self._send_placed, topic.name, key, messages, request, source, answer)
        self._ordered.when_known(topic, sending)
        return answer

    def _checked(
        self,
        topic: Topic,
        messages: Sequence[pb.Message],
        source: str,
        now: int,
        answer: Reply[bytes],
        queue_id: int | None = None,
    ) -> _Call:
        """The call for a queue of this broker: that one, that of its priority, or the next. Raises ServiceError."""
        peer = peer_of(source)
        for hook in self._append_hooks:
            run_append_hook(hook, messages, f"{peer.host.ip}:{peer.host.port}")
        check_types(topic, messages)
        message_group_of(messages, self._limits)  # hooks may have changed it
        kind = type_of(messages[0].system_properties)
        if kind == pb.LITE:
            self._lite_topics.check_room(topic, [each.system_properties.lite_topic for each in messages])
        if queue_id is None:
            queue_id = self._queue(topic, messages)
        records, message_ids = pending_records(
            topic, queue_id, messages, peer, self._limits, now, self._brokers
        )
        size = sum([len(record.body) for record in records])
        handles: list[str] = []
        if kind in PUT_OFF:
            records, handles = self._put_off.records(kind, messages, records, now)
        return _Call(
            topic.name, records, size, message_ids=message_ids, recall_handles=handles, answer=answer
        )

    def _queue(self, topic: Topic, messages: Sequence[pb.Message]) -> int:
        """The queue of this broker for a call's messages. Raises ServiceError."""
        priority = priority_of(messages)
        return (
            self._producer.queue(topic)
            if priority is None
            else self._producer.priority_queue(topic, priority)
        )

    def _send_placed(
        self,
        topic_name: str,
        key: str,
        messages: Sequence[pb.Message],
        request: bytes,
        source: str,
        answer: Reply[bytes],
    ) -> None:
        """Sends to the queue of a message group or lite topic: here, or at another broker, which checks and runs its hooks."""
        if answer.done:  # nobody waits: a client that sends it again must not find it overtaken
            return
        try:
            topic = self._producer.topic(topic_name)  # it may be gone, or another, by now
            check_types(topic, messages)
            place = self._ordered.place(topic, key)
            if not place.broker:
                call = self._checked(topic, messages, source, now_ms(), answer, place.queue_id)
                self._producer.produce(call)
                return
        except Exception as error:
            self._fail(topic_name, len(messages), answer, error)
            return
        handing = self._hand_over(topic_name, place, request, source, len(messages), answer)
        task = asyncio.create_task(handing, name="hand over")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _hand_over(
        self, topic: str, place: Place, request: bytes, source: str, count: int, answer: Reply[bytes]
    ) -> None:
        try:
            answer.set(await self._ordered.hand_over(place, topic, request, source))
        except Exception as error:
            self._fail(topic, count, answer, error)

    def _fail(self, topic: str, count: int, answer: Reply[bytes], error: Exception) -> None:
        if not isinstance(error, ServiceError):
            log.exception("a call failed", call="SendMessage", topic=topic)
        self._producer.failed(topic, count)
        answer.set(rpc.SendMessageResponse(status=status_of(error)).SerializeToString())


def send_response(
    status: pb.Status,
    message_ids: Sequence[bytes],
    offsets: Iterable[int],
    recall_handles: Sequence[str] = (),
) -> rpc.SendMessageResponse:
    """A reply whose entries all have the same status."""
    handles = recall_handles or [""] * len(message_ids)
    return rpc.SendMessageResponse(
        status=summary([status]),
        entries=[
            rpc.SendResultEntry(
                status=status, message_id=each, transaction_id=each, offset=offset, recall_handle=handle
            )
            for each, offset, handle in zip(map(bytes.decode, message_ids), offsets, handles, strict=True)
        ],
    )
