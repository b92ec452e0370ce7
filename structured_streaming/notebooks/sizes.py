"""Files and bytes of a lake's tables, as their Delta logs say."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from structured_streaming import sql
from structured_streaming.catalog.lake_tables import detail
from structured_streaming.catalog.names import catalog_schema
from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.interruptible import inheriting
from structured_streaming.lake import open_lake
from structured_streaming.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AT_ONCE = 4
"""Tables that Spark describes at a time: each is a job of its own, of few tasks, and a catalog's tables may be where only Spark can
look."""


class TableSize(NamedTuple):
    """Of a table's newest version."""

    table: str
    files: int
    bytes: int


def sizes(session: SparkSession, location: str) -> Iterator[TableSize]:
    """Of each table, typed ones too. Raises LakeError, Spark's errors."""
    names = [*TABLES, *(each.table for each in sql.lake_in(session, location).typed())]
    schema = catalog_schema(location)
    if schema is not None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            asked = [inheriting(session, partial(detail, session, schema.table(name))) for name in names]
            described = pool.map(lambda ask: ask(), asked)
            for name, said in zip(names, described, strict=True):
                yield TableSize(name, int(said["numFiles"]), int(said["sizeInBytes"]))
        return
    folder = open_lake(location)
    for name in names:
        found = [each.size for each in Snapshot(folder.child(name)).files.values()]
        yield TableSize(name, len(found), sum(found))
