"""The reput's data source: what the logs hold is staged as files of a lake's tables, and what it emits are their manifests.

Its options are those of the data source, `lake`, `tables`, `withoutBodies`, `typed` (`typed/declaration.py`), and `onGap`: what to do where a log begins above the lake's progress,
`stop` (the default) or `continue`. The lake's progress says where each batch begins. Where tables are committed by Spark's
writer, `lake` is the folder in which files wait for it, and `progressFile` has the progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from structured_streaming.commit.delta_commit import LakeProgress
from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source.log_range import LogRange
from structured_streaming.source.options import SourceOptions
from structured_streaming.source.pacing import Pacing
from structured_streaming.source.progress_file import ProgressFile
from structured_streaming.source.stream import LogStreamReader
from structured_streaming.staging.careful import stage_carefully
from structured_streaming.staging.manifest import MANIFEST
from structured_streaming.staging.stage import stage, stage_missing
from structured_streaming.staging.unread import unread
from structured_streaming.staging.wanted import wanted

STOP, CONTINUE = "stop", "continue"


class ReputSourceOptions(SourceOptions):
    """What the options say. Raises SourceError."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        named = {key.lower(): value for key, value in options.items()}
        self.lake = named.get("lake", "")
        if not self.lake:
            raise SourceError("option lake is missing: the folder of the lake")
        self.progress_file = named.get("progressfile", "")
        self.wanted = wanted(named)
        self.stage = stage_carefully if named.get("careful") == "true" else stage
        self.target_freshness_s = float(named.get("targetfreshness", "0"))
        self.target_file_size = int(named.get("targetfilesize", "0"))
        on_gap = named.get("ongap", STOP)
        if on_gap not in (STOP, CONTINUE):
            raise SourceError(f"option onGap={on_gap}: give {STOP} or {CONTINUE}")
        self.over_gaps = on_gap == CONTINUE


class ReputDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "lakebroker_reput"

    def schema(self) -> StructType:
        return from_arrow_schema(MANIFEST)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ReputStreamReader(ReputSourceOptions(self.options))


class ReputStreamReader(LogStreamReader):
    """Plans on the driver, stages on executors."""

    options: ReputSourceOptions

    def __init__(self, options: ReputSourceOptions) -> None:
        at_once = options.ending is not None
        pacing = Pacing(0 if at_once else options.target_freshness_s, options.target_file_size)
        file = options.progress_file
        progress = ProgressFile(file) if file else LakeProgress(options.lake, options.wanted.typed)
        super().__init__(options, progress, pacing, over_gaps=options.over_gaps)

    def read(self, partition: LogRange) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The manifest of the files of a range; one that says so when its log falls silent."""
        if partition.missing:
            yield from stage_missing(self.options.lake, partition)
            return
        with self.chunks(partition) as chunks:
            try:
                yield from self.options.stage(self.options.lake, partition, chunks, self.options.wanted)
            except UnreachableError as error:
                yield unread(partition, error)
