"""Batches of messages whose bodies are framed as a schema registry's clients do, committed as a reput does."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
from deltalake import DeltaTable

from lakebroker_testing.logs import encoded, pending
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.commit.table_log import TableLog
from structured_streaming.commit.typed_declared import declarations
from structured_streaming.commit.typed_fill import lacking
from structured_streaming.staging.stage import stage
from structured_streaming.staging.wanted import Wanted
from structured_streaming.storage.local import LocalFolder
from structured_streaming.typed.declaration import Declaration
from structured_streaming.typed.fields import column_name
from structured_streaming.typed.topic import PLACE, TypedTopic


def framed(number: int, schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def read(made: TypedTopic, *bodies: bytes) -> list[tuple[dict[str, Any], int, str | None]]:
    """Of each body: the values by the names of fields, the version of the schema that fits it (0: none), why none does."""
    given, encodings = pa.array(bodies, pa.binary()), pa.array(["identity"] * len(bodies))
    place = {name: pa.nulls(len(bodies), made.table.schema.field(name).type) for name in PLACE}
    found = pa.concat_tables(made.rows(place, given, encodings, strict=False)).to_pylist()
    names = {each.name: column_name(each.name) for each in made.decoder.fields}
    return [
        ({name: row[column] for name, column in names.items()}, row["schema_version"] or 0, row["reason"])
        for row in found
    ]


class Log:
    """Batches of a lake, as queries with these declarations commit them."""

    def __init__(self, lake: Path) -> None:
        self.lake, self.end, self.sent = lake, 0, 0

    def batch(
        self, typed: tuple[Declaration, ...], *bodies: bytes, sink: DeltaCommitSink | None = None
    ) -> DeltaCommitSink:
        records = [pending("orders", body, UNIQ_KEY=f"ID{self.sent + at}") for at, body in enumerate(bodies)]
        data = encoded(records, self.end)[0]
        end = self.end + len(data)
        part = SimpleNamespace(
            target="store:-",
            broker="b",
            log_id="l",
            start=self.end,
            end=end,
            log_end=end,
            delay_levels=None,
            segment_size=None,
            erased=(),
        )
        wanted = Wanted(typed=typed)
        found = stage(str(self.lake), part, iter([(self.end, data)]), wanted)  # type: ignore[arg-type]
        sink = sink or DeltaCommitSink(str(self.lake), wanted=wanted)
        sink.commit([row for batch in found for row in batch.to_pylist()])
        self.end, self.sent = end, self.sent + len(bodies)
        return sink

    def rows(self) -> list[dict[str, Any]]:
        found = DeltaTable(str(self.lake / "typed_orders")).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: row["physical_offset"])

    def behind(self) -> int:
        folder = LocalFolder(self.lake)
        (declared,) = declarations(folder)
        log = TableLog(folder.child("typed_orders"), reads=True)
        return sum(each.end - each.start for each in lacking(folder, log, declared).stretches)
