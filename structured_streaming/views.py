"""Every view over the lake's tables: one text that Spark SQL and DuckDB take, with the same rows and types from both.

What both read alike, and what a text here keeps to:

| | |
|---|---|
| the last by several columns | `max_by(x, (a, b))`, with neither `x` nor `a` nor `b` NULL: Spark takes NULL for the least, DuckDB for the greatest, and DuckDB leaves out rows whose `x` is NULL |
| sums | CAST to BIGINT: DuckDB's are 128 bits |
| topics that begin alike | `topic >= '%DLQ%' AND topic < '%DLQ&'`: both compare it with the least and greatest value of a file; LIKE takes other escapes in each, and reaches no file's statistics with one |
| bits | in brackets: `(sys_flag & 12) <> 0` |
| columns | by name: a table may have more than it was made with |

A predicate on a column that a view hands on as it is (a topic, a group, an id, a time) reaches the files' statistics.
Sizes are those of `size`; only views that hand bodies on read them.

Lag, of a group on a queue of a topic that it reads:

| committed offset | end of the queue | lag |
|---|---|---|
| known | known, not below it | the difference; 0 where they are equal, also at offset 0 |
| known | known, below it | NULL: the end that is known is an older one, or the offset was set by hand |
| known | no entry in the lake | NULL: the queue is empty, or all of it was deleted |
| none | known | NULL: where the group will begin is not known. So a group that has only events |
| none | no entry | NULL, with events of the group there; else there is no row |

Offsets and ends of several logs of a broker: those of the newest log that has any. The newest log is that of the newest
batch; rows whose batch is under way are newer. What was committed before the group or the topic was deleted is void, and
so are entries of a deleted topic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from structured_streaming import system_topics
from structured_streaming.tables import (
    CONSUME_QUEUE,
    CONSUMER_OFFSETS,
    DELIVERY_EVENTS,
    MESSAGE_INDEX,
    MESSAGES,
    REPUT_PROGRESS,
    TIMESTAMP,
    Column,
    Table,
)


def leaving_out(brokers: Iterable[str]) -> Callable[[str], str]:
    """For `View.over`: tables without the rows of brokers, by a condition that reaches the files' statistics."""
    names = ", ".join(f"'{broker}'" for broker in sorted(brokers))
    if not names:
        return lambda name: name
    return lambda name: f"(SELECT * FROM {name} WHERE broker NOT IN ({names}))"


_NAMED = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class View:
    """A view over the tables alone, in the SQL of Spark and DuckDB."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    text: str
    """SQL, with each table that it reads in braces."""

    @property
    def sql(self) -> str:
        """Over tables of these names."""
        return self.over(lambda name: name)

    def over(self, named: Callable[[str], str]) -> str:
        """Over tables that are called otherwise; `named` gets the name of each, and says how it stands in SQL."""
        return _NAMED.sub(lambda found: named(found[1]), self.text)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tables and views that it is over, each once."""
        return tuple(dict.fromkeys(_NAMED.findall(self.text)))

    @property
    def schema(self) -> pa.Schema:
        """With comments, as `Table.schema`."""
        return pa.schema([pa.field(c.name, c.type, metadata={"comment": c.comment}) for c in self.columns])


def _of(table: Table, *names: str) -> tuple[Column, ...]:
    """Columns of a table."""
    columns = {column.name: column for column in table.columns}
    return tuple(columns[name] for name in names)


def _listed(columns: Iterable[Column]) -> str:
    return ", ".join(column.name for column in columns)


def _begins(column: str, prefix: str) -> str:
    """A condition that files' statistics are compared with."""
    behind = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return f"({column} >= '{prefix}' AND {column} < '{behind}')"


def is_system(topic: str) -> str:
    """Whether a topic is the broker's own, as `messages.is_system` says it: a condition in SQL."""
    names = ", ".join(f"'{name}'" for name in system_topics.NAMES)
    begun = " OR ".join(_begins(topic, prefix) for prefix in system_topics.PREFIXES)
    suffix = system_topics.SUFFIX
    return f"({topic} IN ({names}) OR {begun} OR right({topic}, {len(suffix)}) = '{suffix}')"


_NEWEST = 9223372036854775807
"""Instead of the batch of a log that no batch names yet: its rows are there before its progress is."""
_BEHIND_ALL = 2147483647
"""Of a deletion, in place of an ordinal: what is in the same record is gone with it."""
_LOGS = """
logs AS (
  SELECT broker, log_id, max(batch) AS batch FROM {reput_progress} GROUP BY broker, log_id
)"""


def _in_order(rows: str) -> str:
    """Rows with `log_order`: of logs of one broker, the newer one's is greater."""
    return f"""
    SELECT r.*, coalesce(l.batch, {_NEWEST}) AS log_order
    FROM {rows} r LEFT JOIN logs l ON r.broker = l.broker AND r.log_id = l.log_id"""


def _last(column: str, *order: str) -> str:
    return f"max_by({column}, (log_order, {', '.join(order)}))"


def _deleted(table: str, name: str) -> str:
    """Where in the logs of each broker a topic or group was last deleted."""
    rows = f"(SELECT broker, log_id, physical_offset, {name} FROM {{{table}}} WHERE deleted)"
    return f"""
  SELECT {name}, broker, max(log_order) AS log_order, {_last("physical_offset", "physical_offset")} AS physical_offset
  FROM ({_in_order(rows)}) d GROUP BY {name}, broker"""


def _since(deleted: str) -> str:
    """Whether what stands at `log_order` and `physical_offset` of `c` came after it was deleted, or nothing was."""
    return f"""({deleted}.log_order IS NULL OR c.log_order > {deleted}.log_order
      OR c.log_order = {deleted}.log_order AND c.physical_offset > {deleted}.physical_offset)"""


_LAG = f"""
WITH {_LOGS}, deleted_topics AS ({_deleted("topics", "topic")}
), deleted_groups AS ({_deleted("consumer_groups", "consumer_group")}
), ends AS (
  SELECT c.topic, c.broker, c.queue_id, max_by(c.log_end, (c.log_order, c.log_end)) AS max_offset
  FROM ({
    _in_order(
        '''(
      SELECT topic, broker, log_id, queue_id, max(queue_offset) + 1 AS log_end, max(physical_offset) AS physical_offset
      FROM {consume_queue} GROUP BY topic, broker, log_id, queue_id
    )'''
    )
}
  ) c LEFT JOIN deleted_topics t ON c.topic = t.topic AND c.broker = t.broker
  WHERE {_since("t")}
  GROUP BY c.topic, c.broker, c.queue_id
), used AS (
  SELECT consumer_group, topic, broker, queue_id,
         {_last("committed_offset", "physical_offset", "ordinal")} AS committed_offset,
         {_last("commit_timestamp", "physical_offset", "ordinal")} AS commit_timestamp,
         max(log_order) AS log_order, {_last("physical_offset", "physical_offset")} AS physical_offset
  FROM ({_in_order("{consumer_offsets}")}) o GROUP BY consumer_group, topic, broker, queue_id
  UNION ALL
  SELECT consumer_group, topic, broker, queue_id, NULL, NULL,
         max(log_order), {_last("physical_offset", "physical_offset")}
  FROM ({
    _in_order(
        '''(
      SELECT consumer_group, topic, broker, log_id, queue_id, max(physical_offset) AS physical_offset
      FROM {delivery_events} GROUP BY consumer_group, topic, broker, log_id, queue_id
    )'''
    )
}) e GROUP BY consumer_group, topic, broker, queue_id
), readers AS (
  SELECT c.consumer_group, c.topic, c.broker, c.queue_id, c.committed_offset, c.commit_timestamp
  FROM used c LEFT JOIN deleted_topics t ON c.topic = t.topic AND c.broker = t.broker
  LEFT JOIN deleted_groups g ON c.consumer_group = g.consumer_group AND c.broker = g.broker
  WHERE {_since("t")} AND {_since("g")}
), queues AS (
  SELECT consumer_group, topic, broker, queue_id, committed_offset, commit_timestamp,
         CAST(NULL AS BIGINT) AS max_offset
  FROM readers
  UNION ALL
  SELECT r.consumer_group, e.topic, e.broker, e.queue_id, NULL, NULL, e.max_offset
  FROM (SELECT DISTINCT consumer_group, topic FROM readers) r JOIN ends e ON r.topic = e.topic
), known AS (
  SELECT consumer_group, topic, broker, queue_id, max(committed_offset) AS committed_offset,
         max(max_offset) AS max_offset, max(commit_timestamp) AS commit_timestamp
  FROM queues GROUP BY consumer_group, topic, broker, queue_id
)
SELECT consumer_group, topic, broker, queue_id, committed_offset, max_offset,
       CASE WHEN max_offset >= committed_offset THEN max_offset - committed_offset END AS lag,
       commit_timestamp
FROM known WHERE """

_OFFSETS = _of(CONSUMER_OFFSETS, "consumer_group", "topic", "broker", "queue_id")
_COMMITTED = Column(
    "committed_offset", pa.int64(), "every message below it is settled; null where none was committed"
)
_END = Column(
    "max_offset",
    pa.int64(),
    "offset behind the queue's newest message; null where the lake has none of the queue",
)
_BEHIND = Column(
    "lag", pa.int64(), "messages from the committed offset to the end; null where that is not known"
)
_LAG_COLUMNS = (
    *_OFFSETS,
    _COMMITTED,
    _END,
    _BEHIND,
    Column("commit_timestamp", TIMESTAMP, "when the offset was committed"),
)

_MINUTE_OF_STORING = "date_trunc('MINUTE', store_timestamp)"
_BY_MINUTE = f"""
WITH {_LOGS}, readers AS (
  SELECT DISTINCT consumer_group, topic, broker, queue_id FROM {{consumer_offsets}} WHERE NOT {
    is_system("topic")
}
), deleted_topics AS (
  SELECT topic, broker, log_order, physical_offset, date_trunc('MINUTE', change_timestamp) AS minute
  FROM ({_in_order("{topics}")}) t WHERE deleted
), deleted_groups AS (
  SELECT consumer_group, broker, log_order, physical_offset, date_trunc('MINUTE', change_timestamp) AS minute
  FROM ({_in_order("{consumer_groups}")}) g WHERE deleted
), commits AS (
  SELECT consumer_group, topic, broker, queue_id, date_trunc('MINUTE', commit_timestamp) AS minute,
         committed_offset, log_order, physical_offset, ordinal
  FROM ({_in_order("{consumer_offsets}")}) o WHERE NOT {is_system("topic")}
  UNION ALL
  SELECT r.consumer_group, r.topic, r.broker, r.queue_id, d.minute, -1, d.log_order, d.physical_offset, {
    _BEHIND_ALL
}
  FROM readers r JOIN deleted_topics d ON r.topic = d.topic AND r.broker = d.broker
  UNION ALL
  SELECT r.consumer_group, r.topic, r.broker, r.queue_id, d.minute, -1, d.log_order, d.physical_offset, {
    _BEHIND_ALL
}
  FROM readers r JOIN deleted_groups d ON r.consumer_group = d.consumer_group AND r.broker = d.broker
), puts AS (
  SELECT topic, broker, queue_id, minute, log_end, log_order, physical_offset
  FROM ({
    _in_order(
        f'''(
      SELECT topic, broker, log_id, queue_id, {_MINUTE_OF_STORING} AS minute,
             max(queue_offset) + 1 AS log_end, max(physical_offset) AS physical_offset
      FROM {{consume_queue}} GROUP BY topic, broker, log_id, queue_id, {_MINUTE_OF_STORING}
    )'''
    )
}) q
  UNION ALL
  SELECT q.topic, q.broker, q.queue_id, d.minute, -1, d.log_order, d.physical_offset
  FROM (SELECT DISTINCT topic, broker, queue_id FROM readers) q
  JOIN deleted_topics d ON q.topic = d.topic AND q.broker = d.broker
), changes AS (
  SELECT consumer_group, topic, broker, queue_id, minute,
         {_last("committed_offset", "physical_offset", "ordinal")} AS committed_offset,
         max(log_order) AS commit_log, {_last("physical_offset", "physical_offset")} AS commit_place,
         CAST(NULL AS BIGINT) AS log_end, CAST(-1 AS BIGINT) AS end_log, CAST(-1 AS BIGINT) AS end_place
  FROM commits GROUP BY consumer_group, topic, broker, queue_id, minute
  UNION ALL
  SELECT r.consumer_group, p.topic, p.broker, p.queue_id, p.minute, NULL, -1, -1, p.log_end, p.end_log, p.end_place
  FROM readers r JOIN (
    SELECT topic, broker, queue_id, minute, {_last("log_end", "physical_offset")} AS log_end,
           max(log_order) AS end_log, {_last("physical_offset", "physical_offset")} AS end_place
    FROM puts GROUP BY topic, broker, queue_id, minute
  ) p ON r.topic = p.topic AND r.broker = p.broker AND r.queue_id = p.queue_id
), minutes AS (
  SELECT consumer_group, topic, broker, queue_id, minute, max(committed_offset) AS committed_offset,
         max(commit_log) AS commit_log, max(commit_place) AS commit_place,
         max(log_end) AS log_end, max(end_log) AS end_log, max(end_place) AS end_place
  FROM changes GROUP BY consumer_group, topic, broker, queue_id, minute
), known AS (
  SELECT consumer_group, topic, broker, queue_id, minute,
         nullif(max_by(committed_offset, (commit_log, commit_place)) OVER until_then, -1) AS committed_offset,
         nullif(max_by(log_end, (end_log, end_place)) OVER until_then, -1) AS max_offset
  FROM minutes
  WINDOW until_then AS (
    PARTITION BY consumer_group, topic, broker, queue_id ORDER BY minute
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  )
)
SELECT consumer_group, topic, broker, queue_id, minute, committed_offset, max_offset,
       CASE WHEN max_offset >= committed_offset THEN max_offset - committed_offset END AS lag
FROM known WHERE committed_offset IS NOT NULL
"""

_MESSAGES = _listed(MESSAGES.columns)
_RETRY = "%RETRY%"
_DEAD = "%DLQ%"
_SOURCE = "coalesce(properties['RETRY_TOPIC'], properties['DLQ_ORIGIN_TOPIC'])"
_GROUP = f"substring(topic, {len(_DEAD) + 1})"
DEAD_LETTERS = _begins("topic", _DEAD)
"""Which `messages` are dead letters; below, what these say of themselves."""
DEAD_LETTER_GROUP = f"coalesce(origin.consumer_group, {_GROUP})"
DEAD_LETTER_TOPIC = f"""coalesce(origin.topic, CASE
         WHEN left({_SOURCE}, {len(_RETRY)}) <> '{_RETRY}' THEN {_SOURCE}
         WHEN left({_SOURCE}, {len(_RETRY) + 1} + length({_GROUP}))
              IN (concat('{_RETRY}', {_GROUP}, '_'), concat('{_RETRY}', {_GROUP}, '+'))
         THEN substring({_SOURCE}, {len(_RETRY) + 2} + length({_GROUP})) END)"""
DEAD_LETTER_ATTEMPTS = "coalesce(origin.attempt, CASE WHEN reconsume_times > 0 THEN reconsume_times END)"
DEAD_LETTER_REASON = "properties['LB_REASON']"
DEAD_LETTER_ORIGIN_ID = "coalesce(properties['DLQ_ORIGIN_MESSAGE_ID'], properties['ORIGIN_MESSAGE_ID'])"
_DEAD_LETTERS = f"""
SELECT {DEAD_LETTER_GROUP} AS consumer_group, {DEAD_LETTER_TOPIC} AS topic,
       broker, origin.queue_id AS queue_id, origin.queue_offset AS queue_offset, {DEAD_LETTER_ATTEMPTS} AS attempts,
       {DEAD_LETTER_REASON} AS reason, message_id,
       {DEAD_LETTER_ORIGIN_ID} AS origin_message_id,
       tag, keys, size, body, store_timestamp AS dead_lettered_timestamp
FROM {{messages}} WHERE {DEAD_LETTERS}
"""

_EVENTS = _listed(DELIVERY_EVENTS.columns)
_TRACE = """
SELECT key AS message_id, topic, store_timestamp AS event_timestamp, 'stored' AS event,
       CAST(NULL AS STRING) AS consumer_group, CAST(NULL AS INT) AS attempt, CAST(NULL AS STRING) AS client,
       broker, queue_id, queue_offset, 0 AS step
FROM {message_index} WHERE key_type = 'UNIQ_KEY'
UNION ALL
SELECT message_id, topic, event_timestamp, event, consumer_group, attempt, client_id, broker, queue_id,
       queue_offset, CASE event WHEN 'delivered' THEN 2 WHEN 'expired' THEN 1 WHEN 'held' THEN 1 ELSE 3 END
FROM {delivery_events}
"""
_TRACE_COLUMNS = (
    Column("message_id", pa.string(), "the client's id, which copies of the message keep"),
    *_of(DELIVERY_EVENTS, "topic"),
    Column("event_timestamp", TIMESTAMP, "when"),
    Column("event", pa.string(), "stored, or an event of delivery_events"),
    Column("consumer_group", pa.string(), "the group to which it happened; null: stored"),
    Column("attempt", pa.int32(), "delivery attempt, from 1; null: stored"),
    Column("client", pa.string(), "the consumer concerned; null: stored"),
    *_of(DELIVERY_EVENTS, "broker", "queue_id", "queue_offset"),
    Column("step", pa.int32(), "order of what happened at the same time"),
)

_WAITED = "(reached_at - commit_timestamp)"
_DISPATCH_LAG = f"""
WITH batches AS (
  SELECT broker, log_id, batch, commit_timestamp, end_offset, log_end_offset,
         sum(records) OVER (PARTITION BY broker, log_id ORDER BY end_offset) AS held
  FROM {{reput_progress}}
), places AS (
  SELECT broker, log_id, batch, commit_timestamp, end_offset, log_end_offset, held,
         end_offset AS place, commit_timestamp AS holds_at, held AS holds
  FROM batches
  UNION ALL
  SELECT broker, log_id, batch, commit_timestamp, end_offset, log_end_offset, held, log_end_offset, NULL, NULL
  FROM batches
), reached AS (
  SELECT broker, log_id, batch, commit_timestamp, end_offset, log_end_offset, held, holds,
         min(holds_at) OVER (PARTITION BY broker, log_id ORDER BY place DESC) AS reached_at,
         min(holds) OVER (PARTITION BY broker, log_id ORDER BY place DESC) AS reached_with
  FROM places
)
SELECT broker, log_id, batch, commit_timestamp, end_offset, log_end_offset,
       greatest(log_end_offset - end_offset, 0) AS behind_bytes,
       CAST(CASE WHEN log_end_offset <= end_offset THEN 0 ELSE reached_with - held END AS BIGINT) AS behind_records,
       CAST(CASE WHEN log_end_offset <= end_offset THEN 0
                 ELSE extract(DAY FROM {_WAITED}) * 86400 + extract(HOUR FROM {_WAITED}) * 3600
                      + extract(MINUTE FROM {_WAITED}) * 60 + floor(extract(SECOND FROM {_WAITED})) END AS BIGINT)
         AS behind_seconds
FROM reached WHERE holds IS NULL
"""

VIEWS = (
    View(
        "messages_live",
        "Messages of users, and dead letters; with what the logs hold beyond the lake, in a session that reads them.",
        MESSAGES.columns,
        f"SELECT {_MESSAGES} FROM {{messages}} WHERE NOT is_system",
    ),
    View(
        "messages_system",
        "What the broker keeps for itself in its own topics: copies to be retried, waiting messages, half messages.",
        MESSAGES.columns,
        f"SELECT {_MESSAGES} FROM {{messages}} WHERE is_system",
    ),
    View(
        "consumer_lag",
        "Messages not yet settled, by consumer group and each queue of the users' topics that it reads; NULL where that is "
        "not known.",
        _LAG_COLUMNS,
        f"{_LAG} NOT {is_system('topic')}",
    ),
    View(
        "consumer_lag_system",
        "As consumer_lag, of retry topics and the broker's own.",
        _LAG_COLUMNS,
        f"{_LAG} {is_system('topic')}",
    ),
    View(
        "consumer_lag_by_minute",
        "Lag at the end of each minute in which a queue or its committed offset moved, from the group's first commit on.",
        (*_OFFSETS, Column("minute", TIMESTAMP, "start of the minute"), _COMMITTED, _END, _BEHIND),
        _BY_MINUTE,
    ),
    View(
        "dead_letters",
        "Messages given up, with where they came from and why; a real broker's too, with NULL for what it does not write down.",
        (
            Column("consumer_group", pa.string(), "the group that gave it up"),
            Column("topic", pa.string(), "where it was before"),
            *_of(MESSAGES, "broker"),
            Column("queue_id", pa.int32(), "its queue there; null: a real broker's"),
            Column("queue_offset", pa.int64(), "its position there; null: a real broker's"),
            Column("attempts", pa.int32(), "deliveries until then"),
            Column("reason", pa.string(), "why; null: a real broker's, or none was given"),
            *_of(MESSAGES, "message_id"),
            Column(
                "origin_message_id",
                pa.string(),
                "id of the message before, where a real broker wrote it down: the client's, or that of its place in the log",
            ),
            *_of(MESSAGES, "tag", "keys", "size", "body"),
            Column("dead_lettered_timestamp", TIMESTAMP, "when it was given up"),
        ),
        _DEAD_LETTERS,
    ),
    View(
        "retries",
        "Deliveries after the first.",
        DELIVERY_EVENTS.columns,
        f"SELECT {_EVENTS} FROM {{delivery_events}} WHERE event = 'delivered' AND attempt > 1",
    ),
    View(
        "message_trace",
        "A message's life: stored, then what happened to it in each group; in order by event_timestamp, step. Ask by message_id.",
        _TRACE_COLUMNS,
        _TRACE,
    ),
    View(
        "message_trace_by_key",
        "As message_trace, for each key of a message and its topic. Ask by key.",
        (*_of(MESSAGE_INDEX, "key"), *_TRACE_COLUMNS),
        f"""
        WITH named AS (
          SELECT DISTINCT k.key, u.key AS message_id, u.topic
          FROM {{message_index}} k JOIN {{message_index}} u
            ON k.broker = u.broker AND k.log_id = u.log_id AND k.physical_offset = u.physical_offset
            AND k.topic = u.topic AND k.store_timestamp = u.store_timestamp
          WHERE k.key_type = 'KEYS' AND u.key_type = 'UNIQ_KEY'
        )
        SELECT n.key, {", ".join(f"t.{column.name}" for column in _TRACE_COLUMNS)}
        FROM named n JOIN ({_TRACE}) t ON n.message_id = t.message_id AND n.topic = t.topic
        """,
    ),
    View(
        "delayed_messages",
        "Messages that wait, or waited, for their time.",
        (
            *MESSAGES.columns,
            Column(
                "destination",
                pa.string(),
                "the topic they are sent to; `topic` is the broker's own while they wait",
            ),
        ),
        f"""
        SELECT {_MESSAGES}, CASE WHEN is_system THEN properties['REAL_TOPIC'] ELSE topic END AS destination
        FROM {{messages}} WHERE deliver_timestamp IS NOT NULL
        """,
    ),
    View(
        "transactions",
        "Half messages and what was committed of them, as the log has it: a record for each step. A rollback leaves none.",
        (
            *MESSAGES.columns,
            Column(
                "transaction_state",
                pa.string(),
                "of this record: prepared or committed; rolled_back where a log has such a record, which a rollback of RocketMQ's brokers "
                "and of this one does not leave",
            ),
        ),
        f"""
        SELECT {_MESSAGES},
               CASE (sys_flag & 12) WHEN 8 THEN 'committed' WHEN 12 THEN 'rolled_back' ELSE 'prepared' END
                 AS transaction_state
        FROM {{messages}} WHERE (sys_flag & 12) <> 0 OR topic = 'RMQ_SYS_TRANS_HALF_TOPIC'
        """,
    ),
    View(
        "topic_stats",
        "Messages of users that consumers can reach, and dead letters, and their bytes, by topic and minute of storing.",
        (
            *_of(CONSUME_QUEUE, "topic"),
            Column("minute", TIMESTAMP, "start of the minute"),
            Column("messages", pa.int64(), "messages stored"),
            Column("bytes", pa.int64(), "bytes of their records in the log"),
        ),
        f"""
        SELECT topic, date_trunc('MINUTE', store_timestamp) AS minute, count(*) AS messages,
               CAST(sum(size) AS BIGINT) AS bytes
        FROM {{consume_queue}} WHERE NOT {is_system("topic")}
        GROUP BY topic, date_trunc('MINUTE', store_timestamp)
        """,
    ),
    View(
        "dispatch_lag",
        "How far the lake was behind each log at each batch: in bytes, and in the records and seconds that it then took to get "
        "there.",
        (
            *_of(
                REPUT_PROGRESS,
                "broker",
                "log_id",
                "batch",
                "commit_timestamp",
                "end_offset",
                "log_end_offset",
            ),
            Column("behind_bytes", pa.int64(), "bytes from the batch's end to the log's"),
            Column(
                "behind_records",
                pa.int64(),
                "records of the batches that brought them; null: not all of them are in the lake yet",
            ),
            Column(
                "behind_seconds",
                pa.int64(),
                "whole seconds until they were in the lake; null: not all of them are yet",
            ),
        ),
        _DISPATCH_LAG,
    ),
)
