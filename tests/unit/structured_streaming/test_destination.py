"""Who commits a reput's rows, and what is asked before a batch is finished."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakebroker_testing.logs import LogWriter
from structured_streaming import destination
from structured_streaming.absence import as_spark_reports, is_absence
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.commit.batch import LogSpan
from structured_streaming.commit.typed_lake import FolderTyped
from structured_streaming.destination import SparkDestination, destination_of
from structured_streaming.errors import LakeError, LocationError
from structured_streaming.reput_options import ReputOptions
from structured_streaming.staging.wanted import Wanted
from structured_streaming.typed.declaration import JSON, Schema, unpacked
from structured_streaming.typed_topics import Asked, TypedTopics
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import cuts, manifest


@pytest.mark.parametrize(
    ("location", "sink", "by_spark"),
    [("./lake", "", False), ("./lake", "spark", True), ("a.b", "", True), ("s3://b/lake", "", False)],
)
def test_the_location_decides_who_commits(location: str, sink: str, by_spark: bool) -> None:
    assert destination_of(ReputOptions(location, sink=sink)).by_spark == by_spark


@pytest.mark.parametrize("sink", ["delta", "spark"])
def test_a_lake_that_is_gone_is_waited_for_and_no_other_is_made(tmp_path: Path, sink: str) -> None:
    """As where a mount is gone, whose folder stays."""
    lake, away = tmp_path / "lake", tmp_path / "away"
    empty_lake(lake)
    opened, no_session = destination_of(ReputOptions(str(lake), sink=sink)), cast(Any, None)
    opened.prepare()
    lake.rename(away)
    lake.mkdir()
    with pytest.raises(LocationError, match="was there and is not any more") as gone:
        opened.open(no_session, tmp_path)
    assert is_absence(as_spark_reports(gone.value))
    assert list(lake.iterdir()) == []
    away.rename(lake)
    opened.prepare()


class WithoutSpark(SparkCommitSink):
    """Counts the batches that it would finish."""

    finished = 0

    def _begin(self) -> None:
        pass

    def _commit_tables(self, files: Any) -> dict[str, float]:
        assert "typed_orders" in files
        return {}

    def _commit_progress(self, spans: list[LogSpan]) -> None:
        self.finished += 1


def test_sparks_writer_finishes_no_batch_of_a_typed_table_that_is_declared_otherwise_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one reads it again by the new schema."""
    monkeypatch.setattr(destination, "SparkCommitSink", WithoutSpark)
    conf = SimpleNamespace(getAll={}, set=lambda name, value: None)
    session: Any = SimpleNamespace(conf=conf, newSession=lambda: session)
    with LogWriter(tmp_path / "store") as writer:
        for number in range(4):
            writer.record("orders", b'{"id": %d, "name": "n"}' % number)
    first, second, end = cuts(writer.folder, 2)
    lake = empty_lake(str(tmp_path / "lake"))
    topics = TypedTopics(FolderTyped(lake))

    def declare(*fields: str) -> None:
        schema = {"properties": {name: {"type": "string"} for name in fields}}
        topics.add(Asked("orders", JSON, [Schema(1, json.dumps(schema))]), lambda count: None)

    declare("name")
    opened = SparkDestination(ReputOptions(str(lake), sink="spark"))
    sink, named = opened.open(session, tmp_path)
    assert isinstance(sink, WithoutSpark)
    staging, wanted = Path(named["lake"]), Wanted(typed=unpacked(named["typed"]))
    sink.commit(manifest(staging, writer.folder, first, second, wanted))
    assert sink.finished == 1
    declare("name", "id")
    with pytest.raises(LakeError, match="another schema was declared of typed_orders while a batch was"):
        sink.commit(manifest(staging, writer.folder, second, end, wanted))
    assert sink.finished == 1
