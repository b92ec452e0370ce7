"""An erasure beside who fills a typed table, writes files, or was killed when it did: what they hold is in no version for good, and no
round says that all is out while it may come back."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from structured_streaming.commit.erasures_log import Erasures, add_erased
from structured_streaming.commit.log_cleaning import LogCleaning
from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.table_log import TableLog
from structured_streaming.commit.typed_fill import fill
from structured_streaming.commit.typed_tables import alter, declare
from structured_streaming.erased import Erased
from structured_streaming.errors import LakeError
from structured_streaming.iceberg.mirror import LakeMirror
from structured_streaming.iceberg.report import MirrorReport
from structured_streaming.maintenance import erasure
from structured_streaming.maintenance.check import check_lake
from structured_streaming.maintenance.erasure import Erasure, purge
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.storage.local import LocalFolder
from structured_streaming.typed.declaration import JSON, STOPPED, Declaration, Schema
from structured_streaming.union.followed import FollowedLake
from tests.support.lakes.dying_calls import Crash
from tests.support.lakes.iceberg_readers import assert_mirrored
from tests.support.lakes.marked import TOPIC, TYPED, WITH_MESSAGES, MarkedLake

SCHEMA = {"properties": {"who": {"type": "string"}, "n": {"type": "integer"}}}
DECLARED = Declaration(TOPIC, TYPED, JSON, (Schema(1, json.dumps(SCHEMA)),))
BATCHES = 2


@pytest.fixture(scope="module")
def unfilled(tmp_path_factory: pytest.TempPathFactory) -> MarkedLake:
    """With a typed table that nobody has filled."""
    made = MarkedLake(tmp_path_factory.mktemp("unfilled"))
    made.write(BATCHES)
    declare(made.folder, DECLARED)
    return made


@pytest.fixture
def lake(unfilled: MarkedLake, tmp_path: Path) -> MarkedLake:
    return unfilled.copied(tmp_path / "copy")


def once(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, meanwhile: Callable[[], object]) -> None:
    """Does something before the first call."""
    real, done = getattr(where, name), list[bool]()

    def call(*arguments: Any, **named: Any) -> Any:
        if not done:
            done.append(True)
            meanwhile()
        return real(*arguments, **named)

    monkeypatch.setattr(where, name, call)


def typed(lake: MarkedLake) -> list[str]:
    return sorted(row["who"] for row in lake.table(TYPED).to_pylist())


def files(lake: MarkedLake) -> set[str]:
    return {path.name for path in (lake.lake / TYPED).glob("*.parquet")}


def assert_out(lake: MarkedLake) -> None:
    """Nothing is left, and whoever reads need not be told of any."""
    assert typed(lake) == ["another"] * BATCHES
    assert lake.found() == []
    assert not len(FollowedLake(lake.folder).hidden())
    lake.assert_whole()


def test_messages_erased_while_a_fill_reads_are_not_in_what_it_commits(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are there when the erasure looks, and its commit comes behind."""
    rounds = list[Erasure]()

    def meanwhile() -> None:
        lake.erase()
        assert files(lake)
        rounds.append(purge(lake.folder, None))

    once(monkeypatch, Erasures, "follow", meanwhile)
    assert fill(lake.folder, DECLARED) == BATCHES
    assert typed(lake) == ["another"] * BATCHES
    assert not rounds[0].settled
    assert [each.table for each in rounds[0].tables if each.awaits_fill] == [TYPED]
    assert purge(lake.folder, None).settled
    assert_out(lake)


@pytest.mark.parametrize("step", ["messages", "look_again", "upkeep"])
def test_a_fill_that_commits_behind_the_turn_of_its_table_is_found_by_the_next_round(
    lake: MarkedLake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked at `erasures` before, and is slow."""
    from structured_streaming.maintenance import erasure

    def within() -> None:
        lake.erase()
        if step == "messages":
            real = erasure.Turn.run

            def run(self: Any, *arguments: Any, **named: Any) -> None:
                real(self, *arguments, **named)
                if self.report.table == "messages":
                    commit()

            monkeypatch.setattr(erasure.Turn, "run", run)
        elif step == "look_again":
            once(monkeypatch, erasure.Turn, "look_again", commit)
        else:
            once(monkeypatch, erasure, "add_to_upkeep", commit)
        rounds.append(purge(lake.folder, None))
        raise _CommittedError

    rounds, pending = list[Erasure](), list[Callable[[], None]]()

    def commit() -> None:
        if pending:
            pending.pop()()

    append = TableLog.append

    def held(self: TableLog, *arguments: Any, **named: Any) -> None:
        if self.folder.uri.endswith(TYPED) and not rounds:
            pending.append(lambda: append(self, *arguments, **named))
            within()
        append(self, *arguments, **named)

    monkeypatch.setattr(TableLog, "append", held)
    with pytest.raises(_CommittedError):
        fill(lake.folder, DECLARED)
    assert lake.marker in typed(lake)
    assert not rounds[0].settled
    assert len(FollowedLake(lake.folder).hidden())
    assert purge(lake.folder, None).settled
    assert_out(lake)


class _CommittedError(BaseException):
    """Ends a fill whose commit was made."""


def test_what_a_killed_fill_leaves_goes_when_another_one_was_there(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash() -> None:
        raise Crash

    once(monkeypatch, TableLog, "append", crash)
    with pytest.raises(Crash):
        fill(lake.folder, DECLARED)
    (left,) = files(lake)
    lake.erase()
    for _ in range(2):
        assert not purge(lake.folder, None).settled
        assert files(lake) == {left}, "a fill may be about to commit it"
    assert fill(lake.folder, DECLARED) == BATCHES
    assert purge(lake.folder, None).settled
    assert left not in files(lake)
    assert_out(lake)


def test_a_fill_begins_again_when_what_it_reads_was_written_anew(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from structured_streaming.commit import typed_fill

    def meanwhile() -> None:
        lake.erase()
        purge(lake.folder, None)

    once(monkeypatch, typed_fill, "_rows", meanwhile)
    assert fill(lake.folder, DECLARED) == BATCHES
    assert purge(lake.folder, None).settled
    assert_out(lake)


def test_a_file_of_messages_that_is_lost_is_an_error_of_the_fill(lake: MarkedLake) -> None:
    for file in Snapshot(lake.table_folder("messages")).files.values():
        (lake.lake / "messages" / file.name).unlink()
    with pytest.raises(LakeError, match="cannot be read"):
        fill(lake.folder, DECLARED)
    assert files(lake) == set()


def test_a_fill_begins_again_when_its_file_is_gone(lake: MarkedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile() -> None:
        for name in files(lake):
            (lake.lake / TYPED / name).unlink()

    once(monkeypatch, Erasures, "follow", meanwhile)
    assert fill(lake.folder, DECLARED) == 2 * BATCHES
    assert len(typed(lake)) == 2 * BATCHES


@pytest.mark.parametrize("lost", [OSError(5, "the answer was lost"), KeyboardInterrupt()])
def test_a_fill_that_does_not_hear_of_its_commit_leaves_what_it_committed(
    lake: MarkedLake, lost: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalFolder.put_if_absent

    def put(self: LocalFolder, name: str, content: bytes) -> None:
        real(self, name, content)
        if TYPED in str(self):
            raise lost

    monkeypatch.setattr(LocalFolder, "put_if_absent", put)
    with pytest.raises((LakeError, KeyboardInterrupt)):
        fill(lake.folder, DECLARED)
    monkeypatch.undo()
    assert fill(lake.folder, DECLARED) == 0
    assert len(typed(lake)) == 2 * BATCHES


def test_a_fill_leaves_out_what_was_erased_before_it(lake: MarkedLake) -> None:
    """Also where the erasure has not come to the lake's rows."""
    lake.erase()
    assert fill(lake.folder, DECLARED) == BATCHES
    assert typed(lake) == ["another"] * BATCHES


def test_a_topic_that_was_removed_while_it_was_filled_gets_nothing_and_is_waited_for_no_more(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = list[Erasure]()

    def meanwhile() -> None:
        alter(lake.folder, TYPED, lambda declared: dataclasses.replace(declared, state=STOPPED))
        lake.erase()
        rounds.append(purge(lake.folder, None))

    once(monkeypatch, TableLog, "append", meanwhile)
    with pytest.raises(LakeError, match="typed no more"):
        fill(lake.folder, DECLARED)
    assert rounds[0].settled
    assert (files(lake), typed(lake), lake.found()) == (set(), [], [])


def test_a_mirror_that_another_maintenance_brought_further_is_made_anew_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = MarkedLake(tmp_path)
    lake.write(2)
    lake.remember()
    mirror = LakeMirror(lake.folder)

    def update() -> None:
        for name in WITH_MESSAGES:
            mirror.update(name, Snapshot(lake.table_folder(name)), time.time())

    renew = LakeMirror.renew

    def renewed(*arguments: Any) -> MirrorReport:
        lake.write_others()
        update()
        return renew(*arguments)

    update()
    lake.erase()
    monkeypatch.setattr(LakeMirror, "renew", renewed)
    assert purge(lake.folder, mirror).settled
    assert lake.found() == []
    assert_mirrored(lake.lake, WITH_MESSAGES)


def test_scratch_of_who_began_while_a_round_went_on_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it may have been made of rows that were still there."""
    lake = MarkedLake(tmp_path)
    lake.write(1)
    lake.erase()
    left = [lake.lake / "messages" / ".lakebroker-abc", lake.lake / ".lakebroker-merge"]
    once(monkeypatch, erasure.Turn, "run", lambda: [path.write_bytes(b"rows") for path in left])
    found = purge(lake.folder, None)
    assert (found.settled, found.scratch) == (False, 2)
    for path in left:
        path.unlink()
    assert purge(lake.folder, None).settled


@pytest.mark.parametrize("table", [TYPED, "quarantine"])
def test_a_table_that_is_damaged_and_points_to_no_other_keeps_no_row_in_another(
    lake: MarkedLake, table: str
) -> None:
    fill(lake.folder, DECLARED)
    lake.erase()
    log = lake.lake / "quarantine" / "_delta_log"
    damaged = lake.lake / TYPED / max(files(lake)) if table == TYPED else max(log.glob("*.json"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    found = purge(lake.folder, None)
    assert [each.table for each in found.tables if each.problems] == [table]
    assert not found.settled
    assert {each.table: each.rows for each in found.tables}["messages"] == BATCHES * 3
    damaged.write_bytes(content)
    assert purge(lake.folder, None).settled
    assert_out(lake)


def test_files_that_are_being_written_are_waited_for_until_they_are_old(tmp_path: Path) -> None:
    """By whoever was killed: one that is cut off, a run of a merge, a commit or a copy that has not its name yet."""
    lake = MarkedLake(tmp_path)
    lake.write(1)
    lake.remember()
    folder = lake.lake / "messages"
    content = next(folder.glob("*.parquet")).read_bytes()
    merge = lake.lake / ".lakebroker-merge"
    merge.mkdir()
    left = [
        folder / "part-0123.zstd.parquet",
        folder / ".lakebroker-abc",
        folder / "_delta_log" / ".lakebroker-def",
        folder / "_delta_log" / "_commit_0123.json.tmp",
        merge / "run-0.parquet",
    ]
    for path in left:
        path.write_bytes(content[:-20])
    lake.erase()
    found = purge(lake.folder, None)
    assert not found.settled
    assert ([each.table for each in found.tables if each.waits], found.scratch) == (["messages"], 4)
    assert all(path.exists() for path in left)
    reports = {report.table: report for report in maintain(lake.location)}
    assert [each for each in reports["erasures"].waits if "scratch files of other processes" in each]
    assert [each for each in reports["erasures"].waits if "that are being written" in each]
    for path in (*left, merge):
        os.utime(path, (time.time() - 7200,) * 2)
    found = purge(lake.folder, None)
    assert (found.settled, found.scratch) == (True, 0)
    assert not any(path.exists() for path in left)
    assert lake.found() == []
    assert not any(report.waits for report in maintain(lake.location))


def test_a_round_is_about_what_none_has_settled(tmp_path: Path) -> None:
    """Rows that somebody brings back by hand are looked for when they are named once more."""
    lake = MarkedLake(tmp_path)
    lake.write(1)
    lake.remember()
    kept = {
        file: (lake.lake / "messages" / file.name).read_bytes()
        for file in Snapshot(lake.table_folder("messages")).files.values()
    }
    first = lake.erase()
    assert purge(lake.folder, None).settled
    lake.write(1)
    second = lake.erase()
    assert len(second) == len(first) == 3
    assert sorted(FollowedLake(lake.folder).hidden().table().to_pylist(), key=repr) == sorted(
        second.table().to_pylist(), key=repr
    )
    log = TableLog(lake.table_folder("messages"))
    for file, content in kept.items():
        (lake.lake / "messages" / file.name).write_bytes(content)
        log.append([{"path": file.path, "size": file.size, "stats": file.stats}], {})
    found = purge(lake.folder, None)
    assert found.settled
    assert {each.table: each.rows for each in found.tables}["messages"] == 3
    assert lake.mine().table() == first.table()
    assert purge(lake.folder, None).tables == []
    found = purge(lake.folder, None, again=first)
    assert {each.table: each.rows for each in found.tables}["messages"] == 3
    assert not len(lake.mine())


def test_what_versions_had_is_opened_only_where_nothing_else_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from structured_streaming.maintenance import erasure

    lake = MarkedLake(tmp_path)
    lake.write(3)
    maintain(lake.location)
    folder = lake.table_folder("messages")
    replaced = {file for file in folder.names() if file.endswith(".parquet")}
    replaced -= {file.name for file in Snapshot(folder).files.values()}
    before = lake.mine()
    lake.write(1)
    lake.remember()
    opened, parts = set[str](), erasure.parts

    def noted(folder: Any, file: Any, schema: Any) -> Any:
        opened.add(file.name)
        return parts(folder, file, schema)

    monkeypatch.setattr(erasure, "parts", noted)
    newest = lake.mine().without(before)
    add_erased(lake.folder, newest, datetime.now(UTC))
    assert purge(lake.folder, None).settled
    assert len(replaced) >= 3
    assert not opened & replaced
    assert replaced <= set(folder.names())
    lake.checkpoint()
    log = lake.lake / "messages" / "_delta_log"
    for path in sorted(log.glob("*.json"))[:-1]:
        path.unlink()
    add_erased(
        lake.folder, Erased({log: offsets[:1] for log, offsets in before.by_log.items()}), datetime.now(UTC)
    )
    monkeypatch.setattr(erasure, "YOUNG_S", -1)
    assert purge(lake.folder, None).settled
    assert not opened & replaced
    assert not replaced & set(folder.names())
    lake.assert_whole()


def test_a_commit_that_another_round_cleaned_meanwhile_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = MarkedLake(tmp_path)
    lake.write(3)
    folder = lake.table_folder("message_index")
    commits = sorted((lake.lake / "message_index" / "_delta_log").glob("*.json"))[-3:]
    first = commits[0].name

    def of_that_commit(stated: Mapping[str, Any]) -> bool:
        return bool(stated) and json.dumps(stated) in known

    known = {
        json.dumps(json.loads(action["add"]["stats"]))
        for action in map(json.loads, commits[0].read_text().splitlines())
        if "add" in action
    }
    assert len(known) > 1
    some = set(sorted(known)[:1])
    one = LogCleaning(
        folder, TableLog(folder), (), lambda stated: bool(stated) and json.dumps(stated) in some
    )
    other = LogCleaning(folder, TableLog(folder), (), of_that_commit)
    real, behind = LocalFolder.read_each, list[int]()

    def late(self: LocalFolder, names: Iterable[str]) -> Iterator[bytes]:
        names = list(names)
        for name, content in zip(names, real(self, names), strict=False):
            if name == first and not behind:
                behind.append(0)
                behind[0] = other.run()
            yield content

    monkeypatch.setattr(LocalFolder, "read_each", late)
    assert one.run() == 0, "there is nothing left of it to do"
    assert behind == [1]
    assert '"stats"' not in commits[0].read_text()
    assert '"stats"' in commits[1].read_text()


@pytest.mark.parametrize(
    "content", [b'{"add":{"path":"1.parquet","stats"', b'{"add":{"path":"1","stats":7}}']
)
def test_a_commit_that_is_none_is_a_problem_of_its_table(lake: MarkedLake, content: bytes) -> None:
    """Readers do not open it, where there is a checkpoint of a later version."""
    lake.checkpoint()
    log = lake.lake / "message_index" / "_delta_log"
    sorted(log.glob("*.json"))[1].write_bytes(content)
    lake.erase()
    reports = {report.table: report for report in maintain(str(lake.lake))}
    assert "this log cannot be used as it is" in reports["message_index"].problems[0]
    assert not reports["consume_queue"].problems


@pytest.mark.parametrize("declared", [False, True])
def test_a_table_of_others_with_such_a_name_keeps_nothing_from_its_turn(
    lake: MarkedLake, declared: bool
) -> None:
    """One without a declaration is nobody's; a typed one that somebody wrote over is a problem of its own."""
    if not declared:
        fill(lake.folder, DECLARED)
    foreign = lake.lake / ("typed_people" if declared else "typed_mine")
    for number in range(2):
        write_deltalake(
            str(foreign),
            pa.table({"x": [number]}),
            mode="overwrite" if declared and not number else "append",
            schema_mode="overwrite" if declared and not number else None,
        )
    lake.erase()
    reports = {report.table: report for report in maintain(str(lake.lake))}
    problems = {name: report.problems for name, report in reports.items() if report.problems}
    checked = {each.what: each.problems for each in check_lake(str(lake.lake)) if each.problems}
    if declared:
        assert problems.keys() == {foreign.name}
        assert checked.keys() == {foreign.name}
        assert "it has no column broker and none log_id" in problems[foreign.name][0]
    else:
        assert problems == checked == {}
        assert foreign.name not in reports
    assert lake.found() == []


def test_a_commit_is_read_once_in_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = MarkedLake(tmp_path)
    lake.write(3)
    folder = lake.table_folder("message_index")
    cleaning = LogCleaning(folder, TableLog(folder), (), lambda stated: "minValues" not in stated)
    counts, read = Counter[str](), LocalFolder.read

    def noted(self: LocalFolder, name: str) -> bytes:
        counts[name] += 1
        return read(self, name)

    monkeypatch.setattr(LocalFolder, "read", noted)
    assert not cleaning.is_needed()
    assert cleaning.run() == cleaning.run() == 0
    assert {counts[path.name] for path in (lake.lake / "message_index" / "_delta_log").glob("*.json")} == {1}
    assert len(cleaning.told) >= 3
    assert not any(cleaning.told.values()), "no more of their statistics is kept"
    live = Snapshot(folder).files
    cleaning = LogCleaning(folder, TableLog(folder), live, lambda stated: True)
    assert cleaning.run() == 0
    assert not cleaning.told, "nor anything of the version's files"
