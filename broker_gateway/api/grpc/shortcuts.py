"""Replies written as bytes, where building objects for them is what a call would mostly cost.

Each function gives exactly the bytes that serializing the message does; `tests/unit/broker_gateway/
test_shortcuts.py` holds the plain path it is compared with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

from broker_gateway.api.grpc.codec import (
    DELAYS,
    delivery_ms,
    message_id_of,
    message_type,
    priority_of,
    timestamp,
    to_message,
    to_resource,
)
from broker_gateway.api.grpc.status import OK, status, summary
from broker_gateway.messaging.outcome import Outcome
from broker_gateway.messaging.stored_message import StoredMessage
from broker_gateway.metadata.names import PRIORITY_PROPERTY, RESERVED_PROPERTIES
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from store.log.record import SYS_COMPRESSED, decode_record

_OK_BYTES = OK.SerializeToString()


def varint(value: int) -> bytes:
    """A number of 0 to 2**63 - 1 as protobuf writes it."""
    if value < len(_SHORT):
        return _SHORT[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT = [bytes((value,)) for value in range(0x80)]
_SHORT += [bytes((value & 0x7F | 0x80, value >> 7)) for value in range(0x80, 0x800)]
"""The numbers below 2,048."""
_OK_FIELD = b"\x0a" + varint(len(_OK_BYTES)) + _OK_BYTES


def sent(message_ids: Sequence[bytes], queue_offsets: Sequence[int]) -> bytes:
    """A SendMessageResponse whose entries are all OK."""
    parts = [_OK_FIELD]
    for message_id, offset in zip(message_ids, queue_offsets, strict=True):
        text = varint(len(message_id)) + message_id
        entry = b"%b\x12%b\x1a%b" % (_OK_FIELD, text, text)
        if offset:
            entry += b"\x20" + varint(offset)
        parts += (b"\x12", varint(len(entry)), entry)
    return b"".join(parts)


RECEIVE_OK = rpc.ReceiveMessageResponse(status=OK).SerializeToString()


def delivered_at(ms: int) -> bytes:
    """A ReceiveMessageResponse with the delivery timestamp, ms since the epoch."""
    return b"\x1a" + _timestamp(ms)


@lru_cache(maxsize=4096)
def _timestamp(ms: int) -> bytes:
    """A timestamp with its length; ms of 0 or more."""
    return _sized(timestamp(ms).SerializeToString())


@lru_cache(maxsize=8192)
def duration_field(ms: int) -> bytes:
    """A duration with its length; ms of 0 or more."""
    duration = pb.SystemProperties().invisible_duration
    duration.FromMilliseconds(ms)
    return _sized(duration.SerializeToString())


@lru_cache(maxsize=8192)
def topic_field(topic: str) -> bytes:
    """A message's field with the resource of a topic."""
    return b"\x0a" + _sized(to_resource(topic).SerializeToString())


def _sized(value: bytes) -> bytes:
    return varint(len(value)) + value


def _text(value: str) -> bytes:
    encoded = value.encode()
    return varint(len(encoded)) + encoded


_MOST_KEPT = 256
"""Characters of a text that is kept: clients choose what they send, and some thousands are."""


def _known_text(value: str) -> bytes:
    """Of what many messages have: names of properties, hosts."""
    return _kept_text(value) if len(value) <= _MOST_KEPT else _text(value)


@lru_cache(maxsize=8192)
def _kept_text(value: str) -> bytes:
    return _text(value)


_LABELS = frozenset(("TAGS", "KEYS"))


def _labels(properties: Mapping[str, str]) -> bytes:
    """The system properties tag and keys."""
    fields = bytearray()
    if (tag := properties.get("TAGS")) is not None:
        fields += b"\x0a" + _text(tag)
    if keys := properties.get("KEYS"):
        for key in keys.split(" "):
            if key:
                fields += b"\x12" + _text(key)
    return bytes(fields)


UNUSUAL_PROPERTIES = DELAYS | {
    "__SHARDINGKEY",
    "TRACE_CONTEXT",
    "DLQ_ORIGIN_TOPIC",
    "TRAN_MSG",
    PRIORITY_PROPERTY,
    "__LITE_TOPIC",
}
"""With none of these properties a message is NORMAL and has no `_unusual_fields`."""


def _unusual_fields(properties: Mapping[str, str]) -> bytes:
    """The system properties message_group, trace_context, dead_letter_queue, lite_topic and priority."""
    fields = bytearray()
    if (group := properties.get("__SHARDINGKEY")) is not None:
        fields += b"\x8a\x01" + _text(group)
    if (trace := properties.get("TRACE_CONTEXT")) is not None:
        fields += b"\x92\x01" + _text(trace)
    origin_topic, origin_id = properties.get("DLQ_ORIGIN_TOPIC"), properties.get("DLQ_ORIGIN_MESSAGE_ID")
    if origin_topic is not None and origin_id is not None:
        origin = pb.DeadLetterQueue(topic=origin_topic, message_id=origin_id)
        fields += b"\xa2\x01" + _sized(origin.SerializeToString())
    if (lite_topic := properties.get("__LITE_TOPIC")) is not None:
        fields += b"\xaa\x01" + _text(lite_topic)
    if (priority := priority_of(properties)) is not None:
        fields += b"\xb0\x01" + varint(priority)
    return bytes(fields)


def _delivery_time(properties: Mapping[str, str]) -> bytes:
    """The system property delivery_timestamp."""
    due = delivery_ms(properties)
    return b"" if due is None else b"\x5a" + _timestamp(due)


def received(stored: StoredMessage, topic: str, handle: str, attempt: int, invisible_ms: int) -> bytes:
    """The ReceiveMessageResponse with a message of `topic`, as `plain` gives it."""
    view, properties = stored.view, stored.properties
    if min(view.born_timestamp, view.queue_id, view.queue_offset, attempt, invisible_ms) < 0:
        return plain(stored, topic, handle, attempt, invisible_ms)  # negative numbers are written differently
    body = view.body
    parts = [topic_field(topic)]
    for key, value in properties.items():
        if key not in RESERVED_PROPERTIES:
            entry = b"\x0a%b\x12%b" % (_known_text(key), _text(value))
            parts += (b"\x12", varint(len(entry)), entry)
    usual = UNUSUAL_PROPERTIES.isdisjoint(properties)
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest().upper().encode()
    queue_id = view.queue_id
    born_host = properties.get("__BORNHOST") or view.born_ip
    system = (
        b"%b\x1a%b\x22\x24\x08\x02\x12\x20%b\x28%c\x30%c\x3a%b%b\x4a%b\x52%b%b\x62\x1c%b%b\x70%b\x7a%b\x80\x01%b%b"
        % (
            b"" if _LABELS.isdisjoint(properties) else _labels(properties),
            _text(stored.message_id),
            digest,
            2 if view.sys_flag & SYS_COMPRESSED else 1,
            pb.NORMAL if usual else message_type(properties),
            _timestamp(view.born_timestamp),
            b"\x42" + _known_text(born_host) if born_host else b"",
            _timestamp(view.store_timestamp),
            _known_text(view.store_address),
            b"" if usual else _delivery_time(properties),
            handle.encode(),
            b"\x68" + varint(queue_id) if queue_id else b"",
            varint(view.queue_offset),
            duration_field(invisible_ms),
            varint(attempt),
            b"" if usual else _unusual_fields(properties),
        )
    )
    parts += (b"\x1a", varint(len(system)), system)
    if body:
        parts += (b"\x22", varint(len(body)), body)
    message = b"".join(parts)
    return b"\x12%b%b" % (varint(len(message)), message)


def plain(stored: StoredMessage, topic: str, handle: str, attempt: int, invisible_ms: int) -> bytes:
    """The same by way of messages: slower, and the shortcut's oracle."""
    record = decode_record(stored.data, verify=False)
    properties = record.properties_map()
    message = to_message(
        topic,
        record,
        properties,
        message_id_of(record, properties),
        handle=handle,
        attempt=attempt,
        invisible_ms=invisible_ms,
    )
    return rpc.ReceiveMessageResponse(message=message).SerializeToString()


def acked(entries: Sequence[tuple[str, str]], outcomes: Sequence[Outcome]) -> bytes:
    """An AckMessageResponse to `entries` (message id, receipt handle), with an outcome for each; one that is the same object
    is encoded once."""
    known = {id(each): each for each in outcomes}
    distinct = {key: status(each) for key, each in known.items()}
    fields = {key: b"\x1a" + _sized(each.SerializeToString()) for key, each in distinct.items()}
    parts = [b"\x0a", _sized(summary(distinct.values()).SerializeToString())]
    if len(fields) == 1:
        alike = _alike(entries, *fields.values())
        if alike:
            return b"".join((*parts, alike))
    for (message_id, handle), outcome in zip(entries, outcomes, strict=True):
        one, other, field = message_id.encode(), handle.encode(), fields[id(outcome)]
        if 0 < len(one) < 0x80 and 0 < len(other) < 0x80:
            size = varint(len(one) + len(other) + len(field) + 4)
            parts.append(b"\x12%b\x0a%c%b\x12%c%b%b" % (size, len(one), one, len(other), other, field))
            continue
        entry = b"%b%b%b" % (
            b"\x0a" + _sized(one) if one else b"",
            b"\x12" + _sized(other) if other else b"",
            field,
        )
        parts += (b"\x12", varint(len(entry)), entry)
    return b"".join(parts)


def _alike(entries: Sequence[tuple[str, str]], field: bytes) -> bytes:
    """The entries of an `acked` whose ids, and whose handles, have one length, as one client's usually do; empty for others.

    All are put together as text, which is then encoded once. `field` is the status of each.
    """
    ids, handles = zip(*entries, strict=True)
    if len(set(map(len, ids))) > 1 or len(set(map(len, handles))) > 1:
        return b""
    one, other = len(ids[0]), len(handles[0])
    if not (0 < one < 0x80 and 0 < other < 0x80 and "".join(ids).isascii() and "".join(handles).isascii()):
        return b""
    first = b"\x12%b\x0a%c" % (varint(one + other + len(field) + 4), one)
    between, second = (field + first).decode("latin-1"), f"\x12{chr(other)}"
    text = between.join([message_id + second + handle for message_id, handle in entries])
    return first + text.encode("latin-1") + field
