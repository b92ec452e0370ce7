"""What somebody set in a session that is there, while it ran: what of it counts in sessions of our own beside it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from structured_streaming.catalog.lake_tables import SchemaTables
from structured_streaming.catalog.lake_views import make_views
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.catalog.typed_tables import CatalogTyped
from structured_streaming.errors import LakeError
from structured_streaming.provided_session import apart, beside
from structured_streaming.storage.local import LocalFolder

LATE = CatalogSchema("late", "APP")
_CATALOG = "spark.sql.catalog.late"
_CREDENTIALS = "fs.s3a.access.key"
_WRITE_NUMBER = "spark.databricks.delta.write.txnAppId"
_OF_THEIR_WRITES = {
    _WRITE_NUMBER: "theirs",
    "spark.sql.caseSensitive": "true",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
}


@pytest.fixture(scope="module")
def there(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session with a catalog, credentials and settings for writes that came while it ran."""
    settings = {
        _CATALOG: "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
        f"{_CATALOG}.url": f"jdbc:derby:{tmp_path_factory.mktemp('late') / 'derby'};create=true",
        f"{_CATALOG}.driver": "org.apache.derby.jdbc.EmbeddedDriver",
        _CREDENTIALS: "a",
        **_OF_THEIR_WRITES,
    }
    session = spark.newSession()
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


def test_a_catalog_that_came_later_is_known(there: SparkSession, tmp_path: Path) -> None:
    for session in (there, beside(there)):
        assert CatalogTyped(session, LATE).names() == []
    staging = LocalFolder(tmp_path / "staging")
    with pytest.raises(LakeError) as refused:
        SparkCommitSink(there, SchemaTables(LATE), staging, lambda ends: None, uuid.uuid4().hex)
    assert "late" in str(refused.value)
    assert "SCHEMA_NOT_FOUND" not in str(refused.value)
    assert "Nested databases" not in str(refused.value)


def test_a_catalog_that_keeps_no_views_is_said_once(there: SparkSession) -> None:
    told: list[str] = []
    make_views(there, LATE, (), told.append)
    (said,) = told
    assert said.startswith("late.APP has no views of the lake: ")
    assert "view" in said.partition(": ")[2].lower()


def test_how_others_write_is_not_how_the_lake_is_written(there: SparkSession) -> None:
    own = apart(there)
    assert own.conf.get(_CREDENTIALS) == "a"
    assert {name for name in _OF_THEIR_WRITES if own.conf.get(name, None) == _OF_THEIR_WRITES[name]} == set()
    read = beside(there)
    assert read.conf.get("spark.sql.caseSensitive") == "true"
    assert read.conf.get(_WRITE_NUMBER, None) is None


def test_what_only_counts_at_a_start_is_passed_over(spark: SparkSession) -> None:
    name = "spark.driver.memory"
    before = spark.conf.get(name, None)
    session = SparkSession.builder.config(name, "3g").getOrCreate()
    try:
        assert session.conf.get(name) == "3g"
        assert beside(session).conf.get(name, None) == before
    finally:
        session._jsparkSession.sessionState().conf().unsetConf(name)
        if before is not None:
            session._jsparkSession.sessionState().conf().setConfString(name, before)
