"""The Iceberg mirror shows what the Delta tables hold, whatever happens to them and to it; no row of it is ever ours to read."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, IsNull
from pyiceberg.table import StaticTable

from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.table_log import TableLog
from structured_streaming.commit.table_schema import upgraded
from structured_streaming.errors import LakeError
from structured_streaming.iceberg import manifests, mirror
from structured_streaming.iceberg.metadata_folder import MetadataFolder
from structured_streaming.iceberg.mirror import LakeMirror
from structured_streaming.maintenance.maintain import maintain, maintain_table
from structured_streaming.maintenance.reports import TableReport
from structured_streaming.staging.table_file import write_file
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import CONSUME_QUEUE, MESSAGES, TABLES
from tests.suite.evidence import LONG
from tests.support.lakes.dying_calls import Crash
from tests.support.lakes.iceberg_readers import (
    assert_mirrored,
    assert_same,
    by_duckdb,
    by_pyiceberg,
    opened,
    place,
    shown,
)
from tests.support.lakes.maintained import ReputLake

TARGET = 64 << 20


@pytest.fixture(scope="module")
def half_filled(tmp_path_factory: pytest.TempPathFactory) -> ReputLake:
    """With half of what there is in its tables."""
    made = ReputLake(tmp_path_factory.mktemp("half-filled"), batch_bytes=40_000)
    made.fill(len(made.batches()) // 2)
    return made


@pytest.fixture
def lake(half_filled: ReputLake, tmp_path: Path) -> ReputLake:
    return half_filled.copied(tmp_path)


def run(lake: ReputLake, mirrored: bool | None = True, retain_s: float = 86_400) -> dict[str, TableReport]:
    reports = maintain(str(lake.lake), TARGET, retain_s, mirrored=mirrored)
    assert [report.problems for report in reports if report.problems] == []
    return {report.table: report for report in reports}


def run_one(lake: ReputLake, name: str = MESSAGES.name, retain_s: float = 86_400) -> TableReport:
    """A table's turn of `run`."""
    folder = LocalFolder(lake.lake)
    report = maintain_table(folder, TABLES[name], TARGET, retain_s, LakeMirror(folder))
    assert report.problems == []
    return report


def update(lake: ReputLake, name: str = MESSAGES.name) -> mirror.MirrorReport:
    """A mirror of the table as it is, nothing put together before."""
    folder = LocalFolder(lake.lake)
    return LakeMirror(folder).update(name, Snapshot(folder.child(name)), time.time())


def metadata_of(lake: ReputLake, name: str = MESSAGES.name) -> Path:
    return Path(place(lake.lake, name), "metadata")


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Moves the clock of this process, and makes files of the mirror and the tables look as old as they then are."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)


def age(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


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


DAMAGE: dict[str, Callable[[Path], object]] = {
    "all of it is deleted": lambda folder: shutil.rmtree(folder.parents[2]),
    "the folder is deleted": shutil.rmtree,
    "the newest version is cut": lambda folder: cut(folder / "v2.metadata.json"),
    "the newest version is empty": lambda folder: (folder / "v2.metadata.json").write_bytes(b""),
    "the newest version is another file": lambda folder: (folder / "v2.metadata.json").write_text("[]"),
    "the newest version is deleted": lambda folder: (folder / "v2.metadata.json").unlink(),
    "a manifest is deleted": lambda folder: each(folder, "*-m0.avro", Path.unlink),
    "a manifest is cut": lambda folder: each(folder, "*-m0.avro", cut),
    "a list of manifests is deleted": lambda folder: each(folder, "snap-*", Path.unlink),
    "a list of manifests is other bytes": lambda folder: each(folder, "snap-*", scramble),
    "the hint is deleted": lambda folder: (folder / "version-hint.text").unlink(),
    "the hint is none": lambda folder: (folder / "version-hint.text").write_bytes(b"\xff9999999999999999999"),
    "a version of somebody else": lambda folder: foreign(folder),
}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def scramble(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(byte ^ 0x55 for byte in content[4:]))


def each(folder: Path, pattern: str, do: Callable[[Path], object]) -> None:
    found = list(folder.glob(pattern))
    assert found
    for path in found:
        do(path)


def foreign(folder: Path) -> None:
    """As an Iceberg client that empties the table."""
    found = json.loads((folder / "v2.metadata.json").read_text())
    found.update({"current-snapshot-id": None, "snapshots": [], "refs": {}, "snapshot-log": []})
    (folder / "v3.metadata.json").write_text(json.dumps(found))
    (folder / "version-hint.text").write_text("3")
    (folder / ".version-hint.text.crc").write_bytes(b"crc\0of what was there")


STAYS = ("the newest version is deleted", "the hint is deleted", "the hint is none")
"""What does not keep it from going on from there."""


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_damaged_is_made_anew(lake: ReputLake, what: str) -> None:
    name = CONSUME_QUEUE.name
    update(lake, name)
    list(batches(lake, 2))
    update(lake, name)
    list(batches(lake, 1))
    folder = metadata_of(lake, name)
    DAMAGE[what](folder)
    report = update(lake, name)
    assert_mirrored(lake.lake, [name])
    assert (report.anew == "") == (what in STAYS), report
    assert not (folder / ".version-hint.text.crc").exists()
    assert update(lake, name) == dataclasses.replace(report, added_files=0, removed_files=0, anew="")


def test_a_manifest_that_holds_other_bytes_is_found_when_it_is_needed(lake: ReputLake) -> None:
    update(lake)
    each(metadata_of(lake), "*-m0.avro", scramble)
    folder = LocalFolder(lake.lake / "messages")
    file = next(iter(Snapshot(folder).files.values()))
    TableLog(folder).rewrite([(file.path, file.size)], [])
    assert "cannot be read" in update(lake).anew
    assert_mirrored(lake.lake, ["messages"])


def test_a_lake_that_is_moved_or_copied_has_its_own(lake: ReputLake, tmp_path: Path) -> None:
    run(lake)
    copy = tmp_path / "other place" / "lake"
    shutil.copytree(lake.lake, copy)
    lake.lake.rename(tmp_path / "away")
    reports = maintain(str(copy))
    assert all(report.mirror and "moved or copied" in report.mirror.anew for report in reports)
    assert_mirrored(copy, ["messages", "reput_progress"])
    uuids = {
        str(StaticTable.from_metadata(str(path)).metadata.table_uuid)
        for path in copy.rglob("v*.metadata.json")
    }
    assert len(uuids) == 2 * len(TABLES)


def test_a_table_that_went_back_or_is_another_one(lake: ReputLake, tmp_path: Path) -> None:
    run_one(lake)
    shutil.copytree(lake.lake / "messages", tmp_path / "backup")
    lake.fill()
    run_one(lake)
    shutil.rmtree(lake.lake / "messages")
    (tmp_path / "backup").rename(lake.lake / "messages")
    mirrored = run_one(lake).mirror
    assert mirrored is not None
    assert "went back" in mirrored.anew
    assert_mirrored(lake.lake, ["messages"])
    rows = DeltaTable(str(lake.lake / "messages")).to_pyarrow_table()
    shutil.rmtree(lake.lake / "messages")
    for part in (rows.slice(0, 5), *[rows.slice(5, 7)] * (mirrored.delta_version + 2)):
        write_deltalake(str(lake.lake / "messages"), part, mode="append")
    assert update(lake).anew == "the table is another one"
    table = DeltaTable(str(lake.lake / "messages"))
    assert opened(lake.lake, "messages").scan().count() == len(table.to_pyarrow_table())


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


def test_a_table_that_cannot_be_maintained_has_no_mirror(lake: ReputLake) -> None:
    run(lake)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    action = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    version = DeltaTable(str(lake.lake / "messages")).version()
    (lake.lake / "messages" / "_delta_log" / f"{version + 1:020}.json").write_text(json.dumps(action) + "\n")
    reports = {report.table: report for report in maintain(str(lake.lake))}
    assert reports["messages"].problems[1:] == ["the Iceberg mirror of messages is removed"]
    assert reports["messages"].mirror is None
    assert not Path(place(lake.lake, "messages")).exists()
    assert [name for name, report in reports.items() if report.problems] == ["messages"]
    assert reports["reput_progress"].mirror is not None


def test_a_column_that_iceberg_does_not_know_leaves_the_table_without(lake: ReputLake) -> None:
    update(lake, "topics")
    log = TableLog(LocalFolder(lake.lake / "topics"))
    schema = json.loads(log.metadata["schemaString"])
    schema["fields"].append({"name": "gap", "type": "interval day", "nullable": True, "metadata": {}})
    log.alter({**log.metadata, "schemaString": json.dumps(schema)})
    snapshot = Snapshot(LocalFolder(lake.lake / "topics"))
    with pytest.raises(mirror.NoMirrorError, match="its column gap is of type interval day"):
        LakeMirror(LocalFolder(lake.lake)).update("topics", snapshot, time.time())


def test_a_table_with_a_file_elsewhere_has_no_mirror_and_is_maintained(
    lake: ReputLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a shallow clone."""
    run(lake)
    folder = LocalFolder(lake.lake / "topics")
    file = next(iter(Snapshot(folder).files.values()))
    away = lake.lake.parent / file.name
    shutil.copy(lake.lake / "topics" / file.name, away)
    log = TableLog(folder)
    log.rewrite(
        [(file.path, file.size)], [{"path": f"file://{away}", "size": file.size, "stats": file.stats}]
    )
    later(monkeypatch, 8 * 86_400)
    reports = {report.table: report for report in maintain(str(lake.lake))}
    (said, removed) = reports["topics"].problems
    assert f"has no Iceberg mirror: its file file://{away} is outside of the table's folder" in said
    assert removed == "the Iceberg mirror of topics is removed"
    assert reports["topics"].removed.files > 0
    assert not Path(place(lake.lake, "topics")).exists()
    assert reports["reput_progress"].mirror is not None
    again = {report.table: report for report in maintain(str(lake.lake))}
    assert again["topics"].problems == [said]


def test_where_a_tables_mirror_fails_progress_stays_behind_it(
    lake: ReputLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(lake)
    names = ("messages", "reput_progress")
    versions = assert_mirrored(lake.lake, names)
    lake.fill()
    real = LocalFolder.put_if_absent

    def put(folder: LocalFolder, name: str, content: bytes) -> None:
        if folder.path == metadata_of(lake):
            raise OSError(28, "No space left on device")
        real(folder, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "put_if_absent", put)
        reports = {report.table: report for report in maintain(str(lake.lake))}
    assert "No space left" in reports["messages"].problems[0]
    assert "stays as it is, as that of messages does" in reports["reput_progress"].problems[0]
    assert assert_mirrored(lake.lake, names, is_newest=False) == versions
    run(lake)
    assert_mirrored(lake.lake, names)


def test_no_vacuum_removes_what_the_mirror_names(lake: ReputLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files went more than a retention ago, by somebody who knows of no mirror, and the mirror cannot be brought up to date."""
    run_one(lake)
    lake.fill()
    assert maintain_table(LocalFolder(lake.lake), MESSAGES, TARGET, 86_400).rewritten_files > 0
    later(monkeypatch, 8 * 86_400)
    rows, real = by_pyiceberg(opened(lake.lake, "messages")), LocalFolder.put_if_absent

    def put(folder: LocalFolder, name: str, content: bytes) -> None:
        if folder.path == metadata_of(lake):
            raise OSError(28, "No space left on device")
        real(folder, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "put_if_absent", put)
        folder = LocalFolder(lake.lake)
        report = maintain_table(folder, MESSAGES, TARGET, 86_400, LakeMirror(folder))
        assert "No space left" in report.problems[0]
        assert report.removed.files == 0
        assert_same("messages", rows, by_pyiceberg(opened(lake.lake, "messages")))
    assert run_one(lake).removed.files > 0
    assert_mirrored(lake.lake, ["messages"])


def test_progress_never_tells_of_rows_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is committed before each version of the mirror; after each, all it says is in the tables."""
    lake = ReputLake(tmp_path, batch_bytes=10_000)
    lake.fill(2)
    run(lake)
    left = iter([(batch, lake.manifest(*batch)) for batch in lake.batches()])
    real, put_of = MetadataFolder.put, list[str]()

    def put(folder: MetadataFolder, version: int, metadata: Any) -> None:
        following = next(left, None)
        if following is not None:
            lake.sink.commit(following[1])
        real(folder, version, metadata)
        folder.point_to(version)
        assert_progress_holds(lake.lake)
        put_of.append(Path(folder.location).name)

    monkeypatch.setattr(MetadataFolder, "put", put)
    for _ in range(2):
        lake.sink.commit(next(left)[1])
        run(lake)
    assert len(put_of) >= 8
    assert put_of.count("messages") == put_of.count("reput_progress") == 2


def assert_progress_holds(lake: Path) -> None:
    end = max(by_pyiceberg(opened(lake, "reput_progress"))["end_offset"].to_pylist())
    expected = DeltaTable(str(lake / "messages")).to_pyarrow_table(filters=[("physical_offset", "<", end)])
    found = by_pyiceberg(opened(lake, "messages"), GreaterThanOrEqual("physical_offset", 0))
    offsets = [offset for offset in found["physical_offset"].to_pylist() if offset < end]
    assert sorted(offsets) == sorted(expected["physical_offset"].to_pylist())


@pytest.mark.parametrize("when", [pytest.param("before", marks=LONG), "after"])
def test_killed_at_any_step_readers_see_the_old_or_the_new(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = ReputLake(tmp_path, batch_bytes=60_000)
    lake.fill(2)
    update(lake)
    lake.fill()
    monkeypatch.setattr(mirror, "TIDIED", 1)
    folder, count, fatal, crashes = metadata_of(lake), 0, 0, 0
    start = tmp_path / "start"
    shutil.copytree(folder.parents[2], start)

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(its: LocalFolder, *arguments: Any) -> Any:
            nonlocal count
            count += its.path == folder
            dies = its.path == folder and count == fatal
            if dies and when == "before":
                raise Crash
            result = real(its, *arguments)
            if dies:
                raise Crash
            return result

        return call

    for name in ("put_if_absent", "replace", "remove", "read", "names", "has", "status", "make"):
        monkeypatch.setattr(LocalFolder, name, watched(getattr(LocalFolder, name)))
    before, versions = DeltaTable(str(lake.lake / "messages")), set()
    for step in range(1, 200):
        shutil.rmtree(folder.parents[2])
        shutil.copytree(start, folder.parents[2])
        age(folder, 7200)
        count, fatal = 0, step
        try:
            update(lake)
        except Crash:
            crashes += 1
        else:
            break
        fatal = 0
        version = shown(opened(lake.lake, "messages"))
        versions.add(version)
        before.load_as_version(version)
        rows = before.to_pyarrow_table()
        assert_same(
            "messages", rows, by_pyiceberg(opened(lake.lake, "messages")), by_duckdb(lake.lake, "messages")
        )
        again = update(lake)
        assert again.anew == ""
        assert (
            shown(opened(lake.lake, "messages"))
            == again.delta_version
            == max(versions | {again.delta_version})
        )
        assert (folder / "version-hint.text").read_text() == str(again.metadata)
    assert crashes > 10
    assert len(versions) == 2


def test_of_two_at_once_both_end_and_one_version_is_the_newest(
    lake: ReputLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one puts its version right before ours, again and again; the last time it saw more."""
    update(lake)
    lake.fill(1)
    real, others = MetadataFolder.put, []

    def put(folder: MetadataFolder, version: int, metadata: Any) -> None:
        if len(others) < 3:
            others.append(None)
            lake.fill(1)
            others[-1] = update(lake) if len(others) < 3 else None
            monkeypatch.setattr(MetadataFolder, "put", put)
        real(folder, version, metadata)

    folder = LocalFolder(lake.lake)
    snapshot = Snapshot(folder.child("messages"))
    monkeypatch.setattr(MetadataFolder, "put", put)
    report = LakeMirror(folder).update("messages", snapshot, time.time())
    monkeypatch.setattr(MetadataFolder, "put", real)
    assert report.delta_version > snapshot.version
    update(lake)
    table = opened(lake.lake, "messages")
    assert_same("messages", DeltaTable(str(lake.lake / "messages")).to_pyarrow_table(), by_pyiceberg(table))
    named = names_in(table)
    there = {path.name for path in metadata_of(lake).iterdir() if path.suffix == ".avro"}
    assert there == named, "what the slower one wrote is removed"


def names_in(table: StaticTable) -> set[str]:
    """The files of metadata that snapshots name."""
    lists = {snapshot.manifest_list for snapshot in table.snapshots()}
    inner = {each.manifest_path for snapshot in table.snapshots() for each in snapshot.manifests(table.io)}
    return {uri.rpartition("/")[2] for uri in lists | inner}


def batches(lake: ReputLake, count: int) -> Iterator[None]:
    """Commits that add a file of a row each to consume_queue."""
    folder = LocalFolder(lake.lake)
    log = TableLog(folder.child(CONSUME_QUEUE.name))
    for number in range(count):
        row = {"broker": "b", "log_id": "l", "physical_offset": number, "topic": "t"}
        file = write_file(folder, CONSUME_QUEUE, pa.Table.from_pylist([row], CONSUME_QUEUE.schema))
        log.append([file._asdict()], {})
        yield


def test_what_is_kept_is_bounded(lake: ReputLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version every five minutes for hours: snapshots, versions, manifests and files of an hour stay, and a few more."""
    name, folder = CONSUME_QUEUE.name, metadata_of(lake, CONSUME_QUEUE.name)
    monkeypatch.setattr(manifests, "ENTRIES", 64)
    real, files, count = time.time, [], 60
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
    real_read, real_entry = manifests.Manifests._read, mirror.Entries.entry
    monkeypatch.setattr(
        manifests.Manifests, "_read", lambda its, each: read.append(each) or real_read(its, each)
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
