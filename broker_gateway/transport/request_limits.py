"""What a request of each RPC may be, checked before anything is parsed: bytes, what decompression makes of them, fields.

A message of two bytes can become an object of a hundred, and a kilobyte of gzip a megabyte: sizes on the wire bound
neither memory nor time. Both transports, and the services that parse for themselves, ask here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from broker_gateway.transport.context import RpcError

KIB, MIB = 1 << 10, 1 << 20
_UNCOUNTED_BYTES = 16 * KIB
"""Requests up to this size are parsed whatever they hold: 8,192 empty entries at most."""
_MESSAGE_TYPES = (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """`size` is bytes of a request, as it came and decompressed; `fields` those of it and of all messages in it.

    A compressed request may always become `free` bytes; more than that only up to `ratio` times what came.
    """

    size: int
    fields: int
    free: int = 64 * KIB
    ratio: int = 20

    def decompressed(self, compressed: int) -> int:
        """The most that so many bytes may become."""
        return min(self.size, max(self.free, self.ratio * compressed))


LARGEST = RequestLimits(64 * MIB, 65_536, free=MIB, ratio=100)
"""Of sends, and of services that are plugged in."""
_SMALL = RequestLimits(64 * KIB, 1024)
_USUAL = RequestLimits(MIB, 16_384)
_MESSAGING = "/apache.rocketmq.v2.MessagingService/"
_ADMIN = "/apache.rocketmq.v2.Admin/"
_LIMITS = {
    _MESSAGING + "SendMessage": LARGEST,
    _MESSAGING + "QueryRoute": _SMALL,
    _MESSAGING + "QueryAssignment": _SMALL,
    _MESSAGING + "Heartbeat": _SMALL,
    _MESSAGING + "ReceiveMessage": RequestLimits(128 * KIB, 1024),
    _MESSAGING + "PullMessage": RequestLimits(128 * KIB, 1024),
    _MESSAGING + "UpdateOffset": _SMALL,
    _MESSAGING + "AckMessage": RequestLimits(2 * MIB, 32_768),  # its reply repeats it, and clients take 4 MiB
    _MESSAGING + "ChangeInvisibleDuration": _SMALL,
    _MESSAGING + "ForwardMessageToDeadLetterQueue": _SMALL,
    _MESSAGING + "NotifyClientTermination": _SMALL,
    _MESSAGING + "GetOffset": _SMALL,
    _MESSAGING + "QueryOffset": _SMALL,
    _ADMIN + "AdminSendMessage": LARGEST,
    "/lakebroker.admin.v1.AdminService/Erase": RequestLimits(4 * MIB, 65_536),
    **{
        _ADMIN + name: _SMALL
        for name in (
            "ChangeLogLevel",
            "DescribeTopicStatus",
            "ListSubscription",
            "DescribeSubscription",
            "DeleteSubscription",
            "ListConsumerConnection",
            "ResetGroupOffset",
            "QueryMessage",
            "PrintThreadStackTrace",
            "VerifyMessage",
            "GetConsumerRunningInfo",
            "GetTopicRoute",
            "GetProxyRuntimeStats",
        )
    },
}
_OURS = (
    "/apache.rocketmq.v2.",
    "/lakebroker.admin.",
    "/lakebroker.log.",
    "/grpc.health.",
    "/grpc.reflection.",
)


def limits_of(path: str) -> RequestLimits:
    """The limits of an RPC by its path, `/package.Service/Method`."""
    return _LIMITS.get(path) or (_USUAL if path.startswith(_OURS) else LARGEST)


Parse = Callable[[bytes], Any]
_Shape = dict[int, Any]
"""The fields of a message type that hold messages, by number, each with its own shape."""


def parser(message: type[Message], limits: RequestLimits) -> Parse:
    """Parses requests within `limits`. The result raises RpcError."""
    shape = _shape(message.DESCRIPTOR, {})
    from_bytes, name, fields = message.FromString, message.DESCRIPTOR.name, limits.fields

    def parse(payload: bytes) -> Message:
        try:
            if len(payload) > _UNCOUNTED_BYTES:
                check_size(len(payload), limits)
                _check_fields(payload, shape, fields)
            return from_bytes(payload)
        except (DecodeError, IndexError) as error:
            raise RpcError("INTERNAL", f"the request is no {name}") from error

    return parse


def check_size(size: int, limits: RequestLimits) -> None:
    """Raises RpcError for a request of too many bytes."""
    if size > limits.size:
        raise RpcError(
            "RESOURCE_EXHAUSTED",
            f"a request of {size} bytes, at most {limits.size} are taken; send less in one",
        )


def _shape(described: Any, known: dict[str, _Shape]) -> _Shape:
    shape = known.get(described.full_name)
    if shape is None:
        shape = known[described.full_name] = {}
        for each in described.fields:
            if each.type in _MESSAGE_TYPES and each.message_type is not None:
                shape[each.number] = _shape(each.message_type, known)
    return shape


def _check_fields(payload: bytes, shape: _Shape, limit: int) -> None:
    """Walks the fields on the wire. Raises RpcError beyond `limit` of them, DecodeError or IndexError when it is no message."""
    left = [(0, len(payload), shape)]
    count = 0
    while left:
        position, end, inner = left.pop()
        while position < end:
            count += 1
            if count > limit:
                raise RpcError(
                    "RESOURCE_EXHAUSTED", f"a request of more than {limit} fields; send fewer entries in one"
                )
            tag = payload[position]
            position += 1
            if tag > 127:
                tag, position = _varint(payload, position - 1)
            kind = tag & 7
            if kind == 2:
                size = payload[position]
                position += 1
                if size > 127:
                    size, position = _varint(payload, position - 1)
                if size and (of := inner.get(tag >> 3)) is not None:
                    left.append((position, position + size, of))
                position += size
            elif kind == 0:
                _, position = _varint(payload, position)
            elif kind in (1, 5):
                position += 8 if kind == 1 else 4
            elif kind > 5:
                raise DecodeError(f"wire type {kind}")
        if position > end:
            raise DecodeError("a field ends behind its message")


def _varint(payload: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = payload[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise DecodeError("a number of more than ten bytes")
