"""Requests of the public API in a line each, and `MessagingCalls`: the same calls over gRPC and in this process."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Protocol

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc


def message(topic: str, body: bytes, properties: dict[str, str] | None = None, **system: Any) -> pb.Message:
    """A message of type NORMAL with a new id; `system` are fields of SystemProperties."""
    system.setdefault("message_id", uuid.uuid4().hex.upper())
    system.setdefault("message_type", pb.NORMAL)
    return pb.Message(
        topic=pb.Resource(name=topic),
        user_properties=properties or {},
        system_properties=pb.SystemProperties(**system),
        body=body,
    )


def bodies(messages: Iterable[pb.Message]) -> list[bytes]:
    """Their bodies, in their order."""
    return [each.body for each in messages]


def texts(messages: Iterable[pb.Message]) -> list[str]:
    """Their bodies as UTF-8 text, in their order. Raises UnicodeDecodeError."""
    return [each.body.decode() for each in messages]


def send_request(*messages: pb.Message) -> rpc.SendMessageRequest:
    return rpc.SendMessageRequest(messages=messages)


def receive_request(
    topic: str, group: str, *, batch: int = 32, invisible_ms: int = 10_000, wait_ms: int = 200, **extra: Any
) -> rpc.ReceiveMessageRequest:
    """`extra` are fields of the request; `filter` is a FilterExpression or a tag expression, all tags without."""
    asked = extra.pop("filter", "*")
    if isinstance(asked, str):
        asked = pb.FilterExpression(type=pb.TAG, expression=asked)
    request = rpc.ReceiveMessageRequest(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
        filter_expression=asked,
        batch_size=batch,
        **extra,
    )
    if "auto_renew" not in extra:
        request.invisible_duration.FromMilliseconds(invisible_ms)
    request.long_polling_timeout.FromMilliseconds(wait_ms)
    return request


def ack_request(topic: str, group: str, *messages: pb.Message) -> rpc.AckMessageRequest:
    return rpc.AckMessageRequest(
        group=pb.Resource(name=group),
        topic=pb.Resource(name=topic),
        entries=[
            rpc.AckMessageEntry(
                message_id=each.system_properties.message_id,
                receipt_handle=each.system_properties.receipt_handle,
            )
            for each in messages
        ],
    )


def change_invisible_request(
    topic: str, group: str, message: pb.Message, invisible_ms: int
) -> rpc.ChangeInvisibleDurationRequest:
    request = rpc.ChangeInvisibleDurationRequest(
        group=pb.Resource(name=group),
        topic=pb.Resource(name=topic),
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
    )
    request.invisible_duration.FromMilliseconds(invisible_ms)
    return request


def dead_letter_request(
    topic: str, group: str, message: pb.Message, max_attempts: int = 16
) -> rpc.ForwardMessageToDeadLetterQueueRequest:
    return rpc.ForwardMessageToDeadLetterQueueRequest(
        group=pb.Resource(name=group),
        topic=pb.Resource(name=topic),
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
        delivery_attempt=message.system_properties.delivery_attempt,
        max_delivery_attempts=max_attempts,
    )


def received(responses: list[rpc.ReceiveMessageResponse]) -> tuple[int, list[pb.Message]]:
    """Status code and messages of a ReceiveMessage; a status has to come first."""
    assert responses, "a ReceiveMessage was answered with nothing"
    assert responses[0].WhichOneof("content") == "status"
    return responses[0].status.code, [
        each.message for each in responses if each.WhichOneof("content") == "message"
    ]


class MessagingCalls(Protocol):
    """Calls of MessagingService by name, and the usual ones in a line."""

    def call(self, method: str, request: Any, timeout: float | None = None) -> Any:
        """The response, of ReceiveMessage the list of them; `timeout` in seconds."""

    def send(self, topic: str, *bodies: bytes, **system: Any) -> Any:
        return self.call("SendMessage", send_request(*[message(topic, body, **system) for body in bodies]))

    def receive(self, topic: str, group: str, **asked: Any) -> tuple[int, list[pb.Message]]:
        """Status code and messages; see `receive_request`."""
        return received(self.call("ReceiveMessage", receive_request(topic, group, **asked)))

    def ack(self, topic: str, group: str, *messages: pb.Message) -> Any:
        return self.call("AckMessage", ack_request(topic, group, *messages))

    def change_invisible(self, topic: str, group: str, message: pb.Message, invisible_ms: int) -> Any:
        request = change_invisible_request(topic, group, message, invisible_ms)
        return self.call("ChangeInvisibleDuration", request)

    def dead_letter(self, topic: str, group: str, message: pb.Message, max_attempts: int = 16) -> Any:
        request = dead_letter_request(topic, group, message, max_attempts)
        return self.call("ForwardMessageToDeadLetterQueue", request)
