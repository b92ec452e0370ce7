"""SendMessage: from a request to records of the commit log.

All messages of a call are checked before any is appended; they go to one queue of their topic, in order.
With SYNC_FLUSH the reply waits for the group commit.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from zlib_ng import zlib_ng

from broker_gateway.clock import now_ms
from broker_gateway.config import GatewayConfig
from broker_gateway.delivery.wakeups import Wakeups
from broker_gateway.journal.minute_stats import MinuteStatistics
from broker_gateway.metadata.catalog import Topic
from broker_gateway.metadata.names import RESERVED_PROPERTIES
from broker_gateway.metrics import Metrics
from broker_gateway.service.context import CallContext
from broker_gateway.service.resources import Resources
from broker_gateway.service.route import topic_accepts
from broker_gateway.service.status import OK, ServiceError, summary
from broker_gateway.service.validation import check_key, check_tag, check_text, resource_name, shown
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from store.errors import RecordTooLargeError, StoreError, StoreReadOnlyError
from store.message_store import Appended, FlushMode, MessageStore
from store.record import SYS_BORN_HOST_V6, SYS_COMPRESSED, Host, PendingRecord, encode_properties, tags_code

MAX_MESSAGES_A_CALL = 1024
PROPERTIES_MAX_BYTES = 32_767
_MESSAGE_ID_MAX_LENGTH = 255
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


class SendService:
    """Appends messages of producers."""

    def __init__(
        self,
        config: GatewayConfig,
        store: MessageStore,
        resources: Resources,
        wakeups: Wakeups[Any],
        metrics: Metrics,
        minutes: MinuteStatistics,
    ) -> None:
        self._store = store
        self._resources = resources
        self._wakeups = wakeups
        self._metrics = metrics
        self._minutes = minutes
        self._sync = config.store.flush_disk_type is FlushMode.SYNC_FLUSH
        self._sync_timeout_s = config.store.sync_flush_timeout / 1000
        self._next_queue = itertools.count()
        self._limits = _Limits(
            config.store.max_message_size,
            config.proxy.user_property_max_num,
            config.proxy.max_user_property_size,
            config.proxy.enable_message_body_empty_check,
        )

    async def send(self, request: rpc.SendMessageRequest, context: CallContext) -> rpc.SendMessageResponse:
        """Raises ServiceError when nothing of the call was appended."""
        started = time.perf_counter()
        messages = request.messages
        if not messages:
            raise ServiceError(pb.MESSAGE_CORRUPTED, "no message to send; put at least one in the request")
        if len(messages) > MAX_MESSAGES_A_CALL:
            raise ServiceError(
                pb.PAYLOAD_TOO_LARGE,
                f"{len(messages)} messages in one call, at most {MAX_MESSAGES_A_CALL} are taken; send fewer",
            )
        topic = self._resources.topic(messages[0].topic)
        try:
            records = self._records(topic, messages, context)
            appended = self._append(topic, records)
        except ServiceError:
            self._metrics.send_failed(topic.name)
            self._minutes.count(topic.name, "", len(messages), 0, None, failed=True)
            raise
        self._wakeups.arrived(topic.name)
        status = await self._flushed(appended[-1]) if self._sync else OK
        seconds = time.perf_counter() - started
        size = sum(len(message.body) for message in messages)
        self._metrics.sent(topic.name, len(messages), size, seconds)
        self._minutes.count(topic.name, "", len(messages), size, seconds, failed=status is not OK)
        entries = [
            rpc.SendResultEntry(
                status=status,
                message_id=message.system_properties.message_id,
                transaction_id=message.system_properties.message_id,
                offset=result.queue_offset,
            )
            for message, result in zip(messages, appended, strict=True)
        ]
        return rpc.SendMessageResponse(status=summary(e.status for e in entries), entries=entries)

    def _append(self, topic: Topic, records: list[PendingRecord]) -> list[Appended]:
        try:
            return self._store.append(records)
        except RecordTooLargeError as error:
            raise ServiceError(pb.MESSAGE_BODY_TOO_LARGE, str(error)) from error
        except StoreReadOnlyError as error:
            raise ServiceError(pb.INTERNAL_SERVER_ERROR, str(error)) from error
        except (StoreError, OSError) as error:
            raise ServiceError(
                pb.INTERNAL_SERVER_ERROR, f"the message for {shown(topic.name)} was not stored: {error}"
            ) from error

    async def _flushed(self, last: Appended) -> pb.Status:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BaseException | None] = loop.create_future()

        def finish(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        def from_flusher(error: BaseException | None) -> None:
            loop.call_soon_threadsafe(finish, error)

        self._store.wait_flushed(last.physical_offset + last.size, from_flusher)
        try:
            error = await asyncio.wait_for(done, self._sync_timeout_s)
        except TimeoutError:
            return pb.Status(
                code=pb.MASTER_PERSISTENCE_TIMEOUT,
                message=f"not on disk after {self._sync_timeout_s:g} s (syncFlushTimeout); it may be later",
            )
        if error is not None:
            return pb.Status(
                code=pb.MASTER_PERSISTENCE_TIMEOUT, message=f"the log could not be flushed: {error}"
            )
        return OK

    def _records(
        self, topic: Topic, messages: Iterable[pb.Message], context: CallContext
    ) -> list[PendingRecord]:
        if not topic.writable or not topic.write_queues:
            raise ServiceError(pb.FORBIDDEN, f"topic {shown(topic.name)} must not be written to")
        host = peer_host(context.peer)
        packed = host.packed
        v6 = SYS_BORN_HOST_V6 if len(packed) > 8 else 0
        queue_id = next(self._next_queue) % topic.write_queues
        now = now_ms()
        records = []
        for message in messages:
            if resource_name(message.topic) != topic.name:
                raise ServiceError(
                    pb.MESSAGE_CORRUPTED,
                    f"topics {shown(topic.name)} and {shown(resource_name(message.topic))} in one call; "
                    "send the messages of each topic in a call of their own",
                )
            system = message.system_properties
            check_message(message, topic, self._limits)
            born = system.born_timestamp
            gzip = system.body_encoding == pb.GZIP
            records.append(
                PendingRecord(
                    topic=topic.name,
                    queue_id=queue_id,
                    body=message.body,
                    properties=_encoded_properties(message, self._limits, host),
                    born_timestamp=born.seconds * 1000 + born.nanos // 1_000_000 if born.seconds > 0 else now,
                    born_host=packed,
                    sys_flag=v6 | (SYS_COMPRESSED if gzip else 0),
                    tags_code=tags_code(system.tag) if system.tag else 0,
                )
            )
        return records


def check_message(message: pb.Message, topic: Topic, limits: _Limits) -> None:
    """Checks type, body, digest and message id; ServiceError says what is wrong."""
    system = message.system_properties
    message_type = system.message_type
    if message_type in _LATER:
        raise ServiceError(
            pb.NOT_IMPLEMENTED, f"{_LATER[message_type]} messages are not implemented yet; send NORMAL ones"
        )
    if message_type not in (pb.NORMAL, pb.MESSAGE_TYPE_UNSPECIFIED):
        raise ServiceError(pb.BAD_REQUEST, f"message type {message_type} is unknown; send NORMAL messages")
    if system.HasField("message_group") and system.message_group:
        raise ServiceError(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a NORMAL message must not have a message group"
        )
    if system.HasField("delivery_timestamp"):
        raise ServiceError(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a NORMAL message must not have a delivery timestamp"
        )
    if not topic_accepts(topic, pb.NORMAL):
        raise ServiceError(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic {shown(topic.name)} accepts {', '.join(topic.accept_message_types)}, not NORMAL messages",
        )
    size = len(message.body)
    if not size and limits.refuse_empty:
        raise ServiceError(pb.MESSAGE_BODY_EMPTY, "the message body is empty; put at least one byte in it")
    if size > limits.body:
        raise ServiceError(
            pb.MESSAGE_BODY_TOO_LARGE,
            f"the message body has {size} bytes, at most {limits.body} (maxMessageSize) are taken",
        )
    if system.body_encoding not in (pb.ENCODING_UNSPECIFIED, pb.IDENTITY, pb.GZIP):
        raise ServiceError(
            pb.BAD_REQUEST, f"body encoding {system.body_encoding} is unknown; use IDENTITY or GZIP"
        )
    if not system.message_id.strip():
        raise ServiceError(pb.ILLEGAL_MESSAGE_ID, "the message id is empty; a client makes it")
    if len(system.message_id) > _MESSAGE_ID_MAX_LENGTH:
        raise ServiceError(
            pb.ILLEGAL_MESSAGE_ID,
            f"the message id has {len(system.message_id)} characters, at most {_MESSAGE_ID_MAX_LENGTH} are taken",
        )
    check_text(system.message_id, "message id", pb.ILLEGAL_MESSAGE_ID)
    if system.HasField("body_digest"):
        _check_digest(system.body_digest, message.body)


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


def _encoded_properties(message: pb.Message, limits: _Limits, host: Host) -> bytes:
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
