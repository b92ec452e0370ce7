"""SendMessage: from a request to records of the commit log.

All messages of a call are checked before any is appended; they go to one queue of their topic, in order. What
the calls of one turn of the event loop bring is appended in one go. With SYNC_FLUSH the replies wait for the
group commit.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.journal.minute_stats import MinuteStatistics
from broker_gateway.metadata.catalog import WRITE, Topic
from broker_gateway.observability.metrics import Metrics
from broker_gateway.runtime.clock import monotonic_s, now_ms
from broker_gateway.runtime.turn import Stage, Turn
from broker_gateway.service import shortcuts
from broker_gateway.service.admission import Lane
from broker_gateway.service.broker_properties import BrokerProperties
from broker_gateway.service.context import CallContext
from broker_gateway.service.extensions import AppendHook, run_append_hook
from broker_gateway.service.reply import Reply
from broker_gateway.service.request_limits import limits_of, parser
from broker_gateway.service.resources import Resources
from broker_gateway.service.route import topic_accepts
from broker_gateway.service.send_checks import (
    MAX_MESSAGES_A_CALL,
    Limits,
    Peer,
    check_types,
    peer_of,
    pending_records,
)
from broker_gateway.service.status import OK, ServiceError, status_of, summary
from broker_gateway.service.validation import shown
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from store.columns import PendingColumns
from store.errors import RecordTooLargeError, StoreError, StoreReadOnlyError
from store.log.record import PendingRecord
from store.message_store import FlushMode, MessageStore

if TYPE_CHECKING:
    from broker_gateway.service.send_columns import SendColumns

log = structlog.get_logger(__name__)
_BUSY_S = 0.05
"""How long sends are refused after an append that hung: those that queued meanwhile have been read by then."""
_parse = parser(rpc.SendMessageRequest, limits_of("/apache.rocketmq.v2.MessagingService/SendMessage"))
_TURN_BYTES = 8 << 20
"""Of bodies; a turn that brings more is appended in several goes."""
_TURN_S = 0.02
"""A turn that reads for longer is appended in several goes too: what was read first must not wait for all of it."""


@dataclass(slots=True)
class _Call:
    """A call of the turn; `size` is the bytes of its bodies, `offsets` its queue offsets once appended.

    `read_at`: when it was there whole, by `clock.monotonic_s`.
    """

    answer: Reply[bytes]
    topic: str
    records: list[PendingRecord] | PendingColumns
    message_ids: list[bytes]
    size: int
    read_at: float = 0.0
    offsets: Sequence[int] = ()


class SendService:
    """Appends messages of producers."""

    def __init__(
        self,
        config: GatewayConfig,
        store: MessageStore,
        resources: Resources,
        turn: Turn,
        metrics: Metrics,
        minutes: MinuteStatistics,
        lane: Lane,
        append_hooks: Sequence[AppendHook] = (),
    ) -> None:
        self._store = store
        self._resources = resources
        self._ends = turn
        self._metrics = metrics
        self._minutes = minutes
        self._sync = config.store.flush_disk_type is FlushMode.SYNC_FLUSH
        self._lane = lane
        self._append_hooks = append_hooks
        self._next_queue = itertools.count()
        self._turn: list[_Call] = []
        self._turn_bytes = 0
        self._busy = False
        self._limits = Limits.of(config)
        self._brokers = BrokerProperties.of_config(config)
        self._columns: SendColumns | None = None
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._sync_timeout_s = config.store.sync_flush_timeout / 1000
        self._busy_limit_s = config.store.os_page_cache_busy_time_out_mills / 1000
        self._accept_from_ms = config.broker.start_accept_send_request_time_stamp
        permission = config.broker.broker_permission
        self._forbidden = (
            None
            if permission & WRITE
            else f"the broker takes no messages now (brokerPermission={permission}); send to another"
        )

    def load_compiled(self) -> None:
        """Loads the shortcut for usual requests; takes a second, several the first time on a machine.

        To be called by another thread than the event loop's; until then all requests go the plain path.
        """
        from broker_gateway.service.send_columns import SendColumns

        if self._append_hooks:
            return  # hooks are given messages, which the shortcut does not make
        columns = SendColumns(self._limits)
        self._store.load_compiled()
        self._columns = columns

    def send(self, request: bytes, context: CallContext) -> Reply[bytes]:
        """The reply's bytes, once what came in this turn of the event loop was appended, all in one go.

        `request` is a SendMessageRequest. Raises ServiceError when nothing of the call was taken, RpcError when
        the request is none.
        """
        if self._lane.under_way >= self._lane.free:
            self._lane.check_room(context.peer)
        if self._forbidden is not None:
            raise ServiceError(pb.FORBIDDEN, self._forbidden)
        if self._busy:
            raise ServiceError(
                pb.TOO_MANY_REQUESTS,
                f"the broker is busy: an append took more than {self._busy_limit_s:g} s "
                "(osPageCacheBusyTimeOutMills); try again",
            )
        refusal = self._store.refusal
        if refusal is not None:
            raise ServiceError(pb.INTERNAL_SERVER_ERROR, refusal)
        call = self._call(request, context.peer)
        call.read_at = monotonic_s()
        if not self._turn:
            self._ends.add(Stage.APPEND, partial(self._end_turn, self._turn))
        self._turn.append(call)
        self._turn_bytes += call.size
        if self._turn_bytes > _TURN_BYTES or call.read_at - self._turn[0].read_at > _TURN_S:
            self._end_turn(self._turn)
        return call.answer

    def _call(self, request: bytes, source: str) -> _Call:
        """The call with its records, checked. `source`: the peer's `host:port`."""
        columns, now, peer = self._columns, now_ms(), peer_of(source)
        if now < self._accept_from_ms:
            raise ServiceError(
                pb.INTERNAL_SERVER_ERROR,
                f"the broker takes messages from {self._accept_from_ms} ms on (startAcceptSendRequestTimeStamp)",
            )
        usual = columns.take(request, peer, now) if columns is not None else None
        if usual is None:
            return self._plain_call(request, peer, now, source)
        topic = self._resources.topic(usual.topic)
        if topic.accept_message_types and not topic_accepts(topic, pb.NORMAL):
            return self._plain_call(request, peer, now, source)
        records, size = usual.records, usual.body_bytes
        try:
            records.queue_id = self._queue(topic)
        except ServiceError:
            self._failed(topic.name, len(records))
            raise
        records.topic = topic.name
        records.tail = self._brokers.encoded(topic.name)
        answer: Reply[bytes] = Reply(None, self._lane, source)
        return _Call(answer, topic.name, records, usual.message_ids, size)

    def _plain_call(self, request: bytes, peer: Peer, now: int, source: str) -> _Call:
        """What `send_columns` does for usual requests, for any."""
        messages = _parse(request).messages
        if not messages:
            raise ServiceError(pb.MESSAGE_CORRUPTED, "no message to send; put at least one in the request")
        if len(messages) > MAX_MESSAGES_A_CALL:
            raise ServiceError(
                pb.PAYLOAD_TOO_LARGE,
                f"{len(messages)} messages in one call, at most {MAX_MESSAGES_A_CALL} are taken; send fewer",
            )
        topic = self._resources.topic(messages[0].topic)
        try:
            for hook in self._append_hooks:
                run_append_hook(hook, messages, f"{peer.host.ip}:{peer.host.port}")
            check_types(topic, messages)
            queue_id = self._queue(topic)
            records, message_ids = pending_records(
                topic, queue_id, messages, peer, self._limits, now, self._brokers
            )
        except ServiceError:
            self._failed(topic.name, len(messages))
            raise
        size = sum([len(record.body) for record in records])
        answer: Reply[bytes] = Reply(None, self._lane, source)
        return _Call(answer, topic.name, records, message_ids, size)

    def _end_turn(self, turn: list[_Call]) -> None:
        """Appends what the calls of a turn brought and answers them."""
        if turn is not self._turn or not turn:
            return  # it grew so large that it was ended already
        self._turn, self._turn_bytes = [], 0
        began = turn[0].read_at  # the others were read later
        late = self._lane.late(began)
        if late is not None:
            turn = self._in_time(turn, late)
        stored = self._append(turn) if len(turn) == 1 else self._append_kinds(turn)
        if not stored:
            return
        if self._sync:
            self._answer_flushed(stored, began)
        else:
            self._answer(stored, OK, monotonic_s() - began)

    def _append_kinds(self, turn: list[_Call]) -> list[_Call]:
        """`_append` for calls of any kind."""
        stored = []
        for kind in (PendingColumns, list):
            calls = [call for call in turn if type(call.records) is kind]
            if calls:
                stored += self._append(calls)
        return stored

    def _in_time(self, turn: list[_Call], late: ServiceError | None) -> list[_Call]:
        """Those calls that have not waited too long; the others, the first because of `late`, have their answer."""
        refused = 0
        while late is not None:
            call = turn[refused]
            call.answer.set(rpc.SendMessageResponse(status=late.status).SerializeToString())
            self._failed(call.topic, len(call.message_ids))
            refused += 1
            late = self._lane.late(turn[refused].read_at) if refused < len(turn) else None
        return turn[refused:]

    def _append(self, calls: list[_Call]) -> list[_Call]:
        """Those calls whose messages are in the log; the others have their answer. All are of one kind.

        An error that one call brings is that call's: the others are appended without it.
        """
        began, end = time.monotonic(), self._store.max_offset
        try:
            self._put(calls)
        except Exception as error:
            everyones = isinstance(error, (StoreReadOnlyError, OSError)) or self._store.max_offset != end
            if len(calls) > 1 and not everyones:
                middle = len(calls) // 2
                return self._append(calls[:middle]) + self._append(calls[middle:])
            if not isinstance(error, (StoreError, OSError)):
                log.exception("an append failed", topics=sorted({call.topic for call in calls}))
            for call in calls:
                call.answer.set(_refused(call.topic, error))
                self._failed(call.topic, len(call.message_ids))
            return []
        if time.monotonic() - began > self._busy_limit_s:
            self._held_up()
        return calls

    def _put(self, calls: list[_Call]) -> None:
        """Appends all calls or none and sets their offsets."""
        if isinstance(calls[0].records, PendingColumns):
            batches = [call.records for call in calls if isinstance(call.records, PendingColumns)]
            for call, first in zip(calls, self._store.append_columns(batches), strict=True):
                call.offsets = range(first, first + len(call.message_ids))
            return
        records = [record for call in calls if isinstance(call.records, list) for record in call.records]
        offsets = [each.queue_offset for each in self._store.append(records)]
        position = 0
        for call in calls:
            end = position + len(call.message_ids)
            call.offsets = offsets[position:end]
            position = end

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
                self._answer(stored, status, monotonic_s() - began)
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
        try:
            self._store.wait_flushed(self._store.max_offset, from_flusher)
        except Exception as error:
            log.exception("a flush could not be asked for")
            from_flusher(error)

    def _answer(self, calls: list[_Call], status: pb.Status, seconds: float) -> None:
        counted: dict[str, list[int]] = {}
        for call in calls:
            sums = counted.setdefault(call.topic, [0, 0, 0])
            sums[0] += 1
            sums[1] += len(call.message_ids)
            sums[2] += call.size
            try:
                if status is OK:
                    reply = shortcuts.sent(call.message_ids, call.offsets)
                else:
                    reply = send_response(status, call.message_ids, call.offsets).SerializeToString()
            except Exception as error:
                log.exception("an answer could not be made", call="SendMessage", topic=call.topic)
                reply = rpc.SendMessageResponse(status=status_of(error)).SerializeToString()
            call.answer.set(reply)
        for topic, (count, messages, size) in counted.items():
            self._metrics.sent(topic, count, messages, size, seconds)
            self._minutes.count(topic, "", messages, size, seconds, calls=count, failed=status is not OK)

    def _failed(self, topic: str, messages: int) -> None:
        self._metrics.send_failed(topic)
        self._minutes.count(topic, "", messages, 0, None, failed=True)

    def _queue(self, topic: Topic) -> int:
        """The queue that the next call goes to. FORBIDDEN."""
        if not topic.writable or not topic.write_queues:
            raise ServiceError(pb.FORBIDDEN, f"topic {shown(topic.name)} must not be written to")
        return next(self._next_queue) % topic.write_queues


def send_response(
    status: pb.Status, message_ids: Iterable[bytes], offsets: Iterable[int]
) -> rpc.SendMessageResponse:
    """A reply whose entries all have the same status."""
    return rpc.SendMessageResponse(
        status=summary([status]),
        entries=[
            rpc.SendResultEntry(status=status, message_id=each, transaction_id=each, offset=offset)
            for each, offset in zip(map(bytes.decode, message_ids), offsets, strict=True)
        ],
    )


def _refused(topic: str, error: Exception) -> bytes:
    """The reply to a call whose messages the store did not take, or cannot hand out."""
    if isinstance(error, RecordTooLargeError):
        status = pb.Status(code=pb.MESSAGE_BODY_TOO_LARGE, message=str(error))
    elif isinstance(error, StoreReadOnlyError):
        status = pb.Status(code=pb.INTERNAL_SERVER_ERROR, message=str(error))
    elif not isinstance(error, (StoreError, OSError)):
        status = status_of(error)
    else:
        text = f"the message for {shown(topic)} was not stored: {error}"
        status = pb.Status(code=pb.INTERNAL_SERVER_ERROR, message=text)
    return rpc.SendMessageResponse(status=status).SerializeToString()
