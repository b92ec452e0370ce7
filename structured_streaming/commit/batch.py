"""What a manifest says of a batch, whichever sink commits it: its extent of each log, its files, its progress rows."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from structured_streaming.commit.report import BatchReport, LogReport
from structured_streaming.errors import CutShortError, LakeError
from structured_streaming.tables import QUARANTINE, REPUT_PROGRESS


class LogSpan(NamedTuple):
    """What a batch holds of a log; `newest_ms` is when the newest of its records was stored, 0 where it is not known."""

    target: str
    broker: str
    log_id: str
    start: int
    end: int
    log_end: int
    records: int
    newest_ms: int = 0

    @property
    def application(self) -> str:
        return f"{self.broker}/{self.log_id}"


def spans_of(manifest: list[dict[str, Any]]) -> list[LogSpan]:
    """The batch's extent of each log; raises LakeError when its ranges do not join, CutShortError when one lacks files."""
    ranges: dict[tuple[str, str], list[dict[str, Any]]] = {}
    held: Counter[tuple[str, str, int]] = Counter()
    for row in manifest:
        if not row["table"]:
            ranges.setdefault((row["broker"], row["log_id"]), []).append(row)
        else:
            held[row["broker"], row["log_id"], row["start"]] += 1
    spans = []
    for (broker, log_id), parts in sorted(ranges.items()):
        parts.sort(key=lambda part: part["start"])
        for part in parts:
            if (came := held[broker, log_id, part["start"]]) != part["files"]:
                raise CutShortError(
                    f"of the {part['files']} files of {broker}/{log_id} from {part['start']} to {part['end']}, Spark returned {came}: "
                    "its JVM ended meanwhile, or is short of memory"
                )
        for before, after in itertools.pairwise(parts):
            if before["end"] != after["start"]:
                raise LakeError(
                    f"the batch of {broker}/{log_id} has a gap from {before['end']} to {after['start']}"
                )
        spans.append(
            LogSpan(
                parts[0]["target"],
                broker,
                log_id,
                parts[0]["start"],
                parts[-1]["end"],
                max(part["log_end"] for part in parts),
                sum(part["rows"] for part in parts),
                max(int(part["stats"] or 0) for part in parts),
            )
        )
    return spans


def files_by_table(manifest: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of a manifest that stand for files."""
    files: dict[str, list[dict[str, Any]]] = {}
    for row in manifest:
        if row["table"] and row["path"]:
            files.setdefault(row["table"], []).append(row)
    return files


def progress_rows(spans: Sequence[LogSpan], versions: Mapping[str, int], batch: int) -> pa.Table:
    """Of `reput_progress`: one for each log; `versions` of the tables that hold the batch."""
    now = time.time_ns() // 1000
    return pa.Table.from_pylist(
        [
            {
                "broker": span.broker,
                "log_id": span.log_id,
                "end_offset": span.end,
                "batch": batch,
                "start_offset": span.start,
                "log_end_offset": span.log_end,
                "records": span.records,
                "bytes": span.end - span.start,
                "table_versions": list(versions.items()),
                "commit_timestamp": now,
            }
            for span in spans
        ],
        REPUT_PROGRESS.schema,
    )


def report(
    batch: int,
    spans: Sequence[LogSpan],
    manifest: list[dict[str, Any]],
    seconds: float,
    table_seconds: Mapping[str, float],
) -> BatchReport:
    """Of a batch that is in the lake; `seconds` that its commit took, and that of each table."""
    return BatchReport(
        batch,
        sum(span.records for span in spans),
        sum(span.end - span.start for span in spans),
        seconds,
        sum(max(span.log_end - span.end, 0) for span in spans),
        sum(row["rows"] for row in manifest if row["table"] == QUARANTINE.name),
        {(span.target, span.broker, span.log_id): span.end for span in spans},
        tuple(
            LogReport(
                span.broker,
                span.end - span.start,
                span.records,
                max(span.log_end - span.end, 0),
                span.newest_ms,
            )
            for span in spans
        ),
        dict(table_seconds),
    )
