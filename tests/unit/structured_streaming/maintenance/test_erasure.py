"""Erased messages are in no file of the lake any more, and everything else is as it was; whoever commits, reads or looks after it
meanwhile, wherever it is killed."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deltalake import DeltaTable

from structured_streaming.commit.erasures_log import add_erased
from structured_streaming.commit.last_checkpoint import checkpoints
from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.table_log import TableLog
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.erased import Erased
from structured_streaming.maintenance.erasure import Erasure, purge, would_purge
from structured_streaming.maintenance.maintain import lake_mirror, maintain
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import DATA_TABLES
from tests.suite.evidence import LONG, rounds
from tests.support.lakes.dying_calls import DyingCalls
from tests.support.lakes.iceberg_readers import assert_mirrored, by_pyiceberg, opened
from tests.support.lakes.marked import TYPED, WITH_MESSAGES, MarkedLake

STEPS = ("put_if_absent", "replace", "remove", "derive", "open_new", "make_durable", "remove_all")


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> MarkedLake:
    """Put together and mirrored once, with checkpoints before and behind."""
    made = MarkedLake(tmp_path_factory.mktemp("marked"))
    made.write(2)
    made.checkpoint()
    made.declare()
    made.write()
    assert [report.problems for report in maintain(made.location, mirrored=True) if report.problems] == []
    made.write()
    made.checkpoint()
    made.write()
    return made


@pytest.fixture
def lake(aged: MarkedLake, tmp_path: Path) -> MarkedLake:
    return aged.copied(tmp_path / "copy")


def run(lake: MarkedLake) -> Erasure:
    found = purge(lake.folder, lake_mirror(lake.folder, None))
    assert [each.problems for each in found.tables if each.problems] == []
    return found


def versions(lake: MarkedLake) -> dict[str, int]:
    return {table.name: DeltaTable(f"{lake.lake}/{table.name}").version() for table in DATA_TABLES}


def assert_others(lake: MarkedLake, before: dict[str, list[str]]) -> None:
    """As before; deliveries stay without the message's id."""
    after = lake.others()
    deliveries = after.pop("delivery_events")
    assert set(before["delivery_events"]) <= set(deliveries)
    assert after == {name: rows for name, rows in before.items() if name != "delivery_events"}


def test_no_file_of_the_lake_holds_anything_of_them_and_all_else_stays(lake: MarkedLake) -> None:
    before, deliveries = lake.others(), lake.table("delivery_events").num_rows
    typed = [row for row in typed_rows(lake) if row["who"] == "another"]
    assert len(lake.found()) > 100
    erased = lake.erase()
    found = run(lake)
    assert lake.found() == []
    assert_others(lake, before)
    assert lake.table("delivery_events").num_rows == deliveries
    done = {each.table: each.rows for each in found.tables}
    assert done["messages"] == len(erased) == 3 * 5
    assert found.settled
    assert found.ahead == 0
    assert done[TYPED] == len(typed) == 5
    assert typed_rows(lake) == typed
    assert_mirrored(lake.lake, [*WITH_MESSAGES, "delivery_events"])
    assert by_pyiceberg(opened(lake.lake, TYPED)).num_rows == 5


def typed_rows(lake: MarkedLake) -> list[dict[str, Any]]:
    return lake.table(TYPED).sort_by("physical_offset").to_pylist()


def test_the_last_row_of_a_queue_stays_without_anything_of_its_message(lake: MarkedLake) -> None:
    ends = queue_ends(lake)
    lake.erase()
    run(lake)
    assert queue_ends(lake) == ends
    rows = lake.table("consume_queue").to_pylist()
    assert {
        (row["topic"], row["queue_id"]) for row in rows if row["topic"] in ("%RETRY%g", "rmq_sys_wheel_timer")
    } == {
        ("%RETRY%g", 0),
        ("rmq_sys_wheel_timer", 0),
    }


def queue_ends(lake: MarkedLake) -> dict[tuple[Any, ...], int]:
    found: dict[tuple[Any, ...], int] = {}
    for row in lake.table("consume_queue").to_pylist():
        key = (row["broker"], row["log_id"], row["topic"], row["queue_id"])
        found[key] = max(found.get(key, -1), row["queue_offset"])
    return found


def test_files_of_no_version_go_when_no_batch_can_have_them_any_more(lake: MarkedLake) -> None:
    """One of a batch that was given up, one of a batch that is about to be committed, one that cannot be read."""
    lake.append()
    (batch,) = lake.manifests()
    coming = [row for row in batch if row["table"] == "messages"]
    folder = lake.lake / "messages"
    (given_up,) = [path.name for path in folder.glob("*.parquet") if path.name != coming[0]["path"]][:1]
    shutil.copyfile(folder / given_up, folder / "part-given-up.zstd.parquet")
    (folder / "part-being-written.zstd.parquet").write_bytes(b"PAR1")
    (folder / "part-half.zstd.parquet").write_bytes(b"PAR1" + lake.marker.encode())
    os.utime(folder / "part-half.zstd.parquet", (time.time() - 7200,) * 2)
    with_coming = lake.mine().together(
        Erased({log: np.array(lake.places_in_log()) for log in lake.mine().by_log})
    )
    add_erased(lake.folder, with_coming, datetime.now(UTC))
    found = run(lake)
    assert (found.settled, found.ahead) == (False, 3)
    assert {each.table: each.waits for each in found.tables if each.waits} == {"messages": 1}
    left = {path.name for path in folder.glob("*.parquet")}
    assert coming[0]["path"] in left
    assert "part-being-written.zstd.parquet" in left
    assert not left & {"part-given-up.zstd.parquet", "part-half.zstd.parquet"}
    (folder / "part-being-written.zstd.parquet").unlink()
    assert run(lake).settled
    assert run(lake).tables == [], "as long as the lake is not beyond them"
    lake.sink().commit(batch)
    assert len(lake.found()) > 4
    found = run(lake)
    assert (found.settled, found.ahead) == (True, 0)
    assert lake.found() == []


def test_files_of_older_versions_that_cannot_be_read_now_stay(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.erase()
    folder = lake.folder.child("messages")
    live = {file.name for file in Snapshot(folder).files.values()}
    older = {name for name in folder.names() if name.endswith(".parquet")} - live
    readable = LocalFolder.readable

    def without_descriptors(folder: LocalFolder, name: str) -> str:
        if name in older:
            raise OSError(errno.EMFILE, "Too many open files")
        return readable(folder, name)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "readable", without_descriptors)
        found = purge(lake.folder, lake_mirror(lake.folder, None))
    (problem,) = {each.table: each.problems for each in found.tables}["messages"]
    assert "cannot be read now" in problem
    assert not found.settled
    assert older <= set(folder.names())
    assert run(lake).settled
    assert lake.found() == []


def test_a_staged_file_of_a_writer_that_died_goes_once_the_lake_is_beyond_it(lake: MarkedLake) -> None:
    lake.append()
    lake.manifests()  # whose writer dies
    lake.reput()
    lake.remember()
    lake.erase()
    assert run(lake).settled
    assert lake.found() == []


def test_a_second_round_does_nothing(lake: MarkedLake) -> None:
    lake.erase()
    run(lake)
    before = versions(lake) | {"upkeep": DeltaTable(f"{lake.lake}/upkeep").version()}
    assert run(lake).tables == []
    assert versions(lake) | {"upkeep": DeltaTable(f"{lake.lake}/upkeep").version()} == before


def test_a_dry_run_says_what_would_go_and_changes_nothing(lake: MarkedLake) -> None:
    before, there = versions(lake), lake.found()
    said = would_purge(lake.folder, lake.mine())
    assert versions(lake) == before
    assert lake.found() == there
    lake.erase()
    done = run(lake)
    assert [(each.table, each.rows, each.files) for each in said.tables] == [
        (each.table, each.rows, each.files) for each in done.tables
    ]


def test_the_reput_commits_at_every_instant_and_no_batch_is_lost(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is committed before steps that change the lake: by one that looked at the tables before the erasure, too."""
    before = lake.others()
    lake.erase()
    real = {name: getattr(LocalFolder, name) for name in STEPS}
    steps, batches, within = 0, 0, False

    def beside(name: str) -> Callable[..., Any]:
        @functools.wraps(real[name])
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal steps, batches, within
            if not within:
                within = True
                if steps % rounds(61, 12) == 0:
                    lake.write_others()
                    batches += 1
                steps += 1
                within = False
            return real[name](*arguments, **named)

        return call

    for name in STEPS:
        monkeypatch.setattr(LocalFolder, name, beside(name))
    purge(lake.folder, lake_mirror(lake.folder, None))
    monkeypatch.undo()
    assert batches > 3
    run(lake)
    assert lake.found() == []
    after = lake.others()
    for name in WITH_MESSAGES:
        assert set(before[name]) <= set(after[name])
    lake.assert_whole()


def test_a_writer_who_is_behind_finds_its_version_taken(lake: MarkedLake) -> None:
    """It read the table's log before the erasure, and commits when that is over: its rows are in the newest version."""
    behind = {name: TableLog(lake.table_folder(name)) for name in WITH_MESSAGES}
    followed = {name: Snapshot(lake.table_folder(name)) for name in WITH_MESSAGES}
    lake.erase()
    run(lake)
    for name, log in behind.items():
        before = log.version
        newest = DeltaTable(f"{lake.lake}/{name}").version()
        assert before < newest
        with pytest.raises(Exception, match="another writer's"):
            log.append([], {"x": 1})
        log.follow()
        assert log.version == newest
        log.append([], {"x": 1})
        assert DeltaTable(f"{lake.lake}/{name}").transaction_version("x") == 1
        followed[name].follow()
        anew = Snapshot(lake.table_folder(name))
        assert set(followed[name].files) == set(anew.files)
        assert followed[name].version == anew.version == newest + 1


def test_readers_who_follow_see_the_newest_rows_or_an_error_and_never_others(lake: MarkedLake) -> None:
    opened = {name: DeltaTable(f"{lake.lake}/{name}") for name in WITH_MESSAGES}
    pinned = {name: table.version() for name, table in opened.items()}
    lake.erase()
    run(lake)
    for name, table in opened.items():
        with pytest.raises(Exception, match=r"(?i)no such file|not found|does not exist"):
            table.to_pyarrow_table()
        table.update_incremental()
        newest = DeltaTable(f"{lake.lake}/{name}")
        assert table.version() == newest.version()
        assert sorted(table.file_uris()) == sorted(newest.file_uris())
        assert table.to_pyarrow_table().num_rows == newest.to_pyarrow_table().num_rows
        with pytest.raises(Exception, match=r"(?i)no such file|not found|invalid|version|does not exist"):
            DeltaTable(f"{lake.lake}/{name}", version=pinned[name]).to_pyarrow_table()


@pytest.mark.parametrize("when", [pytest.param("before", marks=LONG), "after"])
def test_killed_at_any_step_the_next_round_goes_on(
    lake: MarkedLake, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lake.others()
    lake.erase()
    dying = DyingCalls(monkeypatch, when, STEPS)
    crashes = 0
    for step in range(1, 1000):
        if not dying.kill(rounds(11, 5) * step, lambda: purge(lake.folder, lake_mirror(lake.folder, None))):
            break
        crashes += 1
        there = {
            tuple(row[name] for name in ("broker", "log_id", "physical_offset"))
            for row in lake.table("messages").to_pylist()
        }
        index = lake.table("message_index").to_pylist()
        assert {
            tuple(row[name] for name in ("broker", "log_id", "physical_offset")) for row in index
        } <= there
    assert crashes > 5
    monkeypatch.undo()
    run(lake)
    assert lake.found() == []
    assert_others(lake, before)


def test_a_checkpoint_that_another_writer_was_making_goes_with_the_next_round(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an older version, put when the log was cleaned, with the hint that names it."""
    folder = lake.lake / "message_index" / "_delta_log"
    TableLog(lake.table_folder("message_index")).checkpoint()
    (old,) = [
        path for path in folder.glob("*.checkpoint.parquet") if lake.marker.encode() in path.read_bytes()
    ][-1:]
    content, hint = old.read_bytes(), (folder / "_last_checkpoint").read_bytes()
    lake.erase()
    run(lake)
    assert not old.exists()
    old.write_bytes(content)
    (folder / "_last_checkpoint").write_bytes(hint)
    assert lake.found() != []
    newest = DeltaTable(f"{lake.lake}/message_index").version()
    assert TableLog(lake.table_folder("message_index")).version == newest
    assert run(lake).tables == []
    assert lake.found() == []
    assert TableLog(lake.table_folder("message_index")).version == newest
    assert DeltaTable(f"{lake.lake}/message_index").version() == newest
    assert Snapshot(lake.table_folder("message_index")).version == newest


def test_a_log_is_opened_while_its_checkpoint_is_replaced(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names were read, and the checkpoint is gone by then."""
    folder = lake.table_folder("messages")
    TableLog(folder).checkpoint()
    lake.erase()
    done = list[bool]()

    def listed(log: Folder) -> dict[int, list[str]]:
        found = checkpoints(log)
        if not done and log.uri == folder.child("_delta_log").uri:
            done.append(True)
            run(lake)
        return found

    monkeypatch.setattr("structured_streaming.commit.table_log.checkpoints", listed)
    assert TableLog(folder).version == DeltaTable(folder.uri).version()
    assert done


def test_what_a_log_says_of_removed_files_is_forgotten_too(tmp_path: Path) -> None:
    """Spark's OPTIMIZE states in a commit what the files held that it removes, and a checkpoint takes that over."""
    lake = MarkedLake(tmp_path)
    lake.write(2)
    folder = lake.lake / "message_index" / "_delta_log"
    actions = [json.loads(line) for path in folder.glob("*.json") for line in path.read_text().splitlines()]
    stated = {each["add"]["path"]: each["add"]["stats"] for each in actions if "add" in each}
    maintain(lake.location)
    last = max(folder.glob("*.json"))
    changed = []
    for action in map(json.loads, last.read_text().splitlines()):
        if "remove" in action:
            action["remove"]["stats"] = stated[action["remove"]["path"]]
        changed.append(json.dumps(action))
    last.write_text("\n".join(changed) + "\n")
    (folder / f".{last.name}.crc").write_bytes(b"Hadoop's, of what it was")
    lake.checkpoint()
    assert any(lake.marker.encode() in path.read_bytes() for path in folder.glob("*.checkpoint.parquet"))
    lake.remember()
    lake.erase()
    run(lake)
    assert lake.found() == []
    assert not (folder / f".{last.name}.crc").exists()
    lake.assert_whole()
    with EmbeddedEngine.open(lake.location) as engine:
        (row,) = engine.query("SELECT count(*) AS n FROM message_index").read_all().to_pylist()
    assert row["n"] == lake.table("message_index").num_rows
