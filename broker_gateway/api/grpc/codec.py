"""Between messages of the public API and records of the commit log."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from broker_gateway.metadata.names import PRIORITY_PROPERTY, RESERVED_PROPERTIES
from broker_gateway.runtime.clock import LATEST_MS
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp
from store.log.record import SYS_COMPRESSED, Record, offset_msg_id


def timestamp(ms: int) -> Timestamp:
    """A Timestamp of ms since the epoch."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def to_resource(name: str) -> pb.Resource:
    """The resource of a full name; a namespace stands before `%`, also behind a retry or dead-letter prefix."""
    prefix = ""
    rest = name
    for known in ("%RETRY%", "%DLQ%"):
        if name.startswith(known):
            prefix, rest = known, name[len(known) :]
    namespace, separator, bare = rest.partition("%")
    if not separator or not namespace or not bare:
        return pb.Resource(name=name)
    return pb.Resource(resource_namespace=namespace, name=prefix + bare)


def to_message(
    topic: str,
    record: Record,
    properties: Mapping[str, str],
    message_id: str,
    *,
    handle: str,
    attempt: int,
    invisible_ms: int,
) -> pb.Message:
    """What a consumer of `topic` receives of `record`: reserved properties become system properties, the rest stay."""
    body = bytes(record.body)
    system = pb.SystemProperties(
        keys=[key for key in properties.get("KEYS", "").split(" ") if key],
        message_id=message_id,
        body_digest=pb.Digest(type=pb.MD5, checksum=hashlib.md5(body).hexdigest().upper()),
        body_encoding=pb.GZIP if record.sys_flag & SYS_COMPRESSED else pb.IDENTITY,
        message_type=message_type(properties),
        born_timestamp=timestamp(record.born_timestamp),
        born_host=properties.get("__BORNHOST") or record.born_host.ip,
        store_timestamp=timestamp(record.store_timestamp),
        store_host=f"{record.store_host.ip}:{record.store_host.port}",
        receipt_handle=handle,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        delivery_attempt=attempt,
    )
    system.invisible_duration.FromMilliseconds(invisible_ms)
    if (tag := properties.get("TAGS")) is not None:
        system.tag = tag
    if (due := delivery_ms(properties)) is not None:
        system.delivery_timestamp.CopyFrom(timestamp(due))
    if (group := properties.get("__SHARDINGKEY")) is not None:
        system.message_group = group
    if (trace := properties.get("TRACE_CONTEXT")) is not None:
        system.trace_context = trace
    if (priority := priority_of(properties)) is not None:
        system.priority = priority
    if (lite_topic := properties.get("__LITE_TOPIC")) is not None:
        system.lite_topic = lite_topic
    origin_topic, origin_id = properties.get("DLQ_ORIGIN_TOPIC"), properties.get("DLQ_ORIGIN_MESSAGE_ID")
    if origin_topic is not None and origin_id is not None:
        system.dead_letter_queue.topic = origin_topic
        system.dead_letter_queue.message_id = origin_id
    return pb.Message(
        topic=to_resource(topic),
        user_properties={k: v for k, v in properties.items() if k not in RESERVED_PROPERTIES},
        system_properties=system,
        body=body,
    )


def message_id_of(record: Record, properties: Mapping[str, str]) -> str:
    """The client's message id, else the 4.x one made of store host and offset."""
    return properties.get("UNIQ_KEY") or offset_msg_id(record.store_host.packed, record.physical_offset)


DELAYS = frozenset(("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC"))


def delivery_ms(properties: Mapping[str, str]) -> int | None:
    """The delivery time that a record says, ms since the epoch; None where it says none that is one."""
    text = properties.get("TIMER_DELIVER_MS", "")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        return None
    due = int(text)
    return due if due <= LATEST_MS else None


def message_type(properties: Mapping[str, str]) -> pb.MessageType:
    """The type that a record's properties stand for."""
    if properties.get("TRAN_MSG") == "true":
        return pb.TRANSACTION
    if not DELAYS.isdisjoint(properties):
        return pb.DELAY
    if "__SHARDINGKEY" in properties:
        return pb.FIFO
    if "__LITE_TOPIC" in properties:
        return pb.LITE
    return pb.PRIORITY if PRIORITY_PROPERTY in properties else pb.NORMAL


_NUMBER = re.compile(r"[+-]?[0-9]{1,64}")
_INT32 = 1 << 31


def priority_of(properties: Mapping[str, str]) -> int | None:
    """A record's priority; None without one, or when it is no number of 0 to 2**31 - 1."""
    text = properties.get(PRIORITY_PROPERTY)
    if text is None or not _NUMBER.fullmatch(text):
        return None
    priority = int(text)
    return priority if 0 <= priority < _INT32 else None
