"""Messages of a topic searched in the lake, the newest first. `deltalake` and `pyarrow` are loaded by the first search.

`message_index` finds what has a key, `messages` what is of a time. Files are looked at from the newest on, a row group at a time; those
whose statistics rule them out are not opened. A search that runs out of time gives what is certain by then.

| bound | of a search |
|---|---|
| `most`, `most_bytes` | messages, and bytes of their bodies; one message may be larger |
| `within_s` | seconds; between two row groups |
| memory | a row group of `messages`, and what is found |
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from broker_gateway.delivery.filters.message_filter import MessageFilter
from broker_gateway.lake.erasures import LakeErasures
from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.runtime.clock import monotonic_s
from store.log.record import SYS_COMPRESSED, Host, Record
from structured_streaming.errors import LakeError
from structured_streaming.stated import extremes, may_hold

if TYPE_CHECKING:
    import pyarrow as pa

    from structured_streaming.commit.snapshot import DataFile, Snapshot
    from structured_streaming.maintenance.reading import Part
    from structured_streaming.tables import Table

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ROUNDED_US = 1000
"""Other writers cut the greatest time of a file to ms."""
_GRACE_S = 10.0
"""A search that has got nowhere, and reading what it found, may take so much longer."""
_LATEST_US = 253_402_300_799_999_999


_PLACED = ("broker", "topic", "queue_id", "queue_offset", "store_timestamp", "log_id", "physical_offset")


class LakeTooSlowError(Exception):
    """A search got nowhere in its time; the text says what to do."""


class LakePlace(NamedTuple):
    """Where a message stands in the lake: what a search goes by, in descending order."""

    stored_us: int
    log_id: str
    physical_offset: int


class LakeWanted(NamedTuple):
    """Which messages of a broker's topic; times in us, inclusive, what is None is not asked about.

    Of the log `own`, those below `own_end` alone. The store may begin with what is of `former` logs: of these, what is at or
    above `own_end` and has a queue offset in `local`, ranges [start, stop) by queue id, is left out too. `key`: one of the keys or the message id. `placed`: at that physical
    offset of any log, stored at that host.
    """

    topic: str
    own: str
    own_end: int
    begin_us: int = 0
    end_us: int = _LATEST_US
    message_id: str | None = None
    key: str | None = None
    tags: MessageFilter | None = None
    lite_topic: str | None = None
    queue_id: int | None = None
    placed: tuple[int, str] | None = None
    former: frozenset[str] = frozenset()
    local: Mapping[int, Sequence[tuple[int, int]]] = MappingProxyType({})


class LakeMessage(NamedTuple):
    """A message as the lake has it; its body is as `record.sys_flag` says."""

    place: LakePlace
    record: Record
    properties: dict[str, str]
    message_id: str
    whole: bool = True
    """Whether the lake has its body."""


class LakeFound(NamedTuple):
    """What was found, the newest first. All that is wanted and not below `searched_to` was found; None: all was."""

    messages: list[LakeMessage]
    searched_to: LakePlace | None


class LakeSearch:
    """Searches the messages of one broker, whichever log they were in. Calls block and take turns."""

    def __init__(self, lake: Lake, broker: str, erased: LakeErasures | None = None) -> None:
        self._lake = lake
        self._erasures = erased or LakeErasures(lake, broker)
        self._broker = broker
        self._lock = threading.Lock()
        self._snapshots: dict[str, Snapshot] = {}
        self._progress_seen: set[str] = set()
        self._index_lacks = False

    @property
    def location(self) -> str:
        return self._lake.location

    def newest(
        self,
        wanted: LakeWanted,
        most: int,
        most_bytes: int,
        below: LakePlace | None = None,
        within_s: float = math.inf,
    ) -> LakeFound | None:
        """None where no lake is. Raises LakeUnreachableError, LakeTooSlowError, LakeReadStoppedError."""
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        deadline = monotonic_s() + within_s
        with self._lock:
            try:
                return self._newest(wanted, most, most_bytes, below, deadline)
            except (DeltaError, LakeError, OSError, pa.ArrowException) as error:
                self._snapshots.clear()
                raise LakeUnreachableError(f"lakeLocation={self.location}: {error}") from error

    def _newest(
        self,
        wanted: LakeWanted,
        most: int,
        most_bytes: int,
        below: LakePlace | None,
        deadline: float,
    ) -> LakeFound | None:
        from structured_streaming.tables import MESSAGE_INDEX, MESSAGES, REPUT_PROGRESS

        if not self._lake.folder.child(REPUT_PROGRESS.name).exists():
            return None
        messages = self._snapshot(MESSAGES)
        if messages is None:
            return LakeFound([], None)
        by_key = wanted.message_id is not None or wanted.key is not None
        index = self._index() if by_key else None
        places, searched_to = (
            self._places(messages, MESSAGES, _of_messages, wanted, most, below, deadline)
            if index is None
            else self._places(index, MESSAGE_INDEX, _of_index, wanted, most, below, deadline)
        )
        erased = self._erasures.now()
        rows = self._rows(messages, wanted.topic, places, deadline)
        found: list[LakeMessage] = []
        held = 0
        for place in places:
            row = rows.get(place)
            if row is None or erased.has(place.log_id, place.physical_offset):
                continue  # the index knows it still, and retention took it, or it is erased
            held += len(row["body"] or b"")
            if found and held > most_bytes:
                return LakeFound(found, found[-1].place)
            found.append(_message(place, row))
        return LakeFound(found, searched_to)

    # ----- tables -----

    def _snapshot(self, table: Table) -> Snapshot | None:
        """The table as it is now; None where it is not."""
        from structured_streaming.commit.snapshot import Snapshot

        known = self._snapshots.get(table.name)
        if known is not None:
            known.follow()
            return known
        folder = self._lake.folder.child(table.name)
        if not folder.exists():
            return None
        made = self._snapshots[table.name] = Snapshot(folder)
        return made

    def _index(self) -> Snapshot | None:
        """`message_index`, unless it was left out for a time: then it does not have every key."""
        from structured_streaming.tables import MESSAGE_INDEX, REPUT_PROGRESS

        progress, index = self._snapshot(REPUT_PROGRESS), self._snapshot(MESSAGE_INDEX)
        if progress is None or index is None or self._index_lacks:
            return None
        for path, file in progress.files.items():
            if path in self._progress_seen:
                continue
            for part in self._parts(REPUT_PROGRESS, file):
                rows = part.read(("broker", "table_versions"))
                for broker, versions in zip(*(each.to_pylist() for each in rows.columns), strict=True):
                    if broker == self._broker and versions is not None:
                        self._index_lacks |= MESSAGE_INDEX.name not in dict(versions)
            self._progress_seen.add(path)
        self._progress_seen &= progress.files.keys()
        return None if self._index_lacks else index

    def _parts(self, table: Table, file: DataFile) -> Iterator[Part]:
        from structured_streaming.maintenance.reading import FileError, parts

        if file.has_deletions:
            raise FileError(file, "rows of it are marked as deleted, which is not read here")
        for part in parts(self._lake.folder.child(table.name), file, table.schema):
            self._lake.go_on()
            yield part

    # ----- searching -----

    def _places(
        self,
        snapshot: Snapshot,
        table: Table,
        fitting: Callable[[Part, LakeWanted], pa.Table],
        wanted: LakeWanted,
        most: int,
        below: LakePlace | None,
        deadline: float,
    ) -> tuple[list[LakePlace], LakePlace | None]:
        """The newest `most` that fit, and down to where all were found."""
        end_us = wanted.end_us if below is None else min(wanted.end_us, below.stored_us)
        files = [
            (greatest, file)
            for file in snapshot.files.values()
            if (greatest := self._greatest_us(file, wanted, end_us)) is not None
        ]
        files.sort(key=lambda each: each[0], reverse=True)
        best: list[LakePlace] = []
        for number, (greatest, file) in enumerate(files):
            if len(best) == most and best[-1].stored_us > greatest:
                break
            late_s = monotonic_s() - deadline
            if number and late_s > 0:
                certain = LakePlace(greatest + 1, "", 0)
                if below is None or certain < below:
                    return [each for each in best if each >= certain], certain
                if late_s > _GRACE_S:
                    raise LakeTooSlowError(
                        f"the lake {self.location} has more to look through than can be done in one call; narrow the time "
                        "range, or run `lakebroker maintain`, which orders the files"
                    )
            for part in self._parts(table, file):
                best = _merged(best, fitting(part, wanted), self._broker, wanted, below, most)
        return best, best[-1] if len(best) == most else None

    def _greatest_us(self, file: DataFile, wanted: LakeWanted, end_us: int) -> int | None:
        """The newest store time that a file may have; None when it has nothing that is wanted."""
        statistics = file.statistics
        key = wanted.key if wanted.message_id is None else wanted.message_id
        exact: dict[str, Any] = {"broker": self._broker, "topic": wanted.topic, "key": key}
        if wanted.placed is not None:
            exact["physical_offset"] = wanted.placed[0]
        for name, value in exact.items():
            if value is not None and not may_hold(statistics, name, value, value):
                return None
        least, greatest = extremes(statistics, "store_timestamp")
        if least is not None and _us(least) > end_us:
            return None
        newest = _LATEST_US if greatest is None else _us(greatest) + _ROUNDED_US
        return newest if newest >= wanted.begin_us else None

    def _rows(
        self, messages: Snapshot, topic: str, places: Sequence[LakePlace], deadline: float
    ) -> dict[LakePlace, dict[str, Any]]:
        """What `messages` has of these places."""
        from structured_streaming.tables import MESSAGES

        found: dict[LakePlace, dict[str, Any]] = {}
        if not places:
            return found
        left = set(places)
        times = [place.stored_us for place in places]
        span = LakeWanted(topic, "", 0, min(times), max(times))
        for file in messages.files.values():
            if self._greatest_us(file, span, span.end_us) is None:
                continue
            for part in self._parts(MESSAGES, file):
                if monotonic_s() > deadline + _GRACE_S:
                    raise LakeTooSlowError(
                        f"reading {len(places)} messages of the lake {self.location} takes too long; ask for fewer"
                    )
                rows = _rows_of(part, left, self._broker)
                found |= rows
                left -= rows.keys()
                if not left:
                    return found
        return found


def _of_index(part: Part, wanted: LakeWanted) -> pa.Table:
    """Rows of `message_index` with the key."""
    import pyarrow.compute as pc

    rows = part.read([*_PLACED, "key_type", "key"])
    if wanted.message_id is not None:
        rows = rows.filter(
            pc.and_(pc.equal(rows["key"], wanted.message_id), pc.equal(rows["key_type"], "UNIQ_KEY"))
        )
    if wanted.key is not None:
        rows = rows.filter(pc.equal(rows["key"], wanted.key))
    return rows


def _of_messages(part: Part, wanted: LakeWanted) -> pa.Table:
    """Rows of `messages` that fit by what only that table has."""
    import pyarrow as pa
    import pyarrow.compute as pc

    more = {
        "message_id": wanted.message_id is not None or wanted.key is not None,
        "keys": wanted.key is not None,
        "tag": wanted.tags is not None,
        "lite_topic": wanted.lite_topic is not None,
        "store_host": wanted.placed is not None,
    }
    rows = part.read([*_PLACED, *(name for name, needed in more.items() if needed)])
    rows = rows.filter(pc.equal(rows["topic"], wanted.topic))
    if wanted.message_id is not None:
        rows = rows.filter(pc.equal(rows["message_id"], wanted.message_id))
    if wanted.key is not None:
        key = wanted.key
        pairs = zip(rows["message_id"].to_pylist(), rows["keys"].to_pylist(), strict=True)
        rows = rows.filter(pa.array([key == own or key in (keys or ()) for own, keys in pairs], pa.bool_()))
    if wanted.lite_topic is not None:
        rows = rows.filter(pc.equal(rows["lite_topic"], wanted.lite_topic))
    if wanted.placed is not None:
        offset, host = wanted.placed
        rows = rows.filter(
            pc.and_(pc.equal(rows["physical_offset"], offset), pc.equal(rows["store_host"], host))
        )
    matches = None if wanted.tags is None else wanted.tags.by_tag
    if matches is not None:
        tags = rows["tag"].unique().to_pylist()
        rows = rows.filter(
            pc.is_in(rows["tag"], pa.array([tag for tag in tags if matches(tag)], pa.string()))
        )
    return rows


def _merged(
    best: Sequence[LakePlace],
    rows: pa.Table,
    broker: str,
    wanted: LakeWanted,
    below: LakePlace | None,
    most: int,
) -> list[LakePlace]:
    """The newest `most` of those found before and of rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stored = rows["store_timestamp"].cast(pa.int64())
    log_id, offset = rows["log_id"], rows["physical_offset"]
    fits = [
        pc.equal(rows["broker"], broker),
        pc.equal(rows["topic"], wanted.topic),
        pc.greater_equal(stored, wanted.begin_us),
        pc.less_equal(stored, wanted.end_us),
        pc.or_(pc.not_equal(log_id, wanted.own), pc.less(offset, wanted.own_end)),
    ]
    if wanted.queue_id is not None:
        fits.append(pc.equal(rows["queue_id"], wanted.queue_id))
    if below is not None:
        same_log = pc.or_(
            pc.less(log_id, below.log_id),
            pc.and_(pc.equal(log_id, below.log_id), pc.less(offset, below.physical_offset)),
        )
        fits.append(
            pc.or_(pc.less(stored, below.stored_us), pc.and_(pc.equal(stored, below.stored_us), same_log))
        )
    mask = fits[0]
    for each in fits[1:]:
        mask = pc.and_(mask, each)
    queue = {"queue_id": rows["queue_id"], "queue_offset": rows["queue_offset"]}
    found = pa.table({"stored": stored, "log_id": log_id, "offset": offset, **queue}).filter(mask)
    if wanted.former:
        found = found.filter(_not_local(found, wanted))
    found = found.select(["stored", "log_id", "offset"])
    if found.num_rows > 2 * most:  # a message is in the index twice where its id is a key of it, too
        found = found.sort_by([(name, "descending") for name in found.column_names])[: 2 * most]
    new = {LakePlace(*values) for values in zip(*(each.to_pylist() for each in found.columns), strict=True)}
    return sorted(new.union(best), reverse=True)[:most]


def _not_local(rows: pa.Table, wanted: LakeWanted) -> pa.Array:
    """Where rows are not of a former log that the store still has there."""
    import pyarrow as pa

    def is_local(log_id: str, offset: int, queue_id: int, queue_offset: int) -> bool:
        if log_id not in wanted.former or offset < wanted.own_end:
            return False
        return any(start <= queue_offset < stop for start, stop in wanted.local.get(queue_id, ()))

    names = ("log_id", "offset", "queue_id", "queue_offset")
    columns = (rows[name].to_pylist() for name in names)
    return pa.array([not is_local(*row) for row in zip(*columns, strict=True)], pa.bool_())


def _rows_of(part: Part, wanted: set[LakePlace], broker: str) -> dict[LakePlace, dict[str, Any]]:
    """Whole rows of a row group that are wanted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = part.read(("physical_offset", "log_id", "store_timestamp", "broker"))
    near = pc.is_in(keys["physical_offset"], pa.array({each.physical_offset for each in wanted}, pa.int64()))
    at = pc.indices_nonzero(near)
    if not len(at):
        return {}
    stored = keys["store_timestamp"].cast(pa.int64()).take(at).to_pylist()
    named = (keys[name].take(at).to_pylist() for name in ("log_id", "physical_offset", "broker"))
    places = [
        (number, LakePlace(*place))
        for number, (*place, of) in zip(at.to_pylist(), zip(stored, *named, strict=True), strict=True)
        if of == broker
    ]
    chosen = [(number, place) for number, place in places if place in wanted]
    if not chosen:
        return {}
    rows = part.read().take(pa.array([number for number, _ in chosen], pa.int64())).to_pylist()
    return {place: row for (_, place), row in zip(chosen, rows, strict=True)}


def _message(place: LakePlace, row: dict[str, Any]) -> LakeMessage:
    sys_flag = row["sys_flag"] or 0
    if row["body_encoding"] in (None, "identity", "omitted"):
        sys_flag &= ~SYS_COMPRESSED
    record = Record(
        physical_offset=place.physical_offset,
        size=row["size"] or 0,
        topic=row["topic"],
        queue_id=row["queue_id"] or 0,
        queue_offset=row["queue_offset"] or 0,
        flag=row["flag"] or 0,
        sys_flag=sys_flag,
        born_timestamp=_ms(row["born_timestamp"]),
        born_host=_host(row["born_host"]),
        store_timestamp=place.stored_us // 1000,
        store_host=_host(row["store_host"]),
        reconsume_times=row["reconsume_times"] or 0,
        prepared_transaction_offset=row["prepared_transaction_offset"] or 0,
        body=memoryview(row["body"] or b""),
        properties=b"",
    )
    properties = {key: value or "" for key, value in row["properties"] or ()}
    return LakeMessage(place, record, properties, row["message_id"] or "", row["body"] is not None)


def _ms(time: datetime | None) -> int:
    return 0 if time is None else (time - _EPOCH) // timedelta(milliseconds=1)


def _us(stated: str) -> int:
    """Raises LakeError for statistics that are none."""
    try:
        time = datetime.fromisoformat(stated)
    except (TypeError, ValueError) as error:
        raise LakeError(f"the time {stated!r:.80} in the statistics of a file is none") from error
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)


def _host(text: str | None) -> Host:
    host, _, port = (text or "0.0.0.0:0").rpartition(":")
    return Host(host.strip("[]"), int(port) if port.isdecimal() else 0)
