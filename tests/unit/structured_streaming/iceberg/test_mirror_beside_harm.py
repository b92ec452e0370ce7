"""Whatever happens to the Iceberg mirror, to its tables and to who makes it: damage, another place, a table of before, a full disk, a kill,
others who commit. What it shows then is true, or it is made anew, or it is gone."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.expressions import GreaterThanOrEqual
from pyiceberg.table import StaticTable

from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.table_log import TableLog
from structured_streaming.iceberg import manifests, mirror
from structured_streaming.iceberg.metadata_folder import MetadataFolder
from structured_streaming.iceberg.mirror import LakeMirror
from structured_streaming.maintenance.maintain import maintain, maintain_table
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import CONSUME_QUEUE, MESSAGES, TABLES
from tests.suite.evidence import LONG
from tests.support.lakes.copies import copy_folder
from tests.support.lakes.dying_calls import DyingCalls
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
from tests.support.lakes.mirrored import TARGET, batches, later, metadata_of, run, run_one, update


def age(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


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
    (folder / ".version-hint.text.crc").write_bytes(b"crc\0of an older file")


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


def test_damaged_manifests_that_would_become_one_are_made_anew(lake: ReputLake) -> None:
    name = CONSUME_QUEUE.name
    for _ in range(manifests.SMALL + 1):
        list(batches(lake, 1))
        update(lake, name)
    each(metadata_of(lake, name), "*-m0.avro", cut)
    list(batches(lake, 1))
    assert update(lake, name).anew
    assert_mirrored(lake.lake, [name])


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
    copy_folder(lake.lake, copy)
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
    copy_folder(lake.lake / "messages", tmp_path / "backup")
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
    lake.sink.commit(next(left)[1])
    run(lake)
    assert put_of == ["consume_queue", "message_index", "messages", "reput_progress"]


def assert_progress_holds(lake: Path) -> None:
    end = max(by_pyiceberg(opened(lake, "reput_progress"))["end_offset"].to_pylist())
    expected = DeltaTable(str(lake / "messages")).to_pyarrow_table(filters=[("physical_offset", "<", end)])
    found = by_pyiceberg(opened(lake, "messages"), GreaterThanOrEqual("physical_offset", 0))
    offsets = [offset for offset in found["physical_offset"].to_pylist() if offset < end]
    assert sorted(offsets) == sorted(expected["physical_offset"].to_pylist())


STEPS = ("put_if_absent", "replace", "remove", "read", "names", "has", "status", "make")


@pytest.mark.parametrize("when", [pytest.param("before", marks=LONG), "after"])
def test_killed_at_any_step_readers_see_the_old_or_the_new(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = ReputLake(tmp_path, batch_bytes=60_000)
    lake.fill(2)
    update(lake)
    lake.fill()
    monkeypatch.setattr(mirror, "TIDIED", 1)
    folder, crashes = metadata_of(lake), 0
    start = tmp_path / "start"
    copy_folder(folder.parents[2], start)
    of_before = {path.name for path in folder.iterdir()}
    looked_at = set[tuple[int, frozenset[str]]]()

    dying = DyingCalls(monkeypatch, when, STEPS, (), folder)
    before, versions = DeltaTable(str(lake.lake / "messages")), set()
    for step in range(1, 200):
        shutil.rmtree(folder.parents[2])
        copy_folder(start, folder.parents[2])
        age(folder, 7200)
        if not dying.kill(step, lambda: update(lake)):
            break
        crashes += 1
        version = shown(opened(lake.lake, "messages"))
        versions.add(version)
        left = version, frozenset(path.name for path in folder.iterdir() if path.name in of_before)
        if left not in looked_at:  # what else is there has another name each time
            looked_at.add(left)
            before.load_as_version(version)
            rows = before.to_pyarrow_table()
            assert_same(
                "messages",
                rows,
                by_pyiceberg(opened(lake.lake, "messages")),
                by_duckdb(lake.lake, "messages"),
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
