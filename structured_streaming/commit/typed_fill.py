"""A typed table brought to where the lake is, from the bodies in `messages`.

A progress row names the tables that its batch went to. What a typed table lacks are the batches above its own version for a log,
or above where it was declared to begin, that do not name it: it was declared, or left out, when they were committed. So much of the
logs at a time (`PART_BYTES`) is one commit, with the application transactions that the reput's own batches have. So a fill that is
killed leaves whole parts, and files that no version has; two at once are one; and behind it the table's version means what it does for every table: it holds
exactly the rows below. Tables that Spark's writer commits to, whose batches leave no such version, are filled likewise.

It may take hours, and messages be erased meanwhile. No row of them gets into a version that an erasure does not look at:

| the fill | the erasure |
|---|---|
| leaves out what `erasures` names when it begins | names its records there before all else |
| follows the table's log, then looks at `erasures` again, takes rows of what is named by now out of its files, and commits as the version right behind | asks whether a table awaits a fill (`awaits_fill`) before it looks at the table's files, and at its end. While one does, it removes none of the files that no version has, and is not settled |
| begins again where a file of its own is gone, or one of `messages` that no version has any more | removes files of `messages` that it wrote anew |
| of a topic that was removed commits nothing | counts a removed topic's table as one that awaits nothing |
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from structured_streaming.commit.ends import Ends, FollowedEnds
from structured_streaming.commit.erasures_log import Erasures
from structured_streaming.commit.progress_rows import names_table
from structured_streaming.commit.snapshot import DataFile, Snapshot
from structured_streaming.commit.table_log import TableLog, VersionTakenError
from structured_streaming.commit.typed_declared import declared_in
from structured_streaming.erased import Erased
from structured_streaming.errors import LakeError
from structured_streaming.staging.table_file import StagedFile, TableFile
from structured_streaming.stated import may_hold
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import MESSAGES, REPUT_PROGRESS
from structured_streaming.typed.declaration import STOPPED, Declaration, declaration_of
from structured_streaming.typed.topic import PLACE, TypedTopic

PART_BYTES = 2 << 30
"""Of logs, that a commit of a fill is about at most."""
FILL_COLUMNS = [*PLACE, "body", "body_encoding"]
"""Of `messages`: what typed rows are made of."""
_BATCH = pa.schema(
    [REPUT_PROGRESS.schema.field(each) for each in ("broker", "log_id", "start_offset", "end_offset")]
)
_PROGRESS_ROWS = 1 << 14
"""Of `reput_progress`, with the tables of each batch, in memory at a time."""
_READ_ROWS = 1024
_HELD_BYTES, _HELD_ROWS = 16 << 20, 65_536
"""Of messages that are read by the schema together."""
_FILE_BYTES = 128 << 20
"""Of rows in memory that become one file."""


class Stretch(NamedTuple):
    """Of a log: what a table lacks."""

    broker: str
    log_id: str
    start: int
    end: int


class Batch(NamedTuple):
    """Bytes [start, end) of a log."""

    broker: str
    log_id: str
    start: int
    end: int


class Before(NamedTuple):
    """Of a lake before a table is made: its newest batch, -1 without any; whether some went to a table of that name."""

    newest: int
    named: bool


class Lacking(NamedTuple):
    """What a table lacks, and what it is the table of then: the progress by `broker/log_id`, where its version is behind."""

    stretches: list[Stretch]
    ends: dict[str, int]

    @property
    def size(self) -> int:
        """Bytes of the stretches."""
        return sum(each.end - each.start for each in self.stretches)

    def first(self, most: int) -> Lacking:
        """So many bytes of the stretches, those of a log from its beginning on, and what the table is whole to then."""
        taken, ends = list[Stretch](), dict[str, int]()
        for name, whole in self.ends.items():
            ends[name] = whole
            its = [each for each in self.stretches if f"{each.broker}/{each.log_id}" == name]
            for each in sorted(its, key=lambda each: each.start):
                end = min(each.end, each.start + most)
                most -= end - each.start
                if each.start < end:
                    taken.append(each._replace(end=end))
                if end < each.end:
                    ends[name] = end
                    break
        return Lacking(taken, ends)

    def below(self, ends: Ends) -> int:
        """Bytes of the stretches that are below the ends of their logs."""
        sizes = (
            min(each.end, ends.get((each.broker, each.log_id), 0)) - each.start for each in self.stretches
        )
        return sum(size for size in sizes if size > 0)


def fill(
    lake: Folder,
    declared: Declaration,
    tell: Callable[[int], None] = lambda rows: None,
    until: float = math.inf,
) -> int:
    """Brings a typed table to the lake's progress; the rows that it got. `tell` gets how many messages were read, part by part. What
    begins once `time.monotonic()` is beyond `until` is left.

    Raises LakeError.
    """
    try:
        return _fill(lake, declared, tell, until)
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"{lake.child(declared.table)} cannot be filled: {error}") from error


def _fill(lake: Folder, declared: Declaration, tell: Callable[[int], None], until: float) -> int:
    log, rows = TableLog(lake.child(declared.table)), 0
    while True:
        every = lacking(lake, log, declared)
        found = every.first(PART_BYTES)
        if not found.ends or time.monotonic() > until:
            return rows
        source = Snapshot(lake.child(MESSAGES.name))  # after the progress: it has all that this says
        files = [file for file in source.files.values() if _may_hold(file, declared.topic, found.stretches)]
        staged = _Staged(lake, TypedTopic(declared))
        try:
            staged.write(files, found.stretches, tell)
        except _UnreadableError as error:
            if error.path in Snapshot(lake.child(MESSAGES.name)).files:
                raise
            continue
        if staged.commit(log, found.ends):
            rows += staged.rows
            if found.ends == every.ends:
                return rows


def reads_more(lake: Folder, declared: Declaration, most: int) -> bool:
    """Whether a fill has to read more than so many bytes of `messages`. Raises LakeError."""
    found = lacking(lake, TableLog(lake.child(declared.table), reads=True), declared)
    if not found.stretches:
        return False
    folder = lake.child(MESSAGES.name)
    files = [
        file for file in Snapshot(folder).files.values() if _may_hold(file, declared.topic, found.stretches)
    ]
    if sum(file.size for file in files) <= most:
        return False
    size = 0
    for file in files:
        try:
            metadata = pq.read_metadata(folder.readable(file.name))
        except FileNotFoundError:  # maintenance has removed it since
            continue
        except (pa.ArrowException, OSError) as error:
            raise _UnreadableError(folder, file, error) from error
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        size += sum(_read_size(group) for group in groups if _group_may_hold(group, declared.topic))
        if size > most:
            return True
    return False


def awaits_fill(lake: Folder, table: str, ends: Ends) -> bool:
    """Whether a fill that is under way may commit rows of what is below the ends to a typed table, by what is there now; `lake` need
    not have the table. Raises LakeError."""
    declared = declared_in(lake, table)
    if declared is None or declared.state == STOPPED:
        return False
    return lacking(lake, TableLog(lake.child(table), reads=True), declared).below(ends) > 0


class _UnreadableError(LakeError):
    """Of a file of `messages`."""

    def __init__(self, folder: Folder, file: DataFile, reason: object) -> None:
        super().__init__(f"file {file.path} of {folder} cannot be read: {reason}")
        self.path = file.path


class _Staged:
    """Files that are to become a version of a typed table: without rows of what `erasures` names. What fails leaves none of them."""

    def __init__(self, lake: Folder, topic: TypedTopic) -> None:
        self._lake = lake
        self._topic = topic
        self._folder = lake.child(topic.table.name)
        self._erasures = Erasures(lake)
        self._left_out = self._erasures.every()
        self._files: list[StagedFile] = []

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self._files)

    def write(self, files: list[DataFile], lacking: list[Stretch], tell: Callable[[int], None]) -> None:
        """What files of `messages` hold of the stretches. Raises LakeError."""
        with self._removed_on_failure():
            parts = _typed(self._lake, files, self._topic, lacking, self._left_out, tell)
            self._files.extend(_files(self._lake, self._topic, parts))

    def commit(self, log: TableLog, transactions: dict[str, int]) -> bool:
        """False, and nothing is left, where that has to begin again: another writer brought the table further, or files are gone.
        Raises LakeError."""
        known = {application: log.transaction_version(application) for application in transactions}
        while True:
            with self._removed_on_failure():
                self._check_declared(log)
                are_there = self._leave_out()
            if not are_there:
                break
            try:
                log.append([file._asdict() for file in self._files], transactions)
            except VersionTakenError:
                with self._removed_on_failure():
                    log.follow()
                if any(log.transaction_version(name) != version for name, version in known.items()):
                    break
            else:
                return True
        self._remove()
        return False

    def _check_declared(self, log: TableLog) -> None:
        declared = declaration_of(self._folder, log.metadata["configuration"])
        if declared is None or declared.state == STOPPED:
            raise LakeError(
                f"topic {self._topic.declared.topic} is typed no more: it was removed while {self._folder} was filled"
            )

    def _leave_out(self) -> bool:
        """Takes rows of what was erased since out of the files; False where one of these is gone."""
        self._erasures.follow()
        every = self._erasures.every()
        since = every.without(self._left_out)
        for file in list(self._files):
            try:
                if not self._folder.has(file.path):
                    return False
                if since.may_be_in(json.loads(file.stats)):
                    self._take_out(file, since)
            except FileNotFoundError:
                return False
            except (OSError, pa.ArrowException) as error:
                raise LakeError(f"file {file.path} of {self._folder}: {error}") from error
        self._left_out = every
        return True

    def _take_out(self, file: StagedFile, erased: Erased) -> None:
        """Puts the file's other rows in its place."""
        with pq.ParquetFile(self._folder.readable(file.path), pre_buffer=False) as opened:
            groups = (opened.read_row_group(at, use_threads=False) for at in range(opened.num_row_groups))
            others = (rows.filter(pa.array(~erased.rows(rows))) for rows in groups)
            with_rows = (rows for rows in others if rows.num_rows)
            self._files.extend(_files(self._lake, self._topic, with_rows))
        self._files.remove(file)
        self._folder.remove(file.path)

    @contextlib.contextmanager
    def _removed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._remove()
            raise

    def _remove(self) -> None:
        while self._files:
            self._folder.remove(self._files.pop().path)


def lacking(
    lake: Folder, log: TableLog, declared: Declaration, whole: Mapping[str, int] = MappingProxyType({})
) -> Lacking:
    """As far as the version of a table for each log, and the batches since that say which tables they went to. `whole`: up to where
    nothing lacked when it was asked before, by `broker/log_id`. Raises LakeError."""
    progress = TableLog(lake.child(REPUT_PROGRESS.name), reads=True)
    starts, known, ends = declared.starts, dict[str, int](), dict[str, int]()
    for (broker, log_id), end in FollowedEnds(lake).at(progress).items():
        application = f"{broker}/{log_id}"
        known[application] = max(
            log.transaction_version(application) or 0, starts.get(application, 0), whole.get(application, 0)
        )
        ends[application] = end
    return lacking_of(known, ends, partial(other_batches, lake, progress.version, declared))


def lacking_of(
    known: Mapping[str, int], ends: Mapping[str, int], batches: Callable[[int], Iterator[Batch]]
) -> Lacking:
    """What a table lacks that is whole below `known`, in a lake that holds the logs up to `ends`, both by `broker/log_id`.

    `batches` gives those that end above an offset and did not go to the table, each log's in their order.
    """
    behind = {name: end for name, end in ends.items() if known[name] < end}
    if not behind:
        return Lacking([], {})
    found: dict[str, Stretch] = {}
    whole: list[Stretch] = []
    for batch in batches(min(known[name] for name in behind)):
        application = f"{batch.broker}/{batch.log_id}"
        start = max(batch.start, known.get(application, 0))
        if start >= batch.end:
            continue
        before = found.get(application)
        if before is not None and before.end == start:
            start = before.start
        elif before is not None:
            whole.append(before)
        found[application] = Stretch(batch.broker, batch.log_id, start, batch.end)
    return Lacking([*whole, *found.values()], behind)


def before(lake: Folder, table: str) -> Before:
    """Of a table that is to be made. Raises LakeError."""
    version = TableLog(lake.child(REPUT_PROGRESS.name), reads=True).version
    newest, named = -1, False
    for rows in _progress(lake, version, ["batch", "table_versions"]):
        newest = max(newest, pc.max(rows["batch"]).as_py())
        named = named or bool(names_table(rows["table_versions"], table).any())
    return Before(newest, named)


def other_batches(lake: Folder, version: int, declared: Declaration, behind: int) -> Iterator[Batch]:
    """See `lacking_of`. Of a topic that was quiet in a log these are none of all since it had a message there."""
    found = [_BATCH.empty_table()]
    above = pc.field("end_offset") > behind
    for rows in _progress(lake, version, [*_BATCH.names, "batch", "table_versions"], above):
        named = pa.array(names_table(rows["table_versions"], declared.table))
        its = pc.and_(named, pc.greater(rows["batch"], declared.since))
        found.append(pa.Table.from_batches([rows.select(_BATCH.names).filter(pc.invert(its))]).cast(_BATCH))
    order = [("broker", "ascending"), ("log_id", "ascending"), ("end_offset", "ascending")]
    for part in pa.concat_tables(found).sort_by(order).to_batches(1000):
        for row in part.to_pylist():  # one a batch of the reput, not one a record
            yield Batch(*row.values())


def _progress(
    lake: Folder, version: int, columns: list[str], condition: pc.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of `reput_progress`, a bounded number at a time. Raises LakeError."""
    folder = lake.child(REPUT_PROGRESS.name)
    try:
        progress = DeltaTable(folder.uri, version=version)
        some = progress.to_pyarrow_dataset(filesystem=folder.arrow_filesystem()).scanner(
            columns,
            filter=condition,
            batch_size=_PROGRESS_ROWS,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        )
        yield from (rows for rows in some.to_batches() if rows.num_rows)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise LakeError(f"table {folder} cannot be read: {error}") from error


def _files(lake: Folder, topic: TypedTopic, parts: Iterator[pa.Table]) -> Iterator[StagedFile]:
    """The rows in files of a bounded size."""
    while (first := next(parts, None)) is not None:
        size = 0
        with TableFile(lake, topic.table) as file:
            for part in itertools.chain((first,), parts):
                file.write(part)
                size += part.nbytes
                if size > _FILE_BYTES:
                    break
            staged = file.finish()
        assert staged is not None
        yield staged


def _typed(
    lake: Folder,
    files: list[DataFile],
    topic: TypedTopic,
    lacking: list[Stretch],
    erased: Erased,
    tell: Callable[[int], None],
) -> Iterator[pa.Table]:
    """The typed rows of what the files of `messages` hold of the stretches, but of erased records."""
    for found in _messages(lake.child(MESSAGES.name), files, topic.declared.topic, lacking):
        rows = found.filter(pa.array(~erased.rows(found))).sort_by("store_timestamp")
        if rows.num_rows:
            columns = {name: _one(rows[name]) for name in FILL_COLUMNS}
            body, encodings = columns.pop("body"), columns.pop("body_encoding")
            yield from topic.rows(columns, body, encodings)
        tell(found.num_rows)


def _one(column: pa.ChunkedArray) -> pa.Array:
    found: Any = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _messages(
    folder: Folder, files: list[DataFile], topic: str, lacking: list[Stretch]
) -> Iterator[pa.Table]:
    """The topic's rows of `messages` in the stretches, a bounded number of bytes at a time. Raises LakeError."""
    held, size, count = list[pa.Table](), 0, 0
    for file in files:
        try:
            for rows in _rows(folder, file, topic, lacking):
                held.append(rows)
                size, count = size + rows.nbytes, count + rows.num_rows
                if size > _HELD_BYTES or count > _HELD_ROWS:
                    yield pa.concat_tables(held)
                    held, size, count = [], 0, 0
        except (pa.ArrowException, OSError, KeyError) as error:
            raise _UnreadableError(folder, file, error) from error
    if held:
        yield pa.concat_tables(held)


def _rows(folder: Folder, file: DataFile, topic: str, lacking: list[Stretch]) -> Iterator[pa.Table]:
    schema = pa.schema([MESSAGES.schema.field(name) for name in FILL_COLUMNS])
    with pq.ParquetFile(
        folder.readable(file.name), coerce_int96_timestamp_unit="us", pre_buffer=False
    ) as opened:
        groups = [
            at for at in range(opened.num_row_groups) if _group_may_hold(opened.metadata.row_group(at), topic)
        ]
        for batch in opened.iter_batches(_READ_ROWS, groups, FILL_COLUMNS, use_threads=False):
            wanted = pc.and_(pc.equal(batch["topic"], topic), _within(batch, lacking))
            rows = pa.Table.from_batches([batch]).filter(wanted)
            if rows.num_rows:
                yield rows.select(FILL_COLUMNS).cast(schema)


def _within(batch: pa.RecordBatch, lacking: list[Stretch]) -> pa.BooleanArray:
    found = pa.repeat(pa.scalar(False), len(batch))
    for each in lacking:
        of_log = pc.and_(pc.equal(batch["broker"], each.broker), pc.equal(batch["log_id"], each.log_id))
        offset = batch["physical_offset"]
        inside = pc.and_(pc.greater_equal(offset, each.start), pc.less(offset, each.end))
        found = pc.or_(found, pc.and_(of_log, inside))
    return found


def _may_hold(file: DataFile, topic: str, lacking: list[Stretch]) -> bool:
    """Whether the statistics of a file allow rows of the topic in the stretches."""
    stated = file.statistics
    return may_hold(stated, "topic", topic, topic) and any(
        may_hold(stated, "physical_offset", each.start, each.end - 1) for each in lacking
    )


def _read_size(group: Any) -> int:
    """Bytes of the columns of a row group that a fill reads."""
    columns = map(group.column, range(group.num_columns))
    return sum(
        each.total_compressed_size
        for each in columns
        if each.path_in_schema in FILL_COLUMNS or each.path_in_schema == "topic"
    )


def _group_may_hold(group: Any, topic: str) -> bool:
    for at in range(group.num_columns):
        column = group.column(at)
        if (
            column.path_in_schema == "topic"
            and column.statistics is not None
            and column.statistics.has_min_max
        ):
            return bool(column.statistics.min <= topic <= column.statistics.max)
    return True
