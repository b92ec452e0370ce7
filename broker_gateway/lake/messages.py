"""Messages of a queue that are in the lake: rows of `messages`, made records of the log again.

| step | reads |
|---|---|
| which files may have them | the statistics in the table's log: broker, topic, queue, queue offset |
| which row groups have them | of each of these files, once: where every queue of this broker begins and ends (kept, `_MOST_SPANS`) |
| how many are one `Stretch` | sizes of the next `_WINDOW` queue offsets |
| the records | the rows of these, some at a time |

Rows of a lite topic are those of its parent topic. Their offsets in its queue (`%LMQ%$PARENT$NAME`) stand in a property, of which the
table's log knows nothing: every file that may have the lite topic is looked at. A lite topic that expired and was written again has
several rows of an offset; the last one is of its present life, and the others are below where its queue begins now, or replaced.

A reading sees what was committed when it began, and so all that a segment had that is deleted by then. A record is the one of the log, byte for
byte, but for a body whose compression the reput undid. Records prepared or rolled back are none of their queue. Calls block;
several threads may make them. `pyarrow` is loaded by the first.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import structlog

from broker_gateway.lake.erasures import ErasedRows, LakeErasures
from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from store.errors import RecordError
from store.lite_queues import PREFIX, lite_topic_of
from store.log.record import (
    PROPERTY_CRC32,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    SYS_COMMIT,
    SYS_COMPRESSED,
    SYS_COMPRESSION_MASK,
    SYS_HOSTS_V6,
    SYS_TRANSACTION_MASK,
    Host,
    PendingRecord,
    encode_properties,
    encode_record,
)
from structured_streaming.errors import LakeError
from structured_streaming.stated import extremes, may_hold

if TYPE_CHECKING:
    import pyarrow as pa

    from structured_streaming.commit.snapshot import DataFile, Snapshot
    from structured_streaming.maintenance.reading import Part

T = TypeVar("T")
log = structlog.get_logger(__name__)
TABLE, UPKEEP_TABLE = "messages", "upkeep"
_WINDOW = 4096
"""Queue offsets that are looked at together."""
_A_RECORD = 256
"""Bytes of memory that a record costs beside its own."""
_MOST_SPANS = 500_000
"""Queues of row groups of which it is known what is where."""
_ROWS = 1024
"""Read at a time, with bodies."""
_MOST_S = 60.0
"""That a reading may take. What it learned of files stays, so that the next one comes further."""
_TRIES = 3
"""When files are merged meanwhile."""
_PLACE = ("broker", "topic", "queue_id", "queue_offset", "sys_flag")
_SIZED = (*_PLACE, "size", "log_id", "physical_offset", "store_timestamp")
_WHOLE = (
    *_PLACE,
    "log_id",
    "physical_offset",
    "properties",
    "body",
    "body_encoding",
    "flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
)
_LITE = ("lite_topic", "properties")
"""What says whether a row is of a lite topic."""
_OFFSET_TEXT = "^[0-9]{1,18}$"
_TIMES = ("born_timestamp", "store_timestamp")
Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the lake has of the queue offsets [begin, end): `records` of `offsets`, ascending; None is one of which no record can be
    made. Other offsets in it are not in the lake; the time of those below `expired` has run out, which is no damage."""

    begin: int
    end: int
    offsets: Sequence[int] = ()
    records: Sequence[bytes | None] = ()
    size: int = 0
    """Bytes of memory, about."""
    expired: int = 0

    def after(self, offset: int) -> int:
        """Where in `offsets` the first is that is not below a queue offset."""
        return bisect.bisect_left(self.offsets, offset)

    def record(self, offset: int) -> bytes | None:
        """The record at a queue offset; None without one."""
        at = self.after(offset)
        return self.records[at] if at < len(self.offsets) and self.offsets[at] == offset else None


class _Span(NamedTuple):
    """Queue offsets of a queue in a row group: the least and the greatest."""

    least: int
    greatest: int


class _Place(NamedTuple):
    """A row: its size as a record, and which one it is where a queue offset is there twice."""

    file: _File
    group: int
    size: int
    log_id: str
    physical_offset: int
    stored: int


@dataclass(slots=True)
class _File:
    """A file of the table, and its statistics."""

    data: DataFile
    stated: dict[str, Any] = field(default_factory=dict)

    def may_have(self, values: dict[str, Any]) -> bool:
        """Whether one value of each column may be in it."""
        return all(may_hold(self.stated, column, value, value) for column, value in values.items())

    def may_be_between(self, begin: int, end: int) -> bool:
        """Whether queue offsets [begin, end) may be in it."""
        return may_hold(self.stated, "queue_offset", begin, end - 1)

    @property
    def first(self) -> int:
        """The least queue offset that it may have."""
        return int(extremes(self.stated, "queue_offset")[0] or 0)

    def may_be_as_late_as(self, timestamp_us: int) -> bool:
        _, last = extremes(self.stated, "store_timestamp")
        if last is None:
            return True
        try:
            known = datetime.fromisoformat(last).astimezone(UTC)
        except ValueError:
            return True
        return known.timestamp() * 1e6 + 2000 >= timestamp_us  # a writer may cut to ms


class LakeMessages:
    """Of one broker, whichever of its logs they were in. Calls raise LakeUnreachableError, LakeReadStoppedError.

    `needed` gives the id of the log that goes on, and the physical offset from which it is on disk. A lake that does not have
    it up to there is behind, empty or another one: what it does not have may be elsewhere, so that none of it is passed over.
    Rows that `erased` has count as not there.
    """

    def __init__(
        self,
        lake: Lake,
        broker: str,
        needed: Callable[[], tuple[str, int]] = lambda: ("", 0),
        erased: LakeErasures | None = None,
    ) -> None:
        self._lake = lake
        self._erasures = erased or LakeErasures(lake, broker)
        self._folder = lake.folder.child(TABLE)
        self._broker = broker
        self._needed = needed
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._files: dict[str, _File] = {}
        self._spans: OrderedDict[tuple[str, bool], list[dict[Queue, _Span]]] = OrderedDict()
        """By file: of queues, or of lite topics' queues."""
        self._span_count = 0
        self._firsts: dict[Queue, tuple[int, str]] = {}
        self._twice = RateLimitedLog("messages")
        self._unfit = RateLimitedLog("messages")

    def read(self, topic: str, queue_id: int, begin: int, end: int, most_bytes: int) -> Stretch:
        """What the lake has from `begin` on, up to `end`: at least one message, if there is any, and about so many bytes."""
        return self._tried(
            lambda look: self._read(look, begin, end, most_bytes), (topic, queue_id), begin, end
        )

    def first(self, topic: str, queue_id: int, begin: int, end: int) -> int | None:
        """The lowest queue offset in [begin, end); None without one. Known once it was read, while its file is there."""

        def found(look: _Look) -> int | None:
            known = self._firsts.get(look.queue)
            if known is not None and known[1] in self._files and begin <= known[0] < end:
                return known[0]
            place = look.first(begin, end)
            if place is None:
                self._firsts.pop(look.queue, None)
                return None
            self._firsts[look.queue] = place
            return place[0]

        return self._tried(found, (topic, queue_id), begin, end)

    def at_time(self, topic: str, queue_id: int, begin: int, end: int, timestamp_ms: int) -> int | None:
        """The first queue offset in [begin, end) whose message was stored then or later; None without one."""
        return self._tried(
            lambda look: look.first_since(timestamp_ms * 1000, begin, end), (topic, queue_id), begin, end
        )

    def _tried(self, work: Callable[[_Look], T], queue: Queue, begin: int, end: int) -> T:
        """Reads the table as it is now; again when a file of it was merged into others and removed meanwhile."""
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        until = time.monotonic() + _MOST_S
        log_id, below = self._needed()
        if below and (held := self._lake.dispatched_to(self._broker, log_id)) < below:
            raise LakeUnreachableError(
                f"{self._lake.location} has the log {log_id} up to {held}, and it is on disk from {below} on: the lake is behind, or "
                "not the one that it was"
            )
        for tried in range(_TRIES):
            try:
                erased = self._erasures.now()
                return work(_Look(self, queue, self._follow(queue, begin, end), until, erased))
            except (LakeError, DeltaError, OSError, pa.ArrowException) as error:
                if tried == _TRIES - 1 or not self._was_removed():
                    raise LakeUnreachableError(f"{self._folder}: {error}") from error
        raise AssertionError

    def _was_removed(self) -> bool:
        """Whether the table has a later version than the one that was just read."""
        with self._lock:
            if self._snapshot is None:
                return False
            version = self._snapshot.version
            try:
                self._snapshot.follow()
            except LakeError:
                self._snapshot = None
                return False
            return self._snapshot.version > version

    def _follow(self, queue: Queue, begin: int, end: int) -> list[_File]:
        """Files that may have something of a range, by where they begin, as of now."""
        from structured_streaming.commit.snapshot import Snapshot

        with self._lock:
            if self._snapshot is None:
                if not self._folder.exists():
                    raise LakeError("there is no such table")
                self._snapshot = Snapshot(self._folder)
            else:
                try:
                    self._snapshot.follow()
                except LakeError:
                    self._snapshot = None
                    raise
            self._take_files(self._snapshot)
            lite = lite_topic_of(queue[0])
            if lite is None:
                of_queue = {"broker": self._broker, "topic": queue[0], "queue_id": queue[1]}
            else:
                of_queue = {"broker": self._broker, "topic": lite.parent, "lite_topic": lite.name}
            found = [
                file
                for file in self._files.values()
                if (lite is not None or file.may_be_between(begin, end)) and file.may_have(of_queue)
            ]
        return sorted(found, key=lambda file: file.first)

    def _take_files(self, snapshot: Snapshot) -> None:
        files = snapshot.files
        for path in self._files.keys() - files.keys():
            del self._files[path]
            self._forget(path)
        for path in files.keys() - self._files.keys():
            data = files[path]
            if data.has_deletions or data.is_elsewhere:
                raise LakeError(
                    f"file {data.path} has rows that are marked as deleted, or is outside of the table: it was written by another "
                    "program; rewrite the table without them"
                )
            self._files[path] = _File(data, data.statistics)

    def _forget(self, path: str) -> None:
        for lite in (False, True):
            self._drop((path, lite))

    def _drop(self, known: tuple[str, bool]) -> None:
        for spans in self._spans.pop(known, ()):
            self._span_count -= len(spans)

    def spans(self, look: _Look, file: _File) -> list[dict[Queue, _Span]]:
        """Of each row group of a file: this broker's queues, or those of its lite topics."""
        path = file.data.path
        key = path, look.lite is not None
        with self._lock:
            known = self._spans.get(key)
            if known is not None:
                self._spans.move_to_end(key)
                return known
        spans_of = self._spans_of if look.lite is None else self._lite_spans_of
        made = [spans_of(look, part) for part in look.parts(file)]
        with self._lock:
            if path in self._files and key not in self._spans:
                self._spans[key] = made
                self._span_count += sum(map(len, made))
                while self._span_count > _MOST_SPANS and len(self._spans) > 1:
                    self._drop(next(iter(self._spans)))
        return made

    def _lite_spans_of(self, look: _Look, part: Part) -> dict[Queue, _Span]:
        import pyarrow.compute as pc

        found: dict[Queue, _Span] = {}
        for rows in part.batches((*_PLACE, *_LITE), 16 * _ROWS):
            look.go_on()
            rows = rows.filter(pc.and_(pc.equal(rows["broker"], self._broker), _reachable(rows)))
            rows = _with_lite_offsets(rows)
            ends = rows.group_by(["lite_queue"], use_threads=False).aggregate([("at", "min"), ("at", "max")])
            columns = [ends[name].to_pylist() for name in ("lite_queue", "at_min", "at_max")]
            for queue, least, most in zip(*columns, strict=True):
                known = found.get((queue, 0), _Span(least, most))
                found[queue, 0] = _Span(min(least, known.least), max(most, known.greatest))
        return found

    def _spans_of(self, look: _Look, part: Part) -> dict[Queue, _Span]:
        import pyarrow.compute as pc

        look.go_on()
        rows = part.read(_PLACE)
        rows = rows.filter(pc.and_(pc.equal(rows["broker"], self._broker), _reachable(rows)))
        ends = rows.group_by(["topic", "queue_id"], use_threads=False).aggregate(
            [("queue_offset", "min"), ("queue_offset", "max")]
        )
        names = ("topic", "queue_id", "queue_offset_min", "queue_offset_max")
        columns = [ends[name].to_pylist() for name in names]
        return {
            (topic, queue): _Span(least, most) for topic, queue, least, most in zip(*columns, strict=True)
        }

    def _read(self, look: _Look, begin: int, end: int, most_bytes: int) -> Stretch:
        at = begin
        places: dict[int, _Place] = {}
        while at < end and not places:
            behind = min(at + _WINDOW, end)
            places = look.places(at, behind, self._is_twice)
            at = behind if places else look.next(behind, end)
        expired = 0 if begin in places else self._expired_to(look, begin, min(places, default=end))
        if not places:
            return Stretch(begin, end, expired=expired)
        total, stop = 0, at
        for offset in sorted(places):
            if total and total + places[offset].size > most_bytes:
                stop = offset
                break
            total += places[offset].size + _A_RECORD
        records = look.records({offset: place for offset, place in places.items() if offset < stop})
        for offset in [offset for offset, record in records.items() if record is None]:
            self._unfit.happened(
                log.error,
                "messages of the lake of which no record can be made are passed over: their bodies were left out, or do not fit",
                topic=look.queue[0],
                queue_id=look.queue[1],
                queue_offset=offset,
            )
        offsets = sorted(records)
        return Stretch(begin, stop, offsets, [records[each] for each in offsets], total, expired)

    def _expired_to(self, look: _Look, begin: int, end: int) -> int:
        """`end` where retention has removed [begin, end): the queue begins there now, and its topic has a bound. 0 otherwise."""
        from structured_streaming.commit.upkeep_log import read_upkeep
        from structured_streaming.retention_rules import latest

        folder = self._lake.folder
        if look.first(0, begin) is not None or not folder.child(UPKEEP_TABLE).exists():
            return 0
        return 0 if latest(read_upkeep(folder).promised, look.topic) is None else end

    def _is_twice(self, queue: Queue, offset: int) -> None:
        self._twice.happened(
            log.error,
            "a place in a queue is in the lake more than once; the message that was stored last is delivered",
            topic=queue[0],
            queue_id=queue[1],
            queue_offset=offset,
        )


class _Look:
    """One reading: of a queue, in `files` that may have something of it."""

    def __init__(
        self, messages: LakeMessages, queue: Queue, files: list[_File], until: float, erased: ErasedRows
    ) -> None:
        self._messages = messages
        self._lake = messages._lake
        self._folder = messages._folder
        self._broker = messages._broker
        self.queue = queue
        self.lite = lite_topic_of(queue[0])
        self._files = files
        self._until = until
        self._erased = erased

    def go_on(self) -> None:
        """To be called between two parts. Raises LakeReadStoppedError, LakeUnreachableError when it takes too long."""
        self._lake.go_on()
        if time.monotonic() > self._until:
            raise LakeUnreachableError(
                f"{self._folder}: a reading took longer than {_MOST_S:g} s; the next one goes on from what it found"
            )

    def parts(self, file: _File) -> Iterator[Part]:
        from structured_streaming.maintenance.reading import parts
        from structured_streaming.tables import MESSAGES

        return parts(self._folder, file.data, MESSAGES.schema)

    def _groups(self, begin: int, end: int) -> Iterator[tuple[_File, dict[int, _Span]]]:
        """Files that have something of [begin, end), with the spans of their row groups that do."""
        for file in self._files:
            if self.lite is None and not file.may_be_between(begin, end):
                continue
            spans = [each.get(self.queue) for each in self._messages.spans(self, file)]
            found = {
                number: span
                for number, span in enumerate(spans)
                if span is not None and span.least < end and span.greatest >= begin
            }
            if found:
                yield file, found

    def next(self, begin: int, end: int) -> int:
        """The lowest queue offset in [begin, end); `end` without one."""
        found = self.first(begin, end)
        return end if found is None else found[0]

    def first(self, begin: int, end: int) -> tuple[int, str] | None:
        """The lowest queue offset in [begin, end), and the path of a file that has it."""
        best: tuple[int, str] | None = None
        for file, spans in self._groups(begin, end):
            if best is not None and self.lite is None and file.first > best[0]:
                break
            some = [span.least for span in spans.values() if span.least >= begin]
            around = {number: span for number, span in spans.items() if span.least < begin}
            some += [offset for offset in [self._least(file, around, begin, end)] if offset is not None]
            if some and (best is None or min(some) < best[0]):
                best = min(some), file.data.path
        return best

    def _least(self, file: _File, spans: dict[int, _Span], begin: int, end: int) -> int | None:
        """The lowest queue offset in [begin, end) that these row groups have."""
        import pyarrow.compute as pc

        found = [pc.min(rows["at"]).as_py() for _, rows in self._rows(file, spans, _PLACE, begin, end)]
        return min(found, default=None)

    def places(
        self,
        begin: int,
        end: int,
        twice: Callable[[Queue, int], None],
    ) -> dict[int, _Place]:
        """Rows of queue offsets in [begin, end)."""
        found: dict[int, _Place] = {}
        for file, spans in self._groups(begin, end):
            for number, rows in self._rows(file, spans, _SIZED, begin, end):
                for row in rows.to_pylist():
                    if self._erased.has(row["log_id"], row["physical_offset"]):
                        continue
                    offset = row["at"]
                    place = _Place(
                        file,
                        number,
                        row["size"],
                        row["log_id"],
                        row["physical_offset"],
                        row["store_timestamp"],
                    )
                    before = found.get(offset)
                    if before is not None:
                        if self.lite is None:
                            twice(self.queue, offset)
                        place = max(before, place, key=lambda each: (each.stored, each.log_id))
                    found[offset] = place
        return found

    def first_since(self, timestamp_us: int, begin: int, end: int) -> int | None:
        """The first queue offset in [begin, end) whose message was stored then or later."""
        import pyarrow.compute as pc

        best: int | None = None
        for file, spans in self._groups(begin, end):
            if best is not None and self.lite is None and file.first > best:
                break
            if not file.may_be_as_late_as(timestamp_us):
                continue
            for _, rows in self._rows(file, spans, (*_PLACE, "store_timestamp"), begin, end):
                later = rows.filter(pc.greater_equal(rows["store_timestamp"], timestamp_us))
                if later.num_rows:
                    least = pc.min(later["at"]).as_py()
                    best = least if best is None else min(best, least)
        return best

    def records(self, places: dict[int, _Place]) -> dict[int, bytes | None]:
        """The records of rows."""
        if not places:
            return {}
        wanted: dict[str, tuple[_File, dict[int, _Span]]] = {}
        least, most = min(places), max(places)
        for place in places.values():
            wanted.setdefault(place.file.data.path, (place.file, {}))[1][place.group] = _Span(least, most)
        found: dict[int, bytes | None] = {}
        for file, spans in wanted.values():
            for _, rows in self._rows(file, spans, _WHOLE, least, most + 1):
                for row in rows.to_pylist():
                    known = places.get(row["at"])
                    if known is not None and known[3:5] == (row["log_id"], row["physical_offset"]):
                        found[row["at"]] = _record(self.topic, row["queue_id"], row)
        return found

    @property
    def topic(self) -> str:
        """Of the rows."""
        return self.queue[0] if self.lite is None else self.lite.parent

    def _rows(
        self, file: _File, spans: dict[int, _Span], columns: Sequence[str], begin: int, end: int
    ) -> Iterator[tuple[int, pa.Table]]:
        """Rows of the queue in [begin, end), from these row groups, with the groups' numbers; `at` is their queue offset. Times are
        in µs."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for number, part in enumerate(self.parts(file)):
            if number not in spans:
                continue
            read = columns if self.lite is None else dict.fromkeys((*columns, *_LITE))
            for rows in part.batches(tuple(read), _ROWS if "body" in columns else 64 * _ROWS):
                self.go_on()
                here = pc.and_(pc.equal(rows["topic"], self.topic), pc.equal(rows["broker"], self._broker))
                here = pc.and_(here, _reachable(rows))
                if self.lite is None:
                    here = pc.and_(here, pc.equal(rows["queue_id"], self.queue[1]))
                    some = rows.filter(here)
                    some = some.append_column("at", some["queue_offset"])
                else:
                    here = pc.and_(here, pc.equal(rows["lite_topic"], self.lite.name))
                    some = _with_lite_offsets(rows.filter(here))
                some = some.filter(pc.and_(pc.greater_equal(some["at"], begin), pc.less(some["at"], end)))
                if not some.num_rows:
                    continue
                for name in _TIMES:
                    if name in some.column_names:
                        at = some.column_names.index(name)
                        some = some.set_column(at, name, some[name].cast(pa.int64()))
                yield number, some


def _with_lite_offsets(rows: pa.Table) -> pa.Table:
    """The rows that stand in a lite topic's queue of their own topic, with that queue (`lite_queue`) and their offset in it (`at`)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = rows.filter(pc.is_valid(rows["lite_topic"]))
    queue = pc.binary_join_element_wise(PREFIX, rows["topic"], "$", rows["lite_topic"], "")
    dispatched, text = (
        pc.map_lookup(rows["properties"], pa.scalar(name), "first")
        for name in (PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_INNER_MULTI_QUEUE_OFFSET)
    )
    rows = rows.append_column("lite_queue", queue).append_column("lite_offset", text)
    here = pc.and_(pc.equal(dispatched, queue), pc.match_substring_regex(text, _OFFSET_TEXT))
    rows = rows.filter(pc.fill_null(here, False))
    return rows.append_column("at", rows["lite_offset"].cast(pa.int64()))


def _reachable(rows: pa.Table) -> pa.ChunkedArray:
    """Which rows have an entry in their queue: none that are prepared or rolled back."""
    import pyarrow.compute as pc

    state = pc.bit_wise_and(rows["sys_flag"], SYS_TRANSACTION_MASK)
    return pc.or_(pc.equal(state, 0), pc.equal(state, SYS_COMMIT))


def _record(topic: str, queue_id: int, row: dict[str, Any]) -> bytes | None:
    """The record that a row was made of; None where its body was left out, or it does not fit a record."""
    body, properties = row["body"], dict(row["properties"] or ())
    if body is None:
        return None
    had_crc = properties.pop(PROPERTY_CRC32, None) is not None
    sys_flag = row["sys_flag"] & ~SYS_HOSTS_V6
    if row["body_encoding"] == "identity":
        sys_flag &= ~(SYS_COMPRESSED | SYS_COMPRESSION_MASK) if sys_flag & SYS_COMPRESSED else ~0
    try:
        pending = PendingRecord(
            topic,
            queue_id,
            body,
            encode_properties(properties),
            _ms(row["born_timestamp"]),
            _host(row["born_host"]),
            sys_flag,
            row["flag"] or 0,
            row["reconsume_times"] or 0,
            row["prepared_transaction_offset"] or 0,
        )
        return b"".join(
            encode_record(
                pending,
                row["queue_offset"],
                row["physical_offset"],
                _ms(row["store_timestamp"]),
                _host(row["store_host"]),
                had_crc,
            )
        )
    except (RecordError, OSError, ValueError):
        return None


def _ms(us: int | None) -> int:
    return 0 if us is None else us // 1000


def _host(text: str | None) -> bytes:
    """Packed again. Raises OSError, ValueError for what is none."""
    ip, _, port = (text or "0.0.0.0:0").rpartition(":")
    return Host(ip.strip("[]"), int(port)).packed
