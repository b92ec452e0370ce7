"""Batches of messages whose bodies are framed as a schema registry's clients do, committed as a reput does."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
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


def framed(number: int, schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


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
