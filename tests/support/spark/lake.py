"""A lake that sinks by Spark's writer fill in the test's own process."""

from __future__ import annotations

import copy
import uuid
from pathlib import Path
from typing import Any, Self

from pyspark.sql import SparkSession

from lakebroker_testing.logs import LogWriter
from store.log_reader import LogReader
from structured_streaming.catalog.lake_tables import FolderTables
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.commit.sink import AfterStep, no_step
from structured_streaming.lake import create_tables
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.stage import stage
from structured_streaming.storage.local import LocalFolder
from tests.support.lakes.copies import copy_folder

Manifest = list[dict[str, Any]]


class Crash(BaseException):
    """The driver's end, as far as the lake is concerned."""


class SparkLake:
    """A lake in a folder that Spark's writers fill from a store: one that is given, else one of two batches at most."""

    def __init__(self, spark: SparkSession, folder: Path, store: Path | None = None) -> None:
        self.lake, self.staging = folder / "lake", folder / "staging"
        self.store = store or folder / "store"
        if store is None:
            with LogWriter(self.store) as writer:
                writer.everything()
                writer.everything()
        self.reader = LogReader(self.store)
        create_tables(str(self.lake))
        self._spark = spark
        self.told: dict[tuple[str, str], int] = {}

    def copied(self, folder: Path) -> Self:
        """Another one of the same store that goes on from here."""
        made = copy.copy(self)
        made.lake, made.staging, made.told = folder / "lake", folder / "staging", {}
        copy_folder(self.lake, made.lake)
        return made

    def sink(
        self, after_step: AfterStep = no_step, writer: str = "", before: bool = False
    ) -> SparkCommitSink:
        return SparkCommitSink(
            self._spark,
            FolderTables(LocalFolder(self.lake)),
            LocalFolder(self.staging),
            self.told.update,
            writer or uuid.uuid4().hex,
            before,
            after_step=after_step,
        )

    def cuts(self, bytes_each: int = 70_000) -> list[int]:
        return list(self.reader.split(self.reader.min_offset, self.reader.readable_offset, bytes_each))

    def manifest(self, start: int, end: int, into: Path | None = None) -> Manifest:
        part = LogRange(
            "store:x", self.reader.broker, self.reader.log_id, start, end, self.reader.readable_offset
        )
        chunks = ((offset, data) for offset, data, _ in self.reader.read_chunks(start, end, 1 << 30))
        return [row for batch in stage(str(into or self.staging), part, chunks) for row in batch.to_pylist()]

    def end(self) -> int:
        return self.told[self.reader.broker, self.reader.log_id]
