"""Where a reput's rows go: a lake in a folder, by commits of our own, or tables that Spark's writer commits to."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from structured_streaming.catalog.lake_tables import (
    FolderTables,
    LakeTables,
    SchemaTables,
    make_tables,
    schema_location,
)
from structured_streaming.catalog.names import catalog_schema
from structured_streaming.catalog.places import STAGING, staging_folder
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.commit.ends import Ends
from structured_streaming.commit.sink import AfterStep, Sink, no_step
from structured_streaming.commit.upgrade import prepare_lake
from structured_streaming.errors import LocationError
from structured_streaming.lake import checked_place
from structured_streaming.reput_options import ReputOptions
from structured_streaming.source.progress_file import write_progress
from structured_streaming.storage.location import lake_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA, SPARK = "delta", "spark"


class Destination(Protocol):
    """A lake to fill. Calls raise LakeError."""

    @property
    def by_spark(self) -> bool:
        """Whether the session needs Delta."""

    def check(self) -> None:
        """Whether a lake can be there, as far as that is known before the logs are asked. Changes nothing."""

    def prepare(self) -> None:
        """What can be made of its tables before Spark starts."""

    def open(self, session: SparkSession, scratch: Path) -> tuple[Sink, dict[str, str]]:
        """A sink for one query, and options of its source; files that only the query needs go to `scratch`."""

    def ends(self) -> Ends:
        """What the lake holds now."""


class FolderDestination:
    """A lake in a folder or an object store."""

    by_spark = False

    def __init__(self, options: ReputOptions, after_step: AfterStep = no_step) -> None:
        self._options = options
        self._after_step = after_step

    def check(self) -> None:
        """See `Destination.check`."""
        checked_place(self._options.lake)

    def prepare(self) -> None:
        """See `Destination.prepare`."""
        prepare_lake(self._options.lake)

    def open(self, session: SparkSession, scratch: Path) -> tuple[Sink, dict[str, str]]:
        """See `Destination.open`."""
        self.prepare()
        return DeltaCommitSink(self._options.lake, self._after_step, self._options.wanted), {}

    def ends(self) -> Ends:
        """See `Destination.ends`."""
        return LakeProgress(self._options.lake).offsets


class SparkDestination:
    """Tables that Spark's writer commits to, in a schema of a catalog or in a folder."""

    by_spark = True

    def __init__(self, options: ReputOptions, after_step: AfterStep = no_step) -> None:
        self._options = options
        self._after_step = after_step
        self._schema = catalog_schema(options.lake)
        self._sink: SparkCommitSink | None = None
        self._writer = uuid.uuid4().hex

    def check(self) -> None:
        """See `Destination.check`."""
        if self._schema is None:
            checked_place(self._options.lake)
        if self._options.staging:
            staging_folder(self._options.staging, "", "")

    def prepare(self) -> None:
        """See `Destination.prepare`."""
        if self._schema is None:
            prepare_lake(self._options.lake)

    def open(self, session: SparkSession, scratch: Path) -> tuple[Sink, dict[str, str]]:
        """See `Destination.open`."""
        self.prepare()
        given = self._options.staging
        if self._schema is None:
            folder = lake_folder(self._options.lake)
            tables: LakeTables = FolderTables(folder)
            staging = staging_folder(given, "", _digest(str(folder))) if given else folder.child(STAGING)
        else:
            make_tables(session, self._schema)
            tables = SchemaTables(self._schema)
            location = schema_location(session, self._schema)
            staging = staging_folder(given, location, f"{self._schema}-{_digest(location)}")
        progress = scratch / "progress"
        self._sink = SparkCommitSink(
            session,
            tables,
            staging,
            lambda ends: write_progress(progress, ends),
            self._writer,
            self._sink is not None,
            self._options.wanted,
            self._after_step,
        )
        return self._sink, {"lake": staging.uri, "progressFile": str(progress)}

    def ends(self) -> Ends:
        """See `Destination.ends`."""
        return dict(self._sink.ends) if self._sink is not None else {}


def destination_of(options: ReputOptions) -> Destination:
    """By the location, unless `sink` says otherwise. Raises LocationError."""
    schema = catalog_schema(options.lake)
    if schema is not None and options.sink == DELTA:
        raise LocationError(
            f"--sink delta commits to folders, and {schema} is a schema of a catalog; give the folder of its tables as --lake "
            f"(DESCRIBE SCHEMA {schema} says where), or leave out --sink"
        )
    if options.sink == SPARK or schema is not None:
        return SparkDestination(options)
    return FolderDestination(options)


def _digest(text: str) -> str:
    """Tells lakes of one name apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
