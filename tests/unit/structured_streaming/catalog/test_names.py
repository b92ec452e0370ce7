"""Which locations are schemas of catalogs, and where files wait for their commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from structured_streaming.catalog.names import CatalogSchema, catalog_schema
from structured_streaming.catalog.places import STAGING, durable_folder, staging_folder
from structured_streaming.destination import destination_of
from structured_streaming.errors import LocationError
from structured_streaming.reput_options import ReputOptions
from structured_streaming.storage.location import lake_folder


@pytest.mark.parametrize(
    "location", ["./a.b", "lake", "a.b.c", ".b", "a.", "s3://a.b/c", "/a.b", "file:///a.b", ""]
)
def test_folders_are_no_schemas(location: str) -> None:
    assert catalog_schema(location) is None


def test_a_folder_that_is_there_is_no_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert catalog_schema("my.lake") == CatalogSchema("my", "lake")
    (tmp_path / "my.lake").mkdir()
    assert catalog_schema("my.lake") is None


@pytest.mark.parametrize("location", ["a`.b", "a.b c", "a;.b", "a.'b'"])
def test_what_is_no_name_is_refused_by_name(location: str) -> None:
    with pytest.raises(
        LocationError, match=r"is no name of a catalog or schema; for a folder of that name give \./"
    ):
        catalog_schema(location)


def test_a_schema_is_no_folder() -> None:
    with pytest.raises(LocationError, match="a folder is needed here"):
        lake_folder("spark_catalog.lake")
    with pytest.raises(LocationError, match="--sink delta commits to folders"):
        destination_of(ReputOptions("spark_catalog.lake", sink="delta"))


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("file:/w/lake.db", "/w/lake.db"),
        ("file:///w/la%20ke.db", "/w/la ke.db"),
        ("dbfs:/Volumes/main/lake/files", "/Volumes/main/lake/files"),
        ("/w/staging", "/w/staging"),
    ],
)
def test_files_wait_below_a_folder_that_is_the_lakes_own(location: str, folder: str) -> None:
    assert staging_folder("", location, "c.s-1").uri == f"{folder}/{STAGING}/c.s-1"
    assert staging_folder(location, "file:/elsewhere", "c.s-1").uri == f"{folder}/{STAGING}/c.s-1"


@pytest.mark.parametrize("location", ["", "hdfs://h/lake.db", "dbfs:/user/hive/warehouse"])
def test_a_place_that_only_spark_reaches_asks_for_another(location: str) -> None:
    with pytest.raises(LocationError, match=r"give a folder that driver and executors reach.*--staging"):
        staging_folder("", location, "c.s-1")


def test_tables_on_this_machine_are_made_durable() -> None:
    local = durable_folder("file:/w/lake.db/t")
    assert local is not None
    assert local.uri == "/w/lake.db/t"
    assert durable_folder("s3a://b/t") is None
