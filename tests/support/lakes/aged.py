"""A log that was written over many days, and the lake that a reput made of it day by day; what must be left when the time of some
messages has run out, by a plain look at each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from deltalake import DeltaTable

from lakebroker_testing.logs import LogWriter
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from structured_streaming.tables import TABLES
from tests.support.lakes import checks
from tests.support.lakes.copies import copy_folder
from tests.support.lakes.maintained import reput

BEGIN = datetime(2026, 1, 1, 6, tzinfo=UTC)
WITH_MESSAGES = ("consume_queue", "message_index", "messages")
_LOOKED_AT = {
    "broker",
    "log_id",
    "physical_offset",
    "topic",
    "queue_id",
    "queue_offset",
    "key_type",
    "key",
    "store_timestamp",
    "deliver_timestamp",
}
TOPICS = ("audit-logins", "orders", "other")
Row = dict[str, Any]


class AgedLake:
    """`write` makes days of messages, a batch of the reput for each; `now` is the end of the last one. Topic `quiet` has messages on
    the first day alone."""

    def __init__(self, folder: Path, a_day: int = 12) -> None:
        self.store, self.lake = folder / "store", folder / "lake"
        self.days = 0
        self._a_day = a_day
        self._number = 0
        self._now = BEGIN
        self.more: list[Mapping[str, Any]] = []
        """Records that are written on the next day, beside."""

    @property
    def now(self) -> datetime:
        return BEGIN + timedelta(days=self.days)

    def write(self, days: int, batches: bool = True, wanted: Wanted = EVERYTHING) -> None:
        """So many days more."""
        with LogWriter(self.store, time_ns=self._time_ns) as writer:
            for _ in range(days):
                for number in range(self._a_day):
                    self._now = self.now + timedelta(hours=number)
                    self._record(writer, TOPICS[number % len(TOPICS)], number // len(TOPICS) % 2)
                if self.days == 0:
                    self._record(writer, "quiet", 0)
                    self._record(writer, "quiet", 3)
                    self._record(writer, "quiet", 3)
                for each in self.more:
                    writer.record(**each)
                self.more = []
                for n in range(3):
                    writer.journal_record(n)
                self.days += 1
                if batches:
                    writer.store.request_flush()
                    writer.store.flush()
                    reput(self.store, str(self.lake), wanted=wanted)
        if not batches:
            reput(self.store, str(self.lake), wanted=wanted)

    def copied(self, folder: Path) -> Self:
        """Another one that goes on from here."""
        made = type(self)(folder, self._a_day)
        made.days, made._number, made._now = self.days, self._number, self._now
        copy_folder(self.store, made.store)
        copy_folder(self.lake, made.lake)
        return made

    def sink(self) -> DeltaCommitSink:
        return DeltaCommitSink(str(self.lake))

    def rows(self, table: str) -> list[Row]:
        found = checks.rows(self.lake, table)
        return list(found.select([name for name in found.column_names if name != "body"]).to_pylist())

    def all_rows(self) -> dict[str, list[Row]]:
        """The rows of tables with messages, with the columns that tests look at."""
        found = {}
        for table in WITH_MESSAGES:
            columns = [name for name in TABLES[table].schema.names if name in _LOOKED_AT]
            found[table] = list(checks.rows(self.lake, table, columns).to_pylist())
        return found

    def files(self, table: str) -> set[str]:
        return {Path(uri).name for uri in DeltaTable(str(self.lake / table)).file_uris()}

    def version(self, table: str) -> int:
        return DeltaTable(str(self.lake / table)).version()

    def _time_ns(self) -> int:
        return int(self._now.timestamp() * 1_000_000) * 1000

    def _record(self, writer: LogWriter, topic: str, queue_id: int) -> None:
        n = self._number
        self._number += 1
        body = f"body {n} ".encode() * 20
        writer.record(
            topic, body, queue_id, TAGS=f"tag{n % 2}", KEYS=f"key{n} shared", UNIQ_KEY=f"ID{n:030d}"
        )


def left_of(
    rows: Mapping[str, list[Row]], bounds: Mapping[str, datetime]
) -> dict[str, Counter[tuple[Any, ...]]]:
    """Places of the rows that stay, by table: those that were not stored before the bound of their topic (`*`: of any other), and the last of each
    queue in `consume_queue`."""
    last: dict[tuple[Any, ...], int] = {}
    for row in rows["consume_queue"]:
        queue = queue_of(row)
        last[queue] = max(last.get(queue, -1), row["queue_offset"])
    left: dict[str, Counter[tuple[Any, ...]]] = {}
    for table, its in rows.items():
        left[table] = Counter()
        for row in its:
            bound = bounds.get(row["topic"], bounds.get("*"))
            stays = bound is None or row["store_timestamp"] >= bound
            if table == "messages" and bound is not None and row["deliver_timestamp"] is not None:
                stays |= row["deliver_timestamp"] >= bound
            if table == "consume_queue":
                stays |= row["queue_offset"] == last[queue_of(row)]
            if stays:
                left[table][place(row)] += 1
    return left


def places(rows: Mapping[str, list[Row]]) -> dict[str, Counter[tuple[Any, ...]]]:
    return {table: Counter(map(place, its)) for table, its in rows.items()}


def place(row: Row) -> tuple[Any, ...]:
    return row["topic"], row["queue_id"], row["queue_offset"], row.get("key_type"), row.get("key")


def queue_of(row: Row) -> tuple[Any, ...]:
    return row["broker"], row["log_id"], row["topic"], row["queue_id"]
