"""A copy of a lake is whole, whatever is written to the lake meanwhile and wherever it is killed; it goes on as the lake would."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from structured_streaming.commit.delta_commit import LakeProgress
from structured_streaming.commit.snapshot import DataFile, Snapshot
from structured_streaming.commit.table_log import TableLog
from structured_streaming.errors import LakeError, LocationError
from structured_streaming.maintenance import copying
from structured_streaming.maintenance.check import check_lake
from structured_streaming.maintenance.copying import MARK, CopyReport, copy_lake
from structured_streaming.maintenance.erasure import purge
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import TABLES
from tests.suite.evidence import LONG, rounds
from tests.support.lakes.checks import assert_exact, assert_exact_below_progress
from tests.support.lakes.dying_calls import DyingCalls
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.maintained import ReputLake, assert_same, reput, rows_of
from tests.support.lakes.marked import MarkedLake, found_in


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> ReputLake:
    made = ReputLake(tmp_path_factory.mktemp("begun"), batch_bytes=60_000)
    made.fill(3)
    return made


@pytest.fixture
def lake(begun: ReputLake, tmp_path: Path) -> ReputLake:
    return begun.copied(tmp_path)


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def rows(folder: Path) -> dict[str, Any]:
    return {name: rows_of(folder, name) for name in TABLES}


def problems(folder: Path, store: Path | None = None) -> list[str]:
    stores = [] if store is None else [str(store)]
    return [problem for found in check_lake(str(folder), stores) for problem in found.problems]


def named(folder: Path) -> dict[str, set[str]]:
    """Data files of each table's newest version."""
    return {
        name: {file.name for file in Snapshot(LocalFolder(folder / name)).files.values()} for name in TABLES
    }


def there(folder: Path) -> dict[str, set[str]]:
    """Data files in each table's folder."""
    return {name: {path.name for path in (folder / name).glob("*.parquet")} for name in TABLES}


@pytest.mark.parametrize("links", [True, False])
def test_a_copy_and_a_later_one_are_what_the_lake_is(lake: ReputLake, to: Path, links: bool) -> None:
    first = copy_lake(str(lake.lake), str(to), links=links)
    assert first.files == sum(map(len, named(lake.lake).values()))
    assert (first.shared, first.kept, first.removed) == (first.files if links else 0, 0, 0)
    assert_same(lake.rows(), rows(to))
    assert problems(to) == []
    again = copy_lake(str(lake.lake), str(to), links=links)
    assert again == CopyReport(kept=first.files)
    before = named(lake.lake)
    lake.fill()
    maintain(str(lake.lake))
    later = copy_lake(str(lake.lake), str(to), links=links)
    after = named(lake.lake)
    assert later.files == sum(len(after[name] - before[name]) for name in TABLES)
    assert later.removed == sum(len(before[name] - after[name]) for name in TABLES) > 0
    assert there(to) == after
    assert_same(lake.rows(), rows(to))
    assert problems(to, lake.store) == []
    same = {
        os.path.samefile(lake.lake / name / file, to / name / file)
        for name, files in after.items()
        for file in files
    }
    assert same == {links}


def test_a_later_copy_has_nothing_of_what_was_erased_in_the_lake(tmp_path: Path, to: Path) -> None:
    lake = MarkedLake(tmp_path)
    lake.write()
    lake.declare()
    copy_lake(lake.location, str(to), links=False)
    for name in ("messages", "message_index"):
        TableLog(LocalFolder(to / name)).checkpoint()
    lake.write()
    copy_lake(lake.location, str(to), links=False)
    lake.erase()
    assert len(found_in(to, lake.marker)) > 10
    assert purge(lake.folder, None).settled
    copy_lake(lake.location, str(to), links=False)
    assert found_in(to, lake.marker) == []
    assert_same(rows(lake.lake), rows(to))
    assert problems(to) == []
    further = tmp_path / "further"
    copy_lake(str(to), str(further))
    assert_same(rows(to), rows(further))
    assert found_in(further, lake.marker) == []


def test_an_erasure_while_tables_are_read_is_not_said_of_a_copy_that_has_the_rows(
    tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = MarkedLake(tmp_path)
    lake.write()
    copy_lake(lake.location, str(to))
    index, erasures = lake.table_folder("message_index").uri, iter([True])

    def read(folder: Folder) -> Snapshot:
        if folder.uri == index and next(erasures, False):
            lake.erase()
            assert purge(lake.folder, None).settled
        return Snapshot(folder)

    monkeypatch.setattr(copying, "Snapshot", read)
    copy_lake(lake.location, str(to))
    assert next(erasures, None) is None
    assert found_in(to, lake.marker) == []


def test_the_lake_may_remove_its_files_and_the_copy_keeps_its_own(lake: ReputLake, to: Path) -> None:
    copy_lake(str(lake.lake), str(to))
    before = rows(to)
    shutil.rmtree(lake.lake)
    assert_same(before, rows(to))
    assert problems(to) == []


def test_a_reput_goes_on_from_a_copy_without_a_row_twice_or_missing(lake: ReputLake, to: Path) -> None:
    copy_lake(str(lake.lake), str(to))
    at = LakeProgress(str(lake.lake)).offsets
    assert LakeProgress(str(to)).offsets == at
    lake.fill()
    reput(lake.store, str(to), 50_000)
    assert_exact(to, lake.store)
    assert problems(to, lake.store) == []
    with pytest.raises(LocationError, match=r"was written to since it was copied: .* is WRITE"):
        copy_lake(str(lake.lake), str(to))
    other = to.with_name("other")
    copy_lake(str(to), str(other))
    assert_same(rows(to), rows(other))


def test_while_batches_and_maintenance_come_in_between(tmp_path: Path, to: Path) -> None:
    lake = ReputLake(tmp_path, batch_bytes=16_000)
    lake.fill(3)
    calls: Iterator[int] = iter(range(10**6))

    def meanwhile(table: str, file: DataFile) -> None:
        if next(calls) % 3 == 0:
            lake.fill(1)
        elif next(calls) % 11 == 0:
            maintain(str(lake.lake))

    copy_lake(str(lake.lake), str(to), on_file=meanwhile)
    assert_exact_below_progress(to, lake.store)
    assert problems(to) == []
    reput(lake.store, str(to))
    assert_exact(to, lake.store)


def test_files_that_the_lake_removes_on_the_way(lake: ReputLake, to: Path) -> None:
    done: list[str] = []

    def meanwhile(table: str, file: DataFile) -> None:
        if table == "consume_queue" and not done:
            done.append(table)
            lake.fill()
            old = named(lake.lake)
            maintain(str(lake.lake))
            new = named(lake.lake)
            for name in TABLES:
                for gone in old[name] - new[name]:
                    (lake.lake / name / gone).unlink()

    copy_lake(str(lake.lake), str(to), on_file=meanwhile)
    assert done
    assert_same(lake.rows(), rows(to))
    assert there(to) == named(lake.lake)
    assert problems(to, lake.store) == []


STEPS = ("put_if_absent", "make", "remove", "take", "make_durable", "derive")


@pytest.mark.parametrize("when", [pytest.param("before", marks=LONG), "after"])
def test_killed_at_any_step_the_next_call_goes_on(
    lake: ReputLake, to: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = DyingCalls(monkeypatch, when, STEPS, ["finish"])
    before: dict[str, Any] = {}
    checked = set[Path]()
    for turn in range(2):  # a new copy, a later one
        crashes = 0
        for step in range(1, 400, rounds(17, 3)):
            if not dying.kill(step, lambda: copy_lake(str(lake.lake), str(to))):
                break
            crashes += 1
            if before:  # the former copy, or further: never less
                files = there(to)
                assert all(its <= files[name] for name, its in named(to).items())
                if (logs := set(to.glob("*/_delta_log/*"))) != checked:
                    checked = logs
                    assert problems(to) == []
                ends = LakeProgress(str(to)).offsets
                assert ends.keys() == LakeProgress(str(lake.lake)).offsets.keys()
        assert crashes > 3, turn
        assert_same(lake.rows(), rows(to))
        assert there(to) == named(lake.lake)
        assert (
            not [name for name in os.listdir(to / "messages") if name.startswith(".lakebroker-")]
            or when == "after"
        )
        assert problems(to) == []
        before = rows(to)
        lake.fill(2)
        maintain(str(lake.lake))
    copy_lake(str(lake.lake), str(to))
    assert_same(lake.rows(), rows(to))


def test_places_that_cannot_be_a_copy_are_refused_by_name(lake: ReputLake, tmp_path: Path, to: Path) -> None:
    other = ReputLake(tmp_path / "b")
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("of somebody")
    file = tmp_path / "file"
    file.write_text("no folder")
    made = tmp_path / "made"
    empty_lake(str(made))
    copy_lake(str(lake.lake), str(to))
    for target, said in (
        (full, "is not empty and no copy of a lake: it holds 'notes.txt'"),
        (made, "is not empty and no copy of a lake"),
        (file, "is no lake but a file"),
        (file / "below", "is a file; give a folder to write to"),
        (lake.lake, "is the lake"),
        (lake.lake / "messages", "within it"),
    ):
        with pytest.raises(LocationError, match=said):
            copy_lake(str(lake.lake), str(target))
    with pytest.raises(LocationError, match="is a copy of another lake"):
        copy_lake(str(other.lake), str(to))
    with pytest.raises(LocationError, match="is no lake"):
        copy_lake(str(tmp_path / "nowhere"), str(tmp_path / "new"))
    (to / MARK).write_text("{")
    with pytest.raises(LocationError, match="is damaged"):
        copy_lake(str(lake.lake), str(to))


def test_a_file_that_is_not_whole_ends_it_and_is_named(lake: ReputLake, to: Path) -> None:
    torn = min((lake.lake / "messages").glob("*.parquet"))
    torn.write_bytes(torn.read_bytes()[:-10])
    with pytest.raises(LakeError, match=f"{torn.name} has other than the"):
        copy_lake(str(lake.lake), str(to))


def test_a_lake_goes_on_to_be_maintained_with_shared_files(
    lake: ReputLake, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that the copy's maintenance removes stay the lake's."""
    copy_lake(str(lake.lake), str(to))
    reput(lake.store, str(to))
    maintain(str(to))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 8 * 86_400)
    reports = maintain(str(to))
    assert sum(report.removed.files for report in reports) > 0
    lake.fill()
    assert_exact(lake.lake, lake.store)
    assert_exact(to, lake.store)


@pytest.mark.parametrize(
    "path", ["../../evil.parquet", "%2E%2E/%2E%2E/evil.parquet", "%2Fevil.parquet", "a%00b"]
)
def test_a_file_outside_of_its_table_is_not_taken_over(tmp_path: Path, to: Path, path: str) -> None:
    """Whoever writes to the lake's folder may name any."""
    lake = empty_lake(str(tmp_path / "lake")).path
    add = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    (lake / "messages" / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"add": add}) + "\n")
    with pytest.raises(LakeError, match=r"its file .* is outside of its folder"):
        copy_lake(str(lake), str(to))
    assert "outside" in {each.what: each.problems for each in check_lake(str(lake))}["messages"][0]
