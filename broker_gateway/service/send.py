"""SendMessage: from a request to records of the commit log.

All messages of a call are checked before any is appended; they go to one queue of their topic, in order. What
the calls of one turn of the event loop bring is appended in one go. With SYNC_FLUSH the replies wait for the
group commit.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from zlib_ng import zlib_ng

from broker_gateway.clock import now_ms
from broker_gateway.config import GatewayConfig
from broker_gateway.delivery.wakeups import Wakeups
from broker_gateway.journal.minute_stats import MinuteStatistics
from broker_gateway.metadata.catalog import Topic
from broker_gateway.metadata.names import CONTROL_CHARACTER, RESERVED_PROPERTIES
from broker_gateway.metrics import Metrics
from broker_gateway.service import shortcuts
from broker_gateway.service.context import CallContext
from broker_gateway.service.reply import Reply
from broker_gateway.service.resources import Resources
from broker_gateway.service.route import topic_accepts
from broker_gateway.service.status import OK, ServiceError
from broker_gateway.service.validation import check_key, check_tag, check_text, resource_name, shown
from broker_gateway.turn import Stage, Turn
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from store.errors import RecordError, RecordTooLargeError, StoreError, StoreReadOnlyError
from store.message_store import Appended, FlushMode, MessageStore
from store.record import SYS_BORN_HOST_V6, SYS_COMPRESSED, Host, PendingRecord, encode_properties, tags_code

MAX_MESSAGES_A_CALL = 1024
PROPERTIES_MAX_BYTES = 32_767
_MESSAGE_ID_MAX_LENGTH = 255
_NORMAL, _GZIP = pb.NORMAL, pb.GZIP
_ENCODINGS = frozenset((pb.ENCODING_UNSPECIFIED, pb.IDENTITY, pb.GZIP))
_BUSY_S = 0.05
"""How long sends are refused after an append that hung: those that queued meanwhile have been read by then."""
_TURN_BYTES = 8 << 20
"""Of bodies; a turn that brings more is appended in several goes."""
_LATER = {
    pb.FIFO: "FIFO",
    pb.DELAY: "delayed",
    pb.TRANSACTION: "transactional",
    pb.LITE: "lite",
    pb.PRIORITY: "priority",
}


@dataclass(frozen=True, slots=True)
class _Limits:
    body: int
    properties: int
    properties_bytes: int
    refuse_empty: bool


@dataclass(slots=True)
class _Call:
    """A call of the turn; `size` is the bytes of its bodies."""

    answer: Reply[bytes]
    topic: str
    records: list[PendingRecord]
    message_ids: list[str]
    size: int
    appended: list[Appended] = field(default_factory=list)


class SendService:
    """Appends messages of producers."""

    def __init__(
        self,
        config: GatewayConfig,
        store: MessageStore,
        resources: Resources,
        wakeups: Wakeups[Any],
        turn: Turn,
        metrics: Metrics,
        minutes: MinuteStatistics,
    ) -> None:
        self._store = store
        self._resources = resources
        self._wakeups = wakeups
        self._ends = turn
        self._metrics = metrics
        self._minutes = minutes
        self._sync = config.store.flush_disk_type is FlushMode.SYNC_FLUSH
        self._sync_timeout_s = config.store.sync_flush_timeout / 1000
        self._next_queue = itertools.count()
        self._turn: list[_Call] = []
        self._turn_bytes = 0
        self._turn_began = 0.0
        self._busy = False
        self._busy_limit_s = config.store.os_page_cache_busy_time_out_mills / 1000
        self._limits = _Limits(
            config.store.max_message_size,
            config.proxy.user_property_max_num,
            config.proxy.max_user_property_size,
            config.proxy.enable_message_body_empty_check,
        )

    def send(self, request: rpc.SendMessageRequest, context: CallContext) -> Reply[bytes]:
        """The reply's bytes, once what came in this turn of the event loop was appended, all in one go.

        Raises ServiceError when nothing of the call was taken.
        """
        messages = request.messages
        if not messages:
            raise ServiceError(pb.MESSAGE_CORRUPTED, "no message to send; put at least one in the request")
        if len(messages) > MAX_MESSAGES_A_CALL:
            raise ServiceError(
                pb.PAYLOAD_TOO_LARGE,
                f"{len(messages)} messages in one call, at most {MAX_MESSAGES_A_CALL} are taken; send fewer",
            )
        if self._busy:
            raise ServiceError(
                pb.TOO_MANY_REQUESTS,
                f"the broker is busy: an append took more than {self._busy_limit_s:g} s "
                "(osPageCacheBusyTimeOutMills); try again",
            )
        refusal = self._store.refusal
        if refusal is not None:
            raise ServiceError(pb.INTERNAL_SERVER_ERROR, refusal)
        topic = self._resources.topic(messages[0].topic)
        try:
            records, message_ids = self._records(topic, messages, context)
        except ServiceError:
            self._failed(topic.name, len(messages))
            raise
        size = 0
        for record in records:
            size += len(record.body)
        answer: Reply[bytes] = Reply()
        if not self._turn:
            self._turn_began = time.perf_counter()
            self._ends.add(Stage.APPEND, partial(self._end_turn, self._turn))
        self._turn.append(_Call(answer, topic.name, records, message_ids, size))
        self._turn_bytes += size
        if self._turn_bytes > _TURN_BYTES:
            self._end_turn(self._turn)
        return answer

    def _end_turn(self, turn: list[_Call]) -> None:
        """Appends what the calls of a turn brought and answers them."""
        if turn is not self._turn or not turn:
            return  # it grew so large that it was ended already
        self._turn, self._turn_bytes = [], 0
        stored = self._append(turn)
        if not stored:
            return
        arrived: dict[str, set[int]] = {}
        for call in stored:
            arrived.setdefault(call.topic, set()).update([record.queue_id for record in call.records])
        for topic, queue_ids in arrived.items():
            self._wakeups.arrived(topic, queue_ids)
        if self._sync:
            self._answer_flushed(stored, self._turn_began)
        else:
            self._answer(stored, OK, time.perf_counter() - self._turn_began)

    def _append(self, turn: list[_Call]) -> list[_Call]:
        """Those calls whose messages are in the log; the others have their answer."""
        records = turn[0].records if len(turn) == 1 else [each for call in turn for each in call.records]
        began = time.monotonic()
        try:
            appended = self._store.append(records)
        except (StoreError, OSError) as error:
            if len(turn) > 1 and isinstance(error, (RecordTooLargeError, RecordError)):
                return [stored for call in turn for stored in self._append([call])]
            for call in turn:
                self._failed(call.topic, len(call.records))
                call.answer.set(_refused(call.topic, error))
            return []
        if time.monotonic() - began > self._busy_limit_s:
            self._held_up()
        position = 0
        for call in turn:
            call.appended = appended[position : position + len(call.records)]
            position += len(call.records)
        return turn

    def _held_up(self) -> None:
        """Sends that waited while an append hung are refused, so that their callers go elsewhere at once."""
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_later(_BUSY_S, self._recovered)

    def _recovered(self) -> None:
        self._busy = False

    def _answer_flushed(self, stored: list[_Call], began: float) -> None:
        """Answers when all of it is on disk, or with MASTER_PERSISTENCE_TIMEOUT."""
        loop = asyncio.get_running_loop()

        def finish(status: pb.Status) -> None:
            timer.cancel()
            if stored:
                self._answer(stored, status, time.perf_counter() - began)
                stored.clear()

        def from_flusher(error: BaseException | None) -> None:
            status = OK
            if error is not None:
                status = pb.Status(
                    code=pb.MASTER_PERSISTENCE_TIMEOUT, message=f"the log could not be flushed: {error}"
                )
            loop.call_soon_threadsafe(finish, status)

        late = pb.Status(
            code=pb.MASTER_PERSISTENCE_TIMEOUT,
            message=f"not on disk after {self._sync_timeout_s:g} s (syncFlushTimeout); it may be later",
        )
        timer = loop.call_later(self._sync_timeout_s, finish, late)
        last = stored[-1].appended[-1]
        self._store.wait_flushed(last.physical_offset + last.size, from_flusher)

    def _answer(self, calls: list[_Call], status: pb.Status, seconds: float) -> None:
        counted: dict[str, list[int]] = {}
        for call in calls:
            sums = counted.setdefault(call.topic, [0, 0, 0])
            sums[0] += 1
            sums[1] += len(call.appended)
            sums[2] += call.size
            offsets = [result.queue_offset for result in call.appended]
            if status is OK:
                call.answer.set(shortcuts.sent(call.message_ids, offsets))
            else:
                call.answer.set(send_response(status, call.message_ids, offsets).SerializeToString())
        for topic, (count, messages, size) in counted.items():
            self._metrics.sent(topic, count, messages, size, seconds)
            self._minutes.count(topic, "", messages, size, seconds, calls=count, failed=status is not OK)

    def _failed(self, topic: str, messages: int) -> None:
        self._metrics.send_failed(topic)
        self._minutes.count(topic, "", messages, 0, None, failed=True)

    def _records(
        self, topic: Topic, messages: Sequence[pb.Message], context: CallContext
    ) -> tuple[list[PendingRecord], list[str]]:
        """Records and message ids of a call's messages. Raises ServiceError."""
        if not topic.writable or not topic.write_queues:
            raise ServiceError(pb.FORBIDDEN, f"topic {shown(topic.name)} must not be written to")
        host = peer_host(context.peer)
        packed = host.packed
        v6 = SYS_BORN_HOST_V6 if len(packed) > 8 else 0
        queue_id = next(self._next_queue) % topic.write_queues
        now = now_ms()
        limits = self._limits
        records, message_ids = [], []
        for position in range(len(messages)):
            message = messages[position]
            if position and resource_name(message.topic) != topic.name:
                raise ServiceError(
                    pb.MESSAGE_CORRUPTED,
                    f"topics {shown(topic.name)} and {shown(resource_name(message.topic))} in one call; "
                    "send the messages of each topic in a call of their own",
                )
            system = message.system_properties
            message_id, tag, body = system.message_id, system.tag, message.body
            encoding = system.body_encoding
            check_message(message, system, body, message_id, encoding, topic, limits)
            born = system.born_timestamp
            seconds = born.seconds
            records.append(
                PendingRecord(
                    topic.name,
                    queue_id,
                    body,
                    encoded_properties(message, system, message_id, tag, limits, host),
                    seconds * 1000 + born.nanos // 1_000_000 if seconds > 0 else now,
                    packed,
                    v6 | SYS_COMPRESSED if encoding == _GZIP else v6,
                    0,
                    0,
                    0,
                    tags_code(tag) if tag else 0,
                )
            )
            message_ids.append(message_id)
        return records, message_ids


def send_response(
    status: pb.Status, message_ids: Iterable[str], offsets: Iterable[int]
) -> rpc.SendMessageResponse:
    """A reply whose entries all have the same status."""
    return rpc.SendMessageResponse(
        status=status,
        entries=[
            rpc.SendResultEntry(status=status, message_id=each, transaction_id=each, offset=offset)
            for each, offset in zip(message_ids, offsets, strict=True)
        ],
    )


def _refused(topic: str, error: Exception) -> bytes:
    """The reply to a call whose messages the store did not take."""
    if isinstance(error, RecordTooLargeError):
        status = pb.Status(code=pb.MESSAGE_BODY_TOO_LARGE, message=str(error))
    elif isinstance(error, StoreReadOnlyError):
        status = pb.Status(code=pb.INTERNAL_SERVER_ERROR, message=str(error))
    else:
        text = f"the message for {shown(topic)} was not stored: {error}"
        status = pb.Status(code=pb.INTERNAL_SERVER_ERROR, message=text)
    return rpc.SendMessageResponse(status=status).SerializeToString()


def _check_type(message_type: pb.MessageType) -> None:
    if message_type in _LATER:
        raise ServiceError(
            pb.NOT_IMPLEMENTED, f"{_LATER[message_type]} messages are not implemented yet; send NORMAL ones"
        )
    if message_type != pb.MESSAGE_TYPE_UNSPECIFIED:
        raise ServiceError(pb.BAD_REQUEST, f"message type {message_type} is unknown; send NORMAL messages")


def check_message(
    message: pb.Message,
    system: pb.SystemProperties,
    body: bytes,
    message_id: str,
    encoding: pb.Encoding,
    topic: Topic,
    limits: _Limits,
) -> None:
    """Checks type, body, digest and message id; ServiceError says what is wrong."""
    message_type = system.message_type
    if message_type != _NORMAL:
        _check_type(message_type)
    if system.message_group:
        raise ServiceError(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a NORMAL message must not have a message group"
        )
    if system.HasField("delivery_timestamp"):
        raise ServiceError(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a NORMAL message must not have a delivery timestamp"
        )
    if topic.accept_message_types and not topic_accepts(topic, pb.NORMAL):
        raise ServiceError(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic {shown(topic.name)} accepts {', '.join(topic.accept_message_types)}, not NORMAL messages",
        )
    size = len(body)
    if not size and limits.refuse_empty:
        raise ServiceError(pb.MESSAGE_BODY_EMPTY, "the message body is empty; put at least one byte in it")
    if size > limits.body:
        raise ServiceError(
            pb.MESSAGE_BODY_TOO_LARGE,
            f"the message body has {size} bytes, at most {limits.body} (maxMessageSize) are taken",
        )
    if encoding not in _ENCODINGS:
        raise ServiceError(pb.BAD_REQUEST, f"body encoding {encoding} is unknown; use IDENTITY or GZIP")
    if not message_id.strip():
        raise ServiceError(pb.ILLEGAL_MESSAGE_ID, "the message id is empty; a client makes it")
    if len(message_id) > _MESSAGE_ID_MAX_LENGTH:
        raise ServiceError(
            pb.ILLEGAL_MESSAGE_ID,
            f"the message id has {len(message_id)} characters, at most {_MESSAGE_ID_MAX_LENGTH} are taken",
        )
    check_text(message_id, "message id", pb.ILLEGAL_MESSAGE_ID)
    if system.HasField("body_digest"):
        _check_digest(system.body_digest, body)


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
        raise ServiceError(pb.BAD_REQUEST, f"digest type {digest.type} is unknown; use CRC32, MD5 or SHA1")
    if stated != actual:
        raise ServiceError(
            pb.MESSAGE_CORRUPTED,
            f"the body's digest is {actual}, the message says {shown(stated)}; it was damaged on the way",
        )


def encoded_properties(
    message: pb.Message,
    system: pb.SystemProperties,
    message_id: str,
    tag: str,
    limits: _Limits,
    host: Host,
) -> bytes:
    """A message's properties as a record holds them. Raises ServiceError.

    The usual message is checked as a whole; whatever might be wrong goes through `checked_properties`.
    """
    user, born_host = message.user_properties, system.born_host
    if system.keys or system.trace_context:
        return checked_properties(message, limits, host)
    texts = [message_id]
    encoded = ""
    if user:
        keys = list(user)
        values = list(map(user.__getitem__, keys))  # items() of such a map is slower
        if len(keys) > limits.properties or "" in keys or not RESERVED_PROPERTIES.isdisjoint(keys):
            return checked_properties(message, limits, host)
        texts += keys + values
        encoded = "".join([f"{key}\x01{value}\x02" for key, value in zip(keys, values, strict=True)])
    if tag:
        if "|" in tag or not tag.strip():
            return checked_properties(message, limits, host)
        texts.append(tag)
        encoded += f"TAGS\x01{tag}\x02"
    encoded += f"UNIQ_KEY\x01{message_id}\x02"
    if born_host and born_host != host.ip:
        texts.append(born_host)
        encoded += f"__BORNHOST\x01{born_host}\x02"
    if CONTROL_CHARACTER.search("".join(texts)) or len(encoded) * 4 > limits.properties_bytes:
        return checked_properties(message, limits, host)
    return encoded.encode()


def checked_properties(message: pb.Message, limits: _Limits, host: Host) -> bytes:
    """The plain path of `encoded_properties`: every part checked by itself."""
    system = message.system_properties
    user = message.user_properties
    if len(user) > limits.properties:
        raise ServiceError(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(user)} user properties, at most {limits.properties} (userPropertyMaxNum) are taken",
        )
    properties: dict[str, str] = {}
    size = 0
    for key, value in user.items():
        if not key:
            raise ServiceError(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "a property key is empty; name it")
        if key in RESERVED_PROPERTIES:
            raise ServiceError(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {shown(key)} is used by the system; rename it"
            )
        check_text(key, "property key", pb.ILLEGAL_MESSAGE_PROPERTY_KEY)
        check_text(value, f"the value of property {shown(key)},", pb.ILLEGAL_MESSAGE_PROPERTY_KEY)
        size += len(key.encode()) + len(value.encode())
        properties[key] = value
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
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"tag, keys and properties have {size} bytes, at most {limits.properties_bytes} "
            "(maxUserPropertySize) are taken",
        )
    properties["UNIQ_KEY"] = system.message_id
    if system.HasField("trace_context") and system.trace_context:
        check_text(system.trace_context, "trace context", pb.ILLEGAL_MESSAGE_PROPERTY_KEY)
        properties["TRACE_CONTEXT"] = system.trace_context
    if system.born_host and system.born_host != host.ip:
        check_text(system.born_host, "born host", pb.ILLEGAL_MESSAGE_PROPERTY_KEY)
        properties["__BORNHOST"] = system.born_host
    encoded = encode_properties(properties)
    if len(encoded) > PROPERTIES_MAX_BYTES - 32:  # room for the record's own CRC property
        raise ServiceError(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"all properties have {len(encoded)} bytes, at most {PROPERTIES_MAX_BYTES - 32} fit a record",
        )
    return encoded


@lru_cache(maxsize=8192)
def peer_host(peer: str) -> Host:
    """The peer's address `ip:port` or `[ip]:port` for BORNHOST; 0.0.0.0:0 when it is no IP address."""
    ip, _, port = peer.rpartition(":")
    ip = ip.strip("[]")
    try:
        ipaddress.ip_address(ip)
        return Host(ip, int(port))
    except ValueError:
        return Host("0.0.0.0", 0)
