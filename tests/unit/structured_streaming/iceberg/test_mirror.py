"""The Iceberg mirror shows what the Delta tables hold, as its clients read them; no row of it is ever ours to read."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import duckdb
import fastavro
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, IsNull

from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.table_log import TableLog
from structured_streaming.commit.table_schema import upgraded
from structured_streaming.errors import LakeError
from structured_streaming.iceberg import manifests, mirror
from structured_streaming.iceberg.mirror import LakeMirror
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import CONSUME_QUEUE, MESSAGES, TABLES
from tests.suite.evidence import rounds
from tests.support.lakes.iceberg_readers import assert_mirrored, assert_same, by_duckdb, by_pyiceberg, opened
from tests.support.lakes.maintained import ReputLake
from tests.support.lakes.mirrored import batches, later, metadata_of, run, run_one, update


def test_it_follows_batches_and_maintenance_and_a_vacuum(
    lake: ReputLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(lake)
    assert {report.mirror.anew for report in first.values() if report.mirror} == {"it is the first"}
    assert_mirrored(lake.lake)
    before = opened(lake.lake, "messages")
    rows = by_pyiceberg(before)
    lake.fill()
    second = run(lake, mirrored=None)
    assert_mirrored(lake.lake)
    mirrored = second["messages"].mirror
    assert mirrored is not None
    assert (mirrored.anew, mirrored.metadata) == ("", 2)
    assert mirrored.added_files > 0
    assert_same("messages", rows, by_pyiceberg(before))  # who opened it before goes on
    current = opened(lake.lake, "messages")
    (older, newer) = current.snapshots()
    assert older.snapshot_id == before.metadata.current_snapshot_id == newer.parent_snapshot_id
    assert_same("messages", rows, current.scan(snapshot_id=older.snapshot_id).to_arrow())
    there = set((lake.lake / "messages").glob("*.parquet"))
    later(monkeypatch, 8 * 86_400)
    assert run(lake)["messages"].removed.files > 0
    assert set((lake.lake / "messages").glob("*.parquet")) < there
    assert_mirrored(lake.lake)
    (only,) = opened(lake.lake, "messages").snapshots()
    assert only.snapshot_id == newer.snapshot_id


def test_of_files_that_went_no_bounds_are_kept(lake: ReputLake) -> None:
    """They hold the least and greatest keys, which may have been erased since."""
    run_one(lake)
    lake.fill()
    run_one(lake)
    kinds = Counter[tuple[int, bool]]()
    for path in metadata_of(lake).glob("*-m*.avro"):
        with path.open("rb") as file:
            for entry in fastavro.reader(file):
                assert isinstance(entry, dict)
                kinds[entry["status"], bool(entry["data_file"]["lower_bounds"])] += 1
    deleted = 2
    assert kinds[deleted, False] > 0
    assert kinds[deleted, True] == kinds[0, False] == kinds[1, False] == 0
    assert_mirrored(lake.lake, ["messages"])


def test_where_nothing_changed_nothing_is_written(lake: ReputLake) -> None:
    run(lake)
    there = sorted(lake.lake.joinpath("_iceberg").rglob("*"))
    stamps = [path.stat().st_mtime_ns for path in there]
    reports = run(lake)
    assert sorted(lake.lake.joinpath("_iceberg").rglob("*")) == there
    assert [path.stat().st_mtime_ns for path in there] == stamps
    assert {
        (report.mirror.added_files, report.mirror.metadata) for report in reports.values() if report.mirror
    } == {(0, 1)}


def test_without_the_option_it_is_kept_up_and_it_can_be_removed(lake: ReputLake) -> None:
    assert all(report.mirror is None for report in run(lake, mirrored=None).values())
    assert not (lake.lake / "_iceberg").exists()
    run(lake)
    lake.fill()
    assert all(report.mirror is not None for report in run(lake, mirrored=None).values())
    assert_mirrored(lake.lake, ["messages", "reput_progress"])
    assert all(report.mirror is None for report in run(lake, mirrored=False).values())
    assert [name for name in os.listdir(lake.lake) if name not in TABLES] == []


def test_filters_find_their_rows_and_pass_over_files(tmp_path: Path) -> None:
    lake = ReputLake(tmp_path)
    lake.fill()
    update(lake)
    rows = DeltaTable(str(lake.lake / "messages")).to_pyarrow_table()
    table = opened(lake.lake, "messages")
    count = len(list(table.scan().plan_files()))
    assert count > 8
    one = rows.slice(rows.num_rows // 2, 1).to_pylist()[0]
    offset, stored, message_id = one["physical_offset"], one["store_timestamp"], one["message_id"]
    for where, sql, most in (
        (EqualTo("physical_offset", offset), f"physical_offset = {offset}", 1),
        (GreaterThanOrEqual("store_timestamp", stored.isoformat()), f"store_timestamp >= '{stored}'", count),
        (EqualTo("message_id", message_id), f"message_id = '{message_id}'", count),
        (IsNull("topic"), "topic is null", 0),
        (IsNull("priority"), "priority is null", count),
    ):
        assert len(list(table.scan(row_filter=where).plan_files())) <= most
        expected = duckdb.sql(f"set TimeZone='UTC'; select * from rows where {sql}").to_arrow_table()
        assert expected.num_rows > 0 or most == 0
        assert_same(
            "messages",
            expected.cast(rows.schema),
            by_pyiceberg(table, where),
            by_duckdb(lake.lake, "messages", sql),
        )


def test_columns_that_are_added_get_new_ids_and_the_others_keep_theirs(lake: ReputLake) -> None:
    """As by an upgrade: in between, with one inside of a struct."""
    run_one(lake)
    before = opened(lake.lake, "messages")
    names = {field.name: field.field_id for field in before.schema().fields}
    log = TableLog(LocalFolder(lake.lake / "messages"))
    fields = list(MESSAGES.schema)
    fields.insert(3, pa.field("seen", pa.list_(pa.struct([("by", pa.string())]))))
    log.alter(upgraded(log.metadata, pa.schema(fields)))
    mirrored = run_one(lake).mirror
    assert mirrored is not None
    assert (mirrored.anew, mirrored.added_files, mirrored.removed_files) == ("", 0, 0)
    write_deltalake(
        str(lake.lake / "messages"),
        pa.Table.from_pylist(
            [{"broker": "b", "log_id": "l", "physical_offset": 1, "seen": [{"by": "me"}]}], pa.schema(fields)
        ),
        mode="append",
    )
    run_one(lake)
    assert_mirrored(lake.lake, ["messages"])
    table = opened(lake.lake, "messages")
    assert [field.name for field in table.schema().fields] == [field.name for field in fields]
    added = table.schema().find_field("seen")
    assert added.field_id > before.metadata.last_column_id
    assert {field.name: field.field_id for field in table.schema().fields if field is not added} == names
    assert len(table.snapshots()) == 3
    old = table.scan(snapshot_id=table.snapshots()[0].snapshot_id).to_arrow()
    assert_same("messages", by_pyiceberg(before), old)


def test_any_other_change_of_the_columns_makes_it_anew(lake: ReputLake) -> None:
    update(lake, CONSUME_QUEUE.name)
    path = str(lake.lake / CONSUME_QUEUE.name)
    rows = DeltaTable(path).to_pyarrow_table()
    number = rows.column_names.index("size")
    other = rows.set_column(number, "size", rows["size"].cast(pa.string()))
    write_deltalake(path, other, mode="overwrite", schema_mode="overwrite")
    report = update(lake, CONSUME_QUEUE.name)
    assert report.anew == "its columns were changed"
    table = opened(lake.lake, CONSUME_QUEUE.name)
    assert_same(CONSUME_QUEUE.name, other, by_pyiceberg(table), by_duckdb(lake.lake, CONSUME_QUEUE.name))
    assert len(table.snapshots()) == 1


def test_rows_that_others_delete_and_rewrite_are_as_they_are(lake: ReputLake) -> None:
    for name in ("messages", "topics"):
        run_one(lake, name)
    table = DeltaTable(str(lake.lake / "messages"))
    half = len(table.to_pyarrow_table()) // 2
    offset = sorted(table.to_pyarrow_table()["physical_offset"].to_pylist())[half]
    table.delete(f"physical_offset < {offset}")
    DeltaTable(str(lake.lake / "topics")).delete()
    run_one(lake)
    mirrored = run_one(lake, "topics").mirror
    assert_mirrored(lake.lake, ["messages", "topics"])
    assert mirrored is not None
    assert mirrored.removed_files > 0
    assert opened(lake.lake, "topics").scan().count() == 0


@pytest.mark.parametrize(
    ("where", "said"),
    [("a#b", "'#' in a path is read otherwise"), ("a?b", "'?' in a path is read otherwise")],
)
def test_a_place_that_clients_would_not_find_is_refused(tmp_path: Path, where: str, said: str) -> None:
    (tmp_path / where).mkdir()
    lake = ReputLake(tmp_path / where)
    with pytest.raises(LakeError, match=said.replace("?", r"\?")):
        maintain(str(lake.lake), mirrored=True)
    assert not (lake.lake / "_iceberg").exists()


@pytest.mark.parametrize("where", ["a b", "ü[1]*", "a+b=c,d;e'f"])
def test_other_places_are_found(half_filled: ReputLake, tmp_path: Path, where: str) -> None:
    lake = half_filled.copied(tmp_path / where)
    run_one(lake)
    assert_mirrored(lake.lake, ["messages"])


def test_a_column_that_iceberg_does_not_know_leaves_the_table_without(lake: ReputLake) -> None:
    update(lake, "topics")
    log = TableLog(LocalFolder(lake.lake / "topics"))
    schema = json.loads(log.metadata["schemaString"])
    schema["fields"].append({"name": "gap", "type": "interval day", "nullable": True, "metadata": {}})
    log.alter({**log.metadata, "schemaString": json.dumps(schema)})
    snapshot = Snapshot(LocalFolder(lake.lake / "topics"))
    with pytest.raises(mirror.NoMirrorError, match="its column gap is of type interval day"):
        LakeMirror(LocalFolder(lake.lake)).update("topics", snapshot, time.time())


def test_what_is_kept_is_bounded(lake: ReputLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version every five minutes for hours: snapshots, versions, manifests and files of an hour stay, and a few more."""
    name, folder = CONSUME_QUEUE.name, metadata_of(lake, CONSUME_QUEUE.name)
    monkeypatch.setattr(manifests, "ENTRIES", 64)
    monkeypatch.setattr(mirror, "TIDIED", 8)
    real, files, count = time.time, [], rounds(36, 60)
    start = real() - 300 * count
    for number, _ in enumerate(batches(lake, count)):
        now = start + 300 * number
        monkeypatch.setattr(time, "time", lambda now=now: now)
        update(lake, name)
        for path in folder.iterdir():  # as old as the clock says
            if path.stat().st_mtime > now:
                os.utime(path, (now, now))
        files.append(len(list(folder.iterdir())))
    monkeypatch.setattr(time, "time", real)
    table = opened(lake.lake, name)
    assert len(table.snapshots()) <= 13
    assert len(table.metadata.metadata_log) <= 13
    snapshot = table.current_snapshot()
    assert snapshot is not None
    # one for each `SMALL`th part of `ENTRIES`, and the small ones
    assert len(snapshot.manifests(table.io)) <= (count + 20) // (64 // manifests.SMALL) + manifests.SMALL + 1
    # a version has its metadata, a list, a manifest or two
    assert max(files) <= 4 * (13 + mirror.TIDIED) + len(snapshot.manifests(table.io))
    rows = DeltaTable(str(lake.lake / name)).to_pyarrow_table()
    assert_same(name, rows, by_pyiceberg(table), by_duckdb(lake.lake, name))


def test_a_version_costs_what_changed(lake: ReputLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that came are written, none of the manifests before is read; of those that went, one."""
    monkeypatch.setattr(manifests, "ENTRIES", 16)
    name, folder = CONSUME_QUEUE.name, LocalFolder(lake.lake)
    for _ in batches(lake, 60):
        pass
    update(lake, name)
    read, made = [], []
    real_read, real_entry = manifests.Manifests.read, mirror.Entries.entry
    monkeypatch.setattr(
        manifests.Manifests, "read", lambda its, each: read.append(each) or real_read(its, each)
    )
    monkeypatch.setattr(mirror.Entries, "entry", lambda its, file: made.append(file) or real_entry(its, file))
    for _ in batches(lake, 1):
        pass
    assert update(lake, name).added_files == 1
    assert (len(read), len(made)) == (0, 1)
    newest = next(reversed(Snapshot(folder.child(name)).files.values()))
    TableLog(folder.child(name)).rewrite([(newest.path, newest.size)], [])
    report = update(lake, name)
    assert (report.added_files, report.removed_files) == (0, 1)
    assert (len(read), len(made)) == (1, 1)


def test_where_the_log_tells_no_more_all_files_are_compared(lake: ReputLake) -> None:
    run_one(lake)
    lake.fill()
    log = lake.lake / "messages" / "_delta_log"
    DeltaTable(str(lake.lake / "messages")).create_checkpoint()
    for path in log.glob("*.json"):
        path.unlink()
    mirrored = run_one(lake).mirror
    assert mirrored is not None
    assert mirrored.anew == ""
    assert mirrored.added_files > 0
    table = opened(lake.lake, "messages")
    assert_same("messages", DeltaTable(str(lake.lake / "messages")).to_pyarrow_table(), by_pyiceberg(table))


def test_a_file_that_is_added_once_more_stands_once(lake: ReputLake) -> None:
    """As by a writer that states statistics anew."""
    update(lake)
    folder = LocalFolder(lake.lake / "messages")
    file = next(iter(Snapshot(folder).files.values()))
    TableLog(folder).rewrite([], [{"path": file.path, "size": file.size, "stats": file.stats}])
    report = update(lake)
    assert (report.anew, report.added_files, report.removed_files) == ("", 0, 0)
    rows = DeltaTable(str(lake.lake / "messages")).to_pyarrow_table()
    assert_same(
        "messages", rows, by_pyiceberg(opened(lake.lake, "messages")), by_duckdb(lake.lake, "messages")
    )


def test_files_without_statistics_are_read_all_the_same(lake: ReputLake) -> None:
    path = str(lake.lake / CONSUME_QUEUE.name)
    DeltaTable(path).alter.add_columns([Field("share", PrimitiveType("double"))])
    folder = LocalFolder(lake.lake / CONSUME_QUEUE.name)
    files = list(Snapshot(folder).files.values())
    log = TableLog(folder)
    log.rewrite([(file.path, file.size) for file in files[:1]], [])
    log.append([{"path": files[0].path, "size": files[0].size, "stats": None}], {})
    update(lake, CONSUME_QUEUE.name)
    table = opened(lake.lake, CONSUME_QUEUE.name)
    rows = DeltaTable(path).to_pyarrow_table()
    assert_same(CONSUME_QUEUE.name, rows, by_pyiceberg(table), by_duckdb(lake.lake, CONSUME_QUEUE.name))
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary["total-records"] == str(len(rows))


def test_renewed_nothing_of_before_is_left(lake: ReputLake) -> None:
    run_one(lake)
    lake.fill()
    run_one(lake)
    folder, there = LocalFolder(lake.lake), {path.name for path in metadata_of(lake).iterdir()}
    report = LakeMirror(folder).renew(
        "messages", Snapshot(folder.child("messages")), time.time(), "a key was erased"
    )
    assert report.anew == "a key was erased"
    assert {path.name for path in metadata_of(lake).iterdir()} & there == {"version-hint.text"}
    assert_mirrored(lake.lake, ["messages"])
