"""What each view must answer, from the bytes of the logs: record by record, in plain Python, without any code of the product.

`answers(logs)` takes the logs of a lake in the order in which they were read: broker, id and bytes of each.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb

Row = dict[str, Any]
Queue = tuple[str, str, int]
"""Topic, broker, queue id."""
JOURNAL = "rmq_sys_lakebroker_journal"
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
_EVENTS = {1: "delivered", 2: "acked", 4: "expired", 5: "dead_lettered"}
_LEVELS_MS = (1000, 5000, 10_000)


@dataclass(frozen=True)
class Place:
    """Where a record stands; places of one broker have the order in which things happened."""

    log: int
    offset: int

    def __lt__(self, other: Place) -> bool:
        return (self.log, self.offset) < (other.log, other.offset)


@dataclass
class Record:
    place: Place
    broker: str
    row: Row
    """As in `messages`."""
    changes: pb.Batch | None


def answers(logs: list[tuple[str, str, bytes]]) -> dict[str, list[Row]]:
    """Rows of each view."""
    found = [
        record
        for number, (broker, log_id, data) in enumerate(logs)
        for record in _records(number, broker, log_id, data)
    ]
    messages = [record.row for record in found if record.changes is None]
    trace = list(_trace(found))
    return {
        "messages_live": [row for row in messages if not row["is_system"]],
        "messages_system": [row for row in messages if row["is_system"]],
        "consumer_lag": list(_lag(found, lambda topic: not _is_system(topic))),
        "consumer_lag_system": list(_lag(found, _is_system)),
        "consumer_lag_by_minute": list(_by_minute(found)),
        "dead_letters": [_dead_letter(row) for row in messages if row["topic"].startswith("%DLQ%")],
        "retries": [row for row in _events(found) if row["event"] == "delivered" and row["attempt"] > 1],
        "message_trace": trace,
        "message_trace_by_key": list(_by_key(found, trace)),
        "delayed_messages": [
            row | {"destination": row["properties"].get("REAL_TOPIC") if row["is_system"] else row["topic"]}
            for row in messages
            if row["deliver_timestamp"] is not None
        ],
        "transactions": [
            row | {"transaction_state": {8: "committed", 12: "rolled_back"}.get(row["sys_flag"] & 12, "prepared")}
            for row in messages
            if row["sys_flag"] & 12 or row["topic"] == HALF
        ],
        "topic_stats": list(_stats(found)),
    }  # fmt: skip


def _time(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def _minute(time: datetime) -> datetime:
    return time.replace(second=0, microsecond=0)


def _is_system(topic: str) -> bool:
    return (
        topic
        in {
            "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", HALF, "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            "RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
            "CHECKPOINT_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        }
        or topic.startswith(("rmq_sys_", "%RETRY%"))
        or topic.endswith("_REPLY_TOPIC")
    )  # fmt: skip


def _records(log: int, broker: str, log_id: str, data: bytes) -> Iterator[Record]:
    """The records of a log; what is none, or damaged, is passed over."""
    at = 0
    while at < len(data):
        size, magic = struct.unpack_from(">iI", data, at) if at + 8 <= len(data) else (0, 0)
        if magic != 0xDAA320A7:
            at += 1
            continue
        row = _row(data[at : at + size])
        if row is not None:
            row |= {"broker": broker, "log_id": log_id, "physical_offset": at}
            changes = None
            if row["topic"] == JOURNAL:
                changes = pb.Batch()
                changes.ParseFromString(row["body"])
            if not row["message_id"]:
                row["message_id"] = f"{0x7F000001:08X}{10911:08X}{at:016X}"
            yield Record(Place(log, at), broker, row, changes)
        at += size


def _row(record: bytes) -> Row | None:
    """None where the body is not the one that was written."""
    _, _, crc, queue_id, flag, queue_offset, _, sys_flag, born = struct.unpack_from(">iIiiiqqiq", record)
    born_host, stored, store_host, reconsumed, prepared = struct.unpack_from(">8sq8siq", record, 48)
    length = struct.unpack_from(">i", record, 84)[0]
    body = record[88 : 88 + length]
    if zlib.crc32(body) & 0x7FFFFFFF != crc:
        return None
    at = 88 + length
    topic = record[at + 1 : at + 1 + record[at]].decode()
    pairs = record[at + 1 + record[at] + 2 :].decode().split("\x02")
    properties: dict[str, str] = {}
    for pair in filter(None, pairs):
        key, _, value = pair.partition("\x01")
        properties[key] = value
    due = None
    if topic == "SCHEDULE_TOPIC_XXXX":
        due = _time(stored + _LEVELS_MS[int(properties["DELAY"]) - 1])
    elif "TIMER_DELIVER_MS" in properties:
        due = _time(int(properties["TIMER_DELIVER_MS"]))
    return {
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "size": len(record),
        "message_id": properties.get("UNIQ_KEY"),
        "tag": properties.get("TAGS"),
        "keys": properties.get("KEYS", "").split(),
        "message_group": None,
        "lite_topic": None,
        "priority": None,
        "properties": properties,
        "body": body,
        "body_encoding": "identity",
        "flag": flag,
        "sys_flag": sys_flag,
        "born_timestamp": _time(born),
        "born_host": _host(born_host),
        "store_timestamp": _time(stored),
        "store_host": _host(store_host),
        "reconsume_times": reconsumed,
        "prepared_transaction_offset": prepared,
        "deliver_timestamp": due,
        "is_system": _is_system(topic),
        "origin": _origin(topic, properties, reconsumed),
    }


def _host(packed: bytes) -> str:
    return f"{'.'.join(map(str, packed[:4]))}:{int.from_bytes(packed[4:], 'big')}"


def _origin(topic: str, properties: dict[str, str], reconsumed: int) -> Row | None:
    if "LB_ORIGIN" in properties:
        queue_id, offset, attempt, length, names = properties["LB_ORIGIN"].split(":", 4)
        group, source = names[: int(length)], names[int(length) :]
        return {
            "topic": source, "queue_id": int(queue_id), "queue_offset": int(offset), "consumer_group": group,
            "attempt": int(attempt),
        }  # fmt: skip
    if not topic.startswith(("%RETRY%", "%DLQ%")):
        return None
    group = topic.split("%", 2)[2]
    source = properties.get("RETRY_TOPIC") or properties.get("DLQ_ORIGIN_TOPIC")
    if source is None and not reconsumed:
        return None
    if source is not None:
        source = source.removeprefix(f"%RETRY%{group}_")
    return {
        "topic": source, "queue_id": None, "queue_offset": None, "consumer_group": group, "attempt": reconsumed or None
    }  # fmt: skip


def _dead_letter(row: Row) -> Row:
    properties = row["properties"]
    origin = row["origin"] or {"consumer_group": row["topic"].removeprefix("%DLQ%")}
    return {
        "consumer_group": origin["consumer_group"],
        "topic": origin.get("topic"),
        "broker": row["broker"],
        "queue_id": origin.get("queue_id"),
        "queue_offset": origin.get("queue_offset"),
        "attempts": origin.get("attempt"),
        "reason": properties.get("LB_REASON"),
        "origin_message_id": properties.get("DLQ_ORIGIN_MESSAGE_ID") or properties.get("ORIGIN_MESSAGE_ID"),
        "dead_lettered_timestamp": row["store_timestamp"],
    } | {name: row[name] for name in ("message_id", "tag", "keys", "size", "body")}


def _reachable(found: Iterable[Record]) -> list[Record]:
    """Records that a queue leads to."""
    return [record for record in found if record.row["sys_flag"] & 12 in (0, 8)]


def _events(found: Iterable[Record]) -> Iterator[Row]:
    for record in found:
        ordinal = 0
        for queue in record.changes.queues if record.changes else ():
            for events in queue.events:
                for offset, attempt, message in zip(
                    events.queue_offset, events.attempt, events.message_id, strict=True
                ):
                    yield {
                        "broker": record.broker,
                        "log_id": record.row["log_id"],
                        "physical_offset": record.place.offset,
                        "ordinal": ordinal,
                        "consumer_group": queue.consumer_group,
                        "topic": queue.topic,
                        "queue_id": queue.queue_id,
                        "queue_offset": offset,
                        "message_id": message,
                        "event": _EVENTS[events.kind],
                        "attempt": attempt,
                        "client_id": events.client_id,
                        "event_timestamp": _time(events.timestamp_ms),
                    }
                    ordinal += 1


def _trace(found: list[Record]) -> Iterator[Row]:
    for record in found:
        row = record.row
        if record.changes is None and "UNIQ_KEY" in row["properties"] and row["sys_flag"] & 12 != 12:
            yield {
                name: row[name] for name in ("message_id", "topic", "broker", "queue_id", "queue_offset")
            } | {
                "event_timestamp": row["store_timestamp"], "event": "stored", "consumer_group": None, "attempt": None,
                "client": None, "step": 0,
            }  # fmt: skip
    steps = {"delivered": 2, "expired": 1, "held": 1}
    names = (
        "message_id", "topic", "broker", "queue_id", "queue_offset", "event_timestamp", "event", "consumer_group",
        "attempt",
    )  # fmt: skip
    for row in _events(found):
        yield {name: row[name] for name in names} | {
            "client": row["client_id"],
            "step": steps.get(row["event"], 3),
        }


def _by_key(found: list[Record], trace: list[Row]) -> Iterator[Row]:
    named = {
        (key, record.row["message_id"], record.row["topic"])
        for record in found
        for key in record.row["keys"]
        if record.changes is None and "UNIQ_KEY" in record.row["properties"] and record.row["sys_flag"] & 12 != 12
    }  # fmt: skip
    for key, message, topic in named:
        for row in trace:
            if (row["message_id"], row["topic"]) == (message, topic):
                yield row | {"key": key}


def _stats(found: list[Record]) -> Iterator[Row]:
    counts: dict[tuple[str, datetime], list[int]] = defaultdict(lambda: [0, 0])
    for record in _reachable(found):
        row = record.row
        if not _is_system(row["topic"]):
            count = counts[row["topic"], _minute(row["store_timestamp"])]
            count[0] += 1
            count[1] += row["size"]
    for (topic, minute), (messages, size) in counts.items():
        yield {"topic": topic, "minute": minute, "messages": messages, "bytes": size}


class _State:
    """What is known of queues and groups; told of everything in the order in which it happened on each broker."""

    def __init__(self) -> None:
        self.ends: dict[Queue, int] = {}
        self._end_logs: dict[Queue, int] = {}
        self.committed: dict[tuple[str, Queue], tuple[int, datetime] | None] = {}

    def stored(self, record: Record) -> None:
        row = record.row
        queue = row["topic"], record.broker, row["queue_id"]
        newer = self._end_logs.get(queue) != record.place.log
        if record.row["sys_flag"] & 12 in (0, 8):
            self.ends[queue] = max(0 if newer else self.ends.get(queue, 0), row["queue_offset"] + 1)
            self._end_logs[queue] = record.place.log

    def changed(self, record: Record) -> None:
        if record.changes is None:
            return
        for read in record.changes.queues:
            at = read.consumer_group, (read.topic, record.broker, read.queue_id)
            if read.has_committed:
                self.committed[at] = read.committed, _time(record.changes.timestamp_ms)
            elif read.events:
                self.committed.setdefault(at, None)
        topics = {topic.topic for topic in record.changes.topics if topic.deleted}
        groups = {group.group for group in record.changes.groups if group.deleted}
        for queue in list(self.ends):
            if queue[0] in topics and queue[1] == record.broker:
                del self.ends[queue]
        for group, queue in list(self.committed):
            if queue[1] == record.broker and (queue[0] in topics or group in groups):
                del self.committed[group, queue]

    def lag(self, group: str, queue: Queue) -> Row:
        committed, when = self.committed.get((group, queue)) or (None, None)
        end = self.ends.get(queue)
        known = committed is not None and end is not None and end >= committed
        return {
            "consumer_group": group, "topic": queue[0], "broker": queue[1], "queue_id": queue[2],
            "committed_offset": committed, "max_offset": end, "lag": end - committed if known else None,
            "commit_timestamp": when,
        }  # fmt: skip


def _lag(found: list[Record], wanted: Callable[[str], bool]) -> Iterator[Row]:
    state = _State()
    for record in found:
        state.stored(record)
        state.changed(record)
    read = {(group, queue[0]) for group, queue in state.committed}
    queues = {(group, queue) for queue in state.ends for group, topic in read if queue[0] == topic}
    for group, queue in queues | state.committed.keys():
        if wanted(queue[0]):
            yield state.lag(group, queue)


def _by_minute(found: list[Record]) -> Iterator[Row]:
    """Minute by minute, told of all that happened until its end."""
    moved: dict[datetime, set[Queue]] = defaultdict(set)
    for record in _reachable(found):
        row = record.row
        minute = _minute(row["store_timestamp"])
        moved[minute].add((row["topic"], record.broker, row["queue_id"]))
    committed: dict[datetime, set[tuple[str, Queue]]] = defaultdict(set)
    for record in found:
        for read in record.changes.queues if record.changes else ():
            if read.has_committed:
                minute = _minute(_time(record.changes.timestamp_ms))
                committed[minute].add((read.consumer_group, (read.topic, record.broker, read.queue_id)))
    for minute in sorted({*moved, *committed}):
        state = _State()
        for record in found:
            if _minute(record.row["store_timestamp"]) <= minute:
                state.stored(record)
                state.changed(record)
        for group, queue in state.committed:
            if state.committed[group, queue] is None or _is_system(queue[0]):
                continue
            if queue in moved[minute] or (group, queue) in committed[minute]:
                row = state.lag(group, queue)
                del row["commit_timestamp"]
                yield row | {"minute": minute}


def dispatch_lag(progress: list[Row]) -> list[Row]:
    """Rows of `dispatch_lag`, from those of `reput_progress`: batch by batch, until what was behind one is there."""
    found = []
    for row in progress:
        names = ("broker", "log_id", "batch", "commit_timestamp", "end_offset", "log_end_offset")
        behind = max(row["log_end_offset"] - row["end_offset"], 0)
        records: int | None = 0
        seconds: int | None = 0
        later = [
            each
            for each in progress
            if (each["broker"], each["log_id"]) == (row["broker"], row["log_id"])
            and each["end_offset"] > row["end_offset"]
        ]
        if behind:
            records = seconds = None
            brought = 0
            for each in sorted(later, key=lambda each: each["end_offset"]):
                brought += each["records"]
                if each["end_offset"] >= row["log_end_offset"]:
                    waited = each["commit_timestamp"] - row["commit_timestamp"]
                    records, seconds = brought, int(waited.total_seconds())
                    break
        found.append(
            {name: row[name] for name in names}
            | {"behind_bytes": behind, "behind_records": records, "behind_seconds": seconds}
        )
    return found
