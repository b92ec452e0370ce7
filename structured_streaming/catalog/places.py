"""Where tables of a catalog are, and what Spark's writer may do there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from structured_streaming.errors import LocationError
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.location import named_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_S3 = ("s3", "s3a", "s3n")
_OWNED_BY_CATALOG = {
    "catalogManaged",
    "catalogOwned-preview",
    "coordinatedCommits",
    "coordinatedCommits-preview",
}
"""Features of tables whose commits a catalog, or another service, orders."""
STAGING = "_lakebroker_staging"
_ONLY_SPARKS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!//)")
"""URLs of Hadoop's without a host, such as dbfs:/user."""


def check_place(session: SparkSession, name: str, detail: Mapping[str, Any]) -> None:
    """Raises LocationError for a table in S3 whose commits nobody orders; `detail` as Delta describes the table."""
    scheme = str(detail["location"]).partition(":")[0]
    if scheme not in _S3 or _OWNED_BY_CATALOG & set(detail["tableFeatures"] or ()):
        return
    if (
        session.conf.get(f"spark.delta.logStore.{scheme}.impl", "")
        or "DATABRICKS_RUNTIME_VERSION" in os.environ
    ):
        return
    raise LocationError(
        f"table {name} is at {detail['location']}: Spark's writer puts its commits over another one's in S3; give the "
        "folder (s3://…) as --lake, without --sink, or use a catalog that owns the commits, or a log store that does not "
        f"overwrite (spark.delta.logStore.{scheme}.impl)"
    )


def durable_folder(location: str) -> Folder | None:
    """A table's folder where Spark's writer leaves it to the system when files are on disk: on this machine."""
    if location.startswith("file:"):
        return named_folder(_path(location))
    return None


def staging_folder(given: str, schema_location: str, lake: str) -> Folder:
    """For the files of one lake: below `given`, or else where the catalog has the schema's tables. Raises LocationError."""
    location = given or schema_location
    if location.startswith("file:"):
        location = _path(location)
    if location.startswith("dbfs:/Volumes/"):
        location = location[len("dbfs:") :]
    try:
        if not location:
            raise LocationError("the catalog does not say where the schema is")
        if _ONLY_SPARKS.match(location):
            raise LocationError(f"{location} can be reached through Spark alone")
        return named_folder(location).child(STAGING).child(lake)
    except LocationError as error:
        raise LocationError(
            f"{error}; give a folder that driver and executors reach, for files that wait for their commit, with --staging"
        ) from error


def _path(url: str) -> str:
    """Of a file: URL, with or without a host part."""
    return "/" + unquote(url[len("file:") :]).lstrip("/")
