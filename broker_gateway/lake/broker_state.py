"""What the lake knows of a broker: where its queues end, its topics and consumer groups, and what these have not settled.

Tables are read a batch at a time and folded: what stays in memory is one row for each queue, topic, group, group on a queue, and message at or
above the offset that its group committed. Rows above the progress count too: they are of records that were in the log.

What is newer stands in a later log (by its last batch), or further behind in the same one.
`deltalake` and `pyarrow` are loaded by the first look.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker_gateway.delivery.lake_only import LakeMessage, LakeOnly
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.lake.queue_ends import tables_of_offsets
from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.metadata.catalog import MAX_QUEUES, Group, Topic
from broker_gateway.metadata.names import DLQ_PREFIX
from structured_streaming.errors import LakeError
from structured_streaming.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FOLD_ROWS = 1_000_000
"""Rows that are kept before they are folded."""
_MAY_LACK = ("configuration", "origin", "other_fields")
_MAY_BE_ABSENT = ("other_fields",)
"""Columns that a lake of an earlier version does not have."""
_OPEN = ("delivered", "nacked", "expired", "held")
_ORDER = ("rank", "physical_offset", "ordinal")
_QUEUE = ("topic", "queue_id")
_FLOOR = ("least_rank", "least_offset", "least_ordinal")
_STATE = ("consumer_group", "topic", "queue_id")


class Place(NamedTuple):
    """Where a row's record stood: the number of its log, and the physical offset in it."""

    rank: int
    physical_offset: int


_NOWHERE = Place(-1, -1)


class QueueSpan(NamedTuple):
    """Queue offsets [start, stop) of a queue that the log of this number has."""

    rank: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class GroupOnQueue:
    """A group on a queue: its committed offset, and what it has not settled."""

    key: QueueKey
    committed: int
    lake_only: LakeOnly


@dataclass(slots=True)
class BrokerState:
    """`logs`: ids, oldest first. `next_offsets` of every queue that there was, deleted topics' too; `begins` of those alone: what is
    below was deleted with the topic. `unlisted`: topics of messages of which the lake has no configuration."""

    logs: list[str] = field(default_factory=list)
    topics: list[Topic] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    unlisted: set[str] = field(default_factory=set)
    next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    begins: dict[tuple[str, int], int] = field(default_factory=dict)
    queues: list[GroupOnQueue] = field(default_factory=list)


def read_broker_state(
    lake: Lake, broker: str, tell: Callable[[str], None] = lambda table: None
) -> BrokerState:
    """`tell` gets the name of each table that is about to be read. Raises LakeUnreachableError."""
    return _Reading(lake, broker, tell).all()


class _Reading:
    """One look at the tables of a lake."""

    def __init__(self, lake: Lake, broker: str, tell: Callable[[str], None]) -> None:
        self._lake = lake
        self._folder = lake.folder
        self._broker = broker
        self._tell = tell
        self._ranks: dict[str, int] = {}
        self._with_offsets: list[str] = []

    def all(self) -> BrokerState:
        state = BrokerState()
        state.logs = self._logs()
        self._ranks = {log_id: rank for rank, log_id in enumerate(state.logs)}
        self._with_offsets = self._tables_of_offsets()
        spans = self._spans()
        state.next_offsets = {queue: max(each.stop for each in some) for queue, some in spans.items()}
        if not state.logs and not spans:
            return state
        topics = self._newest("topics", ("topic",), ("configuration", "other_fields", "deleted"))
        groups = self._newest(
            "consumer_groups", ("consumer_group",), ("configuration", "other_fields", "deleted")
        )
        state.topics = [_topic(row) for row in topics if not row["deleted"]]
        for each in state.topics:
            if not 0 <= min(each.read_queues, each.write_queues) <= each.queues <= MAX_QUEUES:
                raise LakeUnreachableError(
                    f"{self._folder.child('topics')} has the topic {each.name[:99]!r} of {self._broker} with {each.queues} queues, "
                    f"at most {MAX_QUEUES} can be: it was altered by hand; restore an earlier version of it"
                )
        state.groups = [_group(row) for row in groups if not row["deleted"]]
        deleted = self._deletions()
        gone = _Gone(deleted, {row["consumer_group"] for row in groups if row["deleted"]})
        state.unlisted = {topic for topic, _ in spans} - {row["topic"] for row in topics}
        there = {topic.name for topic in state.topics} | state.unlisted
        live = {queue: some for queue, some in spans.items() if queue[0] in there - deleted.keys()}
        again = self._made_again(deleted, there)
        state.begins = {
            queue: min((span.start for span in again.get(queue, ())), default=end)
            for queue, end in state.next_offsets.items()
            if queue[0] in deleted
        }
        live |= again
        state.queues = list(self._queues(live, gone, there))
        return state

    # ----- tables -----

    def _logs(self) -> list[str]:
        rows = self._newest("reput_progress", ("log_id",), ("batch",), order=("batch", "end_offset"))
        return [row["log_id"] for row in sorted(rows, key=lambda row: row["batch"])]

    def _tables_of_offsets(self) -> list[str]:
        from deltalake.exceptions import DeltaError

        try:
            return [table.name for table in tables_of_offsets(self._folder, self._broker)]
        except (DeltaError, LakeError, OSError) as error:
            raise LakeUnreachableError(f"{self._folder}: {error}") from error

    def _spans(
        self,
        where: Any = None,
        narrowed: Callable[[pa.Table], pa.Table] = lambda some: some,
        beside: Sequence[str] = (),
    ) -> dict[tuple[str, int], list[QueueSpan]]:
        """Of each queue, by log; `narrowed` gets the columns `beside`, too."""
        import pyarrow as pa

        names = ["rank", *_QUEUE, "start", "last"]
        kept: pa.Table | None = None
        columns = ["log_id", *_QUEUE, "queue_offset", *beside]
        for some in itertools.chain.from_iterable(
            self._rows(table, columns, where=where, ranked=True) for table in self._with_offsets
        ):
            ends = narrowed(some).group_by(["rank", *_QUEUE], use_threads=False)
            part = ends.aggregate([("queue_offset", "min"), ("queue_offset", "max")]).rename_columns(names)
            if kept is not None:
                both = pa.concat_tables([kept, part]).group_by(["rank", *_QUEUE], use_threads=False)
                part = both.aggregate([("start", "min"), ("last", "max")]).rename_columns(names)
            kept = part
        found: dict[tuple[str, int], list[QueueSpan]] = {}
        for row in kept.sort_by("rank").to_pylist() if kept is not None else ():
            span = QueueSpan(row["rank"], row["start"], row["last"] + 1)
            found.setdefault((row["topic"], row["queue_id"]), []).append(span)
        return found

    def _made_again(
        self, deleted: Mapping[str, Place], topics: set[str]
    ) -> dict[tuple[str, int], list[QueueSpan]]:
        """Of topics that were deleted and made again: what is behind the deletion. One look for all of them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        again = sorted(deleted.keys() & topics)
        if not again:
            return {}
        places = pa.table(
            {
                "topic": pa.array(again, pa.string()),
                "deleted_rank": pa.array([deleted[topic].rank for topic in again], pa.int64()),
                "deleted_offset": pa.array([deleted[topic].physical_offset for topic in again], pa.int64()),
            }
        )
        rank, last = pc.field("rank"), pc.field("deleted_rank")
        in_that_log = (rank == last) & (pc.field("physical_offset") > pc.field("deleted_offset"))

        def behind(some: pa.Table) -> pa.Table:
            joined = some.join(places, "topic", join_type="inner", use_threads=False)
            return joined.filter((rank > last) | in_that_log)

        wanted = pc.field("topic").isin(places["topic"].combine_chunks())
        return self._spans(wanted, behind, ("physical_offset",))

    def _deletions(self) -> dict[str, Place]:
        """Where each topic was deleted last."""
        import pyarrow.compute as pc

        rows = self._newest("topics", ("topic",), ("deleted",), where=pc.field("deleted"))
        return {row["topic"]: Place(row["rank"], row["physical_offset"]) for row in rows}

    def _queues(
        self, spans: Mapping[tuple[str, int], Sequence[QueueSpan]], gone: _Gone, topics: set[str]
    ) -> Iterator[GroupOnQueue]:
        committed = {
            _key(row): row["committed_offset"]
            for row in self._newest("consumer_offsets", _STATE, ("committed_offset",))
            if row["topic"] in topics and not gone.has(row)
        }
        if not committed:
            return
        handed_out = self._handed_out(committed, gone)
        for key in self._also_unread(committed, spans):
            committed.setdefault(key, 0)
        for key, offset in committed.items():
            some = spans.get((key.topic, key.queue_id), ())
            yield _group_on_queue(key, offset, some, handed_out.get(key, _NOTHING))

    def _also_unread(
        self, committed: Mapping[QueueKey, int], spans: Mapping[tuple[str, int], Sequence[QueueSpan]]
    ) -> set[QueueKey]:
        """Queues from which a group had nothing yet, of topics that it reads: all in them is unread."""
        readers: dict[str, set[str]] = {}
        for key in committed:
            readers.setdefault(key.topic, set()).add(key.group)
        found = {
            QueueKey(group, topic, queue_id) for topic, queue_id in spans for group in readers.get(topic, ())
        }
        return found - committed.keys()

    def _handed_out(self, committed: Mapping[QueueKey, int], gone: _Gone) -> dict[QueueKey, _HandedOut]:
        """What was handed out at or above the committed offset, behind the last reset."""
        import pyarrow as pa
        import pyarrow.compute as pc

        keys = list(committed)
        least = pa.table(
            {
                "number": pa.array(np.arange(len(keys))),
                "consumer_group": pa.array([key.group for key in keys], pa.string()),
                "topic": pa.array([key.topic for key in keys], pa.string()),
                "queue_id": pa.array([key.queue_id for key in keys], pa.int32()),
                "committed": pa.array(committed.values(), pa.int64()),
                **self._floors(keys, gone),
            }
        )
        rank, offset, ordinal = map(pc.field, _ORDER)
        least_rank, least_offset, least_ordinal = map(pc.field, _FLOOR)
        same_record = (offset == least_offset) & (ordinal > least_ordinal)
        behind = (rank > least_rank) | ((rank == least_rank) & ((offset > least_offset) | same_record))

        is_open = pc.field("event").isin(_OPEN)

        def counted(some: pa.Table) -> pa.Table:
            """With the number of the group on the queue; ids of open ones alone, since settled ones may be millions."""
            joined = some.join(least, list(_STATE), join_type="inner", use_threads=False)
            joined = joined.filter((pc.field("queue_offset") >= pc.field("committed")) & behind)
            ids = pc.if_else(pc.is_in(joined["event"], pa.array(_OPEN)), joined["message_id"], "")
            return joined.drop_columns("message_id").append_column("message_id", ids)

        rows = self._newest_table(
            "delivery_events",
            ("number", "queue_offset"),
            ("event", "attempt", "message_id"),
            where=pc.field("event") != "reset",
            reads=(*_STATE, "queue_offset", "event", "attempt", "message_id"),
            narrowed=counted,
        )
        if rows is None:
            return {}
        found: dict[QueueKey, _HandedOut] = {}
        places = rows.select(["number", "queue_offset"])
        lists = places.group_by("number", use_threads=False).aggregate([("queue_offset", "list")])
        offsets = lists.column("queue_offset_list").combine_chunks()
        for number, several in zip(lists.column("number").to_pylist(), offsets, strict=True):
            found[keys[number]] = _HandedOut(np.sort(several.values.to_numpy()), {})
        for row in rows.filter(is_open).to_pylist():
            found[keys[row["number"]]].open[row["queue_offset"]] = row
        for key, queue_offset, place in self._moved():
            known = found[key].open.get(queue_offset) if key in found else None
            if known is not None and place > Place(known["rank"], known["physical_offset"]):
                del found[key].open[queue_offset]
        return found

    def _floors(self, keys: Collection[QueueKey], gone: _Gone) -> dict[str, pa.Array]:
        """Events at or before these count no more, of each key: a reset, or the deletion of the topic."""
        import pyarrow as pa
        import pyarrow.compute as pc

        resets = {
            _key(row): (row["rank"], row["physical_offset"], row["ordinal"])
            for row in self._newest("delivery_events", _STATE, (), where=pc.field("event") == "reset")
        }
        floors = [max(resets.get(key, (*_NOWHERE, -1)), (*gone.deleted(key.topic), -1)) for key in keys]
        columns = zip(*floors, strict=True)
        return {name: pa.array(values, pa.int64()) for name, values in zip(_FLOOR, columns, strict=True)}

    def _moved(self) -> Iterator[tuple[QueueKey, int, Place]]:
        """Originals of the copies in dead letters, and where the copy stands: each copy settles its own."""
        import pyarrow.compute as pc

        for some in self._rows(
            "messages",
            ["log_id", "physical_offset", "topic", "origin"],
            where=pc.starts_with(pc.field("topic"), DLQ_PREFIX),
            ranked=True,
        ):
            for row in some.select(["rank", "physical_offset", "origin"]).to_pylist():
                origin = row["origin"]
                if origin is not None and origin["queue_offset"] is not None:
                    key = QueueKey(origin["consumer_group"], origin["topic"], origin["queue_id"])
                    yield key, origin["queue_offset"], Place(row["rank"], row["physical_offset"])

    # ----- reading -----

    def _newest(
        self, table: str, key: Sequence[str], values: Sequence[str], **asked: Any
    ) -> list[dict[str, Any]]:
        """Rows of `_newest_table`."""
        found = self._newest_table(table, key, values, **asked)
        return found.to_pylist() if found is not None else []

    def _newest_table(
        self,
        table: str,
        key: Sequence[str],
        values: Sequence[str],
        *,
        order: Sequence[str] = _ORDER,
        where: Any = None,
        reads: Sequence[str] = (),
        narrowed: Callable[[pa.Table], pa.Table] = lambda some: some,
    ) -> pa.Table | None:
        """The last row of each key, by `order`: with key, values and the order's columns; these are read, or `reads` if `narrowed`
        makes them."""
        import pyarrow as pa

        ranked = "rank" in order
        names = [*dict.fromkeys([*key, *values, *(name for name in order if name != "rank")])]
        kept: list[pa.Table] = []
        waiting = 0

        def folded() -> pa.Table:
            together = pa.concat_tables(kept).sort_by([(name, "ascending") for name in order])
            rest = [name for name in together.column_names if name not in key]
            numbered = together.append_column("row", pa.array(np.arange(len(together))))
            last = numbered.group_by(list(key), use_threads=False).aggregate([("row", "max")])
            return together.take(last.column("row_max")).select([*key, *rest])

        columns = [*reads, *(name for name in order if name != "rank")] if reads else names
        columns = ["log_id", *columns] if ranked else columns
        for some in self._rows(table, [*dict.fromkeys(columns)], where=where, ranked=ranked):
            part = narrowed(some).select([*names, *(["rank"] if ranked else [])])
            if not part.num_rows:
                continue
            kept.append(part)
            waiting += part.num_rows
            if waiting > _FOLD_ROWS:
                kept = [folded()]
                waiting = 0
        return folded() if kept else None

    def _rows(
        self, table: str, columns: list[str], *, where: Any = None, ranked: bool = False
    ) -> Iterator[pa.Table]:
        """The broker's rows of a table, some at a time; with `rank`, the number of their log. None of a table that is not there."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        folder = self._folder.child(table)
        self._tell(table)
        ours = pc.field("broker") == self._broker
        try:
            if not folder.exists():
                return
            rows = DeltaTable(folder.uri).to_pyarrow_dataset(filesystem=folder.arrow_filesystem())
            absent = [name for name in columns if name in _MAY_BE_ABSENT and name not in rows.schema.names]
            there = [name for name in columns if name not in absent]
            for batch in rows.to_batches(columns=there, filter=ours if where is None else ours & where):
                self._lake.go_on()
                if not batch.num_rows:
                    continue
                some = pa.Table.from_batches([batch])
                for name in absent:
                    some = some.append_column(name, pa.nulls(len(some), pa.string()))
                self._check(folder, some)
                yield self._with_ranks(some) if ranked else some
        except TableNotFoundError:
            return
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise LakeUnreachableError(f"{folder}: {error}") from error

    def _check(self, folder: Folder, some: pa.Table) -> None:
        """Raises LakeUnreachableError for rows without what a reput always writes."""
        import pyarrow.compute as pc

        lacking = [name for name in some.column_names if name not in _MAY_LACK and some[name].null_count]
        if not lacking and "configuration" in some.column_names:
            without = pc.and_not(pc.is_null(some["configuration"]), some["deleted"])
            lacking = ["configuration"] if pc.any(without).as_py() else []
        if lacking:
            raise LakeUnreachableError(
                f"{folder} has rows of {self._broker} without {lacking[0]}, which no reput writes: it was altered by hand; "
                "restore an earlier version of it"
            )

    def _with_ranks(self, some: pa.Table) -> pa.Table:
        """With the number of each row's log; one without progress, of a batch that ended half-way, comes last."""
        import pyarrow as pa

        ids = some.column("log_id").combine_chunks().dictionary_encode()
        by_id = [self._ranks.get(each, len(self._ranks)) for each in ids.dictionary.to_pylist()]
        ranks = np.array(by_id, dtype=np.int64)[ids.indices.to_numpy()]
        return some.append_column("rank", pa.array(ranks))


class _Gone:
    """What counts no more: rows of a topic from before it was deleted, and of a group that is. One that was made again keeps what
    it had: its offsets may have been kept, too, and nothing is skipped that way."""

    def __init__(self, topics: Mapping[str, Place], groups: set[str]) -> None:
        self._topics = topics
        self._groups = groups

    def has(self, row: Mapping[str, Any]) -> bool:
        """Whether it has a row of a group on a topic."""
        before = Place(row["rank"], row["physical_offset"]) < self.deleted(row["topic"])
        return before or row["consumer_group"] in self._groups

    def deleted(self, topic: str) -> Place:
        """Where a topic was deleted last."""
        return self._topics.get(topic, _NOWHERE)


@dataclass(frozen=True, slots=True)
class _HandedOut:
    """Of a group on a queue: all offsets at or above the committed one, ascending, and the newest event of those that are open."""

    offsets: NDArray[np.int64]
    open: dict[int, dict[str, Any]]

    def behind(self, span: QueueSpan) -> int:
        """The offset behind the last one of a log's part; 0 without one."""
        end = int(self.offsets.searchsorted(span.stop))
        last = int(self.offsets[end - 1]) if end else -1
        return last + 1 if last >= span.start else 0


_NOTHING = _HandedOut(np.empty(0, dtype=np.int64), {})


def _group_on_queue(
    key: QueueKey, committed: int, spans: Sequence[QueueSpan], handed_out: _HandedOut
) -> GroupOnQueue:
    """What is not settled: handed out and open, or in a log's part of the queue behind the last that was handed out."""
    messages = [
        LakeMessage(offset, row["attempt"], row["message_id"])
        for offset, row in sorted(handed_out.open.items())
    ]
    unread: list[tuple[int, int]] = []
    for span in sorted(
        spans, key=lambda each: each.start
    ):  # of logs that know nothing of each other they may overlap
        start = max(span.start, committed, handed_out.behind(span), unread[-1][1] if unread else 0)
        if start < span.stop:
            if unread and unread[-1][1] == start:
                unread[-1] = (unread[-1][0], span.stop)
            else:
                unread.append((start, span.stop))
    return GroupOnQueue(key, committed, LakeOnly(tuple(messages), tuple(unread)))


def _key(row: Mapping[str, Any]) -> QueueKey:
    return QueueKey(row["consumer_group"], row["topic"], row["queue_id"])


def _topic(row: Mapping[str, Any]) -> Topic:
    has = row["configuration"]
    return Topic(
        row["topic"],
        has["read_queues"],
        has["write_queues"],
        has["permission"],
        tuple(has["message_types"] or ()),
        _ms(has["created_timestamp"]),
        has["is_ordered"],
        row["other_fields"] or "",
    )


def _group(row: Mapping[str, Any]) -> Group:
    has = row["configuration"]
    return Group(
        row["consumer_group"],
        has["retry_max_times"],
        has["is_fifo"],
        has["is_consume_enabled"],
        _ms(has["created_timestamp"]),
        has["first_used_by"] or "",
        row["other_fields"] or "",
    )


def _ms(time: datetime | None) -> int:
    return 0 if time is None else (time - _EPOCH) // timedelta(milliseconds=1)
