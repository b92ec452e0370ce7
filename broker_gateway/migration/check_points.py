"""What a real broker's POP consumers hold: check points and acknowledgements in its log.

A pop writes a check point (tag `ck`), an ack an `ack`, several `bAck`, as JSON, in the topic
`rmq_sys_REVIVE_LOG_<cluster>`. They go there by the timer: first they stand in `rmq_sys_wheel_timer`, with the revive
topic as `REAL_TOPIC`; when they are due (an ack at the end of the invisible time, a check point a second before)
the timer copies them. The revive service then pairs them, sends what is not acknowledged to the retry topic of the
group, and commits how far it came in the revive topic (inclusive) for `CID_RMQ_SYS_REVIVE_GROUP`.

| field | check point | ack | | field | check point | ack |
|---|---|---|---|---|---|---|
| `t`, `c`, `q` | topic, group, queue id | the same | | `it` | invisible time, ms | - |
| `so` | first offset | the same | | `n` | number of messages | - |
| `pt` | time of the pop, ms | the same | | `d` | offset of each less `so`; none: consecutive | - |
| `bn` | broker | the same | | `ao`, `aol` | - | offset; offsets of a `bAck` |

A change of the invisible time is a check point of its own and then an ack of the one before. No IO here; nothing of
what is read is trusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker_gateway.delivery.queue_delivery import QueueKey
from store.log.record import Record

REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
TIMER_TOPIC = "rmq_sys_wheel_timer"
CK, ACK, BATCH_ACK = "ck", "ack", "bAck"
MOST_MESSAGES = 32
"""Of a check point: acknowledgements are bits of a 32-bit number there."""
ACK_INTERVAL_MS = 1000
"""A check point is due so much before the end of its invisible time."""
_LONG = (1 << 62) - 1


class CheckPointError(ValueError):
    """A check point or ack that makes no sense; the text says why."""


class ReviveQueue(NamedTuple):
    """A queue of the revive topic."""

    topic: str
    queue_id: int


class PopKey(NamedTuple):
    """What pairs acks with their check point."""

    queue: QueueKey
    start_offset: int
    pop_ms: int
    broker: str


@dataclass(slots=True)
class CheckPoint:
    """Messages that one pop handed out, until `due_ms`. `revive` is where its acks go; `arrived` says whether the
    timer has copied it there, `physical_offset` where it was written first (0: before the log's begin).
    """

    key: PopKey
    offsets: tuple[int, ...]
    due_ms: int
    revive: ReviveQueue
    physical_offset: int = 0
    arrived: bool = False
    acked: set[int] = field(default_factory=set)

    @property
    def open(self) -> list[int]:
        """Offsets that are not acknowledged."""
        return [offset for offset in self.offsets if offset not in self.acked]


def parse_check_point(body: bytes, revive: ReviveQueue) -> CheckPoint:
    """Reads the body of a `ck`. Raises CheckPointError."""
    found = _object(body)
    key = _key(found)
    count = _number(found, ("n",), 127)
    offsets: Iterable[int]
    if found.get("d") not in (None, []):
        offsets = [key.start_offset + each for each in _numbers(found, "d", (1 << 31) - 1)][:count]
    else:
        offsets = range(key.start_offset, key.start_offset + count)
    return CheckPoint(key, tuple(offsets), key.pop_ms + _number(found, ("it",), _LONG), revive)


def parse_ack(body: bytes, *, batch: bool) -> tuple[PopKey, list[int]]:
    """Reads the body of an `ack`, or of a `bAck`. Raises CheckPointError."""
    found = _object(body)
    if batch:
        name = "aol" if "aol" in found else "ackOffsetList"
        return _key(found), _numbers(found, name, _LONG)
    return _key(found), [_number(found, ("ao", "ackOffset"), _LONG)]


def check_point_body(point: CheckPoint) -> bytes:
    """The body of a `ck`."""
    queue, start, pop_ms, broker = point.key
    return _json(
        {
            "bm": 0,
            "bn": broker,
            "c": queue.group,
            "d": [offset - start for offset in point.offsets],
            "it": point.due_ms - pop_ms,
            "n": len(point.offsets),
            "pt": pop_ms,
            "q": queue.queue_id,
            "ro": 0,
            "so": start,
            "t": queue.topic,
        }
    )


def ack_body(key: PopKey, offset: int) -> bytes:
    """The body of an `ack`."""
    return _json(
        {
            "ao": offset,
            "bn": key.broker,
            "c": key.queue.group,
            "pt": key.pop_ms,
            "q": key.queue.queue_id,
            "so": key.start_offset,
            "t": key.queue.topic,
        }
    )


class CheckPoints:
    """Check points that are not done with: first all of them are added in the order of the log, then the acks.

    `revived` says how far the revive service came: the last queue offset it is done with. `damaged` names check
    points that cannot be read, `ignored` acks: what those acknowledge counts as not acknowledged.
    """

    def __init__(self, revived: Mapping[ReviveQueue, int]) -> None:
        self._revived = revived
        self._points: dict[PopKey, CheckPoint] = {}
        self.damaged: list[str] = []
        self.ignored: list[str] = []

    def __iter__(self) -> Iterator[CheckPoint]:
        return iter(self._points.values())

    def add(self, record: Record, revive: ReviveQueue, arrived_at: int | None) -> None:
        """A check point of the timer (`arrived_at` None) or of the revive topic, there with its queue offset."""
        done = arrived_at is not None and arrived_at <= self._revived.get(revive, -1)
        try:
            point = parse_check_point(bytes(record.body), revive)
        except CheckPointError as error:
            if not done:
                self.damaged.append(_named(record, error))
            return
        known = self._points.pop(point.key, None)
        if done:
            return
        point.arrived = arrived_at is not None
        if known is not None:
            point.physical_offset = known.physical_offset
        elif not point.arrived:
            point.physical_offset = record.physical_offset
        self._points[point.key] = point

    def acks_from(self) -> int | None:
        """No ack that counts is before this physical offset; None when none counts. Ask when all `add`s are done."""
        return min((point.physical_offset for point in self._points.values()), default=None)

    def add_ack(self, record: Record, *, batch: bool) -> None:
        """An ack, wherever it is."""
        try:
            key, offsets = parse_ack(bytes(record.body), batch=batch)
        except CheckPointError as error:
            self.ignored.append(_named(record, error))
            return
        known = self._points.get(key)
        if known is not None:
            known.acked.update(offsets)

    def latest(self) -> dict[QueueKey, dict[int, CheckPoint]]:
        """For each queue and offset the check point of the latest pop: that one says whether it is settled."""
        found: dict[QueueKey, dict[int, CheckPoint]] = {}
        for point in self._points.values():
            offsets = found.setdefault(point.key.queue, {})
            for offset in point.offsets:
                known = offsets.get(offset)
                if known is None or known.key.pop_ms < point.key.pop_ms:
                    offsets[offset] = point
        return found


def _named(record: Record, error: CheckPointError) -> str:
    return f"record of the revive log at physical offset {record.physical_offset}: {error}"


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CheckPointError(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckPointError(f"{str(found)[:80]!r} is no JSON object")
    return found


def _key(found: Mapping[str, Any]) -> PopKey:
    queue = QueueKey(
        _text(found, ("c", "consumerGroup")),
        _text(found, ("t", "topic")),
        _number(found, ("q", "queueId"), (1 << 31) - 1),
    )
    broker = found.get("bn", found.get("brokerName")) or ""
    if not isinstance(broker, str):
        raise CheckPointError(f"bn is {broker!r}, expected a text")
    return PopKey(
        queue,
        _number(found, ("so", "startOffset"), _LONG),
        _number(found, ("pt", "popTime"), _LONG),
        broker,
    )


def _text(found: Mapping[str, Any], names: tuple[str, ...]) -> str:
    value = _value(found, names)
    if not isinstance(value, str) or not value:
        raise CheckPointError(f"{names[0]} is {value!r}, expected a text")
    return value


def _number(found: Mapping[str, Any], names: tuple[str, ...], most: int) -> int:
    return _checked(_value(found, names), names[0], most)


def _numbers(found: Mapping[str, Any], name: str, most: int) -> list[int]:
    values = found.get(name)
    if not isinstance(values, list):
        raise CheckPointError(f"{name} is {values!r}, expected a list of numbers")
    return [_checked(value, name, most) for value in values]


def _checked(value: object, name: str, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise CheckPointError(f"{name} is {value!r}, expected a number of 0 to {most}")
    return value


def _value(found: Mapping[str, Any], names: tuple[str, ...]) -> object:
    for name in names:
        if name in found:
            return found[name]
    raise CheckPointError(f"it has no {names[0]}")


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
