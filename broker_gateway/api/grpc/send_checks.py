"""A message of a send: what is checked of it, and its record's properties.

The plain path of `api/grpc/send_columns.py`: here every message is an object and every part is checked by itself.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from zlib_ng import zlib_ng

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.broker_properties import BrokerProperties, born_property
from broker_gateway.messaging.checks import (
    check_key,
    check_lite_topic,
    check_message_group,
    check_tag,
    check_text,
    shown,
)
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.catalog import Topic
from broker_gateway.metadata.names import CONTROL_CHARACTER, PRIORITY_PROPERTY, RESERVED_PROPERTIES
from broker_gateway.protocol.resource_names import resource_name
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp
from store.lite_queues import LITE_BYTES, LiteTopic
from store.log.record import (
    PROPERTIES_MAX_BYTES,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_LITE_TOPIC,
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    Host,
    PendingRecord,
    encode_properties,
    tags_code,
)

MAX_MESSAGES_A_CALL = 1024
_MOVE_BYTES = 2560
"""Of a record's properties, left for its CRC and for what a copy says of where it came from: none is stored that
could not become a dead letter."""
MESSAGE_ID_MAX_LENGTH = 255
LATEST_BORN_S = 253_402_300_799
"""The last second of the year 9999; later times, and those before 1970, count as absent."""
_PUT_OFF_BYTES = 2048
"""More, of what records of delayed and transactional messages say until these are delivered."""
_NORMAL, _FIFO, _DELAY, _TRANSACTION = pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION
_PRIORITY, _LITE = pb.PRIORITY, pb.LITE
PUT_OFF = frozenset((_DELAY, _TRANSACTION))
"""Types of messages that consumers do not get when they are sent."""
_TYPES = {number: name for name, number in pb.MessageType.items()}
_MESSAGE_GROUP = "__SHARDINGKEY"
_ENCODINGS = frozenset((pb.ENCODING_UNSPECIFIED, pb.IDENTITY, pb.GZIP))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a message may have; sizes in bytes."""

    body: int
    message_group: int
    """A message group must be shorter; 0: it may have any length."""
    properties: int
    properties_bytes: int
    refuse_empty: bool
    record_properties: int
    """Of all properties but the broker's, which are not known here: what is left of a record's bytes for them."""
    lite_topic: int = 64

    @classmethod
    def of(cls, config: GatewayConfig) -> Limits:
        return cls(
            config.store.max_message_size,
            config.proxy.max_message_group_size,
            config.proxy.user_property_max_num,
            config.proxy.max_user_property_size,
            config.proxy.enable_message_body_empty_check,
            PROPERTIES_MAX_BYTES - _MOVE_BYTES - LITE_BYTES - BrokerProperties.of_config(config).most_bytes,
            config.proxy.max_lite_topic_size,
        )


@dataclass(frozen=True, slots=True)
class Peer:
    """Who sends: the address as text, and with the port as records hold it."""

    host: Host
    text: bytes
    packed: bytes


def pending_records(
    topic: Topic,
    queue_id: int,
    messages: Sequence[pb.Message],
    peer: Peer,
    limits: Limits,
    now: int,
    brokers: BrokerProperties,
) -> tuple[list[PendingRecord], list[bytes]]:
    """Records and message ids of a call's messages. Raises ServiceError."""
    host, packed = peer.host, peer.packed
    v6 = SYS_BORN_HOST_V6 if len(packed) > 8 else 0
    records, message_ids = [], []
    for position in range(len(messages)):
        message = messages[position]
        if position and resource_name(message.topic) != topic.name:
            raise ServiceError(
                Reason.MESSAGE_CORRUPTED,
                f"topics {shown(topic.name)} and {shown(resource_name(message.topic))} in one call; "
                "send the messages of each topic in a call of their own",
            )
        system = message.system_properties
        message_id, tag, body = system.message_id, system.tag, message.body
        encoding = system.body_encoding
        check_message(message, system, body, message_id, encoding, limits)
        born = born_ms(system.born_timestamp, now)
        properties = encoded_properties(message, system, message_id, tag, limits, host, born)
        if system.lite_topic:
            properties += _lite_properties(topic.name, system.lite_topic)
        records.append(
            PendingRecord(
                topic.name,
                queue_id,
                body,
                properties + brokers.encoded(topic.name, system.delivery_attempt),
                born,
                packed,
                v6 | SYS_COMPRESSED if encoding == pb.GZIP else v6,
                0,
                0,
                0,
                tags_code(tag) if tag else 0,
                lite_queue=LiteTopic(topic.name, system.lite_topic).queue if system.lite_topic else "",
            )
        )
        message_ids.append(message_id.encode())
    return records, message_ids


def born_ms(born: Timestamp, now: int) -> int:
    """When a message was born, ms; `now` when it says nothing, or what is no time."""
    if 0 < born.seconds <= LATEST_BORN_S and 0 <= born.nanos < 1_000_000_000:
        return born.seconds * 1000 + born.nanos // 1_000_000
    return now


def type_of(system: pb.SystemProperties) -> pb.MessageType:
    """A message's type: what it says or, when it says none, what its properties stand for. As at the original, one that says
    NORMAL and has a priority is a PRIORITY message."""
    kind = system.message_type
    if not kind:
        if system.HasField("delivery_timestamp"):
            return _DELAY
        if system.message_group:
            return _FIFO
        kind = _LITE if system.lite_topic else _NORMAL
    return _PRIORITY if kind == _NORMAL and system.HasField("priority") and not system.message_group else kind


def _lite_properties(parent: str, name: str) -> bytes:
    """What says that a record is of a lite topic."""
    queue = LiteTopic(parent, name).queue
    return encode_properties({PROPERTY_LITE_TOPIC: name, PROPERTY_INNER_MULTI_DISPATCH: queue})


def delivery_ms(system: pb.SystemProperties) -> int:
    """A message's delivery time, ms since the epoch. ILLEGAL_DELIVERY_TIME for what is no time."""
    time = system.delivery_timestamp
    if not (0 <= time.seconds <= LATEST_BORN_S and 0 <= time.nanos < 1_000_000_000):
        raise ServiceError(
            Reason.ILLEGAL_DELIVERY_TIME,
            f"the delivery time of {time.seconds} s and {time.nanos} ns is no time from 1970 to 9999",
        )
    return time.seconds * 1000 + time.nanos // 1_000_000


def recovery_s(system: pb.SystemProperties, longest: int) -> int | None:
    """The recovery time that a transactional message brings, s; None when it brings none. BAD_REQUEST."""
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return None
    seconds = system.orphaned_transaction_recovery_duration.seconds
    if not 0 <= seconds <= longest:
        raise ServiceError(
            Reason.BAD_REQUEST,
            f"the transaction's recovery time is {seconds} s, 0 to {longest} s (maxTransactionRecoverySecond) are taken",
        )
    return seconds


def has_placed(messages: Sequence[pb.Message]) -> bool:
    """Whether some of them may belong to one queue of all brokers: FIFO and LITE messages."""
    return any(type_of(message.system_properties) in (_FIFO, _LITE) for message in messages)


def place_key(messages: Sequence[pb.Message], limits: Limits) -> str | None:
    """What decides the queue of a call's messages, of those of all brokers: their message group, or the lite topic that all of
    them have. None: any queue takes them. ILLEGAL_LITE_TOPIC, and what `message_group_of` raises."""
    group = message_group_of(messages, limits)
    names = {message.system_properties.lite_topic for message in messages}
    if group is not None or len(names) > 1 or "" in names:
        return group
    name = names.pop()
    check_lite_topic(name, limits.lite_topic)
    return name


def message_group_of(messages: Sequence[pb.Message], limits: Limits) -> str | None:
    """The message group of a call's messages, which all have the same; None for messages that are not ordered.

    ILLEGAL_MESSAGE_GROUP; MESSAGE_CORRUPTED for types and groups that are mixed, of which nothing is taken.
    """
    first = messages[0].system_properties
    kind = type_of(first)
    for message in messages:
        other = type_of(message.system_properties)
        if other != kind:
            raise ServiceError(
                Reason.MESSAGE_CORRUPTED,
                f"{_TYPES.get(kind, kind)} and {_TYPES.get(other, other)} messages in one call; send the messages of each type in "
                "a call of their own",
            )
    if kind != _FIFO:
        return None
    group = first.message_group
    check_message_group(group, limits.message_group)
    for message in messages:
        if message.system_properties.message_group != group:
            raise ServiceError(
                Reason.MESSAGE_CORRUPTED,
                f"message groups {shown(group)} and {shown(message.system_properties.message_group)} in one call; send the "
                "messages of each group in a call of their own",
            )
    return group


def priority_of(messages: Sequence[pb.Message]) -> int | None:
    """The priority of a call's messages, which are all of one type; None for messages of other types. MESSAGE_CORRUPTED for
    several priorities, of which nothing is taken."""
    first = messages[0].system_properties
    if type_of(first) != _PRIORITY:
        return None
    for message in messages:
        if message.system_properties.priority != first.priority:
            raise ServiceError(
                Reason.MESSAGE_CORRUPTED,
                f"priorities {first.priority} and {message.system_properties.priority} in one call; send the messages of each "
                "priority in a call of their own",
            )
    return first.priority


def check_types(topic: Topic, messages: Sequence[pb.Message]) -> None:
    """MESSAGE_PROPERTY_CONFLICT_WITH_TYPE for a message of a type that the topic does not take, built or not."""
    accepted = topic.accept_message_types
    if not accepted:
        return
    for message in messages:
        number = type_of(message.system_properties)
        name = _TYPES.get(number)
        if name is not None and name not in accepted:
            raise ServiceError(
                Reason.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {shown(topic.name)} accepts {', '.join(accepted)}, not {name} messages; send one of these, or let it take "
                "another type with `lakebroker topic update`",
            )


def check_message(
    message: pb.Message,
    system: pb.SystemProperties,
    body: bytes,
    message_id: str,
    encoding: pb.Encoding,
    limits: Limits,
) -> None:
    """Checks type, body, digest and message id; ServiceError says what is wrong. What the topic takes: `check_types`; message
    groups: `message_group_of`; several priorities: `priority_of`."""
    kind = type_of(system)
    if kind not in _TYPES or not kind:
        raise ServiceError(Reason.BAD_REQUEST, f"message type {kind} is unknown; send NORMAL messages, say")
    if system.message_group and kind != _FIFO:
        raise ServiceError(
            Reason.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"a {_TYPES[kind]} message must not have a message group, this one has {shown(system.message_group)}; leave it out, or "
            "send a FIFO message",
        )
    if system.HasField("priority") or kind == _PRIORITY:
        _check_priority(system)
    if kind == _LITE:
        check_lite_topic(system.lite_topic, limits.lite_topic)
    elif system.HasField("lite_topic"):
        raise ServiceError(
            Reason.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"a {_TYPES[kind]} message must not have a lite topic, this one has {shown(system.lite_topic)}; leave it out, or send "
            "a LITE message",
        )
    if system.HasField("delivery_timestamp"):
        if kind not in PUT_OFF:
            raise ServiceError(
                Reason.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"a {_TYPES[kind]} message must not have a delivery timestamp; leave it out, or send a DELAY message",
            )
    elif kind == _DELAY:
        raise ServiceError(
            Reason.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "a DELAY message must have a delivery timestamp; set one, or send a NORMAL message",
        )
    size = len(body)
    if not size and limits.refuse_empty:
        raise ServiceError(
            Reason.MESSAGE_BODY_EMPTY, "the message body is empty; put at least one byte in it"
        )
    if size > limits.body:
        raise ServiceError(
            Reason.MESSAGE_BODY_TOO_LARGE,
            f"the message body has {size} bytes, at most {limits.body} (maxMessageSize) are taken",
        )
    if encoding not in _ENCODINGS:
        raise ServiceError(Reason.BAD_REQUEST, f"body encoding {encoding} is unknown; use IDENTITY or GZIP")
    if not message_id.strip():
        raise ServiceError(Reason.ILLEGAL_MESSAGE_ID, "the message id is empty; a client makes it")
    if len(message_id) > MESSAGE_ID_MAX_LENGTH:
        raise ServiceError(
            Reason.ILLEGAL_MESSAGE_ID,
            f"the message id has {len(message_id)} characters, at most {MESSAGE_ID_MAX_LENGTH} are taken",
        )
    check_text(message_id, "message id", Reason.ILLEGAL_MESSAGE_ID)
    if system.HasField("body_digest"):
        _check_digest(system.body_digest, body)


def _check_priority(system: pb.SystemProperties) -> None:
    if not system.HasField("priority"):
        raise ServiceError(
            Reason.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "a PRIORITY message has no priority; set one of 0 or more, or send a NORMAL message",
        )
    if system.priority < 0:
        raise ServiceError(
            Reason.BAD_REQUEST, f"the priority {system.priority} is negative; set one of 0 or more"
        )


def _check_digest(digest: pb.Digest, body: bytes) -> None:
    stated = digest.checksum.strip().upper()
    if not stated or digest.type == pb.DIGEST_TYPE_UNSPECIFIED:
        return
    if digest.type == pb.CRC32:
        stated, actual = stated.lstrip("0"), f"{zlib_ng.crc32(body):X}".lstrip("0")
    elif digest.type == pb.MD5:
        actual = hashlib.md5(body).hexdigest().upper()
    elif digest.type == pb.SHA1:
        actual = hashlib.sha1(body).hexdigest().upper()
    else:
        raise ServiceError(
            Reason.BAD_REQUEST, f"digest type {digest.type} is unknown; use CRC32, MD5 or SHA1"
        )
    if stated != actual:
        raise ServiceError(
            Reason.MESSAGE_CORRUPTED,
            f"the body's digest is {actual}, the message says {shown(stated)}; it was damaged on the way",
        )


def encoded_properties(
    message: pb.Message,
    system: pb.SystemProperties,
    message_id: str,
    tag: str,
    limits: Limits,
    host: Host,
    born: int,
) -> bytes:
    """A message's properties as a record holds them, but the broker's. Raises ServiceError.

    The usual message is checked as a whole; whatever might be wrong goes through `checked_properties`.
    """
    user, born_host = message.user_properties, system.born_host
    if system.keys or system.trace_context or type_of(system) in PUT_OFF:
        return checked_properties(message, limits, host, born)
    texts = [message_id]
    encoded = ""
    if user:
        keys = list(user)
        values = list(map(user.__getitem__, keys))  # items() of such a map is slower
        if len(keys) > limits.properties or "" in keys or not RESERVED_PROPERTIES.isdisjoint(keys):
            return checked_properties(message, limits, host, born)
        texts += keys + values
        encoded = "".join([f"{key}\x01{value}\x02" for key, value in zip(keys, values, strict=True)])
    if tag:
        if "|" in tag or not tag.strip():
            return checked_properties(message, limits, host, born)
        texts.append(tag)
        encoded += f"TAGS\x01{tag}\x02"
    encoded += f"UNIQ_KEY\x01{message_id}\x02"
    if system.message_group:
        encoded += f"{_MESSAGE_GROUP}\x01{system.message_group}\x02"
    elif system.HasField("priority"):
        encoded += f"{PRIORITY_PROPERTY}\x01{system.priority}\x02"
    if born_host and born_host != host.ip:
        texts.append(born_host)
        encoded += f"__BORNHOST\x01{born_host}\x02"
    if CONTROL_CHARACTER.search("".join(texts)) or len(encoded) * 4 > limits.properties_bytes:
        return checked_properties(message, limits, host, born)
    return encoded.encode() + born_property(born)


def checked_properties(message: pb.Message, limits: Limits, host: Host, born: int) -> bytes:
    """The plain path of `encoded_properties`: every part checked by itself."""
    system = message.system_properties
    properties, size = _user_properties(message.user_properties, limits)
    if system.tag:
        check_tag(system.tag)
        size += len(system.tag.encode())
        properties["TAGS"] = system.tag
    keys = [key for key in system.keys if key]
    for key in keys:
        check_key(key)
        size += len(key.encode())
    if keys:
        properties["KEYS"] = " ".join(keys)
    if size > limits.properties_bytes:
        raise ServiceError(
            Reason.MESSAGE_PROPERTIES_TOO_LARGE,
            f"tag, keys and properties have {size} bytes, at most {limits.properties_bytes} "
            "(maxUserPropertySize) are taken",
        )
    properties["UNIQ_KEY"] = system.message_id
    if system.message_group:
        properties[_MESSAGE_GROUP] = system.message_group
    elif system.HasField("priority"):
        properties[PRIORITY_PROPERTY] = str(system.priority)
    if system.HasField("trace_context") and system.trace_context:
        check_text(system.trace_context, "trace context", Reason.ILLEGAL_MESSAGE_PROPERTY_KEY)
        properties["TRACE_CONTEXT"] = system.trace_context
    if system.born_host and system.born_host != host.ip:
        check_text(system.born_host, "born host", Reason.ILLEGAL_MESSAGE_PROPERTY_KEY)
        properties["__BORNHOST"] = system.born_host
    most = limits.record_properties
    if system.HasField("delivery_timestamp"):
        properties["TIMER_DELIVER_MS"] = str(delivery_ms(system))
    if type_of(system) in PUT_OFF:
        most -= _PUT_OFF_BYTES
    encoded = encode_properties(properties) + born_property(born)
    if len(encoded) > most:
        raise ServiceError(
            Reason.MESSAGE_PROPERTIES_TOO_LARGE,
            f"all properties have {len(encoded)} bytes, at most {most} leave room in a record",
        )
    return encoded


def _user_properties(user: Mapping[str, str], limits: Limits) -> tuple[dict[str, str], int]:
    """A message's own properties, and their bytes. Raises ServiceError."""
    if len(user) > limits.properties:
        raise ServiceError(
            Reason.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(user)} user properties, at most {limits.properties} (userPropertyMaxNum) are taken",
        )
    properties: dict[str, str] = {}
    size = 0
    for key, value in user.items():
        if not key:
            raise ServiceError(Reason.ILLEGAL_MESSAGE_PROPERTY_KEY, "a property key is empty; name it")
        if key in RESERVED_PROPERTIES:
            raise ServiceError(
                Reason.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {shown(key)} is used by the system; rename it"
            )
        check_text(key, "property key", Reason.ILLEGAL_MESSAGE_PROPERTY_KEY)
        check_text(value, f"the value of property {shown(key)},", Reason.ILLEGAL_MESSAGE_PROPERTY_KEY)
        size += len(key.encode()) + len(value.encode())
        properties[key] = value
    return properties, size


@lru_cache(maxsize=8192)
def peer_of(peer: str) -> Peer:
    """The peer at `ip:port` or `[ip]:port`; 0.0.0.0:0 when it is no IP address."""
    ip, _, port = peer.rpartition(":")
    ip = ip.strip("[]")
    try:
        if "%" in ip or not 0 <= int(port) < 1 << 16:
            raise ValueError(peer)
        ipaddress.ip_address(ip)
        host = Host(ip, int(port))
    except ValueError:
        host = Host("0.0.0.0", 0)
    return Peer(host, host.ip.encode(), host.packed)
