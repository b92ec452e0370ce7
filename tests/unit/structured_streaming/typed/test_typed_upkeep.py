"""Typed tables are maintained and checked as all others, over versions of their schema with other columns."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from lakebroker_testing.logs import LogWriter
from store.log_reader import LogReader
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.typed_declared import declarations
from structured_streaming.commit.typed_fill import fill
from structured_streaming.commit.typed_tables import alter, declare
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.errors import LakeError
from structured_streaming.iceberg.mirror import LakeMirror
from structured_streaming.maintenance.check import check_lake
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.staging.stage import stage
from structured_streaming.staging.wanted import Wanted
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import TABLES
from structured_streaming.typed.declaration import FILLING, JSON, STOPPED, Declaration, Schema
from structured_streaming.union.followed import FollowedLake
from tests.support.lakes.copies import copy_folder
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.iceberg_readers import by_duckdb, by_pyiceberg, opened

ITEM = {"sku": {"type": "string"}}
V1 = {
    "properties": {
        "id": {"type": "integer"},
        "first": {"type": "object", "properties": ITEM},
        "items": {"type": "array", "items": {"type": "object", "properties": ITEM}},
        "event_timestamp": {"type": "string"},
    }
}
V2 = json.loads(
    json.dumps(V1).replace(
        '{"sku": {"type": "string"}}', '{"sku": {"type": "string"}, "n": {"type": "integer"}}'
    )
)
V2["properties"]["at"] = {"type": "string", "format": "date-time"}
ORDERS = Declaration("topic-1", "typed_orders", JSON, (Schema(1, json.dumps(V1)),))
GOOD = {
    "id": 1,
    "first": {"sku": "a", "n": 1},
    "items": [{"sku": "b", "n": 2}, {"sku": "c"}],
    "event_timestamp": "x",
    "at": "2026-11-25T00:00:00Z",
}


class Store:
    """A store, and a lake that follows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.lake = folder / "lake"
        empty_lake(self.lake)
        self._end = 0

    def copied(self, folder: Path) -> Store:
        """One in another folder that begins with what this one has."""
        made = copy(self)
        made.folder, made.lake = folder / "store", folder / "lake"
        copy_folder(self.folder, made.folder)
        copy_folder(self.lake, made.lake)
        return made

    def batch(self, *typed: Declaration) -> None:
        """Writes messages of several topics, and takes them into the lake."""
        with LogWriter(self.folder) as writer:
            writer.messages(30)  # of topic-1 too, which do not fit
            for _ in range(10):
                writer.record("topic-1", json.dumps(GOOD).encode())
            writer.journal_record(1)
        reader = LogReader(self.folder)
        end = reader.readable_offset
        chunks = [(offset, bytes(data)) for offset, data, _ in reader.read_chunks(self._end, end, 1 << 20)]
        part = SimpleNamespace(
            target="store:-",
            broker=reader.broker,
            log_id=reader.log_id,
            start=self._end,
            end=end,
            log_end=end,
            delay_levels=None,
            segment_size=reader.segment_size,
            erased=(),
        )
        reader.close()
        batches = stage(str(self.lake), part, iter(chunks), Wanted(typed=typed))  # type: ignore[arg-type]
        manifest = [row for batch in batches for row in batch.to_pylist()]
        DeltaCommitSink(str(self.lake), wanted=Wanted(typed=typed)).commit(manifest)
        self._end = end

    def rows(self) -> list[dict[str, Any]]:
        found = DeltaTable(str(self.lake / "typed_orders")).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: row["physical_offset"])

    def problems(self) -> list[str]:
        return [
            f"{found.what}: {problem}"
            for found in check_lake(str(self.lake), [str(self.folder)])
            for problem in found.problems
        ]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Filled before, under one schema, and under another."""
    made = Store(tmp_path_factory.mktemp("filled"))
    made.batch()
    folder = LocalFolder(made.lake)
    declare(folder, ORDERS)
    assert fill(folder, ORDERS) == 20
    made.batch(ORDERS)
    made.batch(ORDERS)
    later = alter(folder, "typed_orders", lambda declared: declared.evolved(Schema(2, json.dumps(V2))))
    made.batch(later)
    made.batch(later)
    return made


@pytest.fixture
def store(filled: Store, tmp_path: Path) -> Store:
    return filled.copied(tmp_path)


def test_files_of_several_versions_become_one_with_the_same_rows(store: Store) -> None:
    before = store.rows()
    assert store.problems() == []
    assert len(before) == 100
    assert len(DeltaTable(str(store.lake / "typed_orders")).file_uris()) > 4
    reports = {report.table: report for report in maintain(str(store.lake))}
    assert reports["typed_orders"].problems == []
    assert reports["typed_orders"].files_after == 1
    assert store.rows() == before
    assert store.problems() == []
    good = [row for row in before if row["reason"] is None]
    assert len(good) == 50
    assert good[0]["items"] == [{"sku": "b", "n": None}, {"sku": "c", "n": None}]
    assert good[-1]["items"] == [{"sku": "b", "n": 2}, {"sku": "c", "n": None}]
    assert (good[0]["first"]["n"], good[-1]["first"]["n"]) == (None, 1)
    assert (good[0]["at"], good[-1]["at"].year) == (None, 2026)


def by_offset(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: row["physical_offset"])


def test_the_iceberg_mirror_has_them_over_versions_of_their_schema(store: Store) -> None:
    """Files of before lack a field within a list."""
    folder = LocalFolder(store.lake)
    snapshot = Snapshot(folder.child("typed_orders"))
    LakeMirror(folder).update("typed_orders", snapshot, time.time())
    for _ in range(2):
        assert by_offset(by_duckdb(store.lake, "typed_orders")) == store.rows()
        # pyiceberg 0.12 shows no list of structs as an empty one
        found = by_offset(by_pyiceberg(opened(store.lake, "typed_orders")))
        assert [row | {"items": row["items"] or []} for row in found] == [
            row | {"items": row["items"] or []} for row in store.rows()
        ]
        assert all(not report.problems for report in maintain(str(store.lake)))
    shutil.rmtree(store.lake / "typed_orders")
    assert all(not report.problems for report in maintain(str(store.lake)))
    assert sorted(os.listdir(store.lake / "_iceberg" / "lakebroker")) == sorted(TABLES)


def test_what_is_wrong_with_a_typed_table_is_told(store: Store) -> None:
    table = DeltaTable(str(store.lake / "typed_orders"))
    offset = store.rows()[-1]["physical_offset"]
    table.delete(f"physical_offset = {offset}")
    (problem,) = store.problems()
    assert problem.endswith(
        f"typed_orders: 1 row is missing: the log has their records, such as (broker-a, {store.rows()[0]['log_id']}, {offset})"
    )


def test_a_table_that_begins_later_lacks_nothing(tmp_path: Path) -> None:
    made = Store(tmp_path)
    made.batch()
    reader = LogReader(made.folder)
    start = ((f"{reader.broker}/{reader.log_id}", reader.readable_offset),)
    reader.close()
    late = dataclasses.replace(ORDERS, start=start)
    declare(LocalFolder(made.lake), late)
    made.batch(late)
    assert len(made.rows()) == 20
    assert made.problems() == []


COUNTS = 'SELECT count(*) AS rows, count(reason) AS reasons, count(id) AS ids, count("at") AS times FROM typed_orders'


def answer(engine: EmbeddedEngine, statement: str = COUNTS) -> list[dict[str, Any]]:
    return engine.query(statement).read_all().to_pylist()


def test_the_embedded_engine_has_typed_tables(store: Store) -> None:
    with EmbeddedEngine.open(str(store.lake)) as engine:
        assert answer(engine) == [{"rows": 100, "reasons": 50, "ids": 50, "times": 20}]
        statement = 'SELECT items, "first" FROM typed_orders WHERE reason IS NULL ORDER BY physical_offset DESC LIMIT 1'
        assert answer(engine, statement) == [
            {"items": [*GOOD["items"][:1], {"sku": "c", "n": None}], "first": GOOD["first"]}
        ]
        joined = "SELECT count(m.body) AS found FROM typed_orders JOIN messages m USING (broker, log_id, physical_offset)"
        assert answer(engine, joined) == [{"found": 100}]
        (relation,) = [each for each in engine.relations() if each.name == "typed_orders"]
        assert relation.comment.startswith("The messages of topic topic-1 by their schema")
        assert relation.key == ("broker", "log_id", "physical_offset")
        assert relation.schema.field("reason").metadata[b"comment"].startswith(b"why the message")
    told: list[str] = []
    with EmbeddedEngine.open(str(store.lake), as_of="2", tell=told.append) as engine:
        then = answer(engine, "SELECT count(*) AS rows, max(schema_version) AS newest FROM typed_orders")
        assert then == [{"rows": 40, "newest": 1}]


def test_the_embedded_engine_adds_what_logs_hold(store: Store) -> None:
    with LogWriter(store.folder) as writer:
        writer.record("topic-1", json.dumps(GOOD).encode())
        writer.record("topic-1", b"bad")
        writer.record("topic-2", json.dumps(GOOD).encode())
    with EmbeddedEngine.open(str(store.lake), source={"store": str(store.folder)}) as engine:
        assert answer(engine) == [{"rows": 102, "reasons": 51, "ids": 51, "times": 21}]
        store.batch()  # of a reput that does not know the topic
        with pytest.raises(LakeError, match=r"table typed_orders lacks [\d,]+ bytes .* ask again"):
            answer(engine)
        (declared,) = declarations(LocalFolder(store.lake))
        alter(LocalFolder(store.lake), declared.table, lambda now: dataclasses.replace(now, state=FILLING))
        with pytest.raises(LakeError, match=r"typed_orders lacks [\d,]+ bytes .*`lakebroker typed fill`"):
            answer(engine)
        fill(LocalFolder(store.lake), declared)
        assert answer(engine) == [{"rows": 122, "reasons": 61, "ids": 61, "times": 31}]


COUNT = "SELECT count(*) AS rows, max(schema_version) AS newest FROM typed_orders"


def test_an_engine_that_is_open_sees_topics_that_are_declared_altered_and_removed(tmp_path: Path) -> None:
    made = Store(tmp_path)
    made.batch()
    lake = LocalFolder(made.lake)
    with (
        EmbeddedEngine.open(str(made.lake)) as tables,
        EmbeddedEngine.open(str(made.lake), source={"store": str(made.folder)}) as union,
        EmbeddedEngine.open(str(made.lake), as_of="1") as then,
    ):
        engines = (tables, union)
        begun = tables.query("SELECT range FROM range(1000000)")
        for engine in engines:
            with pytest.raises(LakeError, match="typed_orders does not exist"):
                answer(engine, COUNT)
        declare(lake, ORDERS)
        fill(lake, ORDERS)
        for engine in engines:
            assert answer(engine, COUNT) == [{"rows": 20, "newest": 1}]
            assert "at" not in column_names(engine)
        assert begun.read_all().num_rows == 1_000_000, "what was begun before goes on"
        later = alter(lake, "typed_orders", lambda declared: declared.evolved(Schema(2, json.dumps(V2))))
        for engine in engines:
            assert answer(engine, 'SELECT count("at") AS times FROM typed_orders') == [{"times": 0}]
            assert "at" in column_names(engine)
        with LogWriter(made.folder) as writer:
            writer.record("topic-1", json.dumps(GOOD).encode())
        assert answer(union, COUNT) == [{"rows": 21, "newest": 2}], "by the newer schema"
        alter(lake, "typed_orders", lambda declared: dataclasses.replace(later, state=STOPPED))
        made.batch()
        for engine in engines:
            assert answer(engine, COUNT) == [{"rows": 20, "newest": 1}], "as it was left"
        shutil.rmtree(made.lake / "typed_orders")
        for engine in engines:
            assert column_names(engine) == []
            with pytest.raises(LakeError, match="typed_orders does not exist"):
                answer(engine, COUNT)
        declare(lake, ORDERS)
        assert answer(tables, COUNT) == [{"rows": 0, "newest": None}]
        with pytest.raises(LakeError, match="typed_orders does not exist"):
            answer(then, COUNT)
        assert "typed_orders" not in {each.name for each in then.relations()}


def column_names(engine: EmbeddedEngine) -> list[str]:
    """Of the table, as three places tell them."""
    asked = answer(
        engine,
        "SELECT column_name FROM duckdb_columns() WHERE table_name = 'typed_orders' ORDER BY column_index",
    )
    names = [each["column_name"] for each in asked]
    assert names == [
        field.name for each in engine.relations() if each.name == "typed_orders" for field in each.schema
    ]
    if names:
        assert names == engine.describe("SELECT * FROM typed_orders").names
    return names


def test_columns_that_somebody_added_are_there_whatever_their_type(store: Store) -> None:
    kinds = ("byte", "short", "integer", "long", "float", "double", "date", "timestamp", "binary", "boolean")
    added = [Field(f"its_{kind}", PrimitiveType(kind)) for kind in kinds]
    with EmbeddedEngine.open(str(store.lake)) as engine:
        before = answer(engine)
        DeltaTable(str(store.lake / "typed_orders")).alter.add_columns(added)
        assert answer(engine) == before
        assert {each.name for each in added} <= set(column_names(engine))
        (found,) = answer(engine, "SELECT DISTINCT its_byte, its_short FROM typed_orders")
        assert found == {"its_byte": None, "its_short": None}


def test_a_table_that_was_made_anew_unseen_is_read_anew(store: Store) -> None:
    with EmbeddedEngine.open(str(store.lake)) as engine:
        assert answer(engine) == [{"rows": 100, "reasons": 50, "ids": 50, "times": 20}]
        shutil.rmtree(store.lake / "typed_orders")
        declare(LocalFolder(store.lake), ORDERS)
        fill(LocalFolder(store.lake), ORDERS)
        assert answer(engine, COUNT) == [{"rows": len(store.rows()), "newest": 1}]
        assert "at" not in column_names(engine)


def test_no_statement_but_those_about_typed_tables_looks_for_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedEngine.open(str(store.lake)) as engine:
        looks: list[str] = []
        metadata = FollowedLake.typed_metadata
        monkeypatch.setattr(
            FollowedLake, "typed_metadata", lambda followed: looks.append("") or metadata(followed)
        )
        for statement in (
            "SELECT 1",
            "SELECT json_serialize_sql('SELECT 1')",
            "SELECT body FROM messages ORDER BY store_timestamp DESC",
            "SELECT * FROM duckdb_columns() WHERE table_name = 'messages'",
        ):
            engine.query(statement).close()
            engine.describe(statement)
        assert looks == []
        for statement in (
            "SHOW TABLES",
            "DESCRIBE",
            "SELECT * FROM information_schema.tables",
            "SELECT * FROM pg_catalog.pg_class",
            "SELECT * FROM sqlite_master",
            "SELECT count(*) FROM duckdb_tables()",
            'SELECT count(*) FROM "TYPED_orders"',
        ):
            engine.query(statement).close()
        assert len(looks) == 7
