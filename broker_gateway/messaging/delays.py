"""Messages with a delivery time: which are taken, and how a producer takes one back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.deferred.put_off import as_timer, out_ms
from broker_gateway.deferred.timers import Timers
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.outcome import Outcome, Reason, ServiceError, refused_by_log
from broker_gateway.messaging.produce import Producer
from broker_gateway.metadata.catalog import WRITE
from broker_gateway.runtime.clock import now_ms
from store.log.record import PendingRecord

_VERSION = "v1"
_MOST_HANDLE = 2048
"""Characters."""


class Delays:
    """Checks delivery times, and recalls messages by their handles. Runs on the event loop."""

    def __init__(self, config: GatewayConfig, timers: Timers, producer: Producer) -> None:
        self._timers = timers
        self._producer = producer
        self._broker = config.broker.broker_name
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._enabled = config.store.timer_wheel_enable
        self._longest_ms = config.proxy.max_delay_time_mills
        self._longest_stored_ms = config.store.timer_max_delay_sec * 1000
        self._most = config.lake.lake_max_pending_timers
        self._most_bytes = config.lake.lake_max_pending_timer_bytes
        self._recall = config.broker.recall_message_enable
        self._writable = bool(config.broker.broker_permission & WRITE)
        self._recall_unwritable = config.broker.allow_recall_when_broker_not_writeable

    def check(self, deliver_ms: int, now: int) -> None:
        """ILLEGAL_DELIVERY_TIME for a time that is too far away; one that is past is none."""
        wait_ms = deliver_ms - now
        limits = (("maxDelayTimeMills", self._longest_ms), ("timerMaxDelaySec", self._longest_stored_ms))
        for option, longest in limits:
            if 0 < longest < wait_ms:
                raise ServiceError(
                    Reason.ILLEGAL_DELIVERY_TIME,
                    f"the delivery time is {wait_ms / 1000:g} s away, at most {longest / 1000:g} s ({option}) are taken",
                )

    def check_room(self, count: int, size: int) -> None:
        """INTERNAL_SERVER_ERROR where there is no timer, TOO_MANY_REQUESTS for more messages, or more bytes, than may wait;
        `count` and `size` are of those that will, without those that go at once."""
        if not self._enabled:
            raise ServiceError(
                Reason.INTERNAL_SERVER_ERROR,
                "the broker takes no messages with a delivery time (timerWheelEnable=false); send without one",
            )
        if not count:
            return
        if self._timers.count + count > self._most:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"{self._timers.count} messages wait for their delivery time, at most {self._most} (lakeMaxPendingTimers) may; try "
                "again later",
            )
        if self._timers.bytes + size > self._most_bytes:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"messages of {self._timers.bytes} bytes wait for their delivery time, at most {self._most_bytes} "
                f"(lakeMaxPendingTimerBytes) may, and this call has {size}; try again later",
            )

    def put_off(self, record: PendingRecord, deliver_ms: int, now: int) -> PendingRecord:
        """The record for the timer; the message's own when its time is past."""
        return as_timer(record, deliver_ms) if deliver_ms > now else record

    def recall_handle(self, topic: str, deliver_ms: int, message_id: str) -> str:
        """What a message can be taken back by: the original's."""
        text = f"{_VERSION} {topic} {self._broker} {out_ms(deliver_ms) + 1} {message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    def recall(self, topic: str, handle: str, done: Callable[[Outcome, str], None]) -> None:
        """Takes a message back whose delivery time has not come; `done` is called with its id when that is kept.

        FORBIDDEN where that is off; BAD_REQUEST for a handle that is none, or of no message that waits here.
        """
        if not self._recall:
            raise ServiceError(
                Reason.FORBIDDEN, "no message can be taken back here (recallMessageEnable=false)"
            )
        if not self._writable and not self._recall_unwritable:
            raise ServiceError(
                Reason.FORBIDDEN,
                "the broker must not be written to now (brokerPermission, allowRecallWhenBrokerNotWriteable=false)",
            )
        named, broker, out, message_id = _decoded(handle)
        if named != topic:
            raise _refused(f"the handle is of topic {shown(named)}, not of {shown(topic)}")
        if broker != self._broker:
            raise _refused(
                f"the handle is of broker {shown(broker)}, this one is {self._broker}; ask that one"
            )
        key = None
        if out > now_ms() - 1000:
            key = self._timers.find(topic, out - 1, message_id)
        if key is None:
            raise _refused(
                f"no message {shown(message_id)} of topic {shown(topic)} waits for that delivery time: it was delivered, or taken back"
            )
        with refused_by_log():
            self._timers.recall(key, topic, out - 1, message_id)
        self._producer.when_kept(lambda outcome: done(outcome, message_id))


def _refused(text: str) -> ServiceError:
    return ServiceError(Reason.BAD_REQUEST, text)


def _decoded(handle: str) -> tuple[str, str, int, str]:
    """Topic, broker, time in ms and message id of a recall handle."""
    invalid = _refused(f"the recall handle {shown(handle)} is none that a broker gave; use that of the send")
    if len(handle) > _MOST_HANDLE:
        raise invalid
    try:
        parts = base64.b64decode(handle, altchars=b"-_", validate=True).decode().split(" ", 4)
    except (binascii.Error, ValueError) as error:
        raise invalid from error
    if len(parts) != 5 or parts[0] != _VERSION:
        raise invalid
    _, topic, broker, time, message_id = parts
    if not (time.isascii() and time.isdigit() and len(time) < 16):
        raise invalid
    return topic, broker, int(time), message_id
