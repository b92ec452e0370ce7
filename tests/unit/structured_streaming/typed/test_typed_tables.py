"""Typed tables have each message of their topic once: kept up, filled from the lake, or both, whoever dies in between."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakebroker_testing.logs import encoded, pending
from structured_streaming import destination, typed_topics
from structured_streaming.commit import typed_fill
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.commit.table_log import TableLog
from structured_streaming.commit.typed_declared import declarations, readable
from structured_streaming.commit.typed_fill import fill
from structured_streaming.commit.typed_lake import FolderTyped
from structured_streaming.commit.typed_tables import alter, declare, look
from structured_streaming.commit.upgrade import prepare_lake
from structured_streaming.destination import KeptUpTopics
from structured_streaming.errors import LakeError, StoreAwayError
from structured_streaming.maintenance import maintain as maintenance
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.staging.stage import stage
from structured_streaming.staging.wanted import Wanted
from structured_streaming.storage.local import LocalFolder
from structured_streaming.typed.declaration import ACTIVE, FILLING, JSON, Declaration, Schema
from structured_streaming.typed.fields import SchemaError, TypedField, joined
from structured_streaming.typed_topics import Asked, TypedTopics
from structured_streaming.union.followed import FollowedLake
from tests.support.lakes.empty import empty_lake

V1 = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
V2 = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["id"],
}
ORDERS = Declaration("orders", "typed_orders", JSON, (Schema(1, json.dumps(V1)),))


def records(count: int, base: int) -> bytes:
    """Of two topics in turn; every tenth of the first is bad."""
    bodies = (b'{"id":%d}' % n if n % 10 != 5 else b"bad" for n in range(count))
    return encoded(
        (
            pending("orders" if n % 2 else "others", body, UNIQ_KEY=f"ID{base}-{n}")
            for n, body in enumerate(bodies)
        ),
        base,
    )[0]


def manifest(lake: Path, data: bytes, base: int, typed: tuple[Declaration, ...] = ()) -> list[dict[str, Any]]:
    end = base + len(data)
    part = SimpleNamespace(
        target="store:-",
        broker="b",
        log_id="l",
        start=base,
        end=end,
        log_end=end,
        delay_levels=None,
        segment_size=None,
        erased=(),
    )
    found = stage(str(lake), part, iter([(base, data)]), Wanted(typed=typed))  # type: ignore[arg-type]
    return [row for batch in found for row in batch.to_pylist()]


class Log:
    """Batches of a log, one behind the other."""

    def __init__(self, lake: Path) -> None:
        self.lake, self.end = lake, 0

    def batch(self, *typed: Declaration, after_step: Any = lambda step: None) -> None:
        data = records(100, self.end)
        sink = DeltaCommitSink(str(self.lake), after_step, Wanted(typed=typed))
        sink.commit(manifest(self.lake, data, self.end, typed))
        self.end += len(data)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return empty_lake(str(tmp_path / "lake")).path


def rows(lake: Path, table: str = "typed_orders") -> list[dict[str, Any]]:
    found = DeltaTable(str(lake / table)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row["physical_offset"])


def assert_whole(lake: Path, first: int = 0) -> None:
    """As many rows as messages, of the same messages, and a reason wherever there is no version."""
    messages = DeltaTable(str(lake / "messages")).to_pyarrow_table().to_pylist()
    expected = sorted(
        (row["physical_offset"], row["message_id"], row["store_timestamp"])
        for row in messages
        if row["topic"] == "orders" and row["physical_offset"] >= first
    )
    found = rows(lake)
    assert [(row["physical_offset"], row["message_id"], row["store_timestamp"]) for row in found] == expected
    for row in found:
        assert (row["reason"] is None) == (row["schema_version"] is not None) == (row["id"] is not None)


def test_a_topic_is_kept_up_with_the_lake(lake: Path) -> None:
    declare(LocalFolder(lake), ORDERS)
    log = Log(lake)
    for _ in range(3):
        log.batch(ORDERS)
    assert_whole(lake)
    assert len(rows(lake)) == 150
    progress = DeltaTable(str(lake / "reput_progress")).to_pyarrow_table().to_pylist()
    assert all("typed_orders" in dict(row["table_versions"]) for row in progress)
    assert fill(LocalFolder(lake), ORDERS) == 0
    assert DeltaTable(str(lake / "typed_orders")).version() == 3


def test_what_was_there_before_comes_from_messages_once(lake: Path) -> None:
    log = Log(lake)
    for _ in range(3):
        log.batch()
    folder = LocalFolder(lake)
    declare(folder, dataclasses.replace(ORDERS, state=FILLING))
    assert look(folder).kept_up == []
    assert fill(folder, ORDERS) == 150
    assert fill(folder, ORDERS) == 0
    active = alter(folder, "typed_orders", lambda declared: dataclasses.replace(declared, state=ACTIVE))
    assert look(folder).kept_up == [active]
    log.batch(ORDERS)
    log.batch()  # of a reput that does not know the topic
    assert fill(folder, ORDERS) == 50
    log.batch(ORDERS)
    assert_whole(lake)


def test_from_now_on_leaves_out_what_was_there(lake: Path) -> None:
    log = Log(lake)
    log.batch()
    begin = log.end
    late = dataclasses.replace(ORDERS, start=(("b/l", begin),))
    declare(LocalFolder(lake), late)
    log.batch()
    assert fill(LocalFolder(lake), late) == 50
    log.batch(late)
    assert_whole(lake, begin)


def test_a_fill_that_fails_on_the_way_leaves_nothing(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(lake)
    for _ in range(3):
        log.batch()
    folder = LocalFolder(lake)
    declare(folder, ORDERS)
    monkeypatch.setattr(typed_fill, "_HELD_ROWS", 10)
    monkeypatch.setattr(typed_fill, "_FILE_BYTES", 1)
    seen = []

    def die(count: int) -> None:
        seen.append(count)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(folder, ORDERS, die)
    assert rows(lake) == []
    assert list((lake / "typed_orders").glob("*.parquet")) == []
    assert fill(folder, ORDERS) == 150
    assert_whole(lake)


def test_of_two_fills_at_once_one_counts(lake: Path) -> None:
    log = Log(lake)
    log.batch()
    folder = LocalFolder(lake)
    declare(folder, ORDERS)
    other: list[int] = []

    def meanwhile(_: int) -> None:
        if not other:
            other.append(-1)
            other.append(fill(folder, ORDERS))

    assert fill(folder, ORDERS, meanwhile) == 0
    assert other[1] == 50
    assert_whole(lake)
    there = {file.rpartition("/")[2] for file in DeltaTable(str(lake / "typed_orders")).file_uris()}
    assert {path.name for path in (lake / "typed_orders").glob("*.parquet")} == there


@pytest.mark.parametrize("step", ["messages", "typed_orders"])
def test_a_crash_between_two_tables_neither_doubles_nor_loses(lake: Path, step: str) -> None:
    declare(LocalFolder(lake), ORDERS)
    log = Log(lake)
    log.batch(ORDERS)
    begin = log.end

    def die(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log.batch(ORDERS, after_step=die)
    assert fill(LocalFolder(lake), ORDERS) == 0
    progress = LakeProgress(str(lake), [ORDERS])
    (end,) = progress.stops("b", "l")
    assert progress.offsets == {("b", "l"): begin}
    assert end == begin + len(records(100, begin))
    log.batch(ORDERS)
    assert_whole(lake)


def evolved(lake: Path, schema: dict[str, Any]) -> Declaration:
    def change(declared: Declaration) -> Declaration:
        return declared.evolved(Schema(declared.newest.version + 1, json.dumps(schema)))

    return alter(LocalFolder(lake), "typed_orders", change)


def test_fields_are_added_without_a_rewrite(lake: Path) -> None:
    declare(LocalFolder(lake), ORDERS)
    log = Log(lake)
    log.batch(ORDERS)
    files = DeltaTable(str(lake / "typed_orders")).file_uris()
    later = evolved(lake, V2)
    assert DeltaTable(str(lake / "typed_orders")).file_uris() == files
    log.batch(later)
    assert_whole(lake)
    found = rows(lake)
    assert {row["schema_version"] for row in found} == {None, 1, 2}
    assert "name" in found[0]
    assert declarations(LocalFolder(lake)) == [later]


def test_what_is_committed_after_a_declaration_is_read_by_it(lake: Path) -> None:
    """Whenever it comes: before a batch is committed, and between the look at the table and the commit to it."""
    declare(LocalFolder(lake), ORDERS)
    log = Log(lake)
    log.batch(ORDERS)
    later = evolved(lake, V2)
    sink = DeltaCommitSink(str(lake), wanted=Wanted(typed=(ORDERS,)))
    for _ in range(2):  # of a query that does not know it yet
        data = records(100, log.end)
        sink.commit(manifest(lake, data, log.end, (ORDERS,)))
        log.end += len(data)
    assert len(rows(lake)) == 50
    assert len(list((lake / "typed_orders").glob("*.parquet"))) == 1
    assert fill(LocalFolder(lake), later) == 100
    log.batch(later)
    assert_whole(lake)
    assert {row["schema_version"] for row in rows(lake)[50:]} == {None, 2}


def test_a_declaration_between_look_and_commit(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(LocalFolder(lake), ORDERS)
    log = Log(lake)
    log.batch(ORDERS)
    append, done = TableLog.append, []

    def late(table: TableLog, files: Any, transactions: Any) -> None:
        if "typed_orders" in str(table.folder) and not done:
            done.append(evolved(lake, V2))
        append(table, files, transactions)

    monkeypatch.setattr(TableLog, "append", late)
    log.batch(ORDERS)
    assert len(rows(lake)) == 50
    assert fill(LocalFolder(lake), done[0]) == 50
    assert_whole(lake)


def test_a_type_that_the_column_cannot_hold_is_refused(lake: Path) -> None:
    declare(LocalFolder(lake), ORDERS)
    version = DeltaTable(str(lake / "typed_orders")).version()
    with pytest.raises(
        SchemaError, match=r"field id is string in this schema and int64 in the table.*--table"
    ):
        evolved(lake, {"type": "object", "properties": {"id": {"type": "string"}}})
    assert DeltaTable(str(lake / "typed_orders")).version() == version


NUMBERS = (pa.int32(), pa.int64(), pa.float32(), pa.float64())
WIDER = {(pa.int64(), pa.int32()), (pa.float64(), pa.int32()), (pa.float64(), pa.float32())}


@pytest.mark.parametrize(("column", "field"), [*itertools.permutations(NUMBERS, 2)], ids=str)
def test_a_number_goes_into_a_column_that_holds_its_every_value(
    column: pa.DataType, field: pa.DataType
) -> None:
    old = [TypedField("n", column)]
    if (column, field) in WIDER:
        assert joined(old, [TypedField("n", field)]) == old
    else:
        with pytest.raises(SchemaError, match=f"field n is {field} in this schema and {column} in the table"):
            joined(old, [TypedField("n", field)])


def test_names_that_collide_are_refused(lake: Path) -> None:
    folder = LocalFolder(lake)
    declare(folder, ORDERS)
    with pytest.raises(LakeError, match="typed already, in table typed_orders"):
        declare(folder, dataclasses.replace(ORDERS, table="typed_others"))
    with pytest.raises(LakeError, match=r"has topic orders.*--table"):
        declare(folder, dataclasses.replace(ORDERS, topic="Orders"))
    (lake / "typed_mine").mkdir()
    with pytest.raises(LakeError, match="no typed table"):
        declare(folder, dataclasses.replace(ORDERS, topic="mine", table="typed_mine"))


def test_a_table_that_was_altered_is_told_and_keeps_nobody_else(lake: Path) -> None:
    folder = LocalFolder(lake)
    declare(folder, ORDERS)
    others = dataclasses.replace(ORDERS, topic="others", table="typed_others")
    declare(folder, others)
    log = TableLog(folder.child("typed_orders"))
    log.alter({**log.metadata, "schemaString": log.metadata["schemaString"].replace('"long"', '"string"')})
    told: list[str] = []
    assert look(folder, told.append) == ([others], [], ["typed_orders"])
    assert len(told) == 1
    assert "typed_orders" in told[0]


def test_a_declaration_that_is_none_is_told(lake: Path) -> None:
    folder = LocalFolder(lake)
    declare(folder, ORDERS)
    log = TableLog(folder.child("typed_orders"))
    log.alter({**log.metadata, "configuration": {**log.metadata["configuration"], "lakebroker.typed": "{}"}})
    with pytest.raises(LakeError, match=r"lakebroker.typed of .*typed_orders cannot be read.*RESTORE"):
        declarations(folder)
    told: list[str] = []
    assert look(folder, told.append).kept_up == []
    assert len(told) == 1


def test_a_table_that_lacks_much_holds_up_nobody(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, log = LocalFolder(lake), Log(lake)
    others = dataclasses.replace(ORDERS, topic="others", table="typed_others")
    declare(folder, ORDERS)
    declare(folder, others)
    log.batch(ORDERS, others)
    for _ in range(3):
        log.batch(others)
    kept = KeptUpTopics(FolderTyped(folder), 100)
    assert kept.filled() == (others,)
    orders = {"typed_orders": ("orders", True), "typed_others": ("others", False)}
    assert kept.behind() == orders
    said = capsys.readouterr().err
    assert "typed_orders lacks messages" in said
    assert "`lakebroker typed fill orders`" in said
    assert not kept.changed({}), "nobody declared anything since"
    assert len(rows(lake)) == 50
    log.batch(others)
    assert kept.filled() == (others,)
    assert capsys.readouterr().err == ""
    topics = TypedTopics(FolderTyped(folder))
    filled = topics.fill("orders", lambda count: None)
    assert (filled.declared, filled.rows) == (ORDERS, 200)
    assert_whole(lake)
    assert kept.behind() == orders
    assert kept.changed({})
    assert kept.filled() == (ORDERS, others)
    assert kept.behind() == orders | {"typed_orders": ("orders", False)}
    assert topics.fill("orders", lambda count: None).rows == 0
    log.batch(ORDERS, others)
    assert_whole(lake)


def test_what_logs_have_of_other_topics_puts_no_table_off(lake: Path) -> None:
    """However much it is: a fill does not read it."""
    folder, log = LocalFolder(lake), Log(lake)
    quiet = dataclasses.replace(ORDERS, topic="quiet", table="typed_quiet")
    declare(folder, quiet)
    for _ in range(3):
        log.batch()
    assert KeptUpTopics(FolderTyped(folder), 0).filled() == (quiet,)


def test_maintenance_fills_what_the_reput_put_off(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, log = LocalFolder(lake), Log(lake)
    declare(folder, ORDERS)
    for _ in range(5):
        log.batch()
    assert KeptUpTopics(FolderTyped(folder), 0).filled() == ()
    monkeypatch.setattr(maintenance, "_FILL_S", -1)
    monkeypatch.setattr(typed_topics, "FILLED_BYTES", 0)
    (report,) = [each for each in maintain(str(lake)) if each.table == "typed_orders"]
    assert (report.filled_rows, report.problems, rows(lake)) == (0, [], [])
    assert ["`lakebroker typed fill orders`" in each for each in report.waits] == [True]
    assert [each.state for each in declarations(folder)] == [FILLING], "what is left is for the next round"
    monkeypatch.undo()
    (report,) = [each for each in maintain(str(lake)) if each.table == "typed_orders"]
    assert (report.filled_rows, report.waits, report.problems) == (250, [], [])
    assert [each.state for each in declarations(folder)] == [ACTIVE]
    assert_whole(lake)


def test_batches_that_went_to_a_table_are_no_python_objects(lake: Path) -> None:
    folder, log = LocalFolder(lake), Log(lake)
    declare(folder, ORDERS)
    for _ in range(3):
        log.batch(ORDERS)
    version = TableLog(folder.child("reput_progress")).version
    assert list(typed_fill.other_batches(folder, version, ORDERS, 0)) == []
    others = list(
        typed_fill.other_batches(folder, version, dataclasses.replace(ORDERS, table="typed_others"), 0)
    )
    assert len(others) == 3
    assert [each.start for each in others] == [0, *(each.end for each in others[:-1])]
    assert others[-1] == ("b", "l", others[-1].start, log.end)


@pytest.mark.timeout(60)  # one that begins anew each time has no end
def test_a_fill_commits_part_by_part(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, log = LocalFolder(lake), Log(lake)
    declare(folder, ORDERS)
    for _ in range(3):
        log.batch()
    monkeypatch.setattr(typed_fill, "PART_BYTES", log.end // 7)  # within batches, too
    assert fill(folder, ORDERS) == 150
    assert DeltaTable(str(lake / "typed_orders")).version() == 8
    assert_whole(lake)
    assert fill(folder, ORDERS) == 0


def test_what_a_table_lacks_is_filled_by_the_reput_up_to_a_bound(lake: Path) -> None:
    log = Log(lake)
    declare(LocalFolder(lake), ORDERS)
    log.batch()
    assert KeptUpTopics(FolderTyped(LocalFolder(lake)), log.end).filled() == (ORDERS,)
    assert_whole(lake)


def test_a_topic_that_was_removed_goes_on_without_a_gap(lake: Path) -> None:
    topics, log = TypedTopics(FolderTyped(LocalFolder(lake))), Log(lake)
    asked = Asked("orders", JSON, ORDERS.schemas)
    declared = topics.add(asked, lambda count: None).declared
    log.batch(declared)
    topics.remove("orders")
    log.batch()
    with pytest.raises(LakeError, match="`lakebroker typed add` with its schema lets it go on"):
        topics.fill("orders", lambda count: None)
    assert len(rows(lake)) == 50
    again = topics.add(asked, lambda count: None)
    assert (again.declared.state, again.rows) == (ACTIVE, 50), "by the command: no reput waits for it"
    assert_whole(lake)


def test_a_table_that_was_deleted_and_is_declared_anew_lacks_nothing(lake: Path) -> None:
    """Its earlier batches name it, and did not go to the new one."""
    topics, log = TypedTopics(FolderTyped(LocalFolder(lake))), Log(lake)
    asked = Asked("orders", JSON, ORDERS.schemas)
    declared = topics.add(asked, lambda count: None).declared
    for _ in range(2):
        log.batch(declared)
    log.batch()
    shutil.rmtree(lake / "typed_orders")
    with pytest.raises(LakeError, match=r"had a table typed_orders before.*--from-beginning.*--table"):
        topics.add(asked, lambda count: None)
    assert not (lake / "typed_orders").exists()
    elsewhere = topics.add(asked._replace(table="typed_mine"), lambda count: None)
    assert (elsewhere.rows, topics.lacks(elsewhere.declared)) == (0, 0)
    shutil.rmtree(lake / "typed_mine")
    again = topics.add(asked._replace(from_beginning=True), lambda count: None)
    assert (again.declared.state, again.rows, topics.lacks(again.declared)) == (ACTIVE, 150, 0)
    log.batch(again.declared)
    assert fill(LocalFolder(lake), again.declared) == 0
    assert_whole(lake)


def test_a_want_of_descriptors_hides_no_typed_table(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, real = LocalFolder(lake), LocalFolder.read
    declare(folder, ORDERS)

    def read(self: LocalFolder, name: str) -> bytes:
        if self.path.parent.name == ORDERS.table:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(self, name)

    monkeypatch.setattr(LocalFolder, "read", read)
    with pytest.raises(LakeError, match="Too many open files"):
        readable(folder)
    with pytest.raises(LakeError, match="Too many open files"):
        prepare_lake(str(lake))


@pytest.mark.parametrize("away", [False, True])
def test_a_disk_or_store_that_fails_a_fill_is_named_and_left_nothing(
    lake: Path, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """A full disk is that table's problem; a store that is away is everybody's."""
    Log(lake).batch()
    folder, real = LocalFolder(lake), LocalFolder.open_new
    declare(folder, ORDERS)

    def open_new(self: LocalFolder, name: str) -> Any:
        if self.path.name == ORDERS.table:
            raise StoreAwayError("it does not answer") if away else OSError(errno.ENOSPC, "No space left")
        return real(self, name)

    monkeypatch.setattr(LocalFolder, "open_new", open_new)
    with pytest.raises(LakeError, match=rf"{ORDERS.table} cannot be filled: .*(No space|does not answer)"):
        fill(folder, ORDERS)
    kept = KeptUpTopics(FolderTyped(folder))
    if away:
        with pytest.raises(LakeError) as failed:
            kept.filled()
        assert isinstance(failed.value.__cause__, StoreAwayError)
    else:
        assert kept.filled() == ()
        alter(folder, ORDERS.table, lambda declared: dataclasses.replace(declared, state=FILLING))
        reports = {report.table: report for report in maintain(str(lake))}
        assert "No space left" in reports[ORDERS.table].problems[0]
        assert not reports["messages"].problems
    monkeypatch.undo()
    assert fill(folder, ORDERS) == 50
    assert_whole(lake)


def test_a_table_that_could_not_be_filled_is_tried_again(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Log(lake).batch()
    folder, real = LocalFolder(lake), LocalFolder.open_new
    declare(folder, ORDERS)

    def once(self: LocalFolder, name: str) -> Any:
        if self.path.name == ORDERS.table:
            monkeypatch.setattr(LocalFolder, "open_new", real)
            raise OSError(errno.EIO, "Input/output error")
        return real(self, name)

    monkeypatch.setattr(LocalFolder, "open_new", once)
    kept = KeptUpTopics(FolderTyped(folder))
    assert kept.filled() == ()
    assert not kept.changed({})
    monkeypatch.setattr(destination, "AGAIN_S", -1.0)
    monkeypatch.setattr(LocalFolder, "open_new", once)
    assert kept.filled() == ()
    assert kept.changed({})
    assert kept.filled() == (ORDERS,)
    assert not kept.changed({})
    assert_whole(lake)


def test_batches_without_a_message_of_a_quiet_topic_are_looked_at_once(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, folder, looked = Log(lake), LocalFolder(lake), list[int]()
    declare(folder, ORDERS)
    log.batch(ORDERS)
    real = typed_fill.other_batches

    def batches(where: Any, version: int, declared: Declaration, behind: int) -> Any:
        looked.append(behind)
        return real(where, version, declared, behind)

    def quiet() -> None:
        data = encoded((pending("others", b"{}") for _ in range(3)), log.end)[0]
        found = manifest(lake, data, log.end, (ORDERS,))
        DeltaCommitSink(str(lake), lambda step: None, Wanted(typed=(ORDERS,))).commit(found)
        log.end += len(data)

    monkeypatch.setattr(typed_fill, "other_batches", batches)
    followed, loud = FollowedLake(folder), log.end
    for _ in range(2):
        quiet()
        for _ in range(3):
            assert followed.lacks(ORDERS, LakeProgress(str(lake)).offsets) == 0
    assert len(looked) == 2
    assert looked[0] == loud < looked[1]
    before = log.end
    log.batch()  # of a reput that does not know of the table
    for _ in range(2):
        assert followed.lacks(ORDERS, LakeProgress(str(lake)).offsets) == log.end - before
    assert fill(folder, ORDERS) == 50
    assert followed.lacks(ORDERS, LakeProgress(str(lake)).offsets) == 0
