"""QueryMessage and AdminSendMessage."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from broker_gateway.api.grpc.admin import scroll_ids
from broker_gateway.api.grpc.admin.requests import Named, time_ms
from broker_gateway.api.grpc.admin.scroll_ids import Scroll
from broker_gateway.api.grpc.codec import to_message
from broker_gateway.api.grpc.fields import filter_of
from broker_gateway.api.grpc.send_checks import MESSAGE_ID_MAX_LENGTH
from broker_gateway.api.grpc.status import OK
from broker_gateway.messaging.checks import check_key, check_text, shown
from broker_gateway.messaging.message_queries import MAX_PAGE, FoundMessage, MessageQueries, Page, Position
from broker_gateway.messaging.message_search import LATEST_MS, Wanted
from broker_gateway.messaging.offsets import check_queue_id
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.catalog import Topic
from broker_gateway.runtime.clock import monotonic_s
from broker_gateway.runtime.reply import Reply
from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2

PAGE = 32
"""Messages of a page that does not say how many."""
QUERY_S = 20.0
"""Pages that a query passes over to get to one by its number are looked for this long."""
_KEY_MAX_LENGTH = 32_767


class FoundMessages:
    """Messages of a topic, looked up."""

    def __init__(self, queries: MessageQueries) -> None:
        self._queries = queries

    async def one(self, topic: Topic, wanted: Wanted) -> FoundMessage:
        """The newest that is wanted. MESSAGE_NOT_FOUND, and what `MessageQueries.page` raises."""
        position: Position | None = None
        deadline = monotonic_s() + QUERY_S
        while True:
            page = await self.page(topic, wanted, 1, position, deadline)
            if page.messages:
                return page.messages[0]
            position = page.following
            if position is None:
                raise _not_found(topic, wanted)

    async def page(
        self, topic: Topic, wanted: Wanted, most: int, position: Position | None, deadline: float
    ) -> Page:
        """PROXY_TIMEOUT behind the deadline."""
        if monotonic_s() > deadline:
            raise ServiceError(
                Reason.PROXY_TIMEOUT,
                "the messages before those asked for are too many to be looked through in one call; narrow the time range, "
                "or go on by scroll_id",
            )
        return await self._queries.page(topic, wanted, most, position)


class MessageAdmin:
    """Looks messages up, and sends some."""

    def __init__(
        self,
        named: Named,
        broker: str,
        found: FoundMessages,
        send: Callable[[bytes, CallContext], Reply[bytes]],
    ) -> None:
        """`send` takes a SendMessageRequest and gives its response; raises ServiceError."""
        self._named = named
        self._broker = broker
        self._found = found
        self._send = send

    async def query(self, request: rpc.ListMessageRequest) -> rpc.ListMessageResponse:
        """The newest first. `scroll_id` is empty at the end; until then a page may have fewer messages, or none."""
        topic = self._named.topic(request.topic)
        wanted = self._wanted(request, topic)
        size = _size(request)
        if request.HasField("page_num"):
            return await self._numbered(request, topic, wanted, size)
        scroll = scroll_ids.decode(request.scroll_id) if request.scroll_id else None
        position, given = (None, 0) if scroll is None else scroll
        most = size if not request.max_message_nums else min(size, request.max_message_nums - given)
        if most <= 0:
            return rpc.ListMessageResponse(status=OK)
        page = await self._found.page(topic, wanted, most, position, monotonic_s() + QUERY_S)
        given += len(page.messages)
        ended = page.following is None or 0 < request.max_message_nums <= given
        if ended and not given and (wanted.key is not None or wanted.message_id is not None):
            raise _not_found(topic, wanted)
        response = rpc.ListMessageResponse(status=OK, messages=map(message_of, page.messages))
        if page.following is not None and not ended:
            response.scroll_id = scroll_ids.encode(Scroll(page.following, given))
        return response

    async def _numbered(
        self, request: rpc.ListMessageRequest, topic: Topic, wanted: Wanted, size: int
    ) -> rpc.ListMessageResponse:
        """A page by its number, from 1 on: for few pages, since those before it are looked through again."""
        number = request.page_num
        if request.scroll_id:
            raise ServiceError(Reason.BAD_REQUEST, "page_num and scroll_id are both given; give one of them")
        if number < 1:
            raise ServiceError(Reason.BAD_REQUEST, f"page_num {number} is no page; they count from 1")
        if number * size > MAX_PAGE:
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"page {number} of {size} messages ends behind the first {MAX_PAGE}; go on by scroll_id there",
            )
        skip, end = (number - 1) * size, number * size
        if request.max_message_nums:
            end = min(end, request.max_message_nums)
        deadline = monotonic_s() + QUERY_S
        found: list[FoundMessage] = []
        seen, position = 0, None
        while seen < end:
            page = await self._found.page(topic, wanted, end - seen, position, deadline)
            found += page.messages[max(skip - seen, 0) :]
            seen += len(page.messages)
            position = page.following
            if position is None:
                break
        if not seen and (wanted.key is not None or wanted.message_id is not None):
            raise _not_found(topic, wanted)
        response = rpc.ListMessageResponse(status=OK, messages=map(message_of, found))
        if response.ByteSize() > _ANSWER_BYTES and len(found) > 1:
            raise ServiceError(
                Reason.PAYLOAD_TOO_LARGE,
                f"{len(found)} messages have {response.ByteSize()} bytes; ask for smaller pages, or go on by scroll_id",
            )
        return response

    def _wanted(self, request: rpc.ListMessageRequest, topic: Topic) -> Wanted:
        """Raises ServiceError."""
        begin, end = time_ms(request, "begin_timestamp"), time_ms(request, "end_timestamp")
        if begin is not None and end is not None and begin > end:
            raise ServiceError(
                Reason.BAD_REQUEST, f"begin_timestamp ({begin} ms) is behind end_timestamp ({end} ms)"
            )
        if request.broker_name not in ("", self._broker):
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"broker_name {shown(request.broker_name)} is another broker, this one is {self._broker}; ask there",
            )
        if request.max_message_nums < 0:
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"max_message_nums {request.max_message_nums} is negative; give 0 for all, or more",
            )
        wanted = Wanted(begin or 0, LATEST_MS if end is None else min(end, LATEST_MS))
        if request.HasField("queue_id"):
            check_queue_id(topic.name, request.queue_id, topic.queues)
            wanted = wanted._replace(queue_id=request.queue_id)
        kind = request.WhichOneof("search_key")
        if kind == "message_id":
            _check_id(request.message_id)
            return wanted._replace(message_id=request.message_id)
        if kind == "message_key":
            _check_key(request.message_key)
            return wanted._replace(key=request.message_key)
        if kind == "subscription":
            expression = pb.FilterExpression(type=pb.TAG, expression=request.subscription)
            return wanted._replace(tags=filter_of(expression))
        if kind == "lite_topic":
            if not request.lite_topic.strip():
                raise ServiceError(
                    Reason.ILLEGAL_LITE_TOPIC, "lite_topic is empty; name one, or leave it out"
                )
            return wanted._replace(lite_topic=request.lite_topic)
        return wanted

    async def send(
        self, request: rpc.AdminSendMessageRequest, context: CallContext
    ) -> rpc.AdminSendMessageResponse:
        """As SendMessage of one message, whose id is made here unless it has one."""
        message = _message(request)
        asked = service_pb2.SendMessageRequest(messages=[message])
        sent = service_pb2.SendMessageResponse.FromString(
            await self._send(asked.SerializeToString(), context)
        )
        response = rpc.AdminSendMessageResponse(status=sent.status)
        if sent.status.code == pb.OK:
            response.message_id = sent.entries[0].message_id
        return response


_ANSWER_BYTES = 4 << 20


def message_of(found: FoundMessage) -> pb.Message:
    """A message that is looked at: without what belongs to a delivery."""
    message = to_message(
        found.record.topic,
        found.record,
        found.properties,
        found.message_id,
        handle="",
        attempt=0,
        invisible_ms=0,
    )
    for field in ("receipt_handle", "invisible_duration", "delivery_attempt"):
        message.system_properties.ClearField(field)
    return message


def _message(request: rpc.AdminSendMessageRequest) -> pb.Message:
    """Raises ServiceError."""
    if request.ext_info:
        raise ServiceError(
            Reason.BAD_REQUEST,
            f"ext_info has {shown(min(request.ext_info))}, which means nothing here; put it in user_properties",
        )
    system = pb.SystemProperties()
    system.CopyFrom(request.system_properties)
    if request.HasField("tag"):
        if system.HasField("tag") and system.tag != request.tag:
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"tag {shown(request.tag)} and that of system_properties, {shown(system.tag)}, differ; give one of them",
            )
        system.tag = request.tag
    if request.HasField("key") and request.key not in system.keys:
        system.keys.append(request.key)
    if not system.message_id:
        system.message_id = f"01{secrets.token_hex(16).upper()}"
    if system.message_type == pb.MESSAGE_TYPE_UNSPECIFIED:
        system.message_type = _type(system)
    if not system.HasField("born_timestamp"):
        system.born_timestamp.GetCurrentTime()
    return pb.Message(
        topic=request.topic,
        user_properties=request.user_properties,
        system_properties=system,
        body=request.body,
    )


def _type(system: pb.SystemProperties) -> pb.MessageType:
    """Of a message that does not say: what it has stands for one."""
    if system.HasField("message_group"):
        return pb.FIFO
    if system.HasField("delivery_timestamp"):
        return pb.DELAY
    if system.HasField("lite_topic"):
        return pb.LITE
    return pb.PRIORITY if system.HasField("priority") else pb.NORMAL


def _size(request: rpc.ListMessageRequest) -> int:
    if not request.HasField("page_size"):
        return PAGE
    if not 1 <= request.page_size <= MAX_PAGE:
        raise ServiceError(Reason.BAD_REQUEST, f"page_size {request.page_size} is outside of 1 to {MAX_PAGE}")
    return request.page_size


def _check_id(message_id: str) -> None:
    if not message_id.strip():
        raise ServiceError(Reason.ILLEGAL_MESSAGE_ID, "message_id is empty; name a message of the topic")
    if len(message_id) > MESSAGE_ID_MAX_LENGTH:
        raise ServiceError(
            Reason.ILLEGAL_MESSAGE_ID,
            f"message_id has {len(message_id)} characters, at most {MESSAGE_ID_MAX_LENGTH} are allowed",
        )
    check_text(message_id, "message_id", Reason.ILLEGAL_MESSAGE_ID)


def _check_key(key: str) -> None:
    if not key.strip():
        raise ServiceError(Reason.ILLEGAL_MESSAGE_KEY, "message_key is empty; name a key")
    if len(key) > _KEY_MAX_LENGTH or " " in key:
        raise ServiceError(
            Reason.ILLEGAL_MESSAGE_KEY,
            f"message_key {shown(key)} is no key of a message: it has no blank and at most {_KEY_MAX_LENGTH} characters",
        )
    check_key(key)


def _not_found(topic: Topic, wanted: Wanted) -> ServiceError:
    what = f"key {shown(wanted.key)}" if wanted.key is not None else f"id {shown(wanted.message_id or '')}"
    return ServiceError(
        Reason.MESSAGE_NOT_FOUND, f"topic {shown(topic.name)} has no message with {what} in that time range"
    )
