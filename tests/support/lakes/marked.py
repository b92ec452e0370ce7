"""A lake with one person's messages, whose bodies, keys, ids and properties hold a marker, and a search for it in every file."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.logs import BORN_MS, LogWriter
from store.log_source import FolderLog
from store.scan import scan
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.commit.erasures_log import add_erased
from structured_streaming.commit.table_log import TableLog
from structured_streaming.commit.typed_fill import fill
from structured_streaming.commit.typed_tables import declare
from structured_streaming.erased import Erased
from structured_streaming.rows.all_tables import rows_of
from structured_streaming.rows.records import Records
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.stage import stage
from structured_streaming.staging.wanted import Wanted
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.location import lake_folder
from structured_streaming.tables import DATA_TABLES, TABLES
from structured_streaming.typed.declaration import JSON, Declaration, Schema
from tests.support.lakes import checks
from tests.support.lakes.copies import copy_folder
from tests.support.lakes.maintained import ends, reput

TOPIC, TYPED = "people", "typed_people"
WITH_MESSAGES = ("consume_queue", "message_index", "messages")


class MarkedLake:
    """`write` makes a batch of the reput; in each are messages of the person and of others, copies that the broker makes of a message
    (a retry, a timer) and deliveries of it. The lake is at `location`, whose files are in the folder `lake`."""

    def __init__(self, folder: Path, marker: str = "", location: str = "", files: Path | None = None) -> None:
        self.store, self.lake = folder / "store", files or folder / "lake"
        self.location = location or str(self.lake)
        self.marker = marker or f"Mk{uuid4().hex[:14]}"
        self.number = self.others_written = 0
        self.typed: tuple[Declaration, ...] = ()

    @property
    def folder(self) -> Folder:
        return lake_folder(self.location)

    @property
    def key(self) -> str:
        return f"{self.marker}-customer"

    def copied(self, folder: Path) -> MarkedLake:
        """Another one that goes on from here."""
        made = MarkedLake(folder, self.marker)
        made.number, made.typed = self.number, self.typed
        for source, target in ((self.store, made.store), (self.lake, made.lake)):
            copy_folder(source, target)
        made.remember()
        return made

    def write(self, batches: int = 1) -> None:
        """So many batches more."""
        for _ in range(batches):
            self.append()
            self.reput()

    def reput(self) -> None:
        """Takes what the log has into the lake."""
        reput(self.store, self.location, wanted=Wanted(typed=self.typed))

    def declare(self) -> None:
        """From here on the topic is a typed one, too; its table has what came before."""
        schema = {"properties": {"who": {"type": "string"}, "n": {"type": "integer"}}}
        declared = Declaration(TOPIC, TYPED, JSON, (Schema(1, json.dumps(schema)),))
        declare(self.folder, declared)
        fill(self.folder, declared)
        self.typed = (declared,)

    def write_others(self) -> None:
        """A batch without any of the person's."""
        with LogWriter(self.store) as writer:
            writer.number = 100_000 + 20 * self.others_written
            self.others_written += 1
            writer.messages(7)
        self.reput()

    def manifests(self) -> list[list[dict[str, Any]]]:
        """Of what the lake has not of the log: staged, as one batch, and not committed."""
        log = FolderLog(self.store)
        state = log.describe()
        start = ends(self.location)[state.broker, state.log_id]
        part = LogRange(
            "store:x",
            state.broker,
            state.log_id,
            start,
            state.end,
            state.end,
            segment_size=state.segment_size,
        )
        chunks = log.read(state.log_id, start, state.end)
        found = [
            row
            for batch in stage(self.location, part, chunks, Wanted(typed=self.typed))
            for row in batch.to_pylist()
        ]
        log.close()
        return [found]

    def sink(self) -> DeltaCommitSink:
        return DeltaCommitSink(self.location, wanted=Wanted(typed=self.typed))

    def table_folder(self, table: str) -> Folder:
        return self.folder.child(table)

    def assert_whole(self) -> None:
        """Each record of the log that is not erased has its rows, and no others are there."""
        log, erased = FolderLog(self.store), self._erased
        state = log.describe()
        expected: dict[str, set[tuple[Any, ...]]] = {name: set() for name in WITH_MESSAGES}
        for offset, data in log.read(state.log_id, state.start, state.end):
            records = Records(state.broker, state.log_id, scan(data, offset, segment_size=state.segment_size))
            for table, parts in rows_of(records, WITH_MESSAGES):
                for rows in parts:
                    left = rows.filter(pa.array(~erased.rows(rows.cast(table.schema))))
                    expected[table.name] |= set(_keys(left.cast(table.schema), table.key))
        log.close()
        for name, keys in expected.items():
            rows = self.table(name)
            there = _keys(rows.filter(pa.array(~erased.rows(rows))), TABLES[name].key)
            assert len(there) == len(set(there)), f"{name} has rows twice"
            assert set(there) == keys, f"{name} lacks rows, or has others"

    def append(self) -> None:
        """Messages of the person and of others, at the log's end."""
        with LogWriter(self.store) as writer:
            writer.number = self.number * 20
            writer.messages(10)
            n, marker = self.number, self.marker
            self.number += 1
            mine = {
                "KEYS": f"order{n} {self.key} {marker}{n}",
                "UNIQ_KEY": f"{marker}ID{n}",
                "TAGS": f"{marker}tag",
                "name": f"name {marker}",
            }
            writer.record(TOPIC, f'{{"who":"{marker}","n":{n}}}'.encode(), n % 2, **mine)
            writer.record(
                TOPIC,
                f'{{"who":"another","n":{n}}}'.encode(),
                n % 2,
                KEYS=f"order{n} other",
                UNIQ_KEY=f"OTHER{n}",
            )
            writer.record("%RETRY%g", f"again {marker}".encode(), 0, **mine, LB_ORIGIN=f"1:{n}:0:1:g{TOPIC}")
            writer.record("rmq_sys_wheel_timer", f"later {marker}".encode(), 0, **mine, REAL_TOPIC=TOPIC)
            writer.messages(5)
            writer.record(JOURNAL_TOPIC, self._events(f"{marker}ID{n}", n).SerializeToString(), TAGS="events")
            writer.messages(5)

    def _events(self, message_id: str, n: int) -> pb.Batch:
        batch = pb.Batch(version=1, timestamp_ms=BORN_MS + n)
        queue = batch.queues.add(consumer_group="g", topic=TOPIC, queue_id=n % 2)
        queue.events.add(
            kind=pb.DELIVERED,
            timestamp_ms=BORN_MS,
            client_id="c",
            queue_offset=[n // 2, n // 2 + 1],
            attempt=[1, 1],
            message_id=[message_id, f"OTHER{n}"],
        )
        return batch

    def mine(self) -> Erased:
        """The person's messages in the lake, and copies of them."""
        rows = self.table("messages")
        return Erased.in_rows(rows.filter(pc.match_substring(rows["message_id"], self.marker)))

    def places_in_log(self) -> list[int]:
        """Where the person's messages begin in the log, and copies of them."""
        log = FolderLog(self.store)
        state = log.describe()
        found = list[int]()
        for offset, data in log.read(state.log_id, state.start, state.end):
            rows = scan(data, offset, segment_size=state.segment_size)
            for at, size in zip(rows.physical_offset.tolist(), rows.size.tolist(), strict=True):
                record = bytes(data[at - offset : at - offset + size])
                if f"UNIQ_KEY\x01{self.marker}".encode() in record:
                    found.append(at)
        log.close()
        return found

    def erase(self) -> Erased:
        """States that they are erased, and no more."""
        found = self.mine()
        add_erased(self.folder, found, datetime.now(UTC))
        return found

    def checkpoint(self) -> None:
        """Of each table, at its newest version."""
        for table in DATA_TABLES:
            TableLog(self.folder.child(table.name)).checkpoint()

    def table(self, name: str) -> pa.Table:
        """As delta-rs reads it."""
        return checks.rows(self.location, name)

    def others(self) -> dict[str, list[str]]:
        """Rows that are to stay as they are, of every table; but where a queue ends, which is not the person's alone."""
        return {
            table.name: self._others(self.table(table.name))
            for table in DATA_TABLES
            if table.name != "erasures"
        }

    def _others(self, rows: pa.Table) -> list[str]:
        if "physical_offset" in rows.column_names and "message_id" not in rows.column_names:
            rows = rows.filter(pa.array(~self._erased.rows(rows)))
        return sorted(text for each in rows.to_pylist() if self.marker not in (text := repr(each)))

    _erased = Erased({})

    def remember(self) -> None:
        """Which records are the person's, for `others`."""
        self._erased = self.mine()

    def found(self) -> list[str]:
        """Files of the lake that hold the marker, and how."""
        return found_in(self.lake, self.marker)


def _keys(rows: pa.Table, key: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in key), strict=True))


def found_in(folder: Path, marker: str) -> list[str]:
    """Every file below a folder that holds a marker: as it is, decoded, or in a text within."""
    return sorted(
        f"{path.relative_to(folder)}: {how}"
        for path in folder.rglob("*")
        if path.is_file()
        for how, content in _contents(path)
        if marker.encode() in content
    )


def _values(rows: pa.Table) -> bytes:
    """All texts and bytes of a table, whatever they are within. As Python's values they would take ten times as long."""
    found = []
    for chunk in (chunk for column in rows.columns for chunk in column.chunks):
        values = chunk.dictionary_decode() if isinstance(chunk, pa.DictionaryArray) else chunk
        found += [buffer for buffer in values.buffers() if buffer is not None]
    return b"".join(found)


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    raw = path.read_bytes()
    yield "as it is", raw
    if path.name.endswith(".parquet"):
        yield "decoded", _values(pq.ParquetFile(path).read(use_threads=False))
    elif path.name.endswith(".avro"):
        yield "decoded", repr(list(fastavro.reader(io.BytesIO(raw)))).encode()
    elif raw[:2] == b"\x1f\x8b":
        yield "decompressed", zlib.decompress(raw, 31)
    elif path.name.endswith((".json", "_last_checkpoint", ".crc")):
        for line in raw.splitlines():
            try:
                found: Any = json.loads(line)
            except ValueError:
                continue
            yield "parsed", repr(found).encode()
