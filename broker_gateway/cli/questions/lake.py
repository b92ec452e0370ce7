"""Answers of a lake, with or without what logs hold beyond it: statements of the embedded engine, over the views.

Messages are found in two steps. The first finds their places, by columns that are small; the second reads what stands
there. So bodies are read of what is shown, and files are passed over by topic and offset.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from broker_gateway.cli.extras import need
from broker_gateway.cli.output import Failure, fail, overheard
from broker_gateway.cli.questions.brokers import OfBrokers
from broker_gateway.cli.questions.letters import Choice
from broker_gateway.cli.questions.printing import shown_time
from broker_gateway.cli.questions.rows import LAG, TRACE, Row, message_row, stored_row
from broker_gateway.cli.questions.wanted import Wanted, ordered
from structured_streaming.extras import FILTERS

if TYPE_CHECKING:
    import pyarrow as pa

    from store.log.record import Host
    from structured_streaming.embedded.engine import EmbeddedEngine

_T = TypeVar("_T")
_PLACE = "broker, log_id, topic, physical_offset"
_MESSAGE = "queue_id, queue_offset, message_id, tag, keys, store_timestamp, {body} AS body, octet_length(body) AS body_bytes, properties"
_REACHED = "(sys_flag & 12) IN (0, 8)"
"""Of `messages`: no half message, and none that was rolled back, which are in no queue."""
_NEWEST = "ORDER BY store_timestamp DESC, physical_offset DESC"
_WINDOWS = (64 << 20, 4 << 30)
"""Bytes of a log, from its end, in which its newest messages of a topic are looked for before all of it is."""
_SINCE = "CAST({} AS TIMESTAMP) >= $since"
"""So that it has no part in the choice of files, of which DuckDB opens all else."""
_UNTIL = "CAST({} AS TIMESTAMP) {} $until"


class _Place(NamedTuple):
    """Of a record."""

    broker: str
    log_id: str
    topic: str
    physical_offset: int


class OfLake:
    """See `Answers`. `named` is the lake, and the brokers whose logs are read, for people. `brokers`: these, for what no log says.
    `most_body`: bytes of a body that answers have; None: all."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        named: str,
        *,
        brokers: OfBrokers | None = None,
        most_body: int | None = None,
    ) -> None:
        self._engine = engine
        self._message = _MESSAGE.format(
            body="body" if most_body is None else f"array_slice(body, 1, {most_body:d})"
        )
        self._brokers = brokers
        self.named = named
        self.cut_off: list[str] = []

    def messages(self, wanted: Wanted) -> list[Row]:
        places = self._by_key(wanted) if wanted.key else self._by_time(wanted)
        found = self._there(places, self._message)
        return [_message(place, row) for place in places if (row := found.get(place)) is not None]

    def trace(self, wanted: Wanted) -> list[Row]:
        rows = self._events("message_trace", "message_id", wanted)
        rows = rows or self._events("message_trace_by_key", "key", wanted)
        if rows:
            return rows
        messages = self.messages(wanted)
        if len(messages) == 1:  # perhaps found by the id of its place
            named = wanted._replace(key=messages[0]["message_id"])
            rows = self._events("message_trace", "message_id", named)
        return rows or ordered(stored_row(each) for each in messages)  # in no view without ids of clients

    def lag(self, group: str, topic: str) -> list[Row]:
        conditions = [f"{column} = ${name}" for column, name, given in (
            ("consumer_group", "consumer_group", group), ("topic", "topic", topic),
        ) if given]  # fmt: skip
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        rows = self._rows(
            f"SELECT {', '.join(LAG.shown)} FROM consumer_lag {where}ORDER BY consumer_group, topic, broker, queue_id",
            _given(consumer_group=group, topic=topic),
        )
        return rows if self._brokers is None else _with_ends(rows, self._brokers, topic)

    def dead_letters(self, group: str, choice: Choice, most: int) -> list[Row]:
        from broker_gateway.metadata.names import dead_letter_topic
        from structured_streaming import views

        dead_topic = dead_letter_topic(group) if group else ""
        letter = (
            f"{views.DEAD_LETTER_GROUP} AS consumer_group, {views.DEAD_LETTER_TOPIC} AS origin_topic, "
            f"{views.DEAD_LETTER_ATTEMPTS} AS attempts, origin.queue_id AS origin_queue_id, "
            f"origin.queue_offset AS origin_queue_offset, {views.DEAD_LETTER_REASON} AS reason, "
            f"{views.DEAD_LETTER_ORIGIN_ID} AS origin_message_id"
        )
        conditions = ["topic = $dead_topic" if group else views.DEAD_LETTERS]
        conditions += ["origin_topic = $topic"] if choice.topic else []
        conditions += ["list_has_any($ids, [message_id, origin_message_id])"] if choice.ids else []
        conditions += [_SINCE.format("store_timestamp")] if choice.since else []
        conditions += [_UNTIL.format("store_timestamp", "<")] if choice.until else []
        wants = _filter(choice.expression)
        columns = f"{_PLACE}, properties" if wants is not None else _PLACE
        places = self._asked(
            f"SELECT {columns} FROM (SELECT *, {letter} FROM messages WHERE {conditions[0]}) "
            f"WHERE {' AND '.join(conditions)} ORDER BY consumer_group, broker, queue_id, queue_offset"
            + ("" if wants is not None else f" LIMIT {most:d}"),
            _given(
                dead_topic=dead_topic,
                topic=choice.topic,
                ids=sorted(choice.ids),
                since=choice.since,
                until=choice.until,
            ),
            lambda reader: list(itertools.islice(_places(reader, wants), most)),
        )
        if group and not places:
            self._check_group(group)
        found = self._there(places, f"{self._message}, {letter}")
        return [_letter(place, row) for place in places if (row := found.get(place)) is not None]

    def looked(self, topic: str) -> str:
        from structured_streaming import views

        where = "topic = $topic" if topic else f"NOT {views.is_system('topic')}"
        (span,) = self._rows(
            f"SELECT min(store_timestamp) AS first, max(store_timestamp) AS last FROM consume_queue WHERE {where}",
            _given(topic=topic),
        )
        place = f"in {f'topic {topic}' if topic else 'any topic'} of {self.named}"
        of = " of it" if topic else ""
        if span["first"] is None:
            return f"{place}, where there is no message{of}"
        first, last = shown_time(span["first"]), shown_time(span["last"])
        return f"{place}, where there are messages{of} from {first} to {last} UTC"

    def age(self) -> str:
        return self._engine.age()

    def nothing_read(self) -> str:
        if self._brokers is not None or self._rows("SELECT batch FROM reput_progress LIMIT 1", {}):
            return ""
        return f"{self.named} holds no batch yet; run `lakebroker reput`"

    def _events(self, view: str, column: str, wanted: Wanted) -> list[Row]:
        """What a view has of a message or key, each message's in order."""
        conditions = [f"{column} = $key"]
        conditions += ["topic = $topic"] if wanted.topic else []
        conditions += [_SINCE.format("event_timestamp")] if wanted.since else []
        rows = self._rows(
            f"SELECT {', '.join(TRACE.shown)} FROM {view} WHERE {' AND '.join(conditions)} "
            f"ORDER BY message_id, event_timestamp, step LIMIT {wanted.most:d}",
            _given(key=wanted.key, topic=wanted.topic, since=wanted.since),
        )
        return ordered(rows)

    def _by_key(self, wanted: Wanted) -> list[_Place]:
        from store.log.record import place_of
        from structured_streaming import views

        conditions = ["key = $key", "topic = $topic" if wanted.topic else f"NOT {views.is_system('topic')}"]
        conditions += _narrowed(wanted)
        places = self._asked(
            f"SELECT DISTINCT {_PLACE}, store_timestamp FROM message_index WHERE {' AND '.join(conditions)} "
            f"ORDER BY store_timestamp DESC, physical_offset DESC LIMIT {wanted.most:d}",
            _given(key=wanted.key, topic=wanted.topic, queue=wanted.queue, since=wanted.since, until=wanted.until),
            _all_places,
        )  # fmt: skip
        placed = place_of(wanted.key)
        return places if places or placed is None else self._by_place(wanted, *placed)

    def _by_place(self, wanted: Wanted, host: Host, offset: int) -> list[_Place]:
        """Of an id that is made of host and offset, which no index has."""
        conditions = ["physical_offset = $offset", "store_host = $host", _REACHED]
        conditions += ["topic = $topic"] if wanted.topic else []
        conditions += _narrowed(wanted)
        return self._asked(
            f"SELECT {_PLACE} FROM messages WHERE {' AND '.join(conditions)} LIMIT {wanted.most:d}",
            _given(offset=offset, host=str(host), topic=wanted.topic,
                   queue=wanted.queue, since=wanted.since, until=wanted.until),
            _all_places,
        )  # fmt: skip

    def _by_time(self, wanted: Wanted) -> list[_Place]:
        from broker_gateway.delivery.filters.message_filter import FilterExpressionError
        from broker_gateway.delivery.filters.tags import parse_tag_filter

        try:
            tags = sorted(parse_tag_filter(wanted.tag).tags) if wanted.tag else []
        except FilterExpressionError as error:
            fail(f"--tag: {error}", 2)
        conditions = ["topic = $topic", _REACHED, *_narrowed(wanted)]
        conditions += ["list_contains($tags, tag)"] if tags else []
        given = _given(
            topic=wanted.topic, tags=tags, queue=wanted.queue, since=wanted.since, until=wanted.until
        )
        if self._brokers is None and wanted.until is None:
            return self._newest(conditions, given, wanted.most)
        return self._asked(
            f"SELECT {_PLACE} FROM messages WHERE {' AND '.join(conditions)} {_NEWEST} LIMIT {wanted.most:d}",
            given,
            _all_places,
        )

    def _newest(self, conditions: Sequence[str], given: Mapping[str, object], most: int) -> list[_Place]:
        """Of each log the newest that are wanted, of these the newest: from the log's end backwards, so that files with what is
        before are passed over."""
        logs = self._rows(
            "SELECT broker, log_id, max(end_offset) AS end_offset FROM reput_progress GROUP BY broker, log_id",
            {},
        )
        found: list[tuple[datetime, _Place]] = []
        for log in logs:
            of_log: list[tuple[datetime, _Place]] = []
            for window in (*_WINDOWS, log["end_offset"]):
                begin = max(log["end_offset"] - window, 0)
                where = [*conditions, "broker = $broker", "log_id = $log_id", f"physical_offset >= {begin:d}"]
                rows = self._rows(
                    f"SELECT {_PLACE}, store_timestamp FROM messages WHERE {' AND '.join(where)} {_NEWEST} LIMIT {most:d}",
                    {**given, "broker": log["broker"], "log_id": log["log_id"]},
                )
                of_log = [(row["store_timestamp"], _place(row)) for row in rows]
                if len(of_log) == most or not begin:
                    break
            found += of_log
        found.sort(key=lambda each: (each[0], each[1].physical_offset), reverse=True)
        return [place for _, place in found[:most]]

    def _there(self, places: Sequence[_Place], columns: str) -> dict[_Place, Row]:
        """What stands at places, by place."""
        found: dict[_Place, Row] = {}
        for (broker, log_id, topic), group in itertools.groupby(sorted(places), lambda place: place[:3]):
            offsets = [place.physical_offset for place in group]
            rows = self._rows(
                f"SELECT {_PLACE}, {columns} FROM messages WHERE topic = $topic AND broker = $broker AND log_id = $log_id "
                f"AND physical_offset >= {offsets[0]:d} AND physical_offset <= {offsets[-1]:d} "
                f"AND physical_offset IN ({', '.join(f'{each:d}' for each in offsets)})",
                {"topic": topic, "broker": broker, "log_id": log_id},
            )
            found |= {_place(row): row for row in rows}
        return found

    def _check_group(self, group: str) -> None:
        """Ends the command for a group that the lake has nothing of."""
        rows = self._rows(
            "SELECT 1 AS known FROM (SELECT consumer_group FROM consumer_groups UNION ALL SELECT consumer_group FROM "
            "consumer_offsets UNION ALL SELECT consumer_group FROM delivery_events) WHERE consumer_group = $group LIMIT 1",
            {"group": group},
        )
        if not rows:
            fail(
                f"there is no consumer group {group!r} in {self.named}; `lakebroker lag` names those that read"
            )

    def _rows(self, statement: str, given: Mapping[str, object]) -> list[Row]:
        return self._asked(statement, given, lambda reader: reader.read_all().to_pylist())

    def _asked(
        self, statement: str, given: Mapping[str, object], take: Callable[[pa.RecordBatchReader], _T]
    ) -> _T:
        """What `take` makes of a statement's rows; a signal ends it. Raises LakeError."""
        from structured_streaming.interruptible import interruptible, pass_on

        def run() -> _T:
            with contextlib.closing(self._engine.query(statement, given)) as reader:
                return take(reader)

        found, number = interruptible(run, lambda _: self._engine.cancel())
        if number:
            pass_on(number)
        return found


def _with_ends(rows: list[Row], brokers: OfBrokers, topic: str) -> list[Row]:
    """Lag, also of queues without messages: where these end, brokers alone know. What is unknown stays so where they do not answer."""
    groups = {row["consumer_group"] for row in rows if _without_end(row)}
    if not groups:
        return rows
    try:
        with overheard():  # the union has told which brokers are away
            told = {_queue(row): row for row in brokers.lag_of(groups, topic)}
    except Failure:
        return rows
    known = ("committed_offset", "max_offset", "lag")
    return [
        row | {name: at[name] for name in known}
        if _without_end(row) and (at := told.get(_queue(row))) is not None
        else row
        for row in rows
    ]


def _without_end(row: Row) -> bool:
    return row["committed_offset"] is not None and row["max_offset"] is None


def _queue(row: Row) -> tuple[Any, ...]:
    return row["consumer_group"], row["topic"], row["broker"], row["queue_id"]


def _given(**values: object) -> dict[str, object]:
    """Parameters that a statement names: those that have a value. Times without their zone, which is UTC."""
    return {
        name: value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value
        for name, value in values.items()
        if value not in (None, "", [])
    }


def _narrowed(wanted: Wanted) -> list[str]:
    """Conditions of a table with queues and times of storing."""
    conditions = ["queue_id = $queue"] if wanted.queue is not None else []
    conditions += [_SINCE.format("store_timestamp")] if wanted.since else []
    return conditions + ([_UNTIL.format("store_timestamp", "<=")] if wanted.until else [])


def _filter(expression: str) -> Callable[[Mapping[str, str]], bool] | None:
    """Whether a message with these properties is wanted, as a broker would say it."""
    from broker_gateway.delivery.filters.message_filter import FilterExpressionError
    from broker_gateway.delivery.filters.sql92 import parse_sql_filter

    if not expression:
        return None
    need("--filter", FILTERS)
    try:
        return parse_sql_filter(expression).wants
    except FilterExpressionError as error:
        fail(f"--filter: {error}", 2)


def _all_places(reader: pa.RecordBatchReader) -> list[_Place]:
    return list(_places(reader, None))


def _places(
    reader: pa.RecordBatchReader, wants: Callable[[Mapping[str, str]], bool] | None
) -> Iterable[_Place]:
    for batch in reader:
        for row in batch.to_pylist():
            if wants is None or wants(dict(row["properties"])):
                yield _place(row)


def _place(row: Row) -> _Place:
    return _Place(row["broker"], row["log_id"], row["topic"], row["physical_offset"])


def _message(place: _Place, row: Row) -> Row:
    return message_row(
        place.topic,
        place.broker,
        row["queue_id"],
        row["queue_offset"],
        row["message_id"],
        row["tag"],
        row["keys"] or (),
        row["store_timestamp"],
        row["body"],
        dict(row["properties"] or ()),
        row["body_bytes"],
    )


def _letter(place: _Place, row: Row) -> Row:
    found: dict[str, Any] = _message(place, row)
    return found | {
        "consumer_group": row["consumer_group"],
        "topic": row["origin_topic"],
        "queue_id": row["origin_queue_id"],
        "queue_offset": row["origin_queue_offset"],
        "origin_message_id": row["origin_message_id"],
        "attempts": row["attempts"],
        "reason": row["reason"],
        "dead_lettered_timestamp": found["store_timestamp"],
        "dlq_queue_id": found["queue_id"],
        "dlq_queue_offset": found["queue_offset"],
    }
