"""What the commands of `lakebroker store` print."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from broker_gateway.cli.output import fail, show_table, warn
from broker_gateway.runtime.printable import printable
from store.counting import counted

if TYPE_CHECKING:
    from store.log.record import Record
    from store.log_source import FolderLog
    from store.tools.inspect import Summary

_BODY_SHOWN = 2000


@contextmanager
def progress_shown(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how far something is; to be told bytes done, and of how many."""
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def show_summary(log: FolderLog, as_json: bool) -> None:
    """What a store holds."""
    from store.errors import StoreError
    from store.tools.inspect import summarize

    try:
        with progress_shown("reading") as progress:
            found = summarize(log, progress)
            segments = log.reader.segments()
    except StoreError as error:
        fail(str(error))
    topics = _topics(found)
    if as_json:
        typer.echo(json.dumps(_summary(log, found, segments, topics)))
    else:
        _tell_summary(log, found, len(segments))
        rows = (
            (printable(name), f"{row['records']:,}", row["queues"], f"{row['bytes']:,}")
            for name, row in topics.items()
        )
        show_table(["topic", "records", "queues", "bytes"], rows)


def _topics(found: Summary) -> dict[str, dict[str, int]]:
    return {
        name: {"records": topic.records, "queues": len(topic.queues), "bytes": topic.bytes}
        for name, topic in sorted(found.topics.items())
    }


def _summary(
    log: FolderLog,
    found: Summary,
    segments: Sequence[tuple[int, int, Path]],
    topics: dict[str, dict[str, int]],
) -> dict[str, Any]:
    return {
        "broker": log.reader.broker,
        "log_id": log.reader.log_id,
        "min_offset": found.min_offset,
        "max_offset": found.max_offset,
        "records": found.records,
        "bytes": found.bytes,
        "damaged": found.damaged,
        "unflushed": {
            "records": found.unflushed_records,
            "bytes": found.unflushed_bytes,
            "max_offset": found.written_offset,
        },
        "first_store_timestamp": found.first_ms,
        "last_store_timestamp": found.last_ms,
        "records_per_s": round(found.records_per_s, 3),
        "segments": [{"start": start, "bytes": size, "path": str(path)} for start, size, path in segments],
        "topics": topics,
    }


def _tell_summary(log: FolderLog, found: Summary, segments: int) -> None:
    typer.echo(f"broker {printable(log.reader.broker)}, log {printable(log.reader.log_id)}")
    typer.echo(
        f"physical offsets {found.min_offset:,} to {found.max_offset:,} in {counted(segments, 'segment')}, "
        f"{counted(found.records, 'record')} of {counted(found.bytes, 'byte')}"
    )
    if found.damaged:
        warn(
            [
                f"{counted(found.damaged, 'place')} without a record; run lakebroker store verify, which checks the CRCs too, "
                "to see which"
            ]
        )
    if found.unflushed_records:
        typer.echo(
            f"behind {found.max_offset:,}, the end that is known to be on disk: {counted(found.unflushed_records, 'record')} of "
            f"{counted(found.unflushed_bytes, 'byte')} up to {found.written_offset:,}; the broker's next start takes them"
        )
    if found.first_ms is not None and found.last_ms is not None:
        typer.echo(
            f"stored {_time(found.first_ms)} to {_time(found.last_ms)}, {found.records_per_s:,.1f} a second"
        )


def described(record: Record) -> dict[str, Any]:
    """A record, for machines."""
    from store.log.record import offset_msg_id

    body = bytes(record.body)
    try:
        text: str | None = body.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "physical_offset": record.physical_offset,
        "size": record.size,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "offset_msg_id": offset_msg_id(record.store_host.packed, record.physical_offset),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_timestamp": record.born_timestamp,
        "born_host": f"{record.born_host.ip}:{record.born_host.port}",
        "store_timestamp": record.store_timestamp,
        "store_host": f"{record.store_host.ip}:{record.store_host.port}",
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "properties": record.properties_map(),
        "body_bytes": len(body),
        "body": text,
        "body_hex": body.hex() if text is None else None,
    }


def show_record(row: dict[str, Any]) -> None:
    """What `described` gave, for people."""
    shown = []
    for name, value in row.items():
        if name == "properties":
            value = "\n".join(f"{printable(key)} = {printable(each)}" for key, each in value.items())
        elif name in ("body", "body_hex"):
            if value is None:
                continue
            value = value if len(value) <= _BODY_SHOWN else value[:_BODY_SHOWN] + "…"
        elif name.endswith("_timestamp"):
            value = f"{value} ({_time(value)})"
        shown.append((name, value))
    show_table(None, shown)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
