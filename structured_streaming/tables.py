"""Every table of the lake: schema, row key, order, comments. Imports no pyspark.

A table's rows are identified by its `key`. Files are written sorted by `order`. Timestamps are UTC,
microseconds. Readers other than Spark must manage: no deletion vectors, no column mapping, no clustering.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = 4
"""Of all tables of a lake. Older lakes are upgraded (`commit/upgrade.py`), newer ones refused.

| version | new |
|---|---|
| 2 | `lite_topic` and `priority` of `messages`; `topics`, `consumer_groups` |
| 3 | `other_fields` of `topics` and `consumer_groups` |
| 4 | `upkeep`, `erasures` |
"""
SCHEMA_PROPERTY = "lakebroker.schema_version"
"""Of each table."""
JOURNAL_TOPIC = "rmq_sys_lakebroker_journal"
"""Of records that are no messages."""
TIMESTAMP = pa.timestamp("us", tz="UTC")
ORIGIN = pa.struct(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("consumer_group", pa.string()),
        ("attempt", pa.int32()),
    ]
)
TOPIC_CONFIGURATION = pa.struct(
    [
        ("read_queues", pa.int32()),
        ("write_queues", pa.int32()),
        ("permission", pa.int32()),
        ("message_types", pa.list_(pa.string())),
        ("is_ordered", pa.bool_()),
        ("created_timestamp", TIMESTAMP),
    ]
)
GROUP_CONFIGURATION = pa.struct(
    [
        ("retry_max_times", pa.int32()),
        ("is_fifo", pa.bool_()),
        ("is_consume_enabled", pa.bool_()),
        ("created_timestamp", TIMESTAMP),
        ("first_used_by", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: name, Arrow type and what it means."""

    name: str
    type: pa.DataType
    comment: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the lake."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    order: tuple[str, ...]
    since: int = 1
    """The first schema version that has it."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type, metadata={"comment": c.comment}) for c in self.columns])

    def chosen(self, columns: Container[str]) -> tuple[str, ...]:
        """Some of its columns in order; where only its rows count, the offset."""
        return tuple(c.name for c in self.columns if c.name in columns) or (self.columns[2].name,)


_PLACE = (
    Column("broker", pa.string(), "name of the broker"),
    Column("log_id", pa.string(), "identity of the broker's commit log"),
    Column("physical_offset", pa.int64(), "offset of the record in the commit log, bytes"),
)
_KEY = ("broker", "log_id", "physical_offset")
_QUEUE = (
    Column("topic", pa.string(), "topic"),
    Column("queue_id", pa.int32(), "queue of the topic on the broker"),
    Column("queue_offset", pa.int64(), "position in the queue"),
)
_STORED = Column("store_timestamp", TIMESTAMP, "when the broker stored the record")
_ORDINAL = Column("ordinal", pa.int32(), "position of the row in its journal record")

CONSUME_QUEUE = Table(
    "consume_queue",
    "One row for each record a consumer can reach: what RocketMQ's ConsumeQueue files hold.",
    (
        *_PLACE,
        *_QUEUE,
        Column("size", pa.int32(), "bytes of the record"),
        Column("tags_code", pa.int64(), "Java hash of the tag, 0 without one"),
        _STORED,
    ),
    _KEY,
    ("topic", "broker", "queue_id", "queue_offset"),
)
MESSAGE_INDEX = Table(
    "message_index",
    "One row for each key of a message: what RocketMQ's index files hold.",
    (
        *_PLACE,
        Column("key_type", pa.string(), "UNIQ_KEY (the client's message id) or KEYS"),
        Column("key", pa.string(), "the key"),
        *_QUEUE,
        _STORED,
    ),
    (*_KEY, "key_type", "key"),
    ("key", "topic"),
)
MESSAGES = Table(
    "messages",
    "Every message with its body; the gateway's journal is left out.",
    (
        *_PLACE,
        *_QUEUE,
        Column("size", pa.int32(), "bytes of the record"),
        Column("message_id", pa.string(), "the client's id, else made of store host and offset"),
        Column("tag", pa.string(), "tag"),
        Column("keys", pa.list_(pa.string()), "keys"),
        Column("message_group", pa.string(), "FIFO group"),
        Column("lite_topic", pa.string(), "topic of its own within a lite topic"),
        Column("priority", pa.int32(), "priority; null without one"),
        Column("properties", pa.map_(pa.string(), pa.string()), "all properties"),
        Column(
            "body", pa.binary(), "body, decompressed; as stored where that failed, null where it was left out"
        ),
        Column(
            "body_encoding", pa.string(), "identity, omitted, or the compression that could not be undone"
        ),
        Column("flag", pa.int32(), "the client's flag"),
        Column("sys_flag", pa.int32(), "RocketMQ's system flag"),
        Column("born_timestamp", TIMESTAMP, "when the client made it"),
        Column("born_host", pa.string(), "address of the client, ip:port"),
        _STORED,
        Column("store_host", pa.string(), "address of the broker, ip:port"),
        Column("reconsume_times", pa.int32(), "deliveries before this copy"),
        Column("prepared_transaction_offset", pa.int64(), "offset of the half message, of a commit"),
        Column(
            "deliver_timestamp",
            TIMESTAMP,
            "when a delayed message is due; a real broker's that was sent with a delay, not a time: up to a second earlier "
            "(TIMER_OUT_MS)",
        ),
        Column("is_system", pa.bool_(), "a copy or record the broker made for itself"),
        Column("origin", ORIGIN, "where a moved copy came from"),
    ),
    _KEY,
    ("topic", "store_timestamp"),
)
CONSUMER_OFFSETS = Table(
    "consumer_offsets",
    "History of committed offsets of consumer groups.",
    (
        *_PLACE,
        _ORDINAL,
        Column("consumer_group", pa.string(), "consumer group"),
        Column("topic", pa.string(), "topic"),
        Column("queue_id", pa.int32(), "queue of the topic on the broker"),
        Column("committed_offset", pa.int64(), "every message below it is settled"),
        Column("commit_timestamp", TIMESTAMP, "when"),
    ),
    (*_KEY, "ordinal"),
    ("consumer_group", "topic", "queue_id"),
)
DELIVERY_EVENTS = Table(
    "delivery_events",
    "What happened to a message on its way to a consumer group.",
    (
        *_PLACE,
        _ORDINAL,
        Column("consumer_group", pa.string(), "consumer group"),
        *_QUEUE,
        Column("message_id", pa.string(), "message id"),
        Column(
            "event",
            pa.string(),
            "delivered, acked, nacked, expired, dead_lettered, recalled, reset, skipped, held",
        ),
        Column("attempt", pa.int32(), "delivery attempt, from 1; of held the one before"),
        Column("client_id", pa.string(), "the client concerned"),
        Column("event_timestamp", TIMESTAMP, "when"),
    ),
    (*_KEY, "ordinal"),
    ("topic", "message_id"),
)
BROKER_STATS = Table(
    "broker_stats",
    "What each topic and group did in a minute.",
    (
        *_PLACE,
        _ORDINAL,
        Column("topic", pa.string(), "topic"),
        Column("consumer_group", pa.string(), "consumer group; null: messages put"),
        Column("minute", TIMESTAMP, "start of the minute"),
        Column("messages", pa.int64(), "messages"),
        Column("bytes", pa.int64(), "bytes of bodies"),
        Column("failures", pa.int64(), "messages refused"),
        Column(
            "latency",
            pa.map_(pa.int32(), pa.int64()),
            "calls by bucket; bucket b holds latencies up to 1.04^b ms",
        ),
    ),
    (*_KEY, "ordinal"),
    ("minute",),
)
_CHANGE = (
    Column("deleted", pa.bool_(), "it is gone; the configuration is null"),
    Column(
        "restated",
        pa.bool_(),
        "no change: the broker wrote down its whole state, so that a log can begin there",
    ),
    Column("change_timestamp", TIMESTAMP, "when"),
)
TOPICS = Table(
    "topics",
    "History of the topics' configuration; the newest row of a topic on a broker is in force.",
    (
        *_PLACE,
        _ORDINAL,
        Column("topic", pa.string(), "topic"),
        Column(
            "configuration",
            TOPIC_CONFIGURATION,
            "permission: 4 read, 2 write; no message types: all are taken",
        ),
        Column(
            "other_fields",
            pa.string(),
            "JSON of what else RocketMQ's configuration of it has, such as attributes; null: all as RocketMQ's defaults",
        ),
        *_CHANGE,
    ),
    (*_KEY, "ordinal"),
    ("topic", "broker"),
    since=2,
)
CONSUMER_GROUPS = Table(
    "consumer_groups",
    "History of the consumer groups' configuration; the newest row of a group on a broker is in force.",
    (
        *_PLACE,
        _ORDINAL,
        Column("consumer_group", pa.string(), "consumer group"),
        Column(
            "configuration",
            GROUP_CONFIGURATION,
            "first_used_by: the client that made it by using it; null for an administrator's",
        ),
        Column(
            "other_fields",
            pa.string(),
            "JSON of what else RocketMQ's configuration of it has, such as groupRetryPolicy; null: all as RocketMQ's defaults",
        ),
        *_CHANGE,
    ),
    (*_KEY, "ordinal"),
    ("consumer_group", "broker"),
    since=2,
)
QUARANTINE = Table(
    "quarantine",
    "Bytes of the log that are no record, or were gone before they were read; never dropped.",
    (
        *_PLACE,
        Column("reason", pa.string(), "what does not check out; missing: the log began above the lake"),
        Column("raw", pa.binary(), "the bytes, at most 1 MiB of them; none of what is missing"),
        Column("length", pa.int64(), "how many bytes there are"),
        Column("found_timestamp", TIMESTAMP, "when the reput met them"),
    ),
    _KEY,
    ("physical_offset",),
)
REPUT_PROGRESS = Table(
    "reput_progress",
    "One row for each batch and log, committed last: what the lake holds.",
    (
        Column("broker", pa.string(), "name of the broker"),
        Column("log_id", pa.string(), "identity of the broker's commit log"),
        Column("end_offset", pa.int64(), "every record below it is in the tables"),
        Column("batch", pa.int64(), "counter of the lake's batches"),
        Column("start_offset", pa.int64(), "where the batch began"),
        Column("log_end_offset", pa.int64(), "flushed end of the log when the batch was planned"),
        Column("records", pa.int64(), "records in the batch"),
        Column("bytes", pa.int64(), "bytes in the batch"),
        Column("table_versions", pa.map_(pa.string(), pa.int64()), "version of each table that holds it"),
        Column("commit_timestamp", TIMESTAMP, "when"),
    ),
    ("broker", "log_id", "end_offset"),
    (),
)

ERASURES = Table(
    "erasures",
    "Records that were erased: where they stood, and nothing of what was in them.",
    (
        *_PLACE,
        _ORDINAL,
        Column("erased_broker", pa.string(), "name of the broker whose log had the record"),
        Column("erased_log_id", pa.string(), "identity of that log"),
        Column("erased_physical_offset", pa.int64(), "offset of the erased record in it, bytes"),
        Column("request_timestamp", TIMESTAMP, "when the erasure was asked for"),
    ),
    (*_KEY, "ordinal"),
    ("erased_broker", "erased_log_id", "erased_physical_offset"),
    since=4,
)
UPKEEP = Table(
    "upkeep",
    "What operators decided about the lake, and what maintenance did for it; the newest row of a kind is in force.",
    (
        Column("change_timestamp", TIMESTAMP, "when"),
        Column(
            "kind",
            pa.string(),
            "retention (rules in force), expiring, expired (what is stored before the bounds goes, is gone), retired, "
            "unretired (a broker), erased (messages are out of the tables), indexed (batches were looked at)",
        ),
        Column("broker", pa.string(), "name of the broker; null where all are meant"),
        Column("rules", pa.string(), "how long messages stay, by topic; empty: for ever"),
        Column(
            "bounds",
            pa.map_(pa.string(), TIMESTAMP),
            "by the pattern of a rule: the time before which its messages go",
        ),
        Column(
            "table_versions",
            pa.map_(pa.string(), pa.int64()),
            "versions of tables from which on erased messages are out of them, earlier ones may be gone; by broker/log_id, "
            "up to where of a log erased records are out of all tables. Of expired: the version of reput_progress that was looked at; of "
            "consume_queue, a batch that left it out; of indexed the same of message_index",
        ),
    ),
    ("change_timestamp", "kind", "broker"),
    ("change_timestamp",),
    since=4,
)

DATA_TABLES = (
    CONSUME_QUEUE,
    MESSAGE_INDEX,
    MESSAGES,
    CONSUMER_OFFSETS,
    DELIVERY_EVENTS,
    BROKER_STATS,
    TOPICS,
    CONSUMER_GROUPS,
    ERASURES,
    QUARANTINE,
)
REMOVAL_ORDER = (CONSUME_QUEUE, MESSAGE_INDEX, MESSAGES)
"""Messages leave these tables in this order, and typed tables before them: an index row or a typed one that is there has its message,
for who opens the tables in the other order, or all at once."""
TABLES = {table.name: table for table in (*DATA_TABLES, UPKEEP, REPUT_PROGRESS)}
